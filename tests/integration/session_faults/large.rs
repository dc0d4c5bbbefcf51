//! As many leases under one heartbeat as a session may have: what a heartbeat costs does not depend
//! on them, and they end as one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, LockName, Owner, SessionId, Ttl};
use fence_tests::key_file::{lease_id, session_id};
use fence_tests::redis_server::Redis;
use fence_tests::servers::DataDir;
use fence_tests::wait::{soon, until_true};
use lock_server::engines::options::StoreOptions;
use lock_server::store::{Acquire, Limits, ListQuery, LockStore, NewSession, StoreError};
use service_kit::Kit;
use tokio::task::JoinSet;

use super::TTL_MS;

/// Leases that a session may have by default.
const LEASES: usize = 10_000;
const HEARTBEATS: usize = 20;
/// Locks that have a waiter.
const WAITERS: usize = 100;
const AT_ONCE: usize = 64;

type Store = Arc<dyn LockStore>;

/// The ends of leases are remembered for as long as a busy machine needs to end them all.
async fn store_at(url: &str) -> Store {
    let kit = Kit::new("large sessions");
    let limits = Limits { ended_retention_ms: 300_000, ..Limits::default() };
    let options = StoreOptions { limits, ..fence_tests::store_options::patient() };
    lock_server::engines::open(&url.parse().unwrap(), &options, &kit).await.unwrap()
}

fn name(number: usize) -> LockName {
    LockName::new(&format!("large/{number}")).unwrap()
}

fn owner(text: &str) -> Owner {
    Owner::new(text).unwrap()
}

fn acquire_request(
    number: usize,
    whose: &str,
    session: Option<SessionId>,
    wait_ms: u64,
) -> Acquire {
    let ttl = Ttl::from_ms(TTL_MS).unwrap();
    Acquire { wait_ms, session, ..Acquire::new(name(number), lease_id(), owner(whose), ttl) }
}

async fn begin(store: &Store) -> SessionId {
    let new = NewSession {
        session_id: session_id(),
        owner: owner("holder"),
        ttl: Ttl::from_ms(TTL_MS).unwrap(),
        metadata: None,
        principal: None,
    };
    store.create_session(new).await.unwrap().session_id
}

/// Acquires them all, many at the same time.
async fn hold_all(store: &Store, session: SessionId) -> BTreeMap<usize, LeaseId> {
    let mut clients = JoinSet::new();
    for client in 0..AT_ONCE {
        let store = store.clone();
        clients.spawn(async move {
            let mut held = Vec::new();
            for number in (client..LEASES).step_by(AT_ONCE) {
                let grant = store
                    .acquire(acquire_request(number, "holder", Some(session), 0))
                    .await
                    .unwrap();
                held.push((number, grant.lease_id));
            }
            held
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// Engine behind the store, with the trace that a write leaves there.
enum Behind {
    Memory,
    Embedded(DataDir),
    Redis(Redis),
}

/// Trace that can be counted from outside.
#[derive(Debug, PartialEq)]
enum Trace {
    Nothing,
    /// Every byte on the disk: a commit changes some.
    Files(Vec<Vec<u8>>),
    /// Number of runs of each command.
    Commands(BTreeMap<String, u64>),
}

impl Behind {
    async fn trace(&self) -> Trace {
        match self {
            Self::Memory => Trace::Nothing,
            Self::Embedded(data) => Trace::Files(files(&data.path())),
            Self::Redis(redis) => {
                let stats: String = redis.run(&["INFO", "commandstats"]).await;
                // cmdstat_get:calls=21,usec=…
                let line = |line: &str| {
                    let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                    Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
                };
                Trace::Commands(stats.lines().filter_map(line).collect())
            }
        }
    }
}

/// Contents of every file in the folder.
fn files(folder: &Path) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        if path.is_dir() { files(&path) } else { vec![std::fs::read(path).unwrap()] }
    };
    paths.into_iter().flat_map(read).collect()
}

/// A heartbeat is one operation of the store, and not one a lease.
fn heartbeats_cost_one_step(before: &Trace, after: &Trace, took: Duration) {
    match (before, after) {
        (Trace::Commands(before), Trace::Commands(after)) => {
            let ran = |command: &str| {
                let at = |stats: &BTreeMap<String, u64>| stats.get(command).copied().unwrap_or(0);
                usize::try_from(at(after) - at(before)).unwrap()
            };
            assert_eq!(ran("zcard"), HEARTBEATS);
            // Beside it, once a second, the server looks at what is due, and notes that it lives.
            let seconds = usize::try_from(took.as_secs()).unwrap();
            let beside = HEARTBEATS.max(3 * seconds);
            for command in ["set", "evalsha"] {
                let runs = ran(command);
                let expected = HEARTBEATS..HEARTBEATS + beside;
                assert!(expected.contains(&runs), "{runs} times {command}");
            }
            let all: usize = after.keys().map(|command| ran(command)).sum();
            let beside = (12 * seconds).max(100);
            assert!(all < 12 * HEARTBEATS + beside, "{all} commands for {HEARTBEATS} heartbeats");
        }
        (before, after) => assert!(before == after, "a heartbeat was written to the disk"),
    }
}

async fn one_heartbeat_and_one_end(behind: Behind, store: Store) {
    let session = begin(&store).await;
    let began = Instant::now();
    let held = hold_all(&store, session).await;
    let acquired = began.elapsed();
    let over =
        store.acquire(acquire_request(LEASES, "holder", Some(session), 0)).await.unwrap_err();
    assert!(matches!(over, StoreError::Limit { limit: 10_000, .. }), "{over:?}");

    let before = behind.trace().await;
    let began = Instant::now();
    for _ in 0..HEARTBEATS {
        assert_eq!(store.heartbeat(session).await.unwrap().lease_count, LEASES);
    }
    let heartbeat = began.elapsed() / HEARTBEATS as u32;
    let after = behind.trace().await;
    heartbeats_cost_one_step(&before, &after, began.elapsed());

    let mut waiting = JoinSet::new();
    for number in (0..LEASES).step_by(LEASES / WAITERS) {
        let store = store.clone();
        let ask = acquire_request(number, "waiter", None, TTL_MS);
        waiting.spawn(async move { store.acquire(ask).await });
    }
    until_true("everybody to wait", async || {
        for number in (0..LEASES).step_by(LEASES / WAITERS) {
            if store.show(&name(number)).await.unwrap().queue_length == 0 {
                return false;
            }
        }
        true
    })
    .await;
    let began = Instant::now();
    let ended = store.end_session(session).await.unwrap();
    let end = began.elapsed();
    assert_eq!(ended.lease_count, LEASES);
    let granted = soon("everybody who waited", waiting.join_all()).await;
    eprintln!(
        "{}: {LEASES} leases acquired in {acquired:?}; a heartbeat {heartbeat:?}; the end {end:?}",
        store.name()
    );
    let tokens: BTreeSet<u64> =
        granted.into_iter().map(|grant| grant.unwrap().token.get()).collect();
    assert_eq!(tokens.len(), WAITERS, "a token was given twice");
    all_have_ended(&store, &held).await;
}

/// Nothing is held but by those who waited, and every lease says how it ended.
async fn all_have_ended(store: &Store, held: &BTreeMap<usize, LeaseId>) {
    let query = ListQuery { prefix: "large/".to_owned(), after: None, limit: LEASES, owner: None };
    let page = store.list(query).await.unwrap();
    assert_eq!(page.locks.len(), WAITERS);
    assert!(page.locks.iter().all(|line| line.holder.as_ref().unwrap().owner == owner("waiter")));
    for (number, lease) in held.iter().step_by(37) {
        let late = store.renew(&name(*number), *lease, None).await.unwrap_err();
        assert_eq!(
            late,
            StoreError::Lost { reason: EndReason::SessionEnded, why: None, is_known: true },
            "{number}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_in_memory() {
    one_heartbeat_and_one_end(Behind::Memory, store_at("memory:").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_on_the_disk() {
    let data = DataDir::new();
    let store = store_at(&data.store()).await;
    one_heartbeat_and_one_end(Behind::Embedded(data), store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leases_in_redis() {
    let redis = Redis::start().await;
    let store = store_at(&redis.url()).await;
    one_heartbeat_and_one_end(Behind::Redis(redis), store).await;
}
