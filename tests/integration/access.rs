//! Bearer tokens, rights, limits and the audit log, of servers in this process where their replies
//! alone count.

mod audit;
mod commands;
mod found;
mod groups;
mod leases;
mod limits;
mod reload;
mod rights;
mod sessions;
mod tenants;

use std::path::{Path, PathBuf};

use access_control::secret::SecretHash;
use fence_protocol::wire::session::SessionReply;
use fence_protocol::{Code, SessionId};
use fence_tests::api::{Api, Endpoint, Reply, encode};
use fence_tests::in_process::InProcess;
use fence_tests::key_file::text;
use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with an access file and an audit log.
pub(crate) struct Site {
    folder: TempDir,
}

impl Site {
    /// Principals: two that share a part of the names, one with another part, one who may look, one
    /// who administers.
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With more lines for the first.
    fn with(limits: &str) -> Self {
        let site = Self { folder: TempDir::new().unwrap() };
        site.write(&Self::file(limits));
        site
    }

    fn file(limits: &str) -> String {
        let entry = |name: &str, allow: &str, more: &str| {
            let hash = SecretHash::from_secret(&format!("secret-of-{name}"));
            format!("[principals.{name}]\ntokens = [\"{hash}\"]\nallow = [{allow}]\n{more}\n")
        };
        entry("team", "\"use team/*\"", limits)
            + &entry("rival", "\"use team/*\"", "")
            + &entry("other", "\"use other/*\"", "")
            + &entry("eye", "\"read *\"", "")
            + &entry(
                "ops",
                "\"read *\", \"revoke *\", \"block *\", \"floor *\", \"quarantine team/*\"",
                "",
            )
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("access.toml")
    }

    /// Replaces the file as an operator should: by renaming.
    fn write(&self, content: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(&new, self.path()).unwrap();
    }

    fn audit_path(&self) -> PathBuf {
        self.folder.path().join("audit.jsonl")
    }

    /// The lines of the audit log, without one that is being written.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.audit_path()).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn arm(&self, setup: Setup) -> Setup {
        let access = self.path();
        let audit = self.audit_path();
        setup.args(&["--access-file", text(&access), "--audit-log", text(&audit)])
    }

    async fn lock_server(&self) -> InProcess {
        self.arm(Setup::lock_server("memory:")).in_process().await
    }

    async fn guard(&self) -> InProcess {
        self.arm(Setup::fenced_store("memory:")).in_process().await
    }

    pub(crate) fn secret_file(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("secret-of-{name}\n")).unwrap();
        path
    }
}

/// Requests of one principal.
pub(crate) struct As {
    api: Api,
    bearer: String,
}

impl As {
    pub(crate) fn new(server: &impl Endpoint, name: &str) -> Self {
        Self { api: server.api(), bearer: format!("Bearer secret-of-{name}") }
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> Reply {
        let json = ("content-type", "application/json");
        let headers = [("authorization", self.bearer.as_str()), json];
        let count = if body.is_empty() { 1 } else { 2 };
        self.api.send(method, path, &headers[..count], body.to_owned()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, "").await
    }

    /// `true` if the metrics of the server have this line.
    async fn has_metric(&self, line: &str) -> bool {
        let metrics = self.get("/metrics").await;
        String::from_utf8_lossy(&metrics.body).lines().any(|other| other == line)
    }

    pub(crate) async fn lock(&self, lock: &str, verb: &str, body: &Value) -> Reply {
        let path = format!("/v1/locks/{}/{verb}", encode(lock));
        self.send(Method::POST, &path, &body.to_string()).await
    }

    /// `POST /v1/sessions`.
    async fn create(&self, body: &Value) -> Reply {
        self.send(Method::POST, "/v1/sessions", &body.to_string()).await
    }

    /// A new session.
    pub(crate) async fn begin(&self, ttl_ms: u64) -> SessionReply {
        self.create(&json!({"owner": "worker", "ttl_ms": ttl_ms})).await.expect(200).read()
    }

    pub(crate) async fn beat(&self, session: SessionId) -> Reply {
        self.send(Method::POST, &format!("/v1/sessions/{session}/heartbeat"), "").await
    }

    async fn end(&self, session: SessionId) -> Reply {
        self.send(Method::DELETE, &format!("/v1/sessions/{session}"), "").await
    }

    pub(crate) async fn acquire(&self, lock: &str) -> Reply {
        self.lock(lock, "acquire", &json!({"ttl_ms": 60_000})).await
    }
}

/// A lock server over a Redis that may be slow to reply.
fn on_redis(redis: &Redis) -> Setup {
    Setup::lock_server(&redis.url()).args(&["--store-timeout", "20s"])
}

fn exists(path: &Path) -> bool {
    path.exists()
}

/// Checks a 401 that says how to authenticate.
fn assert_unknown(reply: &Reply) {
    reply.problem(Code::Unauthorized);
    assert!(reply.header("www-authenticate").starts_with("Bearer"), "{reply:?}");
}
