//! Clients that send all commands of a pipeline before they read a reply.

use fence_tests::redis_cluster::RedisCluster;
use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};
use fence_tests::wait::{soon, until_true};

use super::{Port, port, setup};

/// Commands of a pipeline, each with as many bytes as its reply: more than all sockets between two
/// programs of one machine hold in either direction.
const COMMANDS: usize = 24 * 1024;
/// Size of each value, in bytes.
const VALUE_BYTES: usize = 1024;

fn value(number: usize) -> String {
    format!("{number:0VALUE_BYTES$}")
}

/// `SET key value GET` for each number: the reply is the value before.
fn exchanges(key: &str, numbers: std::ops::Range<usize>) -> Vec<u8> {
    numbers.flat_map(|number| request(&["SET", key, &value(number), "GET"])).collect()
}

/// Sends a pipeline that exchanges the values of `key`, and only then reads the replies.
async fn send_then_read(client: &mut RespClient, key: &str) {
    client.call(&["SET", key, &value(0)]).await;
    client.send_raw(&exchanges(key, 1..COMMANDS + 1)).await;
    for number in 0..COMMANDS {
        assert_eq!(client.reply().await, Resp::bulk(value(number)), "reply {number}");
    }
    assert_eq!(client.call(&["GET", key]).await, Resp::bulk(value(COMMANDS)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_send_everything_before_it_reads() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(1, "1");
    let key = grant.key("a");
    let mut shared = RespClient::fenced(&guard.address, &grant.credential).await;
    send_then_read(&mut shared, &key).await;
    let mut own = RespClient::fenced(&guard.address, &grant.credential).await;
    own.call(&["WATCH", &grant.key("b")]).await;
    send_then_read(&mut own, &key).await;
}

/// Commands that the guard answers by itself await the replies of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_may_change_its_connection() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = port(&setup(&redis.url())).await;
    let grant = Grant::new(1, "1");
    let key = grant.key("a");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    client.pipeline(&[&["MULTI"], &["SET", &key, &value(0)], &["EXEC"]]).await;
    let half = COMMANDS / 2;
    let whole = [
        exchanges(&key, 1..half + 1),
        request(&["AUTH", "fence", &Grant::new(2, "1").credential]),
        exchanges(&key, half + 1..COMMANDS + 1),
        request(&["MULTI"]),
        request(&["GET", &key]),
        request(&["EXEC"]),
    ];
    client.send_raw(&whole.concat()).await;
    for number in 0..half {
        assert_eq!(client.reply().await, Resp::bulk(value(number)), "reply {number}");
    }
    assert_eq!(client.reply().await, Resp::simple("OK"));
    for number in half..COMMANDS {
        assert_eq!(client.reply().await, Resp::bulk(value(number)), "reply {number}");
    }
    assert_eq!(client.reply().await, Resp::simple("OK"));
    assert_eq!(client.reply().await, Resp::simple("QUEUED"));
    assert_eq!(client.reply().await.items(), [Resp::bulk(value(COMMANDS))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_cluster_may_send_everything_before_it_reads() {
    let cluster = RedisCluster::start().await;
    let guard = port(&setup(&cluster.url())).await;
    let grant = Grant::new(1, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    send_then_read(&mut client, &grant.key("a")).await;
}

/// Limits that these pipelines exceed.
const SMALL: [&str; 6] = [
    "--max-redis-buffer-bytes",
    "8388608",
    "--max-command-bytes",
    "8388608",
    "--body-timeout",
    "5s",
];

/// Most bytes that one read of the guard brings.
const READ_MAX: usize = 64 * 1024;

/// Sends more than the guard may hold, and only then reads: earlier replies, the error, the end.
/// Returns the number of these replies, and the error.
async fn exceed(client: &mut RespClient, key: &str) -> (usize, String) {
    client.call(&["SET", key, &value(0)]).await;
    client.send_raw(&exchanges(key, 1..2 * COMMANDS + 1)).await;
    let mut replies = client.until_closed().await;
    let last = replies.pop().expect("an error");
    for (number, reply) in replies.iter().enumerate() {
        assert_eq!(*reply, Resp::bulk(value(number)), "reply {number}");
    }
    (replies.len(), last.expect_error("UNAVAILABLE").to_owned())
}

fn assert_reported(guard: &Port, error: &str) {
    for part in
        ["no reply was read for 5000 ms", "2097152 are the limit", "--max-redis-buffer-bytes"]
    {
        assert!(error.contains(part), "{error}");
    }
    let (held, _) = error.split_once(" bytes of commands wait").expect("the bytes of commands");
    let held: usize = held.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    assert!(held < 2_097_152 + READ_MAX, "{error}");
    let log = guard.server.process.stderr();
    assert!(log.contains("a client of the Redis port is disconnected"), "{log}");
    assert!(log.contains("no reply was read for 5000 ms"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_at_the_limit_gets_an_error() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = port(&setup(&redis.url()).args(&SMALL)).await;
    let grant = Grant::new(1, "1");
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    for begin in [&["GET", &grant.key("b")], &["WATCH", &grant.key("b")]] {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        client.call(begin).await;
        let key = grant.key(begin[0]);
        let (executed, error) = exceed(&mut client, &key).await;
        assert_reported(&guard, &error);
        // No command behind the error was executed, and others are served.
        assert_eq!(other.call(&["GET", &key]).await, Resp::bulk(value(executed)));
    }
    assert_eq!(clients_over_limit(&guard).await, 2);
}

async fn clients_over_limit(guard: &Port) -> u64 {
    guard.server.metric("fencepost_redis_port_clients_over_limit_total").await
}

/// Sends commands, and reads the replies once the guard has given up waiting for that. The sockets
/// may hold all that is left to send, so that it was sent says nothing.
async fn read_at_last(guard: &Port, grant: &Grant, commands: Vec<u8>) -> Vec<Resp> {
    let client = RespClient::fenced(&guard.address, &grant.credential).await;
    let (mut writer, mut reader) = client.split();
    let sent = tokio::spawn(async move { writer.write_all(&commands).await.map(|()| writer) });
    until_true("the guard to give up", || async { clients_over_limit(guard).await == 1 }).await;
    let mut replies = Vec::new();
    while let Ok(reply) = soon("a reply, or the end", reader.next()).await {
        replies.push(reply);
    }
    drop(sent);
    replies
}

/// Sends commands without reading a reply, and leaves after `looks` in a row at a guard that
/// forwards no more of them. Returns once the guard has noticed.
async fn leave_unread(guard: &Port, grant: &Grant, commands: Vec<u8>, looks: u32) {
    let forwarded =
        async || guard.server.metric("fencepost_redis_port_commands_forwarded_total").await;
    let before = forwarded().await;
    let client = RespClient::fenced(&guard.address, &grant.credential).await;
    let (mut writer, reader) = client.split();
    // The writer stays: its end would be that of the client.
    let sent = tokio::spawn(async move { writer.write_all(&commands).await.map(|()| writer) });
    until_true("no more commands to be forwarded", || async {
        let now = forwarded().await;
        for _ in 0..looks {
            if forwarded().await != now {
                return false;
            }
        }
        now > before
    })
    .await;
    drop(reader);
    sent.abort();
    drop(sent.await);
    until_true("the guard to notice that its client has left", || async {
        guard.server.metric("fencepost_redis_port_clients").await == 0
    })
    .await;
}

/// The least buffers that hold a pipeline of short commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_small_buffer_gets_an_error_or_is_named() {
    const GETS: usize = 200_000;
    const LOOKS_MAX: u32 = 1 << 12;
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let args = ["--max-redis-buffer-bytes", "1048576", "--max-command-bytes", "1048576"];
    let setup = setup(&redis.url()).args(&args);
    let guard = port(&setup.clone().args(&["--body-timeout", "2s"])).await;
    let grant = Grant::new(1, "1");
    let key = grant.key("a");
    let text = format!("{:0100}", 1);
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(client.call(&["SET", &key, &text]).await, Resp::simple("OK"));
    let mut replies = read_at_last(&guard, &grant, request(&["GET", &key]).repeat(GETS)).await;
    let error = replies.pop().expect("an error");
    assert!(error.expect_error("UNAVAILABLE").contains("no reply was read"), "{error:?}");
    assert!(replies.iter().all(|reply| *reply == Resp::bulk(text.as_str())));

    // Its own patience may be shorter than the guard's. A guard that was only slow is not at its
    // limit: the next client looks for longer.
    let patient = port(&setup).await;
    let mut looks = 1;
    while clients_over_limit(&patient).await == 0 {
        assert!(looks <= LOOKS_MAX, "a client at its limit is not counted");
        leave_unread(&patient, &grant, request(&["GET", &key]).repeat(GETS), looks).await;
        looks *= 4;
    }
    assert_eq!(clients_over_limit(&patient).await, 1);
    let log = patient.server.process.stderr();
    assert!(log.contains("the client left while it read no replies"), "{log}");
}

/// Other clients of the same connection to Redis are served while one reads nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_holds_up_no_other() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = port(&setup(&redis.url()).args(&SMALL[..4])).await;
    let grant = Grant::new(1, "1");
    let key = grant.key("a");
    let client = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    let (mut writer, mut reader) = client.split();
    let bytes = exchanges(&key, 1..COMMANDS + 1);
    // The writer stays: its end would be that of the client.
    let sent = tokio::spawn(async move { writer.write_all(&bytes).await.map(|()| writer) });
    until_true("the pipeline to be executed in part", || async {
        redis.run::<usize>(&["STRLEN", &key]).await == VALUE_BYTES
    })
    .await;
    for number in 0..100 {
        let text = number.to_string();
        assert_eq!(other.call(&["SET", &grant.key("b"), &text]).await, Resp::simple("OK"));
    }
    assert_eq!(reader.next().await.expect("a reply"), Resp::Null);
    for number in 1..COMMANDS {
        assert_eq!(reader.next().await.expect("a reply"), Resp::bulk(value(number)));
    }
    sent.await.expect("no panic").expect("all is sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_token_reads_its_refusals() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&SMALL)).await;
    let mut stranger = RespClient::connect(&guard.address).await;
    stranger.send_raw(&request(&["SET", "orders:1:a", &value(1)]).repeat(2 * COMMANDS)).await;
    let replies = stranger.until_closed().await;
    let (last, before) = replies.split_last().expect("replies");
    assert!(before.iter().all(|reply| reply.is_error("NOTOKEN")), "{:?}", before[0]);
    let error = last.expect_error("UNAVAILABLE");
    assert!(error.contains("Present a token first"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_cluster_that_reads_nothing_gets_an_error() {
    let cluster = RedisCluster::start().await;
    let guard = port(&setup(&cluster.url()).args(&SMALL)).await;
    let grant = Grant::new(1, "1");
    let key = grant.key("a");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let (executed, error) = exceed(&mut client, &key).await;
    assert_reported(&guard, &error);
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(other.call(&["GET", &key]).await, Resp::bulk(value(executed)));
}
