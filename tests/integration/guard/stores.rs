//! `GET /v1/stores`: what the guard stands before, and how far it can be trusted.

use fence_protocol::Code;
use fence_protocol::wire::fence::{FencePage, Guarantee, Mode, StoreLine, StoresReply};
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::redis_server::Redis;
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::upstream::Upstream;

use super::memory;

async fn only_store(server: &Server) -> StoreLine {
    let reply = server.guard().0.get("/v1/stores").await.expect(200);
    assert!(!reply.header("fencing-guarantee").is_empty());
    let stores: StoresReply = reply.read();
    assert_eq!((stores.mode, stores.namespace.as_str()), (Mode::Enforce, "default"));
    assert_eq!(stores.would_refuse, []);
    let [store] = <[StoreLine; 1]>::try_from(stores.stores).unwrap();
    assert_eq!(store.guarantee, store.store_guarantee);
    assert_eq!(store.fronts[0].kind, "objects");
    assert_eq!(format!("http://{}", store.fronts[0].listen), server.base);
    assert!(!store.probe.is_empty() && !store.gaps.is_empty(), "{store:?}");
    assert!(store.gaps.iter().all(|gap| gap.ends_with('.')), "sentences: {store:?}");
    store
}

fn has_gap(store: &StoreLine, words: &str) -> bool {
    store.gaps.iter().any(|gap| gap.contains(words))
}

#[tokio::test]
async fn local_stores_say_what_their_probe_showed() {
    let server = Setup::fenced_store("memory:").start().await;
    let store = only_store(&server).await;
    assert_eq!((store.kind.as_str(), store.guarantee), ("memory", Guarantee::Atomic));
    assert!(store.probe.contains("racing"), "{store:?}");
    assert!(has_gap(&store, "restart forgets"), "{store:?}");
    let data = DataDir::new();
    let server = Setup::fenced_store(&data.store()).start().await;
    let store = only_store(&server).await;
    assert_eq!((store.kind.as_str(), store.guarantee), ("embedded", Guarantee::Atomic));
    assert!(store.probe.contains("opened again"), "{store:?}");
    assert!(!data.path().join("probe").exists(), "the probe left its file");
    assert_eq!(server.guard().fence("probe").await.mark, None, "the probe left its mark");
}

#[tokio::test]
async fn redis_says_what_a_crash_costs() {
    let redis = Redis::start().await;
    let url = redis.url().replace("redis://", "redis://:hunter2@");
    let _: () = redis.run(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).await;
    let _: () = redis.run(&["CONFIG", "SET", "requirepass", "hunter2"]).await;
    let server = Setup::fenced_store(&url).start().await;
    let store = only_store(&server).await;
    assert_eq!((store.kind.as_str(), store.guarantee), ("redis", Guarantee::Atomic));
    assert!(store.target.contains(&redis.address()) && !store.target.contains("hunter2"));
    assert!(has_gap(&store, "FLUSHALL"), "{store:?}");
    // A setting is apart from what every Redis has.
    let avoidable = store.avoidable.join(" ");
    assert!(avoidable.contains("volatile-lru") && !avoidable.contains("FLUSHALL"), "{store:?}");
    let log = server.process.stderr();
    assert!(!log.contains("hunter2"), "{log}");
    assert!(log.contains("a store is guarded") && log.contains("gap: "), "{log}");
}

#[tokio::test]
async fn the_proxy_says_what_its_number_is_worth() {
    let upstream = Upstream::start().await;
    let state = DataDir::new();
    let mut server = Setup::bare("fenced-store")
        .arg("--unsigned")
        .args(&["--proxy-listen", "127.0.0.1:0", "--upstream", upstream.base()])
        .args(&["--max-request-lifetime", "30s", "--state"])
        .arg(fence_tests::key_file::text(&state.path()))
        .start()
        .await;
    let proxy = server.proxy().await;
    let store = only_store(&server).await;
    assert_eq!((store.kind.as_str(), store.guarantee), ("http", Guarantee::Bounded));
    assert_eq!(store.target, upstream.base());
    assert_eq!(store.fronts[1].kind, "reverse-proxy");
    assert_eq!(format!("http://{}", store.fronts[1].listen), proxy);
    assert!(has_gap(&store, "30000 ms"), "{store:?}");
}

/// The lock server asks for the highest mark, whatever page it asks for.
#[tokio::test]
async fn the_highest_mark_is_on_every_page() {
    let server = memory().await;
    let guard = server.guard();
    let page = async |query: &str| -> FencePage {
        guard.0.get(&format!("/v1/fences?{query}")).await.expect(200).read()
    };
    assert_eq!(page("limit=1").await.highest_mark, None);
    guard.sealed("b", &unsigned(90, "b", lease_id())).await;
    guard.sealed("a", &unsigned(5, "a", lease_id())).await;
    for query in ["limit=1", "prefix=a", "prefix=none"] {
        assert_eq!(page(query).await.highest_mark.map(|mark| mark.get()), Some(90), "{query}");
    }
}

/// Token that a refused holder has to ask the lock server for.
#[tokio::test]
async fn a_refusal_says_which_token_would_do() {
    let server = memory().await;
    let guard = server.guard();
    guard.sealed("a", &unsigned(34, "a", lease_id())).await;
    let stale = guard.put("a", &unsigned(33, "a", lease_id()), "x").await;
    assert_eq!(stale.problem(Code::StaleToken).extension::<u64>("min_token"), Some(34));
    let twin = guard.put("a", &unsigned(34, "a", lease_id()), "x").await;
    assert_eq!(twin.problem(Code::TokenCollision).extension::<u64>("min_token"), Some(34));
}
