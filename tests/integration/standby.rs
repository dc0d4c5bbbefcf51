//! Two guards before one HTTP datastore: one leads, the other takes its lanes over.

mod connections;
mod damage;
mod ends;
mod faults;
mod load;
mod operators;
mod stops;

use std::time::Duration;

use fence_protocol::{Code, Problem};
use fence_tests::api::{Api, Reply};
use fence_tests::fault_proxy::FaultProxy;
use fence_tests::key_file::unsigned;
use fence_tests::redis_server::Redis;
use fence_tests::servers::{Server, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::until;
use http::Method;

use self::load::lease_of;

/// Time to live of the leader's lease. Long enough for a busy machine, so that a lead is rarely
/// lost by itself; the tests allow for it.
const TTL: &str = "3s";
/// The same for a test that acts within it.
const LONG_TTL: &str = "5s";
/// The same for a test in which no lead runs out. A guard leads after as long at the earliest.
const LASTING_TTL: &str = "8s";
/// Time limit of a reply of the upstream.
const TIMEOUT: &str = "2s";
const LOCK: &str = "guards/http";

/// A guard of the pair.
struct Member {
    name: &'static str,
    server: Server,
    api: Api,
    /// Its way to the lock server.
    to_locks: FaultProxy,
}

impl Member {
    async fn start(name: &'static str, setting: &Setting, ttl: &str) -> Self {
        let to_locks = FaultProxy::before(&setting.locks.address()).await;
        let mut server = setup(name, setting, ttl, &to_locks).start().await;
        let api = Api::new(&server.proxy().await);
        Self { name, server, api, to_locks }
    }

    /// Writes to a lane of its own kind: `PUT /doc`, with the writer in a header.
    async fn put(&self, doc: &str, token: u64, value: &str) -> Result<Reply, String> {
        put(&self.api, self.name, doc, token, value).await
    }

    async fn leads(&self) -> bool {
        self.server.metric("fencepost_fence_leader").await == 1
    }

    /// Number of times that it began to lead.
    async fn terms(&self) -> u64 {
        self.server.metric("fencepost_fence_takeovers_total").await
    }

    /// Number of the term in which it leads now.
    async fn term(&self) -> Option<u64> {
        let terms = self.terms().await;
        self.leads().await.then_some(terms)
    }

    /// `/readyz?verbose`, as text.
    async fn readiness(&self) -> String {
        let ready = Api::new(&self.server.base).get("/readyz?verbose").await;
        String::from_utf8_lossy(&ready.body).into_owned()
    }
}

fn setup(name: &str, setting: &Setting, ttl: &str, to_locks: &FaultProxy) -> Setup {
    Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0"])
        .args(&["--upstream", setting.upstream.base(), "--max-request-lifetime", "300ms"])
        .args(&["--upstream-timeout", setting.upstream_timeout, "--drain-wait", "100ms"])
        .args(&["--state", &setting.redis.url(), "--leader-lock", LOCK, "--leader-ttl", ttl])
        .args(&["--leader-server", &format!("http://{}", to_locks.address())])
        .args(&["--leader-name", name])
}

/// `true` if the reply is a problem of this code.
fn is_problem(reply: &Reply, code: Code) -> bool {
    reply.status == code.status() && reply.read::<Problem>().code == code
}

async fn put(
    api: &Api,
    through: &str,
    doc: &str,
    token: u64,
    value: &str,
) -> Result<Reply, String> {
    let header = unsigned(token, doc, lease_of(token));
    let headers = [("fencing-token", header.as_str()), ("x-through", through)];
    api.attempt(Method::PUT, &format!("/{doc}"), &headers, value.to_owned().into()).await
}

/// Everything that the guards share.
struct Setting {
    locks: Server,
    redis: Redis,
    upstream: Upstream,
    upstream_timeout: &'static str,
}

struct Pair {
    setting: Setting,
    members: [Member; 2],
}

impl Pair {
    /// Starts both; returns once one serves.
    async fn start() -> Self {
        Self::with_ttl(TTL).await
    }

    async fn with_ttl(ttl: &str) -> Self {
        Self::with(ttl, TIMEOUT).await
    }

    async fn with(ttl: &str, upstream_timeout: &'static str) -> Self {
        let locks = Setup::lock_server("memory:").start().await;
        let redis = Redis::start().await;
        let upstream = Upstream::start().await;
        let setting = Setting { locks, redis, upstream, upstream_timeout };
        let members =
            [Member::start("a", &setting, ttl).await, Member::start("b", &setting, ttl).await];
        let pair = Self { setting, members };
        pair.leader().await;
        pair
    }

    /// Waits until one of them leads, and returns its index.
    async fn leader(&self) -> usize {
        until("a guard to lead", || async {
            for (at, member) in self.members.iter().enumerate() {
                if member.leads().await {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    /// Waits until a guard's readiness has these words, and returns its index.
    async fn one_says(&self, words: &str) -> usize {
        until(&format!("a guard to say {words:?}"), || async {
            for (at, member) in self.members.iter().enumerate() {
                if member.readiness().await.contains(words) {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    /// Waits until one of the guards, whichever leads, gives this status to a write.
    async fn one_answers(&self, doc: &str, token: u64, status: u16) -> Reply {
        until(&format!("{status} for a write of {token}"), || async {
            for member in &self.members {
                let reply = member.put(doc, token, "any").await.ok()?;
                if reply.status == status {
                    return Some(reply);
                }
            }
            None
        })
        .await
    }

    /// Name of one of the keys of the lanes in Redis.
    fn key(name: &str) -> String {
        format!("{{fence:default}}:lanes:{LOCK}:{name}")
    }

    /// Waits until this guard has written with this token.
    async fn written_through(&self, at: usize, doc: &str, token: u64, value: &str) {
        let member = &self.members[at];
        until(&format!("{} to write {value}", member.name), || async {
            let reply = member.put(doc, token, value).await.ok()?;
            assert!(matches!(reply.status, 204 | 503 | 504), "{reply:?}");
            (reply.status == 204).then_some(())
        })
        .await;
    }

    /// Tokens of a document's writes in the order in which they took effect.
    fn applied(&self, doc: &str) -> Vec<(u64, String, String)> {
        let log = self.setting.upstream.log();
        let of_doc = log.into_iter().filter(|write| write.path == format!("/{doc}"));
        of_doc
            .map(|write| {
                let text = |name: &str| write.headers[name].to_str().unwrap().to_owned();
                let token = text("fencing-token").split(';').next().unwrap().parse().unwrap();
                (token, text("x-through"), write.value.clone())
            })
            .collect()
    }

    /// Checks G1 at the datastore: the tokens of a document's writes never fall.
    fn tokens_never_fell(&self, doc: &str) {
        let applied = self.applied(doc);
        let mut highest = 0;
        for (at, (token, through, value)) in applied.iter().enumerate() {
            let near = &applied[at.saturating_sub(8)..(at + 2).min(applied.len())];
            assert!(*token >= highest, "{through} wrote {value} after {highest}: {near:?}");
            highest = *token;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_says_so_and_names_the_leader() {
    let pair = Pair::with_ttl(LASTING_TTL).await;
    let leader = pair.leader().await;
    let [leads, waits] = [&pair.members[leader], &pair.members[1 - leader]];
    pair.written_through(leader, "doc", 33, "one").await;
    let problem = until("the standby to know the leader", || async {
        let problem = waits.put("doc", 34, "two").await.unwrap().problem(Code::NotLeader);
        problem.extension::<String>("leader").map(|name| (name, problem))
    })
    .await;
    assert_eq!(problem.0, leads.name);
    assert!(problem.1.retryable);
    Api::new(&waits.server.base).get("/readyz").await.expect(503);
    let text = waits.readiness().await;
    assert!(text.contains(&format!("leader standby: {} leads", leads.name)), "{text}");
    Api::new(&leads.server.base).get("/readyz").await.expect(200);
    // Marks are readable at both; a seal is the leader's.
    assert_eq!(waits.server.guard().fence("doc").await.mark.map(|mark| mark.get()), Some(33));
    let seal = waits.server.guard().seal("doc", &unsigned(34, "doc", lease_of(34))).await;
    seal.problem(Code::NotLeader);
    let mut applied = pair.applied("doc");
    // Repeated where its outcome was unknown.
    applied.dedup();
    assert_eq!(applied.len(), 1, "the standby wrote");
}

/// An orderly end closes the lanes and releases the lease: the standby need not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_end_hands_the_lanes_over() {
    let mut pair = Pair::with_ttl(LASTING_TTL).await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    pair.members[leader].server.process.terminate();
    let output = pair.members[leader].server.process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    pair.written_through(1 - leader, "doc", 34, "two").await;
    let waits = &pair.members[1 - leader];
    assert_eq!(waits.server.metric("fencepost_fence_quarantines_total").await, 0);
    assert_eq!(waits.server.metric("fencepost_fence_takeovers_total").await, 1);
    waits.put("doc", 33, "late").await.unwrap().problem(Code::StaleToken);
    pair.tokens_never_fell("doc");
}

#[tokio::test]
async fn settings_of_a_standby_belong_together() {
    for (args, reason) in [
        (&["--state", "redis://127.0.0.1:1"][..], "--leader-lock and --leader-server"),
        (&["--state", "x", "--leader-lock", "a"], "--state redis://HOST:PORT"),
        (&["--state", "redis-sentinel://127.0.0.1:1/main"], "a failover loses marks"),
    ] {
        let output = Setup::bare("fenced-store")
            .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0"])
            .args(&["--upstream", "http://127.0.0.1:9", "--max-request-lifetime", "1s"])
            .args(args)
            .refused()
            .await;
        assert_eq!(output.code, 64, "{output:?}");
        assert!(output.stderr.contains(reason), "{output:?}");
    }
}

/// A pause that gives others a turn, between retries of a load.
const PAUSE: Duration = Duration::from_millis(10);
