//! Certificates for one test: a CA, a server's and a client's, in a folder of their own.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

use crate::ports;
use crate::redis_server::Redis;

/// A CA with a server's certificate for `localhost` and `127.0.0.1`, and a client's.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificates {
    /// Makes new ones, which no other process trusts.
    pub fn new() -> Self {
        Self::for_names(&["localhost", "127.0.0.1"])
    }

    /// With other names for the server.
    pub fn for_names(names: &[&str]) -> Self {
        Self::until(names, 4000)
    }

    /// With a server's certificate that has ended long ago.
    pub fn expired() -> Self {
        Self::until(&["localhost", "127.0.0.1"], 2001)
    }

    /// Server and client certificates end with this year.
    ///
    /// # Panics
    /// If they cannot be made.
    fn until(names: &[&str], year: i32) -> Self {
        let made = Self { folder: TempDir::new().expect("a folder for certificates") };
        let mut params = CertificateParams::new(Vec::new()).expect("names");
        params.distinguished_name.push(DnType::CommonName, "the CA of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("a CA");
        made.write("ca.pem", &ca.pem());
        made.issue(&ca, "server", names, ExtendedKeyUsagePurpose::ServerAuth, year);
        made.issue(&ca, "client", &["lock-server"], ExtendedKeyUsagePurpose::ClientAuth, year);
        made
    }

    fn issue(
        &self,
        ca: &CertifiedIssuer<'_, KeyPair>,
        file: &str,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
        year: i32,
    ) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, file);
        // Redis shows its own certificate to its sentinels and replicas as well.
        params.extended_key_usages = vec![usage, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, ca).expect("a certificate");
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("a file");
    }

    /// `ca.pem`, `server.pem`, `server.key`, `client.pem` or `client.key`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path as a flag takes it.
    pub fn text(&self, name: &str) -> String {
        text(&self.file(name))
    }

    /// The settings of a redis-server that speaks TLS with them.
    pub fn redis(&self) -> [(&'static str, String); 3] {
        [
            ("tls-cert-file", self.text("server.pem")),
            ("tls-key-file", self.text("server.key")),
            ("tls-ca-cert-file", self.text("ca.pem")),
        ]
    }
}

/// A Redis that speaks TLS on a port of its own, beside the plain one for the test's own commands.
#[derive(Debug)]
pub struct TlsRedis {
    /// Redis that accepts TLS only.
    pub redis: Redis,
    /// Certificates that the server shows, and that a client needs.
    pub certificates: Certificates,
    port: u16,
}

impl TlsRedis {
    /// One that wants client certificates, which is the default of Redis.
    pub async fn start() -> Self {
        Self::with(Certificates::new(), &[]).await
    }

    /// One with these certificates and more settings.
    pub async fn with(certificates: Certificates, more: &[(&str, &str)]) -> Self {
        let port = ports::unused();
        let tls_port = port.to_string();
        let files = certificates.redis();
        let mut options = vec![("tls-port", tls_port.as_str())];
        options.extend(files.iter().map(|(name, value)| (*name, value.as_str())));
        options.extend(more);
        let redis = Redis::with(&options).await;
        Self { redis, certificates, port }
    }

    /// `rediss://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("rediss://{}", self.address())
    }

    /// `127.0.0.1:PORT`, where TLS is spoken.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The flags of a server that trusts it and shows a certificate.
    pub fn flags(&self) -> [String; 6] {
        let file = |name| self.certificates.text(name);
        [
            "--store-ca".to_owned(),
            file("ca.pem"),
            "--store-cert".to_owned(),
            file("client.pem"),
            "--store-key".to_owned(),
            file("client.key"),
        ]
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}
