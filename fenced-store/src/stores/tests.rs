//! Differential test of the stores: the same random operations give the same outcomes in Rust over
//! memory, in a redb transaction, and in Lua inside Redis.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use bytes::Bytes;
use fence_protocol::LockName;

use super::contract::Once;
use super::contract::*;
use super::embedded::EmbeddedStore;
use super::memory::MemoryStore;
use super::open::{StoreUrl, open};
use crate::etag::{Condition, ETag};
use crate::key::ObjectKey;
use crate::verdict::Fence;
use crate::verdict::tests::mark;
use service_kit::Kit;
use service_kit::health::Health;

#[derive(Clone, Debug)]
struct StoreStep {
    fence: Option<(usize, u64, u64)>,
    key: usize,
    what: OperationSpec,
    condition: ConditionSpec,
    /// Index of the operation's name.
    name: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum OperationSpec {
    Get,
    Put,
    Delete,
    Seal,
}

#[derive(Clone, Debug)]
enum ConditionSpec {
    Nothing,
    Exists,
    Absent,
    /// The tags of the writes of these steps.
    AnyOf(Vec<usize>),
    NoneOf(Vec<usize>),
}

fn step() -> impl Strategy<Value = StoreStep> {
    let fence = prop::option::weighted(0.85, (0usize..2, 1u64..6, 1u64..3));
    let what = prop_oneof![
        2 => Just(OperationSpec::Get),
        4 => Just(OperationSpec::Put),
        2 => Just(OperationSpec::Delete),
        1 => Just(OperationSpec::Seal),
    ];
    let tags = || prop::collection::vec(0usize..30, 1..4);
    let condition = prop_oneof![
        4 => Just(ConditionSpec::Nothing),
        1 => Just(ConditionSpec::Exists),
        1 => Just(ConditionSpec::Absent),
        2 => tags().prop_map(ConditionSpec::AnyOf),
        1 => tags().prop_map(ConditionSpec::NoneOf),
    ];
    let name = prop::option::weighted(0.4, 0u8..3);
    (fence, 0usize..3, what, condition, name).prop_map(|(fence, key, what, condition, name)| {
        StoreStep { fence, key, what, condition, name }
    })
}

fn etag(step: usize) -> ETag {
    ETag::from_body(b"body", &format!("{step:x}"))
}

fn operation(at: usize, step: &StoreStep) -> Option<Operation> {
    let key = ObjectKey::new(["a", "b/c", "d"][step.key]).unwrap();
    let tags = |steps: &[usize]| steps.iter().map(|step| etag(*step)).collect();
    let condition = match &step.condition {
        ConditionSpec::Nothing => Condition::None,
        ConditionSpec::Exists => Condition::Exists,
        ConditionSpec::Absent => Condition::Absent,
        ConditionSpec::AnyOf(steps) => Condition::AnyOf(tags(steps)),
        ConditionSpec::NoneOf(steps) => Condition::NoneOf(tags(steps)),
    };
    match step.what {
        OperationSpec::Seal => None,
        OperationSpec::Get => Some(Operation::Get { key }),
        OperationSpec::Delete => Some(Operation::Delete { key, condition }),
        OperationSpec::Put => {
            // A named operation is resent unchanged.
            let version = if step.name.is_some() { 200 } else { at };
            let body = Bytes::from(vec![version as u8, 0, 0xff, b'\r', b'\n']);
            let object = Object { etag: etag(at), content_type: format!("text/x{version}"), body };
            Some(Operation::Put { key, object, condition })
        }
    }
}

/// Describes every visible outcome of the steps, and the final state.
async fn story(store: &dyn FenceStore, steps: &[StoreStep]) -> String {
    let mut story = String::new();
    for (at, step) in steps.iter().enumerate() {
        let fence = step.fence.map(|(lock, token, lease)| Fence {
            lock: LockName::new(["l", "l/m"][lock]).unwrap(),
            presented: mark(token, lease),
        });
        let outcome = match (operation(at, step), fence) {
            (Some(operation), fence) => {
                let lock = fence.as_ref().map(|fence| &fence.lock);
                let name = step.name.filter(|_| step.what != OperationSpec::Get);
                let once = name.map(|name| Once::new(lock, &format!("name {name}"), &operation));
                store.apply_once(fence, operation, once).await
            }
            (None, Some(fence)) => store.seal(fence).await,
            (None, None) => continue,
        };
        story.push_str(&format!("{at} {outcome:?}\n"));
    }
    for (prefix, after, limit) in
        [("", None, 9), ("", None, 1), ("", Some("l"), 9), ("l/", None, 9), ("x", None, 9)]
    {
        let after = after.map(|after| LockName::new(after).unwrap());
        let query = FenceQuery { prefix: prefix.to_owned(), after, limit };
        story.push_str(&format!("{:?}\n", store.list(query).await));
    }
    story.push_str(&format!("{:?}\n", store.highest_mark().await));
    for lock in ["l", "l/m", "none"] {
        story.push_str(&format!("{:?}\n", store.show(&LockName::new(lock).unwrap()).await));
    }
    story
}

fn steps() -> impl Strategy<Value = Vec<StoreStep>> {
    prop::collection::vec(step(), 1..30)
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn embedded_equals_memory_and_is_durable() {
    let runtime = runtime();
    let same = |steps: Vec<StoreStep>| {
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let memory = MemoryStore::new();
            let half = steps.len() / 2;
            let (before, after) = steps.split_at(half);
            for part in [before, after] {
                // Reopened for each half: the second must have the first's state.
                let embedded = EmbeddedStore::open(folder.path(), &Health::new()).unwrap();
                prop_assert_eq!(story(&embedded, part).await, story(&memory, part).await);
            }
            Ok(())
        })
    };
    runner(48).run(&steps(), same).unwrap();
}

/// A Redis of this test; it ends with the test.
struct Redis {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"])
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is needed; tests/run installs it");
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| line.contains("Ready to accept"));
        assert!(ready, "redis-server did not start");
        Self { child, url: format!("redis://127.0.0.1:{port}"), _folder: folder }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn redis_equals_memory() {
    let redis = Redis::start();
    let runtime = runtime();
    let kit = Kit::new("test");
    let url: StoreUrl = redis.url.parse().unwrap();
    let next = std::cell::Cell::new(0);
    let same = |steps: Vec<StoreStep>| {
        next.set(next.get() + 1);
        let namespace = format!("case-{}", next.get()).parse().unwrap();
        runtime.block_on(async {
            let options = super::redis::RedisOptions::default();
            let store = open(&url, &namespace, options, &kit).await.unwrap().store;
            prop_assert_eq!(story(&*store, &steps).await, story(&MemoryStore::new(), &steps).await);
            Ok(())
        })
    };
    runner(128).run(&steps(), same).unwrap();
    kit.tasks.begin_shutdown();
}
