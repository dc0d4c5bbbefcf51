//! The leader is killed or stopped under load.

use std::time::Duration;

use fence_protocol::Code;
use fence_tests::seed::{Seed, rounds};
use fence_tests::wait::{soon, until, until_true};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::load::Load;
use super::{LONG_TTL, Member, Pair, is_problem, put};

/// Requests that are sent to a stopped guard.
const BURST: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_nothing_is_lost() {
    let mut seed = Seed::of_run("standby::a_killed_leader_is_replaced_and_nothing_is_lost");
    for _ in 0..rounds(1, 20) {
        let mut pair = Pair::start().await;
        let load = Load::start(&pair, 4);
        load.progress(40).await;
        tokio::time::sleep(seed.time_ms(0, 80)).await;
        let leader = pair.leader().await;
        pair.members[leader].server.process.kill();
        let next = &pair.members[1 - leader];
        until_true("the standby to lead", || next.leads()).await;
        load.progress(40).await;
        assert!(next.server.metric("fencepost_fence_quarantines_total").await > 0);
        load.check(&pair).await;
    }
}

/// The heart of it: writes are on their way through a leader that stops. Its successor writes with
/// a higher token. What the first has in its sockets must not follow when it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_leader_that_resumes_forwards_nothing() {
    let mut seed = Seed::of_run("standby::a_stopped_leader_that_resumes_forwards_nothing");
    let pair = Pair::with_ttl(LONG_TTL).await;
    let mut token = 10;
    for round in 0..rounds(2, 40) {
        let leader = pair.leader().await;
        let [old, new] = [&pair.members[leader], &pair.members[1 - leader]];
        token += 1;
        pair.written_through(leader, "doc", token, &format!("warm {round}")).await;
        let terms = old.terms().await;
        let mut requests = JoinSet::new();
        for write in 0..BURST {
            later(&mut requests, old, token, format!("before {round}.{write}"));
        }
        tokio::time::sleep(Duration::from_micros(seed.below(4_000))).await;
        old.server.process.pause();
        let before = requests.len();
        for write in 0..BURST {
            later(&mut requests, old, token, format!("stopped {round}.{write}"));
        }
        token += 1;
        pair.written_through(1 - leader, "doc", token, &format!("next {round}")).await;
        let applied = pair.applied("doc").len();
        old.server.process.resume();
        let refused = Refused::from_requests(&mut requests).await;
        // On a busy machine its successor loses the lead, and it may lead again.
        let led_again = old.terms().await > terms;
        assert!(refused.quarantined == 0 || led_again, "a lane waits, and it did not lead again");
        let is_enough = refused.by_a_standby > 0 || led_again;
        assert!(is_enough, "nothing of {BURST} requests was refused, {before} were before");
        pair.tokens_never_fell("doc");
        let mut late = pair.applied("doc").split_off(applied);
        late.retain(|(_, through, _)| through == old.name);
        assert_eq!(late, [], "the old leader forwarded after its successor: {late:?}");
        is_a_standby(old, new, token + 1).await;
    }
}

/// Refusals among the replies of a leader that was stopped.
#[derive(Default)]
struct Refused {
    by_a_standby: usize,
    quarantined: usize,
}

impl Refused {
    async fn from_requests(requests: &mut Replies) -> Self {
        let mut refused = Self::default();
        while let Some(reply) = soon("the replies of the old leader", requests.join_next()).await {
            let Ok(reply) = reply.unwrap() else { continue };
            match reply.status {
                503 if is_problem(&reply, Code::Quarantined) => refused.quarantined += 1,
                503 => {
                    reply.problem(Code::NotLeader);
                    refused.by_a_standby += 1;
                }
                // Acknowledged, or cut, before the stop; of unknown outcome, or refused, after it.
                204 | 412 | 504 => {}
                _ => panic!("{reply:?}"),
            }
        }
        refused
    }
}

/// The old leader is a standby now, without a restart; unless its successor has lost the lead
/// meanwhile.
async fn is_a_standby(old: &Member, new: &Member, token: u64) {
    let term = new.term().await;
    let reply = old.put("doc", token, "late").await.unwrap();
    let leads = old.leads().await;
    if term.is_some() && new.term().await == term {
        assert!(reply.problem(Code::NotLeader).retryable);
        assert!(!leads, "both lead");
    }
}

/// A write of the killed leader is still at the datastore: the standby waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_at_the_datastore_is_waited_for() {
    let mut pair = Pair::with(LONG_TTL, "3s").await;
    let leader = pair.leader().await;
    let mut hold = pair.setting.upstream.hold("33");
    let mut requests = JoinSet::new();
    later(&mut requests, &pair.members[leader], 33, "33".to_owned());
    hold.arrived().await;
    pair.members[leader].server.process.kill();
    let next = &pair.members[1 - leader];
    let first = until("the standby to lead", || async {
        let reply = next.put("doc", 34, "34").await.unwrap();
        (!is_problem(&reply, Code::NotLeader)).then_some(reply)
    })
    .await;
    first.problem(Code::Quarantined);
    hold.release();
    pair.written_through(1 - leader, "doc", 34, "34").await;
    let mut values = pair.setting.upstream.values();
    // Repeated where its outcome was unknown.
    values.dedup();
    assert_eq!(values, ["33", "34"]);
}

type Replies = JoinSet<Result<fence_tests::api::Reply, String>>;

fn later(requests: &mut Replies, to: &Member, token: u64, value: String) {
    let api = to.api.clone();
    let name = to.name;
    requests.spawn(async move { put(&api, name, "doc", token, &value).await });
}

/// Streamed bodies at a time.
const STREAMS: usize = 40;
/// Beyond what is received before the lane is entered.
const FIRST_BYTES: usize = 17 << 16;
/// Few enough for one write to the upstream, which would be complete then.
const REST_BYTES: usize = 1000;

/// The rest of streamed bodies comes while their guard is stopped. Only the end of its term keeps
/// it from the upstream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_a_body_stays_behind() {
    let pair = Pair::with(LONG_TTL, "20s").await;
    let leader = pair.leader().await;
    let [old, new] = [&pair.members[leader], &pair.members[1 - leader]];
    let address = old.api.base().trim_start_matches("http://").to_owned();
    let token = fence_tests::key_file::unsigned(33, "doc", super::load::lease_of(33));
    let length = FIRST_BYTES + REST_BYTES;
    let head = format!(
        "PUT /doc HTTP/1.1\r\nhost: localhost\r\nfencing-token: {token}\r\nx-through: old\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        let mut client = TcpStream::connect(&address).await.unwrap();
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b'x'; FIRST_BYTES]).await.unwrap();
        clients.push(client);
    }
    until_true("the writes to be on their way", || async {
        old.server.metric("fencepost_fence_in_flight").await == STREAMS as u64
    })
    .await;
    old.server.process.pause();
    let mut replies = JoinSet::new();
    for mut client in clients {
        replies.spawn(async move {
            // The guard may have closed the connection.
            let _ = client.write_all(&[b'x'; REST_BYTES]).await;
            let mut reply = Vec::new();
            let _ = client.read_to_end(&mut reply).await;
            String::from_utf8_lossy(&reply).into_owned()
        });
    }
    until_true("the standby to lead", || new.leads()).await;
    old.server.process.resume();
    while let Some(reply) = soon("the end of a connection", replies.join_next()).await {
        let reply = reply.unwrap();
        assert!(!reply.contains(" 204 "), "{reply}");
    }
    assert_eq!(pair.applied("doc").len(), 0, "the old leader went on");
}
