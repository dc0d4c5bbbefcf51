//! The node in Redis.

use std::collections::BTreeMap;
use std::sync::Arc;

use fence_protocol::LockName;
use fence_tests::redis_server::Redis;
use lock_server::engines::quorum::replies::{
    read_batch, read_member, read_names, read_probe, read_reply, read_seen,
};
use lock_server::engines::quorum::rules::Operation;
use lock_server::engines::quorum::rules::view::{Addressee, View};
use lock_server::engines::quorum::scripts::{Keys, Scripts};
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Value};
use redis_link::LinkError;

use super::steps::{Answer, NodeStep, World};

/// A Redis with the scripts; the test sets its time.
pub(super) struct RealNode {
    connection: MultiplexedConnection,
    scripts: Scripts,
    /// The SHA-1 of each script, and of its copy that reads the set time.
    timed: BTreeMap<Vec<u8>, String>,
}

const ASKS: &str = "redis.call('TIME')";
const READS: &str = "redis.call('HMGET', 'clock', 'seconds', 'microseconds')";

impl RealNode {
    pub(super) async fn new(redis: &Redis) -> Self {
        let mut connection = redis.connect().await.unwrap();
        let scripts =
            Scripts::new(Keys::new(&"app1:".parse().unwrap(), &"default".parse().unwrap()));
        let mut timed = BTreeMap::new();
        for script in scripts.all() {
            let text = script.text().replace(ASKS, READS);
            assert!(!text.contains("'TIME'"), "a script asks for the time in another way");
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(text);
            let sha1: String = load.query_async(&mut connection).await.unwrap();
            timed.insert(script.sha1().as_bytes().to_vec(), sha1);
        }
        Self { connection, scripts, timed }
    }

    /// Forgets everything.
    pub(super) async fn begin(&mut self) {
        let mut flush = redis::cmd("FLUSHALL");
        let _: () = flush.arg("SYNC").query_async(&mut self.connection).await.unwrap();
    }

    /// The step, at the time of the world.
    pub(super) async fn take(&mut self, step: &NodeStep, world: &World) -> Answer {
        self.set_time(world).await;
        let scripts = self.scripts.clone();
        let call = match step {
            NodeStep::Batch(to, operations) => {
                let replies = self.batch(to.addressee(), operations).await;
                let read = |reply: Result<Value, _>| read_reply(reply.unwrap()).unwrap();
                return Answer::Nodes(replies.into_iter().map(read).collect());
            }
            NodeStep::Init(init) => scripts.init(init),
            NodeStep::Doubt(run_id, seen, fresh) => scripts.doubt(run_id, seen.as_ref(), fresh),
            NodeStep::Adopt(old, new) => scripts.adopt(old, new),
            NodeStep::Bump(view) => scripts.bump(view),
            NodeStep::Rejoin(rejoin) => scripts.rejoin(rejoin),
            NodeStep::Ready(view, id) => scripts.ready(view, id),
            NodeStep::Advance(view) => scripts.advance(view),
        };
        Answer::Member(read_member(self.call(&call).await).unwrap())
    }

    /// The key of the record of a lock.
    pub(super) fn record(&self, lock: &LockName) -> String {
        self.scripts.keys().lock(lock)
    }

    /// One call with these operations.
    pub(super) async fn batch(
        &mut self,
        to: Addressee<'_>,
        operations: &[Operation],
    ) -> Vec<Result<Value, LinkError>> {
        let operations: Vec<_> = operations.iter().cloned().map(Arc::new).collect();
        let call = self.scripts.batch(to, &operations);
        read_batch(self.call(&call).await, operations.len()).unwrap()
    }

    /// Checks that everything that can be seen of the node is what the one in Rust says.
    pub(super) async fn agrees(&mut self, world: &World, log: &[String]) {
        let node = &world.node;
        let now_ms = world.now_ms;
        let ours = node.probe(now_ms);
        let about = ours.meta.as_ref().map(|meta| (meta.view.clone(), meta.node.clone()));
        let (view, own) = about.unwrap_or_else(|| (View::default(), "x".parse().unwrap()));
        let to = Addressee { view: &view, node: &own };
        let mut calls = vec![self.scripts.probe(), self.scripts.names(to, "", 0, 1_000)];
        let reads = world.locks.iter().cloned().map(|lock| Arc::new(Operation::Read(lock)));
        calls.push(self.scripts.batch(to, &reads.collect::<Vec<_>>()));
        let mut answers = self.calls(&calls).await.into_iter();
        let mut next = || answers.next().unwrap();

        let theirs = read_probe(next()).unwrap();
        assert_eq!(ours, theirs, "looks; steps:\n{}", log.join("\n"));
        let theirs = read_names(next()).unwrap().map(|mut found| {
            assert_eq!(found.cursor, 0, "one page is enough");
            found.names.sort();
            found.names
        });
        assert_eq!(node.names(now_ms, to), theirs, "names; steps:\n{}", log.join("\n"));
        let seen = read_batch(next(), world.locks.len()).unwrap();
        for (lock, theirs) in world.locks.iter().zip(seen) {
            let theirs = read_seen(theirs.unwrap()).unwrap();
            let ours = node.read(now_ms, to, lock);
            assert_eq!(ours, theirs, "{lock}; steps:\n{}", log.join("\n"));
        }
    }

    /// Sets the time, and takes away what Redis would not have any more by now.
    async fn set_time(&mut self, world: &World) {
        let now_ms = world.now_ms;
        let mut pipeline = redis::pipe();
        pipeline.cmd("HSET").arg("clock").arg("seconds").arg(now_ms / 1_000);
        pipeline.arg("microseconds").arg(now_ms % 1_000 * 1_000 + 999).ignore();
        let keys: Vec<String> =
            world.locks.iter().map(|lock| self.scripts.keys().lock(lock)).collect();
        for key in &keys {
            pipeline.cmd("PEXPIRETIME").arg(key);
        }
        let gone_at_ms: Vec<i64> = pipeline.query_async(&mut self.connection).await.unwrap();
        for (key, gone_at_ms) in keys.iter().zip(gone_at_ms) {
            assert_ne!(gone_at_ms, -1, "{key} would stay for ever");
            if gone_at_ms >= 0 && gone_at_ms <= now_ms as i64 {
                let mut delete = redis::cmd("DEL");
                let _: i64 = delete.arg(key).query_async(&mut self.connection).await.unwrap();
            }
        }
    }

    async fn call(&mut self, call: &Cmd) -> Value {
        self.calls(std::slice::from_ref(call)).await.remove(0)
    }

    /// Sends the calls to the scripts that read the set time.
    async fn calls(&mut self, calls: &[Cmd]) -> Vec<Value> {
        let mut pipeline = redis::pipe();
        for call in calls {
            let mut words = call.args_iter().map(|arg| match arg {
                Arg::Simple(bytes) => bytes.to_vec(),
                _ => panic!("a call has no cursor"),
            });
            assert_eq!(words.next().as_deref(), Some(b"EVALSHA".as_slice()));
            pipeline.cmd("EVALSHA").arg(&self.timed[&words.next().unwrap()]);
            for word in words {
                pipeline.arg(word);
            }
        }
        pipeline.query_async(&mut self.connection).await.unwrap()
    }
}
