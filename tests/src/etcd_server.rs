//! A real etcd for one test: one node, or several that elect a leader.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::etcd_certificates::EtcdCertificates;
use crate::ports;
use crate::process::{Process, command};
use crate::wait::{until, until_true};

mod cluster;
mod loss;
mod network;

pub use cluster::EtcdCluster;
pub use network::EtcdNetwork;

/// A node of its own: own ports, own folder, gone when dropped.
#[derive(Debug)]
pub struct Etcd {
    place: Place,
    folder: TempDir,
    /// Every node that the cluster began with, `name=http://peer,…`.
    members: String,
    /// Distinguishes its cluster from others at the same places; the cluster id is made of it.
    token: String,
    options: Vec<String>,
    is_tls: bool,
    client: reqwest::Client,
    process: Process,
}

/// Address of a node; known before the node is started, because each gets the list of all.
#[derive(Debug)]
struct Place {
    name: String,
    port: u16,
    peer_port: u16,
    /// Port at which the other nodes find it: its own, unless a proxy stands between them.
    known_port: u16,
}

impl Place {
    fn new(number: usize) -> Self {
        let port = ports::unused();
        let peer_port = ports::unused();
        Self { name: format!("n{number}"), port, peer_port, known_port: peer_port }
    }

    /// The URL that the other nodes know.
    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.known_port)
    }

    fn member(&self) -> String {
        format!("{}={}", self.name, self.peer_url())
    }
}

impl Etcd {
    /// One node.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// One node with other settings: `["--quota-backend-bytes=65536"]`.
    pub async fn with(options: &[&str]) -> Self {
        let place = Place::new(0);
        let members = place.member();
        let mut etcd = Self::spawn(place, members, options, None);
        etcd.ready().await;
        etcd
    }

    /// One node that speaks TLS, and wants a certificate of the same authority from its clients.
    pub async fn with_tls(certificates: &EtcdCertificates) -> Self {
        let options = [
            format!("--cert-file={}", certificates.file("server.pem")),
            format!("--key-file={}", certificates.file("server.key")),
            format!("--trusted-ca-file={}", certificates.file("ca.pem")),
            "--client-cert-auth".to_owned(),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let place = Place::new(0);
        let members = place.member();
        let mut etcd = Self::spawn(place, members, &options, Some(certificates));
        etcd.ready().await;
        etcd
    }

    /// Starts the process; nothing is known yet of how it goes.
    fn spawn(
        place: Place,
        members: String,
        options: &[&str],
        certificates: Option<&EtcdCertificates>,
    ) -> Self {
        // Not in memory: it reserves 128 MiB for its log.
        let folder = TempDir::new().expect("a folder for etcd");
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let token = TOKEN.to_owned();
        let process = launch(&place, scheme, &folder, &members, &token, &options);
        let client = client(certificates);
        let is_tls = certificates.is_some();
        Self { place, folder, members, token, options, is_tls, client, process }
    }

    fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.place.port)
    }

    /// `etcd://127.0.0.1:PORT`, or `etcds://…`.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.is_tls { "etcds" } else { "etcd" }, self.address())
    }

    /// The process, to stop and continue it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same ports and folder; nothing is known yet of how it goes.
    pub fn launch_again(&mut self) {
        self.process.kill();
        let folder = &self.folder;
        let members = &self.members;
        self.process =
            launch(&self.place, self.scheme(), folder, members, &self.token, &self.options);
    }

    /// Starts it again on the same ports and folder, and waits until it answers.
    pub async fn start_again(&mut self) {
        self.launch_again();
        self.ready().await;
    }

    /// Asks its gateway: `("/v3/kv/range", {…})`.
    ///
    /// # Errors
    /// If no answer came, or another status than 200; with the text.
    pub async fn try_call(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.call_as(None, path, body).await
    }

    /// Asks its gateway, with the token of a user.
    async fn call_as(&self, auth: Option<&str>, path: &str, body: &Value) -> Result<Value, String> {
        let url = format!("{}://{}{path}", self.scheme(), self.address());
        let mut request = self.client.post(url).body(body.to_string());
        if let Some(token) = auth {
            request = request.header("authorization", token);
        }
        let reply = request.send().await.map_err(|error| format!("{error:?}"))?;
        let status = reply.status();
        let text = reply.text().await.map_err(|error| format!("{error:?}"))?;
        if !status.is_success() {
            return Err(format!("{status}: {text}"));
        }
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
    }

    /// Asks its gateway, once more where etcd took too long for what may be repeated.
    ///
    /// # Panics
    /// If it refuses or does not answer.
    pub async fn call(&self, path: &str, body: &Value) -> Value {
        until("an answer of etcd", || async {
            match self.try_call(path, body).await {
                Ok(reply) => Some(reply),
                Err(error) if REPEATABLE.contains(&path) && is_late(&error) => None,
                Err(error) => panic!("{path} {body}: {error}"),
            }
        })
        .await
    }

    /// The keys that begin with `prefix` and their values, in the order of the keys.
    pub async fn range(&self, prefix: &str) -> Vec<(String, String)> {
        let reply = self.call("/v3/kv/range", &range(prefix)).await;
        let rows = reply["kvs"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| (decoded(&row["key"]), decoded(&row["value"]))).collect()
    }

    /// Writes a key behind everybody's back.
    pub async fn put(&self, key: &str, value: &str) {
        let body = json!({"key": BASE64.encode(key), "value": BASE64.encode(value)});
        self.call("/v3/kv/put", &body).await;
    }

    /// Revision of the last change in its log.
    ///
    /// # Panics
    /// If it does not say so.
    pub async fn revision(&self) -> u64 {
        let reply = self.call("/v3/maintenance/status", &json!({})).await;
        let text = reply["header"]["revision"].as_str().expect("a revision");
        text.parse().expect("a number")
    }

    /// Length of its log, of which revisions are a part.
    ///
    /// # Panics
    /// If it does not say so.
    pub async fn log_length(&self) -> u64 {
        let reply = self.call("/v3/maintenance/status", &json!({})).await;
        let text = reply["raftIndex"].as_str().expect("an index");
        text.parse().expect("a number")
    }

    /// Number of etcd leases that live.
    pub async fn lease_count(&self) -> usize {
        let reply = self.call("/v3/lease/leases", &json!({})).await;
        reply["leases"].as_array().map_or(0, Vec::len)
    }

    /// From now on everybody must be a user: `root` with the password `root`, who may do
    /// everything, and `user`, who may read and write the keys that begin with `prefix`.
    pub async fn enable_auth(&self, user: &str, password: &str, prefix: &str) {
        let permission = json!({"permType": "READWRITE", "key": BASE64.encode(prefix),
                                "range_end": BASE64.encode(after(prefix))});
        for (path, body) in [
            ("user/add", json!({"name": "root", "password": "root"})),
            ("user/grant", json!({"user": "root", "role": "root"})),
            ("user/add", json!({"name": user, "password": password})),
            ("role/add", json!({"name": "fencepost"})),
            ("role/grant", json!({"name": "fencepost", "perm": permission})),
            ("user/grant", json!({"user": user, "role": "fencepost"})),
            ("auth/enable", json!({})),
        ] {
            let path = if path == "auth/enable" { path.to_owned() } else { format!("auth/{path}") };
            self.call(&format!("/v3/{path}"), &body).await;
        }
    }

    /// Asks its gateway as `root`, after [`enable_auth`](Self::enable_auth).
    ///
    /// # Panics
    /// If it refuses or does not answer.
    pub async fn call_as_root(&self, path: &str, body: &Value) -> Value {
        let ask = json!({"name": "root", "password": "root"});
        let token = self.call("/v3/auth/authenticate", &ask).await["token"].clone();
        let outcome = self.call_as(token.as_str(), path, body).await;
        outcome.unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// Waits until it serves: there is a leader, and it follows.
    pub async fn ready(&mut self) {
        until("etcd to serve", || async { self.health().await.then_some(()) }).await;
        assert!(self.process.is_running(), "another etcd has port {}", self.place.port);
    }

    /// `true` if it runs and does not stand still.
    fn is_awake(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.pid()));
        let stat = stat.unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.starts_with(['T', 'Z']) && !rest.is_empty())
    }

    /// The id that the cluster knows it by; none where it does not answer.
    async fn member_id(&self) -> Option<String> {
        if !self.is_awake() {
            return None;
        }
        let status = self.try_call("/v3/maintenance/status", &json!({})).await.ok()?;
        Some(status["header"]["member_id"].as_str()?.to_owned())
    }

    /// `true` if it says that it serves.
    pub async fn health(&self) -> bool {
        let url = format!("{}://{}/health", self.scheme(), self.address());
        let Ok(reply) = self.client.get(url).send().await else { return false };
        reply.text().await.is_ok_and(|text| text.contains("\"true\""))
    }

    /// Fills it until it refuses to grow: the alarm NOSPACE. It must have a small quota.
    pub async fn fill(&self) {
        let value = "x".repeat(64 * 1024);
        until_true("etcd to be full", || async {
            let body = json!({"key": BASE64.encode("ballast"), "value": BASE64.encode(&value)});
            let full = self.try_call("/v3/kv/put", &body).await;
            full.is_err_and(|text| text.contains("space exceeded"))
        })
        .await;
    }
}

/// A command that changes nothing, or the same when it is asked for again.
const REPEATABLE: [&str; 4] =
    ["/v3/kv/range", "/v3/kv/put", "/v3/maintenance/status", "/v3/lease/leases"];

/// `true` if etcd or its disk was too slow, or its leader changed.
fn is_late(error: &str) -> bool {
    error.starts_with("503 ") || error.contains("TimedOut")
}

/// Token of every cluster of the tests: their ports distinguish them.
const TOKEN: &str = "fencepost-tests";

fn launch(
    place: &Place,
    scheme: &str,
    folder: &TempDir,
    members: &str,
    token: &str,
    options: &[String],
) -> Process {
    let own = format!("{scheme}://127.0.0.1:{}", place.port);
    let listen = format!("http://127.0.0.1:{}", place.peer_port);
    let mut command = command(crate::engines::etcd());
    command.current_dir(folder.path());
    command.args(["--name", &place.name, "--data-dir", "data", "--initial-cluster-token", token]);
    command.args(["--listen-client-urls", &own, "--advertise-client-urls", &own]);
    command.args(["--listen-peer-urls", &listen]);
    command.args(["--initial-advertise-peer-urls", &place.peer_url()]);
    command.args(["--initial-cluster", members, "--logger", "zap"]).args(options);
    Process::spawn("etcd", command)
}

fn client(certificates: Option<&EtcdCertificates>) -> reqwest::Client {
    service_kit::tls::install_crypto();
    let mut builder =
        reqwest::Client::builder().timeout(crate::wait::scaled(std::time::Duration::from_secs(10)));
    if let Some(own) = certificates {
        let authority = reqwest::Certificate::from_pem(&own.pem("ca.pem")).expect("an authority");
        let both = [own.pem("client.pem"), own.pem("client.key")].concat();
        let identity = reqwest::Identity::from_pem(&both).expect("a certificate with its key");
        builder = builder.tls_certs_only([authority]).identity(identity);
    }
    builder.build().expect("a client")
}

/// A range over everything that begins with `prefix`.
fn range(prefix: &str) -> Value {
    json!({"key": BASE64.encode(prefix), "range_end": BASE64.encode(after(prefix))})
}

/// First key after everything that begins with `prefix`.
fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().expect("a prefix") += 1;
    end
}

fn decoded(value: &Value) -> String {
    let bytes = BASE64.decode(value.as_str().unwrap_or_default()).expect("base64");
    String::from_utf8_lossy(&bytes).into_owned()
}
