//! A Redis with a replica and a sentinel that watches both, for one test.

use std::time::Duration;

use tempfile::TempDir;

use crate::ports;
use crate::process::{Process, command};
use crate::redis_server::{Redis, connect_patiently};
use crate::wait::until_true;

/// Name that the sentinel has for the master.
pub const MASTER: &str = "orders-redis";

/// A full copy begins at once: the default waits five seconds for more replicas.
const QUICK: &[(&str, &str)] = &[("repl-diskless-sync-delay", "0")];

/// The sentinel takes no Redis for down that is only slow.
const CALM: [&str; 2] = ["60000", "60000"];
/// It soon does, and tries again soon where a failover comes to nothing.
const QUICK_DOWN: [&str; 2] = ["1000", "5000"];

/// A failover that takes longer came to nothing.
const FAILOVER_MAX: Duration = Duration::from_secs(20);

/// Part of a master's INFO about a replica that has its copy, and has not said so yet.
pub(crate) const NOT_ACKNOWLEDGED: &str = ",offset=0,";

/// Has a sentinel begin a failover; `false` where it cannot yet. It is given time to reply: retried
/// after a reply that was late, it would begin another one.
pub(crate) async fn begins_failover(sentinel: &str) -> bool {
    let connected = connect_patiently(&format!("redis://{sentinel}")).await;
    let Ok(mut connection) = connected else { return false };
    let mut command = redis::cmd("SENTINEL");
    command.arg("FAILOVER").arg(MASTER);
    command.query_async::<redis::Value>(&mut connection).await.is_ok()
}

/// Two Redis and one sentinel; gone when dropped.
#[derive(Debug)]
pub struct SentinelGroup {
    redis: [Redis; 2],
    port: u16,
    _folder: TempDir,
    _process: Process,
}

impl SentinelGroup {
    /// The first Redis is the master, and the second one in step with it.
    ///
    /// # Panics
    /// If they do not find each other.
    pub async fn start() -> Self {
        Self::started([Redis::with(QUICK).await, Redis::with(QUICK).await]).await
    }

    /// The same; the clock of the second one is so many seconds ahead of the right time, or behind
    /// it.
    ///
    /// # Panics
    /// If libfaketime is not installed, or they do not find each other.
    pub async fn with_clock(seconds: i64) -> Self {
        Self::started([Redis::with(QUICK).await, Redis::with_clock(QUICK, seconds).await]).await
    }

    async fn started(redis: [Redis; 2]) -> Self {
        let master = redis[0].address();
        let (host, master_port) = master.split_once(':').expect("host:port");
        let _: () = redis[1].run(&["REPLICAOF", host, master_port]).await;
        let port = ports::unused();
        let folder = crate::folder::new();
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {dir}\nsentinel monitor {MASTER} {host} {master_port} 1\n\
             sentinel down-after-milliseconds {MASTER} {down}\n\
             sentinel failover-timeout {MASTER} {timeout}\n",
            dir = folder.path().display(),
            down = CALM[0],
            timeout = CALM[1]
        );
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, config).expect("a configuration");
        let mut command = command(crate::engines::redis());
        command.arg(&file).arg("--sentinel");
        let process = Process::spawn("redis-sentinel", command);
        let group = Self { redis, port, _folder: folder, _process: process };
        // After a pause of the whole machine it would do nothing for half a minute.
        group.instruct(&["SENTINEL", "DEBUG", "TILT-PERIOD", "1000"]).await;
        group.replicates(1).await;
        until_true("the sentinel to know both", || async {
            let Some(text) = group.command(&["SENTINEL", "REPLICAS", MASTER]).await else {
                return false;
            };
            text.contains(&group.redis[1].address()) && text.contains("\"ok\"")
        })
        .await;
        group
    }

    /// `redis-sentinel://HOST:PORT/NAME`, behind a sentinel that is down.
    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:1,127.0.0.1:{}/{MASTER}", self.port)
    }

    /// The same without the one that is down: the other is more than half of all.
    pub fn url_of_one(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/{MASTER}", self.port)
    }

    /// `HOST:PORT` of the sentinel.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The first or the second Redis.
    pub fn redis(&self, index: usize) -> &Redis {
        &self.redis[index]
    }

    /// One Redis, to stop it.
    pub fn redis_mut(&mut self, index: usize) -> &mut Redis {
        &mut self.redis[index]
    }

    /// kill -9 of one Redis, which the sentinel then soon takes for down.
    pub async fn kill(&mut self, index: usize) {
        let [down, timeout] = QUICK_DOWN;
        let down = ["down-after-milliseconds", down, "failover-timeout", timeout];
        self.instruct(&[&["SENTINEL", "SET", MASTER][..], &down].concat()).await;
        self.redis[index].kill();
    }

    /// Waits until the sentinel has carried out a command.
    async fn instruct(&self, words: &[&str]) {
        until_true("the sentinel to answer", || async { self.command(words).await.is_some() })
            .await;
    }

    /// Waits until the Redis of this number is in step with its master, and has said so to it: only
    /// then it is sent what is written, up to a second after it has its copy.
    pub async fn replicates(&self, index: usize) {
        until_true("the replica to be in step", || async {
            let info = self.replication(index).await;
            let of = self.replication(1 - index).await;
            info.contains("role:slave")
                && info.contains("master_link_status:up")
                && of.contains("state=online")
                && !of.contains(NOT_ACKNOWLEDGED)
        })
        .await;
    }

    /// Has the sentinel make the replica the master, and waits until both have their new roles.
    pub async fn fail_over(&self, to: usize) {
        until_true("the sentinel to carry out a failover", || async {
            begins_failover(&self.address()).await
                && tokio::time::timeout(FAILOVER_MAX, self.is_master(to)).await.is_ok()
        })
        .await;
        self.replicates(1 - to).await;
    }

    /// Waits until the sentinel calls this one the master, and it is.
    pub async fn is_master(&self, index: usize) {
        let address = self.redis[index].address();
        let port = address.rsplit_once(':').expect("host:port").1.to_owned();
        until_true("the sentinel to name the new master", || async {
            let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
            let named = self.command(&ask).await.is_some_and(|text| text.contains(&port));
            named && self.replication(index).await.contains("role:master")
        })
        .await;
    }

    /// Nothing where it does not answer, as in the midst of a failover.
    async fn replication(&self, index: usize) -> String {
        self.redis[index].try_run(&["INFO", "replication"]).await.unwrap_or_default()
    }

    /// Reply of the sentinel, as text; `None` for an error.
    async fn command(&self, words: &[&str]) -> Option<String> {
        let client = redis::Client::open(format!("redis://{}", self.address())).ok()?;
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let reply: redis::Value = command.query_async(&mut connection).await.ok()?;
        Some(format!("{reply:?}"))
    }
}
