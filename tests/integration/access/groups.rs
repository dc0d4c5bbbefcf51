//! Several locks in one request: each needs its right, each counts.

use fence_protocol::Code;
use fence_protocol::wire::lock_set::LeasesReply;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use http::Method;
use serde_json::{Value, json};

use super::{As, Site};

fn wish(locks: &[&str]) -> Value {
    let locks: Vec<Value> = locks.iter().map(|lock| json!({"lock": lock})).collect();
    json!({"ttl_ms": 60_000, "locks": locks})
}

impl As {
    async fn acquire_all(&self, body: &Value) -> fence_tests::api::Reply {
        self.send(Method::POST, "/v1/acquire", &body.to_string()).await
    }
}

/// One lock outside of the right is enough, wherever in the list it stands; nothing is taken, and
/// the refusal is written down.
#[tokio::test]
async fn every_lock_needs_its_right() {
    let site = Site::new();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let eye = As::new(&server, "eye");
    for (locks, other) in [
        (["other", "team/a", "team/b"], "other"),
        (["team/a", "team", "team/b"], "team"),
        (["team/a", "team/b", "teams/c"], "teams/c"),
    ] {
        let refused = team.acquire_all(&wish(&locks)).await;
        let problem = refused.problem(Code::Forbidden);
        assert!(problem.hint.contains(&format!("acquire {other}")), "{problem:?}");
        // The list of held locks is empty: not even the allowed ones were taken.
        assert_eq!(eye.get("/v1/locks").await.json()["locks"], json!([]));
    }
    eye.acquire_all(&wish(&["team/a"])).await.problem(Code::Forbidden);
    let line = site.audit().into_iter().rev().find(|line| line["status"] == 403).unwrap();
    assert_eq!((&line["principal"], &line["event"]), (&json!("eye"), &json!("refused")));
    let first = site.audit().into_iter().find(|line| line["status"] == 403).unwrap();
    assert_eq!(first["request"], "POST /v1/acquire");
    assert!(first["detail"].as_str().unwrap().contains("acquire other"), "{first}");
    let reply: LeasesReply =
        team.acquire_all(&wish(&["team/a", "team/b"])).await.expect(200).read();
    assert_eq!(reply.leases.len(), 2);
}

/// A request for several locks that waits keeps those that are free. The refusal of another caller
/// does not say which lease it waits for: that is of a lock which the caller may not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_that_is_kept_betrays_no_other() {
    let site = Site::new();
    let hash = access_control::secret::SecretHash::from_secret("secret-of-both");
    let allow = "allow = [\"use team/*\", \"use other/*\"]";
    let both = format!("[principals.both]\ntokens = [\"{hash}\"]\n{allow}\n");
    site.write(&(Site::file("") + &both));
    let server = site.arm(Setup::lock_server("memory:")).in_process().await;
    let held = As::new(&server, "other").acquire("other/secret").await.lease();
    let both = As::new(&server, "both");
    let mut body = wish(&["team/a", "other/secret"]);
    body["wait_ms"] = json!(30_000);
    let waiting = tokio::spawn(async move { both.acquire_all(&body).await });
    let team = As::new(&server, "team");
    until_true("the request waits", || async {
        team.get("/v1/locks/team%2Fa").await.json()["queue_length"] == 1
    })
    .await;
    let refused = team.acquire("team/a").await.problem(Code::LockHeld);
    assert!(refused.detail.contains("team/a is free, and kept for a request"), "{refused:?}");
    let text = serde_json::to_string(&refused).unwrap();
    assert!(!text.contains(&held.token.to_string()) && !text.contains("holder"), "{text}");
    waiting.abort();
}

/// A group for which there is no room takes none, and a refused one gives its room back.
#[tokio::test]
async fn every_lease_counts_and_refusals_do_not() {
    let site = Site::with("max-locks = 3\nmax-waiters = 1");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let busy = team.acquire("team/busy").await.lease();
    let problem = team.acquire_all(&wish(&["team/a", "team/b", "team/c"])).await;
    let problem = problem.problem(Code::LimitReached);
    assert!(problem.detail.contains("team: locks held: the limit is 3"), "{problem:?}");
    for _ in 0..3 {
        // The lock is held by its own principal; the room of all three is given back each time.
        team.acquire_all(&wish(&["team/a", "team/busy"])).await.problem(Code::LockHeld);
    }
    let mut body = wish(&["team/a", "team/b"]);
    body["lease_id"] = json!(busy.lease_id);
    let pair: LeasesReply = team.acquire_all(&body).await.expect(200).read();
    team.acquire("team/c").await.problem(Code::LimitReached);
    // The same request again is no third and fourth lease.
    team.acquire_all(&body).await.expect(200);
    for lease in &pair.leases {
        let held = json!({"lease_id": lease.lease_id});
        team.lock(lease.lock.as_str(), "release", &held).await.expect(200);
    }
    team.acquire_all(&wish(&["team/c", "team/d"])).await.expect(200);
}
