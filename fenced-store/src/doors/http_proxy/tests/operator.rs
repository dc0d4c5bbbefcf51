//! Lanes as operators list them, and their decisions on quarantines.

use fence_protocol::wire::lane::{LaneLine, LanePage, QuarantineCause};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};

use super::{Answer, World, request, request_reply, until};

impl World {
    async fn lanes(&self, query: &str) -> LanePage {
        let path = format!("/v1/lanes{query}");
        let answer = request_reply(self.api.clone(), request(Method::GET, &path, 0)).await;
        serde_json::from_str(&answer.text).unwrap()
    }

    async fn lane(&self) -> LaneLine {
        self.lanes("").await.lanes.remove(0)
    }

    async fn quarantine(&self, body: &Value) -> Answer {
        let request = Request::post("/v1/lanes/a/quarantine")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(body.to_string().into());
        request_reply(self.api.clone(), request.unwrap()).await
    }

    /// Breaks a write of token 33.
    async fn broken(lifetime_ms: u64) -> Self {
        let mut world = Self::new(lifetime_ms).await;
        let lower = world.send(Method::PUT, "/a", 33);
        drop(world.seen().await);
        assert_eq!(lower.await.unwrap().status, StatusCode::GATEWAY_TIMEOUT);
        world
    }

    fn metric(&self, name: &str) -> String {
        let text = self.kit.metrics.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).to_owned()
    }
}

#[tokio::test]
async fn a_lane_shows_what_is_at_the_upstream_and_what_waits() {
    let mut world = World::new(60_000).await;
    assert!(world.lanes("").await.lanes.is_empty());
    let lower = world.send(Method::PUT, "/a", 33);
    let on_the_wire = world.seen().await;
    let higher = world.send(Method::PUT, "/a", 34);
    until(async || world.lane().await.waiting == 1).await;
    world.mark_is(34).await;
    let line = world.lane().await;
    let tokens = [line.mark, line.open_token].map(|token| token.map(fence_protocol::Token::get));
    assert_eq!(tokens, [Some(34), Some(33)]);
    assert_eq!((line.writes_in_flight, line.reads_in_flight, line.waiting), (1, 0, 1));
    assert_eq!(line.quarantine, None);
    assert_eq!(world.metric("fencepost_fence_lane_drain_seconds_count"), "0");
    on_the_wire.reply("200 OK");
    assert_eq!(lower.await.unwrap().status, StatusCode::OK);
    world.seen().await.reply("200 OK");
    assert_eq!(higher.await.unwrap().status, StatusCode::OK);
    assert_eq!(world.metric("fencepost_fence_lane_drain_seconds_count"), "1");
    for (query, count) in [("?prefix=a", 1), ("?prefix=b", 0), ("?after=a", 0), ("?limit=1", 1)] {
        let page = world.lanes(query).await;
        assert_eq!((page.lanes.len(), page.next_after), (count, None), "{query}");
    }
}

#[tokio::test]
async fn a_resolved_quarantine_lets_the_next_write_pass() {
    let mut world = World::broken(3_600_000).await;
    let quarantine = world.lane().await.quarantine.unwrap();
    assert_eq!((quarantine.token.get(), quarantine.unknown_outcomes), (33, 1));
    assert_eq!(quarantine.cause, QuarantineCause::NoReply);
    assert!(quarantine.ms_left > 3_000_000);
    let id = quarantine.id.as_str();
    let resolve = |id: &str| json!({"action": "resolve", "quarantine": id, "none_can_take_effect": true, "reason": "gone"});
    let without = |field: &str, mut body: Value| {
        body.as_object_mut().unwrap().remove(field);
        body
    };
    let mut false_statement = resolve(id);
    false_statement["none_can_take_effect"] = json!(false);
    // Without the statement, the id or a reason, and with another id: no effect.
    for (body, code) in [
        (without("none_can_take_effect", resolve(id)), "invalid-request"),
        (without("quarantine", resolve(id)), "invalid-request"),
        (without("reason", resolve(id)), "invalid-request"),
        (false_statement, "invalid-request"),
        (resolve(""), "quarantine-conflict"),
        (resolve("5f0c9d2e8a14-0"), "quarantine-conflict"),
    ] {
        assert_eq!(world.quarantine(&body).await.code(), code, "{body}");
    }
    let conflict = world.quarantine(&resolve("1")).await;
    assert_eq!(conflict.status, StatusCode::CONFLICT);
    assert!(conflict.text.contains(&format!("\"id\":\"{id}\"")), "{}", conflict.text);
    assert_eq!(world.send(Method::PUT, "/a", 34).await.unwrap().code(), "quarantined");
    let answer = world.quarantine(&resolve(id)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let write = world.send(Method::PUT, "/a", 34);
    world.seen().await.reply("200 OK");
    assert_eq!(write.await.unwrap().status, StatusCode::OK);
    assert_eq!(world.quarantine(&resolve(id)).await.code(), "quarantine-conflict");
}

#[tokio::test]
async fn an_extended_quarantine_outlasts_its_first_end() {
    let world = World::broken(700).await;
    let id = world.lane().await.quarantine.unwrap().id;
    let extend = |ms: u64| json!({"action": "extend", "quarantine": id, "extend_ms": ms, "reason": "it is slow"});
    for ms in [0, 86_400_001] {
        assert_eq!(world.quarantine(&extend(ms)).await.code(), "invalid-request", "{ms}");
    }
    let answer = world.quarantine(&extend(3_600_000)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let begun_ms = world.kit.clock.monotonic_ms();
    until(async || world.kit.clock.monotonic_ms() > begun_ms + 1_000).await;
    assert!(world.lane().await.quarantine.unwrap().ms_left > 3_000_000);
    assert_eq!(world.send(Method::PUT, "/a", 34).await.unwrap().code(), "quarantined");
}

#[tokio::test]
async fn a_lane_that_a_restart_found_open_says_so() {
    let mut world = World::new(60_000).await;
    let _lower = world.send(Method::PUT, "/a", 33);
    let _on_the_wire = world.seen().await;
    let found = tempfile::tempdir().unwrap();
    std::fs::copy(world.state.path().join("lanes.redb"), found.path().join("lanes.redb")).unwrap();
    let kit = service_kit::Kit::new("test");
    world.api = super::app(world.addr, found.path(), 60_000, &kit).await.router;
    let quarantine = world.lane().await.quarantine.unwrap();
    assert_eq!(quarantine.cause, QuarantineCause::Restart);
    assert_eq!((quarantine.token.get(), quarantine.unknown_outcomes), (33, 1));
}

/// One that an operator has read of, and one that came after it, are not the same, even if both
/// have one unknown outcome.
#[tokio::test]
async fn another_unknown_outcome_is_another_quarantine() {
    let mut world = World::broken(3_600_000).await;
    let first = world.lane().await.quarantine.unwrap();
    let resolve = |id: &str| json!({"action": "resolve", "quarantine": id, "none_can_take_effect": true, "reason": "gone"});
    assert_eq!(world.quarantine(&resolve(&first.id)).await.status, StatusCode::OK);
    let write = world.send(Method::PUT, "/a", 34);
    drop(world.seen().await);
    assert_eq!(write.await.unwrap().status, StatusCode::GATEWAY_TIMEOUT);
    let second = world.lane().await.quarantine.unwrap();
    assert_eq!((first.unknown_outcomes, second.unknown_outcomes), (1, 1));
    let conflict = world.quarantine(&resolve(&first.id)).await;
    assert_eq!(conflict.code(), "quarantine-conflict");
    assert_eq!(world.quarantine(&resolve(&second.id)).await.status, StatusCode::OK);
}

/// However often it is extended.
#[tokio::test]
async fn a_quarantine_has_one_timer() {
    let world = World::broken(3_600_000).await;
    let id = world.lane().await.quarantine.unwrap().id;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..100 {
        let body = json!({"action": "extend", "quarantine": id, "extend_ms": 1, "reason": "slow"});
        assert_eq!(world.quarantine(&body).await.status, StatusCode::OK);
    }
    until(async || tasks() < before + 10).await;
}
