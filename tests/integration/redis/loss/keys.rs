//! Single keys that are deleted, or replaced by keys of another type, behind the lock server: what is
//! missing is not taken for what was never written.

use super::*;

const TTL_MS: u64 = 1_500;

/// Grants a lock, damages Redis, and asks for the lock until it is granted to another lease. It is
/// not granted before the first lease's time is over, and tokens rise.
async fn survives(what: &str, commands: &[&[&str]], is_bound: bool) {
    let redis = Redis::start().await;
    let (store, history) = (server(&redis).await, History::new());
    let session = if is_bound {
        let made = store.create_session(new_session(TTL_MS)).await.unwrap();
        Some(made.session_id)
    } else {
        None
    };
    let ask = async |ttl_ms, session| {
        let invoked_ns = history.now_ns();
        let asked = Acquire { session, ..request("a", ttl_ms, 0) };
        let grant = store.acquire(asked).await?;
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
    ask(TTL_MS, session).await.unwrap();
    for words in commands {
        let id = session.map(|id| id.to_string()).unwrap_or_default();
        let words: Vec<String> = words
            .iter()
            .map(|word| word.replace('@', "{fence:default}:").replace('$', &id))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _: redis::Value = redis.run(&words).await;
    }
    until(&format!("a grant after {what}"), || async { ask(300, None).await.ok() }).await;
    let grants = history.grants();
    assert_eq!(grants.len(), 2);
    assert_eq!(overlaps(&grants), Vec::<String>::new(), "{what}");
    assert_eq!(tokens_rise(&grants), Ok(()), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_record_or_index_of_a_live_lease_frees_no_lock() {
    let cases: [(&str, &[&[&str]]); 4] = [
        ("the record was deleted", &[&["DEL", "@l:a"]]),
        ("the record is a list", &[&["DEL", "@l:a"], &["RPUSH", "@l:a", "x"]]),
        ("record and index were deleted", &[&["DEL", "@l:a", "@held"]]),
        ("the index is a text", &[&["DEL", "@l:a", "@held"], &["SET", "@held", "x"]]),
    ];
    for (what, commands) in cases {
        survives(what, commands, false).await;
    }
}

/// Records that were lost together pause grants once, however late each is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_lost_records_begin_one_lineage() {
    let redis = Redis::start().await;
    let store = server(&redis).await;
    let session = store.create_session(new_session(60_000)).await.unwrap().session_id;
    let locks = ["a", "b", "c", "d"];
    for lock in locks {
        store.acquire(request(lock, 60_000, 0)).await.unwrap();
    }
    let bound = Acquire { session: Some(session), ..request("bound", 60_000, 0) };
    store.acquire(bound).await.unwrap();
    for lock in locks {
        let _: u64 = redis.run(&["DEL", &format!("{{fence:default}}:l:{lock}")]).await;
    }
    let _: u64 = redis.run(&["DEL", &format!("{{fence:default}}:S:{session}")]).await;
    let mut lineages = std::collections::BTreeSet::new();
    for lock in locks.into_iter().chain(["bound"]) {
        store.acquire(request(lock, 60_000, 0)).await.unwrap_err();
        let lineage: String = redis.run(&["GET", "{fence:default}:lineage"]).await;
        lineages.insert(lineage);
    }
    assert_eq!(lineages.len(), 1, "{lineages:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_session_frees_no_lock() {
    let cases: [(&str, &[&[&str]]); 3] = [
        ("the session was deleted", &[&["DEL", "@S:$"]]),
        ("the session is a hash", &[&["DEL", "@S:$"], &["HSET", "@S:$", "a", "b"]]),
        ("session and list were deleted", &[&["DEL", "@S:$", "@sessions"]]),
    ];
    for (what, commands) in cases {
        survives(what, commands, true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_is_none_lowers_no_token() {
    let cases: [(&str, &[&[&str]]); 3] = [
        ("the counter is a word", &[&["SET", "@token", "nan"]]),
        ("the counter is a hash", &[&["DEL", "@token"], &["HSET", "@token", "a", "b"]]),
        ("the lineage is a hash", &[&["DEL", "@lineage"], &["HSET", "@lineage", "a", "b"]]),
    ];
    for (what, commands) in cases {
        survives(what, commands, false).await;
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

/// A queue that is something else is lost alone: its waiters ask again, and other locks are handed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_another_type_holds_up_no_other_lock() {
    let redis = Redis::start().await;
    let store = server_at(&redis.url(), AfterLoss::Grant).await;
    let mut waiting = Vec::new();
    for lock in ["a", "b"] {
        store.acquire(request(lock, 1_000, 0)).await.unwrap();
        let own = store.clone();
        waiting
            .push(tokio::spawn(async move { own.acquire(request(lock, 200, PATIENT_MS)).await }));
        super::super::kinds::queue_of(&store, lock, 1).await;
    }
    for key in ["{fence:default}:q:a", "{fence:default}:w:a"] {
        let _: u64 = redis.run(&["DEL", key]).await;
        let _: () = redis.run(&["SET", key, "x"]).await;
    }
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
}
