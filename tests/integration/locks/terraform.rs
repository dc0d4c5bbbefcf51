//! The `http` backend of Terraform and OpenTofu: its requests, as the programs send them.

mod meanwhile;

use std::sync::Arc;

use access_control::secret::SecretHash;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fence_protocol::Code;
use fence_protocol::terraform::lease_of_lock_id;
use fence_tests::api::{Api, Reply};
use fence_tests::in_process::InProcess;
use fence_tests::key_file::{KeyFile, lease_id, text};
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::wait::{until, until_true};
use http::Method;
use lock_server::store::LockStore;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::guards::with_guards;

const SEALED: &[&str] = &["--seal", "states/=required"];
const JSON: (&str, &str) = ("content-type", "application/json");

/// A lock server with a guard in which a state's key is its lock.
struct Backend {
    _folders: [DataDir; 2],
    server: InProcess,
    guard: Server,
}

impl Backend {
    async fn start(args: &[&str]) -> Self {
        Self::over(args, |store| store).await
    }

    /// `wrap` makes of the lock server's store the one that it uses.
    async fn over(
        args: &[&str],
        wrap: impl FnOnce(Arc<dyn LockStore>) -> Arc<dyn LockStore>,
    ) -> Self {
        let folders = [DataDir::new(), DataDir::new()];
        let keys = KeyFile::new("k1", 7);
        let rule = "states/{name}=states/{name},unfenced-reads";
        let guard =
            Setup::fenced_store(&folders[0].store()).keys(&keys.path()).args(&["--rule", rule]);
        let guard = guard.start().await;
        let server = with_guards(&folders[1].store(), &[&guard.base]).keys(&keys.path()).args(args);
        Self { server: server.in_process_over(wrap).await, guard, _folders: folders }
    }

    /// A run of the program, with an id for its lock.
    fn run(&self, who: &str) -> Run {
        let api = [self.server.api(), Api::new(&self.guard.base)];
        Run { id: lease_id().to_string(), who: who.to_owned(), api }
    }
}

/// One `terraform apply`.
struct Run {
    id: String,
    who: String,
    api: [Api; 2],
}

impl Run {
    fn info(&self) -> Value {
        json!({
            "ID": self.id, "Operation": "OperationTypeApply", "Info": "", "Who": self.who,
            "Version": "1.9.0", "Created": "2026-11-23T20:00:00.000000000Z", "Path": "",
        })
    }

    async fn change(&self, method: &str, query: &str, body: &str) -> Reply {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let path = format!("/v1/terraform/states/prod{query}");
        self.api[0].send(method, &path, &[JSON], body.to_owned()).await
    }

    async fn lock(&self) -> Reply {
        self.change("LOCK", "", &self.info().to_string()).await
    }

    async fn locked(&self) {
        self.lock().await.expect(200);
    }

    /// The lock's information as others see it: with the lease instead of the id.
    fn shown(&self) -> Value {
        let mut info = self.info();
        info["ID"] = lease_of_lock_id(&self.id).unwrap().to_string().into();
        info
    }

    async fn unlock(&self) -> Reply {
        self.change("UNLOCK", "", &self.info().to_string()).await
    }

    /// `terraform force-unlock` knows no lock information.
    async fn force_unlock(&self) -> Reply {
        self.change("UNLOCK", "", "").await
    }

    /// `tofu force-unlock` sends the id that its user gave.
    async fn force_unlock_of(&self, id: &Value) -> Reply {
        let body = json!({"ID": id, "Who": "", "Created": "0001-01-01T00:00:00Z"});
        self.change("UNLOCK", "", &body.to_string()).await
    }

    async fn push(&self, state: &str) -> Reply {
        let path = format!("/v1/terraform-states/states/prod?ID={}", self.id);
        self.api[1].send(Method::POST, &path, &[JSON], state.to_owned()).await
    }

    async fn pull(&self) -> Reply {
        self.api[1].get("/v1/terraform-states/states/prod").await
    }
}

#[tokio::test]
async fn a_state_is_pushed_under_the_lock_of_its_run() {
    let backend = Backend::start(SEALED).await;
    let run = backend.run("ann@desk");
    run.pull().await.problem(Code::NotFound);
    run.locked().await;
    // The reply was lost: the program sends the request again.
    run.locked().await;
    run.push("{\"serial\":1}").await.expect(201);
    assert_eq!(run.pull().await.expect(200).body, "{\"serial\":1}");

    let other = backend.run("bob@desk");
    let held = other.lock().await.expect(423);
    assert_eq!(held.json(), run.shown(), "it is shown who holds the lock");
    other.push("{}").await.problem(Code::StaleToken);
    run.unlock().await.expect(200);
    run.unlock().await.expect(200);
    other.locked().await;
    other.push("{\"serial\":2}").await.expect(204);
    // The run before is over, whatever it still sends.
    run.push("{}").await.problem(Code::StaleToken);
    assert_eq!(other.pull().await.body, "{\"serial\":2}");
}

#[tokio::test]
async fn a_lock_that_passed_on_takes_no_state_of_the_run_before() {
    let backend = Backend::start(SEALED).await;
    let slow = backend.run("slow");
    slow.change("LOCK", "?ttl_ms=3000", &slow.info().to_string()).await.expect(200);
    // An id whose guard was not sealed in time is used up.
    let next = until("the end of a lease", || async {
        let next = backend.run("next");
        (next.lock().await.status == 200).then_some(next)
    })
    .await;
    // Nothing was written by the next one yet.
    slow.push("{\"of\":\"slow\"}").await.problem(Code::StaleToken);
    slow.unlock().await.problem(Code::LeaseLost);
    next.push("{\"of\":\"next\"}").await.expect(201);
}

#[tokio::test]
async fn a_lease_that_ended_while_the_lock_stayed_free_harms_nothing() {
    let backend = Backend::start(SEALED).await;
    let run = backend.run("ann");
    run.change("PUT", "?ttl_ms=3000", &run.info().to_string()).await.expect(200);
    let locks = backend.server.locks();
    until_true("the end of a lease", || async { locks.show("states/prod").await.holder.is_none() })
        .await;
    run.push("{}").await.expect(201);
    run.change("DELETE", "", &run.info().to_string()).await.expect(200);
}

#[tokio::test]
async fn a_forced_unlock_shuts_the_holder_out_first() {
    let backend = Backend::start(SEALED).await;
    let hung = backend.run("hung");
    let ops = backend.run("ops");
    hung.locked().await;
    hung.push("{\"serial\":1}").await.expect(201);
    ops.force_unlock().await.expect(200);
    hung.push("{\"serial\":2}").await.problem(Code::StaleToken);
    let refused = backend.guard.guard().fence("states/prod").await;
    let [refusal] = &refused.last_refusals[..] else { panic!("not listed: {refused:?}") };
    assert_eq!(refusal.operation, "POST state states/prod");
    assert_eq!(refusal.lease_id, lease_of_lock_id(&hung.id).unwrap());
    assert_eq!((Some(refusal.mark), refused.refused_total), (refused.mark, 1));
    hung.unlock().await.problem(Code::LeaseLost);
    assert_eq!(ops.pull().await.body, "{\"serial\":1}");
    ops.force_unlock().await.problem(Code::NotFound);
    ops.locked().await;
    let shown = backend.run("bob").lock().await.expect(423).json()["ID"].clone();
    ops.push("{\"serial\":2}").await.expect(204);
    hung.force_unlock_of(&shown).await.expect(200);
    ops.push("{\"serial\":3}").await.problem(Code::StaleToken);
}

/// Terraform shows success and nothing of the reply.
#[tokio::test]
async fn a_forced_unlock_that_cannot_shut_the_holder_out_changes_nothing() {
    let mut backend = Backend::start(SEALED).await;
    let run = backend.run("ann");
    run.locked().await;
    backend.guard.process.kill();
    run.force_unlock().await.problem(Code::GuardUnsealed);
    assert!(backend.server.locks().show("states/prod").await.holder.is_some());
}

/// Lease ids are shown to others, and open nothing.
#[tokio::test]
async fn a_lease_id_is_no_lock_id() {
    let backend = Backend::start(SEALED).await;
    let run = backend.run("ann");
    run.locked().await;
    let shown = backend.run("bob").lock().await.expect(423).json()["ID"].clone();
    let thief = Run { id: shown.as_str().unwrap().to_owned(), ..backend.run("thief") };
    thief.push("{}").await.problem(Code::StaleToken);
    // The lease of another client, on a key that has nothing to do with Terraform.
    let lease = backend.server.locks().grant("states/plain", 60_000).await;
    let path = format!("/v1/terraform-states/states/plain?ID={}", lease.lease_id);
    run.api[1].send(Method::POST, &path, &[JSON], "{}").await.problem(Code::StaleToken);
    run.push("{}").await.expect(201);
}

#[tokio::test]
async fn a_lock_that_no_guard_would_know_of_is_refused_at_once() {
    let backend = Backend::start(&[]).await;
    let run = backend.run("ann");
    let problem = run.lock().await.problem(Code::InvalidRequest);
    assert!(problem.hint.contains("--seal 'states/prod=required'"), "{problem}");
    run.push("{}").await.problem(Code::StaleToken);
    let plain = "/v1/terraform-states/states/prod";
    let unlocked = run.api[1].send(Method::POST, plain, &[JSON], "{}").await;
    unlocked.problem(Code::TokenRequired);
}

#[tokio::test]
async fn what_is_no_lock_information_is_refused() {
    let backend = Backend::start(SEALED).await;
    let run = backend.run("ann");
    for body in ["", "{}", "[1]", "nonsense", "{\"ID\":7}", "{\"ID\":\"x\"}"] {
        run.change("LOCK", "", body).await.problem(Code::InvalidRequest);
    }
    for body in ["{}", "[1]", "{\"ID\":\"x\"}"] {
        run.change("UNLOCK", "", body).await.problem(Code::InvalidRequest);
    }
    run.change("LOCK", "?ttl=1", &run.info().to_string()).await.problem(Code::InvalidRequest);
    let reply = run.change("PATCH", "", "{}").await;
    assert_eq!(reply.header("allow"), "LOCK, POST, PUT, UNLOCK, DELETE");
    reply.problem(Code::MethodNotAllowed);
    // Refused when a state is set up, and not at its first push.
    let path = "/v1/terraform-states/states/prod?team=a";
    run.api[1].get(path).await.problem(Code::InvalidRequest);
    let long = json!({"ID": run.id, "Info": "x".repeat(5_000)}).to_string();
    run.change("LOCK", "", &long).await.problem(Code::InvalidRequest);
    for body in [json!({"ID": run.id, "Who": 7}), json!({"ID": run.id, "Created": "now"})] {
        run.change("LOCK", "", &body.to_string()).await.problem(Code::InvalidRequest);
    }
    run.locked().await;
    let good = format!("?ID={}", run.id);
    let twice = format!("{good}&ID={}", run.id);
    let more = format!("{good}&force=true");
    for query in ["?ID=", "?ID=x", "?id=x", "?force=true", &twice, &more] {
        let path = format!("/v1/terraform-states/states/prod{query}");
        let reply = run.api[1].send(Method::POST, &path, &[JSON], "{}").await;
        reply.problem(Code::InvalidRequest);
    }
    let path = format!("/v1/terraform-states/states/prod{good}");
    let token = backend.server.locks().grant("states/other", 60_000).await.fencing_token;
    let both = [JSON, ("fencing-token", token.as_str())];
    run.api[1].send(Method::POST, &path, &both, "{}").await.problem(Code::InvalidRequest);
    run.pull().await.problem(Code::NotFound);
}

/// `lock_method = "POST"`, `update_method = "PUT"`.
#[tokio::test]
async fn other_methods_that_people_set_do_the_same() {
    let backend = Backend::start(SEALED).await;
    let run = backend.run("ann");
    run.change("POST", "", &run.info().to_string()).await.expect(200);
    let path = format!("/v1/terraform-states/states/prod?ID={}", run.id);
    let pushed = run.api[1].send(Method::PUT, &path, &[JSON], "{\"serial\":1}").await;
    assert!(matches!(pushed.status, 201 | 204), "{pushed:?}");
    assert_eq!(run.pull().await.expect(200).body.as_ref(), b"{\"serial\":1}");
    run.change("DELETE", "", &run.info().to_string()).await.expect(200);
}

/// The lock of another kind of client has no lock information.
#[tokio::test]
async fn the_holder_may_be_any_client() {
    let backend = Backend::start(SEALED).await;
    let locks = backend.server.locks();
    for metadata in [json!(7), json!({"Created": "now"}), json!({"Who": {"a": 1}})] {
        let body = json!({"owner": "job", "metadata": metadata});
        let lease = locks.acquire("states/prod", body).await.lease();
        let held = backend.run("ann").lock().await.expect(423).json();
        assert_eq!((&held["ID"], &held["Who"]), (&json!(lease.lease_id), &json!("job")));
        assert!(held.get("Created").is_none(), "Terraform cannot read it: {held}");
        locks.release("states/prod", lease.lease_id).await.expect(200);
    }
}

/// No lease holds the lock, and it is not free either.
#[tokio::test]
async fn a_delayed_lock_has_information_that_terraform_can_read() {
    let backend = Backend::start(&[SEALED, &["--lock-delay", "states/=60s"]].concat()).await;
    let run = backend.run("ann");
    run.change("LOCK", "?ttl_ms=3000", &run.info().to_string()).await.expect(200);
    let locks = backend.server.locks();
    until_true("the end of a lease", || async { locks.show("states/prod").await.holder.is_none() })
        .await;
    let held = backend.run("bob").lock().await.expect(423).json();
    assert_eq!(held["ID"], "none");
    assert!(held["Info"].as_str().unwrap().contains("states/prod"), "{held}");
}

/// The programs know HTTP's Basic authentication only: the password is the bearer token.
#[tokio::test]
async fn rights_are_those_of_the_password() {
    let folder = TempDir::new().unwrap();
    let entry = |name: &str, allow: &str| {
        let hash = SecretHash::from_secret(&format!("secret-of-{name}"));
        format!("[principals.{name}]\ntokens = [\"{hash}\"]\nallow = [{allow}]\n")
    };
    let file = folder.path().join("access.toml");
    let principals = entry("ann", "\"use states/*\"")
        + &entry("bob", "\"use states/*\"")
        + &entry("ops", "\"use states/*\", \"revoke *\"");
    std::fs::write(&file, principals).unwrap();
    let audit = folder.path().join("audit.jsonl");
    let paths = ["--access-file", text(&file), "--audit-log", text(&audit)];
    let args = [SEALED, &paths].concat();
    let backend = Backend::start(&args).await;
    let run = backend.run("ann");
    let change = async |method: &str, name: &str, body: String| {
        let credentials = STANDARD.encode(format!("terraform:secret-of-{name}"));
        let basic = format!("Basic {credentials}");
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let headers = [JSON, ("authorization", basic.as_str())];
        run.api[0].send(method, "/v1/terraform/states/prod", &headers, body).await
    };
    let info = run.info().to_string();
    run.lock().await.problem(Code::Unauthorized);
    change("LOCK", "stranger", info.clone()).await.problem(Code::Unauthorized);
    change("LOCK", "ann", info.clone()).await.expect(200);
    change("UNLOCK", "ann", String::new()).await.problem(Code::Forbidden);
    // The id of her lock, and the lease that a refused run is shown, unlock it for no other.
    change("UNLOCK", "bob", info.clone()).await.problem(Code::Forbidden);
    change("LOCK", "bob", info).await.problem(Code::LeaseIdConflict);
    let held = change("LOCK", "bob", backend.run("bob").info().to_string()).await.expect(423);
    let released = json!({"lease_id": held.json()["ID"]}).to_string();
    let bearer = [JSON, ("authorization", "Bearer secret-of-bob")];
    let path = "/v1/locks/states/prod/release";
    run.api[0].send(Method::POST, path, &bearer, released).await.problem(Code::Forbidden);
    change("UNLOCK", "ops", String::new()).await.expect(200);
    let lines = std::fs::read_to_string(&audit).unwrap();
    let columns = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        ["event", "phase", "principal", "verb"]
            .map(|name| line[name].as_str().unwrap_or("-").to_owned())
            .join(" ")
    };
    let found: Vec<String> = lines.lines().map(columns).collect();
    assert_eq!(
        found,
        [
            "refused - - acquire",
            "refused - - acquire",
            "refused - ann acquire",
            "refused - bob acquire",
            "refused - bob acquire",
            "admin asked ops revoke",
            "admin answered ops revoke",
        ]
    );
    assert!(lines.contains("force-unlock"), "{lines}");
    std::fs::rename(&audit, folder.path().join("old")).unwrap();
    std::fs::create_dir(&audit).unwrap();
    let again = Run { id: lease_id().to_string(), ..backend.run("ann") };
    change("LOCK", "ann", again.info().to_string()).await.expect(200);
    change("UNLOCK", "ops", String::new()).await.problem(Code::StoreUnavailable);
    change("UNLOCK", "ann", again.info().to_string()).await.expect(200);
}
