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
    let resolve = |number| json!({"action": "resolve", "none_can_take_effect": number, "reason": "it was restarted"});
    // Without the statement, with that of another number, or without a reason: no effect.
    for (body, code) in [
        (json!({"action": "resolve", "reason": "x"}), "invalid-request"),
        (json!({"action": "resolve", "none_can_take_effect": 1}), "invalid-request"),
        (resolve(2), "quarantine-conflict"),
        (resolve(0), "quarantine-conflict"),
    ] {
        assert_eq!(world.quarantine(&body).await.code(), code, "{body}");
    }
    assert_eq!(world.send(Method::PUT, "/a", 34).await.unwrap().code(), "quarantined");
    let answer = world.quarantine(&resolve(1)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let write = world.send(Method::PUT, "/a", 34);
    world.seen().await.reply("200 OK");
    assert_eq!(write.await.unwrap().status, StatusCode::OK);
    assert_eq!(world.quarantine(&resolve(1)).await.code(), "quarantine-conflict");
}

#[tokio::test]
async fn an_extended_quarantine_outlasts_its_first_end() {
    let world = World::broken(700).await;
    let extend = |ms: u64| json!({"action": "extend", "extend_ms": ms, "reason": "it is slow"});
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
