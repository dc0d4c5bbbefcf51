//! Whose a lease is.

use fence_protocol::wire::lock::{EndReason, LeaseReply};
use fence_protocol::{Code, LeaseId};
use fence_tests::api::Reply;
use fence_tests::key_file::lease_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use serde_json::{Value, json};

use super::{As, Site, on_redis};

const LOCK: &str = "team/held";

/// A site with one more principal, which may use and revoke the locks of `team`.
fn site() -> Site {
    let site = Site::new();
    let hash = access_control::secret::SecretHash::from_secret("secret-of-lead");
    let lead = "allow = [\"use team/*\", \"revoke team/*\"]";
    site.write(&format!("{}[principals.lead]\ntokens = [\"{hash}\"]\n{lead}\n", Site::file("")));
    site
}

fn body(lease: &LeaseReply) -> Value {
    json!({"lease_id": lease.lease_id})
}

/// A claimed owner, with the lease or an incarnation that differs from the holder's.
fn takeovers(lease: &LeaseReply) -> [Value; 2] {
    let life = json!({"owner": "worker", "ttl_ms": 60_000, "incarnation": "boot 2"});
    [("takeover_of", json!(lease.lease_id)), ("takeover", json!(true))].map(|(member, value)| {
        let mut life = life.clone();
        life[member] = value;
        life
    })
}

async fn held(team: &As) -> LeaseReply {
    let life = json!({"owner": "worker", "ttl_ms": 60_000, "incarnation": "boot 1"});
    team.lock(LOCK, "acquire", &life).await.lease()
}

/// Refused without a word of whose it is, and without a credential.
fn assert_foreign(reply: &Reply, lease: LeaseId) {
    let problem = reply.problem(Code::Forbidden);
    assert!(problem.detail.contains("is another principal's"), "{problem:?}");
    assert!(problem.hint.contains("\"revoke team/held\""), "{problem:?}");
    let text = String::from_utf8_lossy(&reply.body).replace("team/held", "");
    assert!(!text.contains("team") && !text.contains("fencing"), "{text}");
    assert!(!text.contains(&lease.to_string()), "GET shows it to those who may read: {text}");
}

/// Everything that another principal with rights on the very same lock can try with a lease.
async fn meddle(rival: &As, lease: &LeaseReply) {
    let shown = rival.get("/v1/locks/team%2Fheld").await.expect(200).json();
    assert_eq!(shown["holder"]["lease_id"], lease.lease_id.to_string());
    for verb in ["renew", "release"] {
        assert_foreign(&rival.lock(LOCK, verb, &body(lease)).await, lease.lease_id);
    }
    for takeover in takeovers(lease) {
        assert_foreign(&rival.lock(LOCK, "acquire", &takeover).await, lease.lease_id);
    }
    let retry = json!({"owner": "worker", "ttl_ms": 60_000, "lease_id": lease.lease_id});
    rival.lock(LOCK, "acquire", &retry).await.problem(Code::LeaseIdConflict);
    let shown = rival.get("/v1/locks/team%2Fheld").await.expect(200).json();
    let holder = &shown["holder"];
    assert_eq!(holder["lease_id"], lease.lease_id.to_string(), "nothing was changed");
    assert!(holder.get("principal").is_none(), "{holder}");
}

async fn kept(team: &As, lease: &LeaseReply) {
    let renewed = team.lock(LOCK, "renew", &body(lease)).await.lease();
    assert_eq!(renewed.token, lease.token);
}

#[tokio::test]
async fn only_its_principal_uses_a_lease() {
    let site = site();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let rival = As::new(&server, "rival");
    let lease = held(&team).await;
    meddle(&rival, &lease).await;
    kept(&team, &lease).await;
    // With a wait time, a takeover by name waits: it is no earlier life of the holder.
    let mut patient = takeovers(&lease)[1].clone();
    patient["wait_ms"] = json!(20);
    rival.lock(LOCK, "acquire", &patient).await.problem(Code::LockHeld);
    kept(&team, &lease).await;
    let own = takeovers(&lease)[1].clone();
    let heir = team.lock(LOCK, "acquire", &own).await.lease();
    team.lock(LOCK, "release", &body(&heir)).await.expect(200);
    rival.acquire(LOCK).await.lease();
    let refused: Vec<Value> =
        site.audit().into_iter().filter(|line| line["principal"] == "rival").collect();
    assert!(refused.iter().all(|line| line["event"] == "refused"), "{refused:?}");
    assert_eq!(refused.len(), 4, "renew, release and two takeovers: {refused:?}");
}

/// Lines of the audit log that `lead` caused, and the leases that they name.
fn acts(site: &Site) -> Vec<(String, Value)> {
    let lines = site.audit().into_iter().filter(|line| line["principal"] == "lead");
    let act = |line: Value| {
        let words = ["event", "phase", "verb", "request"];
        let words = words.map(|word| line[word].as_str().unwrap_or("-").to_owned());
        (words.join(" "), line["notes"]["lease_id"].clone())
    };
    lines.map(act).collect()
}

#[tokio::test]
async fn a_lease_of_another_is_an_act_of_administration_for_those_who_may_revoke() {
    let site = site();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let lead = As::new(&server, "lead");
    let mut expected: Vec<(String, Value)> = Vec::new();
    let mut act = |verb: &str, lease: &LeaseReply| {
        let request = format!("revoke POST /v1/locks/team%2Fheld/{verb}");
        expected.push((format!("admin asked {request}"), Value::Null));
        expected.push((format!("admin answered {request}"), json!(lease.lease_id)));
    };
    let lease = held(&team).await;
    assert_eq!(lead.lock(LOCK, "renew", &body(&lease)).await.lease().token, lease.token);
    act("renew", &lease);
    kept(&team, &lease).await;
    lead.lock(LOCK, "release", &body(&lease)).await.expect(200);
    act("release", &lease);
    for at in 0..2 {
        let lease = held(&team).await;
        let takeover = takeovers(&lease)[at].clone();
        let heir = lead.lock(LOCK, "acquire", &takeover).await.lease();
        act("acquire", &lease);
        let lost = team.lock(LOCK, "renew", &body(&lease)).await.problem(Code::LeaseLost);
        assert_eq!(lost.extension("reason"), Some(EndReason::Superseded));
        let foreign = team.lock(LOCK, "release", &body(&heir)).await;
        foreign.problem(Code::Forbidden);
        // Its own leases are no administration.
        lead.lock(LOCK, "release", &body(&heir)).await.expect(200);
    }
    assert_eq!(acts(&site), expected);
}

#[tokio::test]
async fn what_cannot_be_written_down_is_done_to_no_lease_of_another() {
    let site = site();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let lead = As::new(&server, "lead");
    let lease = held(&team).await;
    std::fs::remove_file(site.audit_path()).unwrap();
    std::fs::create_dir(site.audit_path()).unwrap();
    for verb in ["renew", "release"] {
        lead.lock(LOCK, verb, &body(&lease)).await.problem(Code::StoreUnavailable);
    }
    for takeover in takeovers(&lease) {
        lead.lock(LOCK, "acquire", &takeover).await.problem(Code::StoreUnavailable);
    }
    kept(&team, &lease).await;
}

/// An administrator's own limit counts no lease of another.
#[tokio::test]
async fn a_renewed_lease_of_another_does_not_count() {
    let site = site();
    let limited = std::fs::read_to_string(site.path()).unwrap() + "max-locks = 1\n";
    site.write(&limited);
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let lead = As::new(&server, "lead");
    let lease = held(&team).await;
    lead.lock(LOCK, "renew", &body(&lease)).await.lease();
    lead.acquire("team/own").await.lease();
    lead.acquire("team/more").await.problem(Code::LimitReached);
}

/// A waiting request has an id too, which the lock shows.
#[tokio::test]
async fn only_its_principal_takes_a_waiter_out() {
    let site = site();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let rival = As::new(&server, "rival");
    let lease = rival.acquire(LOCK).await.lease();
    let waiter = lease_id();
    let ask = json!({"ttl_ms": 60_000, "wait_ms": 60_000, "lease_id": waiter});
    let waiting = tokio::spawn(async move { (team.lock(LOCK, "acquire", &ask).await, team) });
    let path = "/v1/locks/team%2Fheld";
    fence_tests::wait::until_true("a waiter", || async {
        rival.get(path).await.json()["queue"][0]["lease_id"] == waiter.to_string()
    })
    .await;
    let waiter_id = json!({"lease_id": waiter});
    assert_foreign(&rival.lock(LOCK, "release", &waiter_id).await, waiter);
    rival.lock(LOCK, "release", &body(&lease)).await.expect(200);
    let (granted, team) = waiting.await.unwrap();
    kept(&team, &granted.lease()).await;
}

/// Whose a lease is outlives the server.
#[tokio::test]
async fn only_its_principal_uses_a_lease_on_embedded() {
    let site = site();
    let data = DataDir::new();
    let setup = site.arm(Setup::lock_server(&data.store()));
    let mut server = setup.start().await;
    let lease = held(&As::new(&server, "team")).await;
    server.process.kill();
    let server = setup.start().await;
    meddle(&As::new(&server, "rival"), &lease).await;
    kept(&As::new(&server, "team"), &lease).await;
}

/// Whose a lease is, every server before the same Redis knows; a lease that was acquired without an
/// access file is open to all, as one of an earlier version.
#[tokio::test]
async fn only_its_principal_uses_a_lease_on_redis() {
    let site = site();
    let redis = Redis::start().await;
    let setup = site.arm(on_redis(&redis));
    let one = setup.in_process().await;
    let two = setup.in_process().await;
    let lease = held(&As::new(&one, "team")).await;
    meddle(&As::new(&two, "rival"), &lease).await;
    kept(&As::new(&two, "team"), &lease).await;
    let open = on_redis(&redis).in_process().await;
    open.locks().release(LOCK, lease.lease_id).await.expect(200);
    let plain = open.locks().grant(LOCK, 60_000).await;
    let rival = As::new(&one, "rival");
    rival.lock(LOCK, "renew", &body(&plain)).await.lease();
    As::new(&two, "team").lock(LOCK, "release", &body(&plain)).await.expect(200);
}
