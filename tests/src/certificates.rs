//! Certificates for one test: a CA, a server's and a client's, in a folder of their own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;

use crate::ports;
use crate::redis_server::Redis;

/// A CA with a server's certificate for `localhost` and `127.0.0.1`, and a client's.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
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
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn for_names(names: &[&str]) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("names");
        params.distinguished_name.push(DnType::CommonName, "the CA of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("a CA");
        let made = Self { folder: crate::folder::new(), ca };
        made.write("ca.pem", &made.ca.pem());
        made.issue("server", names);
        made.issue("client", &["lock-server"]);
        made
    }

    /// With a server's certificate that ended yesterday.
    pub fn expired() -> Self {
        let made = Self::new();
        made.issue_for("server", &["localhost", "127.0.0.1"], -1);
        made
    }

    /// Writes a certificate of the CA for these names, and its key, over those that `file` has. It
    /// ends in a year.
    pub fn issue(&self, file: &str, names: &[&str]) {
        self.issue_for(file, names, 365);
    }

    /// Writes one that ends in `days`, which may be negative. A name with `://`
    /// is a URI, and so is one with `URI:` before it.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn issue_for(&self, file: &str, names: &[&str], days: i64) {
        let is_uri = |name: &&str| name.contains("://") || name.starts_with("URI:");
        let (uris, names): (Vec<&str>, Vec<&str>) = names.iter().copied().partition(is_uri);
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names).expect("names");
        let uri = |uri: &str| {
            let bare = uri.strip_prefix("URI:").unwrap_or(uri);
            SanType::URI(Ia5String::try_from(bare).expect("a URI"))
        };
        params.subject_alt_names.extend(uris.into_iter().map(uri));
        params.distinguished_name.push(DnType::CommonName, file);
        // Redis shows its own certificate to its sentinels and replicas as well.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(1970, 1, 1) + in_days(days);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.ca).expect("a certificate");
        self.write(&format!("{file}.pem"), &certificate.pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    /// Writes a file beside the certificates, as an operator should: by renaming. Only its owner
    /// may read it.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        let new = self.folder.path().join("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::set_permissions(&new, Permissions::from_mode(0o600)).expect("its mode");
        std::fs::rename(&new, path).expect("a file");
    }

    /// The text of one of the files.
    ///
    /// # Panics
    /// If there is none.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).expect("a file")
    }

    /// The flags of a server that speaks TLS with the server's certificate.
    pub fn listener(&self) -> [String; 4] {
        let [certificate, key] = ["server.pem", "server.key"].map(|name| self.text(name));
        ["--tls-cert".to_owned(), certificate, "--tls-key".to_owned(), key]
    }

    /// A client that trusts the CA alone, and shows the certificate of this file if it is named.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn https(&self, client: Option<&str>) -> reqwest::ClientBuilder {
        service_kit::tls::install_crypto();
        let ca = reqwest::Certificate::from_pem(self.ca.pem().as_bytes()).expect("a CA");
        let builder = reqwest::Client::builder().no_proxy().tls_certs_only([ca]);
        let Some(file) = client else { return builder };
        let pem = self.read(&format!("{file}.key")) + &self.read(&format!("{file}.pem"));
        builder.identity(reqwest::Identity::from_pem(pem.as_bytes()).expect("a certificate"))
    }

    /// `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`, or another one that was
    /// issued.
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

/// The time that many days from now, from 1970 on.
fn in_days(days: i64) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let seconds = now.as_secs().saturating_add_signed(days * 24 * 60 * 60);
    Duration::from_secs(seconds)
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}
