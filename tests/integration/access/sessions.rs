//! Whose a session is.

use fence_protocol::wire::session::{SessionPage, SessionReply};
use fence_protocol::{Code, SessionId};
use fence_tests::api::{Endpoint, Reply};
use fence_tests::key_file::session_id;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Setup};
use fence_tests::wait::until_true;
use http::Method;
use serde_json::{Value, json};

use super::{As, Site, on_redis};

/// Refused without a word of whose it is or what it is called.
fn assert_foreign(reply: &Reply, session: SessionId) {
    let problem = reply.problem(Code::Forbidden);
    assert!(problem.detail.contains("was not created by rival"), "{problem:?}");
    assert_eq!(problem.extension("session_id"), Some(session), "{problem:?}");
    let text = String::from_utf8_lossy(&reply.body);
    assert!(!text.contains("worker") && !text.contains("team"), "{text}");
}

/// Everything that another principal with rights on the very same locks can try with a session.
async fn meddle(rival: &As, session: SessionId) {
    assert_foreign(&rival.beat(session).await, session);
    assert_foreign(&rival.end(session).await, session);
    assert_foreign(&rival.get(&format!("/v1/sessions/{session}")).await, session);
    for owner in [json!(null), json!("worker"), json!("another")] {
        let mut ask = json!({"session_id": session, "ttl_ms": 60_000});
        if !owner.is_null() {
            ask["owner"] = owner;
            assert_foreign(&rival.create(&ask).await, session);
        }
        assert_foreign(&rival.lock("team/more", "acquire", &ask).await, session);
        ask["wait_ms"] = json!(1_000);
        assert_foreign(&rival.lock("team/held", "acquire", &ask).await, session);
    }
    // Asking made nothing its own.
    assert_foreign(&rival.beat(session).await, session);
}

/// A session with a lease, and what of it must be left when others have tried.
struct Kept {
    session: SessionId,
    token: u64,
    /// The last token that was spent.
    spent: u64,
    /// One server, which spends a token only for a grant.
    is_alone: bool,
    beats: u64,
}

impl Kept {
    async fn new(team: &As) -> Self {
        let session = team.begin(60_000).await.session_id;
        let ask = json!({"session_id": session});
        let token = team.lock("team/held", "acquire", &ask).await.lease().token.get();
        Self { session, token, spent: token, is_alone: true, beats: 0 }
    }

    /// No request but its own has counted, and no token was spent.
    async fn check(&mut self, team: &As) {
        let beat: SessionReply = team.beat(self.session).await.expect(200).read();
        self.beats += 1;
        assert_eq!((beat.heartbeats, beat.lease_count), (self.beats, 1));
        assert_eq!(beat.principal.as_deref(), Some("team"));
        let shown = team.get(&format!("/v1/sessions/{}", self.session)).await.expect(200).json();
        assert_eq!(shown["leases"][0]["lock"], "team/held");
        let held = team.get("/v1/locks/team%2Fheld").await.expect(200).json();
        assert_eq!(held["holder"]["token"], self.token);
        let next = team.acquire("team/next").await.lease();
        let spent = next.token.get() - self.spent;
        assert!(spent == 1 || !self.is_alone && spent > 0, "a refused request spent a token");
        let next_id = json!({"lease_id": next.lease_id});
        team.lock("team/next", "release", &next_id).await.expect(200);
        self.spent = next.token.get();
    }
}

async fn only_its_principal(server: &impl Endpoint) {
    let team = As::new(server, "team");
    let rival = As::new(server, "rival");
    let mut kept = Kept::new(&team).await;
    let session = kept.session;
    meddle(&rival, session).await;
    let held = team.get("/v1/locks/team%2Fheld").await.expect(200).json();
    assert_eq!(held["holder"]["session_id"], session.to_string());
    assert_eq!(held["queue_length"], 0);
    kept.check(&team).await;

    // Who may read everything may look, and no more; who administers may block, and no more.
    let eye = As::new(server, "eye");
    let ops = As::new(server, "ops");
    let path = format!("/v1/sessions/{session}");
    for reader in [&eye, &ops] {
        let shown: SessionReply = reader.get(&path).await.expect(200).read();
        assert_eq!(shown.principal.as_deref(), Some("team"));
        reader.beat(session).await.problem(Code::Forbidden);
        reader.end(session).await.problem(Code::Forbidden);
    }
    let page: SessionPage = eye.get("/v1/sessions").await.expect(200).read();
    assert_eq!(page.sessions[0].principal.as_deref(), Some("team"));
    team.get("/v1/sessions").await.problem(Code::Forbidden);
    let block = |who: &As| {
        let api = who.api.clone();
        let bearer = who.bearer.clone();
        let path = format!("{path}/block");
        async move {
            let json = ("content-type", "application/json");
            let headers = [("authorization", bearer.as_str()), json];
            api.send(Method::POST, &path, &headers, "{\"reason\":\"moved\"}").await
        }
    };
    block(&team).await.problem(Code::Forbidden);
    block(&rival).await.problem(Code::Forbidden);
    team.beat(session).await.expect(200);
    block(&ops).await.expect(200);
    team.beat(session).await.problem(Code::SessionBlocked);
    assert_foreign(&rival.end(session).await, session);
    team.end(session).await.expect(200);
    team.beat(session).await.problem(Code::SessionEnded);
}

#[tokio::test]
async fn only_its_principal_uses_a_session_on_memory() {
    let site = Site::new();
    only_its_principal(&site.lock_server().await).await;
    let blocks: Vec<Value> =
        site.audit().into_iter().filter(|line| line["verb"] == "block").collect();
    let phases: Vec<&str> =
        blocks.iter().map(|line| line["phase"].as_str().unwrap_or("-")).collect();
    assert_eq!(phases, ["-", "-", "asked", "answered"], "{blocks:?}");
    assert_eq!(blocks[3]["notes"]["reason"], "moved");
}

/// Whose a session is outlives the server.
#[tokio::test]
async fn only_its_principal_uses_a_session_on_embedded() {
    let site = Site::new();
    let data = DataDir::new();
    let setup = site.arm(Setup::lock_server(&data.store()));
    let mut server = setup.start().await;
    only_its_principal(&server).await;
    let mut kept = Kept::new(&As::new(&server, "team")).await;
    server.process.kill();
    let server = setup.start().await;
    meddle(&As::new(&server, "rival"), kept.session).await;
    kept.check(&As::new(&server, "team")).await;
}

/// Whose a session is, every server before the same Redis knows.
#[tokio::test]
async fn only_its_principal_uses_a_session_on_redis() {
    let site = Site::new();
    let redis = Redis::start().await;
    let setup = site.arm(on_redis(&redis));
    let one = setup.in_process().await;
    let two = setup.in_process().await;
    only_its_principal(&one).await;
    let at_one = As::new(&one, "team");
    let at_two = As::new(&two, "team");
    let mut kept = Kept { is_alone: false, ..Kept::new(&at_one).await };
    meddle(&As::new(&two, "rival"), kept.session).await;
    kept.check(&at_two).await;
    meddle(&As::new(&two, "rival"), kept.session).await;
    kept.check(&at_one).await;
    // The id is free again where the other server remembers whose it was.
    at_two.end(kept.session).await.expect(200);
    at_one.beat(kept.session).await.problem(Code::SessionEnded);
}

/// A session that began without an access file has no owner where there is one.
#[tokio::test]
async fn a_session_without_a_principal_has_no_owner() {
    let site = Site::new();
    let redis = Redis::start().await;
    let open = on_redis(&redis).in_process().await;
    let closed = site.arm(on_redis(&redis)).in_process().await;
    let anyone = open.locks().0;
    let ask = json!({"owner": "worker", "ttl_ms": 60_000});
    let session: SessionReply = anyone.post("/v1/sessions", &ask).await.expect(200).read();
    let id = session.session_id;
    let team = As::new(&closed, "team");
    assert_eq!(session.principal, None);
    team.beat(id).await.problem(Code::Forbidden);
    team.end(id).await.problem(Code::Forbidden);
    let beat = anyone.post(&format!("/v1/sessions/{id}/heartbeat"), &json!({})).await;
    assert_eq!(beat.expect(200).json()["heartbeats"], 1);
    // A server without an access file does not distinguish clients, also for sessions of a
    // principal.
    let theirs = team.begin(60_000).await.session_id;
    let beat = anyone.post(&format!("/v1/sessions/{theirs}/heartbeat"), &json!({})).await;
    assert_eq!(beat.expect(200).json()["principal"], "team");
}

#[tokio::test(start_paused = true)]
async fn sessions_are_limited_and_nothing_is_lost() {
    let site = Site::with("max-sessions = 2");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let rival = As::new(&server, "rival");
    let a = team.begin(60_000).await.session_id;
    let b = team.begin(60_000).await.session_id;
    let full = team.create(&json!({"owner": "worker"})).await;
    let problem = full.problem(Code::LimitReached);
    assert!(problem.detail.contains("team: sessions: the limit is 2"), "{problem:?}");
    assert_eq!(problem.extension::<u64>("limit"), Some(2));
    let retry_after: u64 = full.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{retry_after}");
    // The same request again is no third; a heartbeat is never refused; others are not concerned.
    let repeat = json!({"owner": "worker", "ttl_ms": 60_000, "session_id": b});
    team.create(&repeat).await.expect(200);
    team.beat(a).await.expect(200);
    rival.begin(60_000).await;
    // What the store refuses takes no place; what has ended gives its own back.
    team.end(a).await.expect(200);
    team.create(&json!({"owner": "worker", "session_id": a})).await.problem(Code::SessionEnded);
    let late = session_id();
    let ask = json!({"owner": "worker", "ttl_ms": 15_000, "session_id": late});
    team.create(&ask).await.expect(200);
    team.create(&json!({"owner": "worker"})).await.problem(Code::LimitReached);
    until_true("the short one to end by itself", || async {
        team.create(&json!({"owner": "worker"})).await.status == 200
    })
    .await;
    team.beat(late).await.problem(Code::SessionEnded);
    team.beat(b).await.expect(200);
    let page: SessionPage = As::new(&server, "eye").get("/v1/sessions").await.expect(200).read();
    let of_team = page.sessions.iter().filter(|one| one.principal.as_deref() == Some("team"));
    assert_eq!(of_team.count(), 2);
}

/// Heartbeats keep a lease, so they keep it on the account too, whatever time it was asked for
/// with.
#[tokio::test(start_paused = true)]
async fn leases_of_a_session_count_while_it_lives() {
    let site = Site::with("max-locks = 1");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let rival = As::new(&server, "rival");
    let session = team.begin(10_000).await.session_id;
    let ask = json!({"session_id": session, "ttl_ms": 100});
    team.lock("team/a", "acquire", &ask).await.lease();
    rival.lock("team/clock", "acquire", &json!({"ttl_ms": 15_000})).await.lease();
    until_true("more than the session's own time to pass", || async {
        team.beat(session).await.expect(200);
        team.acquire("team/b").await.problem(Code::LimitReached);
        rival.acquire("team/clock").await.status == 200
    })
    .await;
    team.acquire("team/b").await.problem(Code::LimitReached);
    team.end(session).await.expect(200);
    team.acquire("team/b").await.lease();
}
