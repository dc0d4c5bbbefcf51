//! Places in the queues that nobody waits at.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use fence_tests::etcd_server::Etcd;
use fence_tests::key_file::lease_id;
use fence_tests::wait::soon;
use serde_json::{Value, json};

use super::{LONG_MS, lock_server, setup};

fn decoded(value: &Value) -> String {
    String::from_utf8(BASE64.decode(value.as_str().unwrap()).unwrap()).unwrap()
}

/// More places of others than are read at a time, all before the one that is looked for.
async fn crowd(etcd: &Etcd) {
    for some in 0..12 {
        let put = |number| {
            let key = format!("fencepost/default/q/crowd/{some}/{number}!{}", lease_id());
            json!({"requestPut": {"key": BASE64.encode(key), "value": BASE64.encode("{}")}})
        };
        let puts: Vec<Value> = (0..100).map(put).collect();
        etcd.call("/v3/kv/txn", &json!({"success": puts})).await;
    }
}

/// A place of a live server appears that none of its callers waits at, as where etcd gave it after
/// everybody had gone. It hangs on an etcd lease that lives on, and everybody would wait behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_nobody_waits_at_is_taken_away() {
    let etcd = Etcd::start().await;
    let server = setup(&etcd.url()).args(&["--liveness", "1s"]).start().await;
    let other = lock_server(&etcd).await;
    let locks = server.locks();
    let held = locks.grant("busy", LONG_MS).await;
    // Somebody waits elsewhere, so that the server has places and keeps them.
    let waiting = tokio::spawn({
        let (locks, ask) = (locks.clone(), json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS}));
        async move { locks.acquire("busy", ask).await }
    });
    locks.queue_of("busy", 1).await;
    let range = json!({"key": BASE64.encode("fencepost/default/q/"),
                       "range_end": BASE64.encode("fencepost/default/q0")});
    let place = etcd.call("/v3/kv/range", &range).await["kvs"][0].clone();
    let (key, value) = (decoded(&place["key"]), decoded(&place["value"]));
    let live = key.split_once('!').unwrap().1.to_owned();
    let left = lease_id().to_string();
    crowd(&etcd).await;
    let put = json!({
        "key": BASE64.encode(format!("fencepost/default/q/left!{left}")),
        "value": BASE64.encode(value.replace(&live, &left)),
        "lease": place["lease"],
    });
    etcd.call("/v3/kv/put", &put).await;
    assert_eq!(other.locks().show("left").await.queue_length, 1);
    let ask = json!({"ttl_ms": LONG_MS, "wait_ms": LONG_MS});
    soon("the lock behind it", other.locks().acquire("left", ask)).await.lease();
    // Whoever does wait keeps its place.
    assert_eq!(locks.show("busy").await.queue_length, 1);
    locks.release("busy", held.lease_id).await.expect(200);
    soon("the waiter", waiting).await.unwrap().lease();
}
