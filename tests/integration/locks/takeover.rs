//! Takeover by identity over HTTP.

use fence_protocol::Code;
use fence_protocol::wire::lock::HolderInfo;
use fence_tests::key_file::lease_id;
use serde_json::{Value, json};

use super::memory;

fn life(incarnation: &str) -> Value {
    json!({"owner": "billing", "incarnation": incarnation, "takeover": true, "ttl_ms": 30_000})
}

#[tokio::test]
async fn a_restarted_process_gets_its_lock_back() {
    let server = memory().await;
    let locks = server.locks();
    let old = locks.acquire("restart", life("boot-1")).await.lease();
    let new = locks.acquire("restart", life("boot-2")).await.lease();
    assert!(new.token > old.token);
    let lost = locks.renew("restart", old.lease_id).await.problem(Code::LeaseLost);
    assert_eq!(lost.extension::<String>("reason").as_deref(), Some("superseded"));
    let refused = locks.acquire("restart", life("boot-1")).await.problem(Code::TakeoverRefused);
    assert_eq!(refused.extension::<String>("why").as_deref(), Some("was-taken-over"));
    let shown = locks.0.get("/v1/locks/restart").await.json();
    assert_eq!(shown["holder"]["incarnation"], "boot-2");
}

#[tokio::test]
async fn a_supervisor_names_the_lease_that_it_saw_die() {
    let server = memory().await;
    let locks = server.locks();
    let old = locks.acquire("named", json!({"owner": "billing"})).await.lease();
    let mut ask = json!({"owner": "shipping", "takeover_of": old.lease_id});
    let refused = locks.acquire("named", ask.clone()).await.problem(Code::TakeoverRefused);
    assert_eq!(refused.extension::<HolderInfo>("holder").unwrap().token, old.token);
    assert_eq!(refused.extension::<String>("why").as_deref(), Some("other-owner"));
    ask["owner"] = json!("billing");
    assert!(locks.acquire("named", ask).await.lease().token > old.token);
}

/// Each says which value is missing or too much, and changes nothing.
#[tokio::test]
async fn half_a_takeover_is_refused() {
    let server = memory().await;
    let locks = server.locks();
    let id = lease_id();
    for (ask, reason) in [
        (json!({"owner": "billing", "takeover": true}), "takeover needs incarnation"),
        (json!({"incarnation": "1", "takeover": true}), "a takeover needs owner"),
        (json!({"takeover_of": id}), "a takeover needs owner"),
        (
            json!({"owner": "b", "incarnation": "1", "takeover": true, "takeover_of": id}),
            "exclude each other",
        ),
        (json!({"owner": "b", "lease_id": id, "takeover_of": id}), "the grant needs a new one"),
        (json!({"owner": "b", "incarnation": "a\tb"}), "a\\tb"),
    ] {
        let problem = locks.acquire("half", ask).await.problem(Code::InvalidRequest);
        assert!(problem.detail.contains(reason), "{}", problem.detail);
    }
    locks.acquire("half", json!({})).await.lease();
}
