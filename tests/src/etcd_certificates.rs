//! Certificates for one etcd and its clients, of an authority that only this test knows.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair,
};
use tempfile::TempDir;

use crate::key_file::text;

/// An authority with a certificate for the server and one for a client, as PEM files.
#[derive(Debug)]
pub struct EtcdCertificates {
    folder: TempDir,
}

impl Default for EtcdCertificates {
    fn default() -> Self {
        Self::new()
    }
}

impl EtcdCertificates {
    /// Fresh ones; two of them do not trust each other.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn new() -> Self {
        let folder = crate::folder::new();
        let mut params = CertificateParams::new(Vec::new()).expect("an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("an authority");
        let issuer = Issuer::new(params, key);
        let certificates = Self { folder };
        certificates.write("ca.pem", &authority.pem());
        // The gateway is a client of the server that it is a part of, with the server's
        // certificate.
        for name in ["server", "client"] {
            certificates.issue(name, &issuer);
        }
        certificates
    }

    fn issue(&self, name: &str, issuer: &Issuer<'_, KeyPair>) {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("a certificate");
        // etcd takes a common name for a user, and refuses it from its own gateway.
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, pem: &str) {
        std::fs::write(self.path(name), pem).expect("a file");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path of `ca.pem`, `server.pem`, `server.key`, `client.pem` or `client.key`.
    pub fn file(&self, name: &str) -> String {
        text(&self.path(name)).to_owned()
    }

    /// Content of one of the files.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn pem(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).expect("a PEM file")
    }
}
