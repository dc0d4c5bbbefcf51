//! Single keys that are deleted, or replaced by keys of another type, behind the lock server: what
//! is missing is not taken for what was never written.

use super::*;

const TTL_MS: u64 = 4_000;

/// Grants a lock, damages Redis, and asks for the lock until it is granted to another lease. It is
/// not granted before the first lease's time is over, and tokens rise.
async fn survives(what: &str, commands: &[&[&str]]) {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let history = History::new();
    let ask = async |ttl_ms| {
        let invoked_ns = history.now_ns();
        let grant = store.acquire(request("a", ttl_ms, 0)).await?;
        history.granted(Granted {
            lock: "a".to_owned(),
            lease: grant.lease_id,
            token: grant.token.get(),
            ttl_ms,
            span: history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Ok::<Grant, StoreError>(grant)
    };
    ask(TTL_MS).await.unwrap();
    for words in commands {
        let words: Vec<String> =
            words.iter().map(|word| word.replace('@', "{fence:default}:")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _: redis::Value = redis.run(&words).await;
    }
    until(&format!("a grant after {what}"), || async { ask(300).await.ok() }).await;
    let grants = history.grants();
    assert_eq!(grants.len(), 2);
    assert_eq!(overlaps(&grants), Vec::<String>::new(), "{what}");
    assert_eq!(tokens_rise(&grants), Ok(()), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_none_lowers_no_token() {
    let cases: [(&str, &[&[&str]]); 3] = [
        ("the counter is a word", &[&["SET", "@token", "nan"]]),
        ("the counter is a hash", &[&["DEL", "@token"], &["HSET", "@token", "a", "b"]]),
        ("the lineage is a hash", &[&["DEL", "@lineage"], &["HSET", "@lineage", "a", "b"]]),
    ];
    for (what, commands) in cases {
        survives(what, commands).await;
    }
}

/// A server that has seen no token yet finds that the counter is below those of the leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_server_finds_a_lower_counter() {
    let redis = Redis::start().await;
    let grant = server(&redis).await.acquire(request("a", 60_000, 0)).await.unwrap();
    let _: () = redis.run(&["SET", "{fence:default}:token", "5"]).await;
    let store = server_at(&redis.url(), AfterLoss::Grant).await;
    let next = store.acquire(request("b", 60_000, 0)).await.unwrap();
    assert!(next.token > grant.token, "{next:?} after {grant:?}");
}

/// A lock or a queue of another type stops its own lock alone: others that are passed on in the
/// same moment are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_or_queue_of_another_type_holds_up_no_other_lock() {
    let redis = Redis::start().await;
    let store = server_at(&redis.url(), AfterLoss::Grant).await;
    let mut waiting = Vec::new();
    for lock in ["a", "b", "c"] {
        store.acquire(request(lock, 10_000, 0)).await.unwrap();
        let own = store.clone();
        waiting
            .push(tokio::spawn(async move { own.acquire(request(lock, 5_000, PATIENT_MS)).await }));
        super::super::kinds::queue_of(&store, lock, 1).await;
    }
    for damaged in ["{fence:default}:lock:a#", "{fence:default}:lock:b"] {
        let _: u64 = redis.run(&["DEL", damaged]).await;
        let _: () = redis.run(&["SET", damaged, "x"]).await;
    }
    waiting.remove(2).await.unwrap().unwrap();
    waiting.iter().for_each(|waiting| waiting.abort());
}
