//! A wait without end, over the limit of a single request.

use std::time::Duration;

use fence_client::testing::TestServers;
use fence_client::{Client, ErrorKind, Lease};
use fence_tests::api::Api;
use fence_tests::wait::{soon, until_true};
use tokio::sync::mpsc;

use super::LONG;

/// Longer than the waits here, on the services' clock.
const HOUR: Duration = Duration::from_secs(3600);

/// Acquires and releases in a thread whose time moves only as the test says, and which ends with
/// the test; the token.
fn wait_in_moved_time(
    client: impl FnOnce() -> Client + Send + 'static,
) -> (mpsc::UnboundedSender<Duration>, tokio::task::JoinHandle<Option<u64>>) {
    let (times, mut moved) = mpsc::unbounded_channel();
    let work = async move {
        // Paused time moves by itself unless a blocking task runs.
        let (_end, until_end) = std::sync::mpsc::channel::<()>();
        drop(tokio::task::spawn_blocking(move || until_end.recv()));
        let client = client();
        let mut acquiring = Box::pin(client.lock("a").ttl(LONG).wait_forever().acquire());
        let lease: Lease = loop {
            tokio::select! {
                lease = &mut acquiring => break lease.unwrap(),
                time = moved.recv() => tokio::time::advance(time?).await,
            }
        };
        let token = lease.token().get();
        lease.release().await.unwrap();
        Some(token)
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    (times, tokio::task::spawn_blocking(move || runtime.block_on(work)))
}

/// One request waits for five minutes at most; the next one has the same queue entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_without_end_keeps_its_position() {
    let servers = TestServers::start().await.unwrap();
    let client = servers.client().unwrap();
    let lock = "a".parse().unwrap();
    let queue = async || client.locks().show(&lock).await.unwrap().queue;
    let metrics = Api::new(client.lock_server());
    let in_flight = async || metrics.metric("fencepost_http_requests_in_flight").await;
    let holder = client.lock("a").ttl(HOUR).acquire().await.unwrap();

    let builder = servers.builder();
    let (times, waiting) = wait_in_moved_time(move || builder.build().unwrap());
    until_true("a waiter", async || queue().await.len() == 1).await;
    let entry = queue().await[0].lease_id;
    let mut later = None;
    for turn in 0..2 {
        let before = in_flight().await;
        // The first request would time out in the second turn.
        servers.advance(Duration::from_secs(200)).await.unwrap();
        times.send(Duration::from_secs(280)).unwrap();
        until_true("the next request", async || in_flight().await == before + 1).await;
        times.send(Duration::from_secs(10)).unwrap();
        until_true("the end of the one before", async || in_flight().await == before).await;
        if turn == 0 {
            later = Some(tokio::spawn(client.lock("a").ttl(HOUR).wait(LONG).acquire()));
            until_true("a second waiter", async || queue().await.len() == 2).await;
        }
        assert_eq!(queue().await[0].lease_id, entry, "turn {turn}");
    }
    let token = holder.token().get();
    holder.release().await.unwrap();
    assert_eq!(soon("the waiter's token", waiting).await.unwrap(), Some(token + 1));
    let later = soon("the later waiter", later.unwrap()).await.unwrap().unwrap();
    assert_eq!(later.token().get(), token + 2);
}

/// A server that is unreachable does not end the wait, and its client can.
#[tokio::test]
async fn a_wait_without_end_outlasts_its_server() {
    let url = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    let client = Client::builder().lock_server(&url).build().unwrap();
    let mut endless = Box::pin(client.lock("a").patience(Duration::ZERO).wait_forever().acquire());
    let bounded = client.lock("a").patience(Duration::ZERO).acquire();
    tokio::select! {
        biased;
        ended = &mut endless => panic!("{ended:?}"),
        refused = bounded => assert_eq!(*refused.unwrap_err().kind(), ErrorKind::Unavailable),
    }
    drop(endless);
    let servers = TestServers::start().await.unwrap();
    let client = servers.client().unwrap();
    let session = client.session().ttl(LONG).begin().await.unwrap();
    let holder = client.lock("b").ttl(LONG).acquire().await.unwrap();
    let queue_length =
        async || client.locks().show(&"b".parse().unwrap()).await.unwrap().queue_length;
    {
        let waiting = session.locks(["b"]).wait_forever().acquire_all();
        tokio::select! {
            ended = waiting => panic!("{ended:?}"),
            () = until_true("a waiter", async || queue_length().await == 1) => {}
        }
    }
    until_true("an empty queue", async || queue_length().await == 0).await;
    holder.release().await.unwrap();
    session.end().await.unwrap();
}
