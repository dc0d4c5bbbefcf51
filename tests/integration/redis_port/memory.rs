//! Memory that clients can make the guard keep is bounded.

use std::time::Duration;

use fence_tests::redis_server::Redis;
use fence_tests::redis_writes::Grant;
use fence_tests::resp_client::{Resp, RespClient, request};

use super::{Port, port, setup};

/// The budget of the port for all clients together, and a margin for the process beside it: buffers
/// of sockets that grow by doubling, and what the allocator keeps.
const BUDGET_BYTES: u64 = 32 << 20;
const SLACK_BYTES: u64 = 64 << 20;

async fn small(redis: &Redis) -> Port {
    small_with(redis, &[]).await
}

async fn small_with(redis: &Redis, args: &[&str]) -> Port {
    let budget = BUDGET_BYTES.to_string();
    let setup = setup(&redis.url()).args(&["--max-redis-buffer-bytes", &budget]);
    port(&setup.args(args)).await
}

/// Pushes these bytes for as long as they are taken, at most so often; never reads.
async fn push(client: &mut RespClient, bytes: &[u8], times: usize) {
    push_within(Duration::from_millis(300), client, bytes, times).await;
}

/// As `push`, where a guard that takes them may be so slow.
async fn push_within(time: Duration, client: &mut RespClient, bytes: &[u8], times: usize) {
    for _ in 0..times {
        let push = client.try_send_raw(bytes);
        match tokio::time::timeout(time, push).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

fn assert_bounded(guard: &Port, before: u64, what: &str) {
    let grown = guard.server.process.resident_bytes().saturating_sub(before);
    assert!(grown < BUDGET_BYTES + SLACK_BYTES, "{what}: {} MiB more", grown >> 20);
}

async fn assert_alive(guard: &Port, token: u64) {
    let grant = Grant::new(token, "alive");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    assert_eq!(client.call(&["SET", &grant.key("a"), "1"]).await, Resp::simple("OK"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_no_client_reads() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small(&redis).await;
    let grant = Grant::new(1, "1");
    let mut first = RespClient::fenced(&guard.address, &grant.credential).await;
    let large = "x".repeat(1 << 20);
    first.call(&["SET", &grant.key("a"), &large]).await;
    let before = guard.server.process.resident_bytes();
    let gets = request(&["GET", &grant.key("a")]).repeat(50);
    let mut silent = Vec::new();
    for _ in 0..4 {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        push(&mut client, &gets, 2).await;
        assert_bounded(&guard, before, "GETs without reading");
        silent.push(client);
    }
    assert_alive(&guard, 2).await;
    // A client that shares their connection is served, too, or gets an error; it does not hang.
    let reply = first.try_call(&["GET", &grant.key("b")]).await;
    assert!(reply.is_err() || matches!(reply, Ok(Resp::Null | Resp::Error(_))), "{reply:?}");
    assert_bounded(&guard, before, "GETs without reading, later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_replies_that_no_client_reads() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small(&redis).await;
    let grant = Grant::new(1, "1");
    let before = guard.server.process.resident_bytes();
    let mut local = RespClient::connect(&guard.address).await;
    push(&mut local, &request(&["PING"]).repeat(10_000), 300).await;
    assert_bounded(&guard, before, "PINGs without reading");
    let mut forwarded = RespClient::fenced(&guard.address, &grant.credential).await;
    push(&mut forwarded, &request(&["EXISTS", &grant.key("a")]).repeat(10_000), 200).await;
    assert_bounded(&guard, before, "EXISTS without reading");
    let mut refused = RespClient::connect(&guard.address).await;
    push(&mut refused, &request(&["SET", "orders:2:a", "1"]).repeat(10_000), 200).await;
    assert_bounded(&guard, before, "refusals without reading");
    assert_alive(&guard, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_of_large_commands() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small(&redis).await;
    let before = guard.server.process.resident_bytes();
    let piece = vec![b'x'; 2 << 20];
    let mut open = Vec::new();
    for number in 0..40 {
        let grant = Grant::new(1, &number.to_string());
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        let head = format!("*3\r\n$3\r\nSET\r\n$10\r\norders:{number:02}:\r\n$60000000\r\n");
        push(&mut client, head.as_bytes(), 1).await;
        push(&mut client, &piece, 1).await;
        open.push(client);
    }
    assert_bounded(&guard, before, "halves of large commands");
    drop(open);
    assert_alive(&guard, 2).await;
}

/// A value that is larger than everything the guard may hold passes all the same on a connection
/// of its client's own: it streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_replies_stream() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small(&redis).await;
    let grant = Grant::new(1, "1");
    let large = "x".repeat(100 << 20);
    let mut direct = RespClient::connect(&redis.address()).await;
    assert_eq!(direct.call(&["SET", &grant.key("a"), &large]).await, Resp::simple("OK"));
    let before = guard.server.process.resident_bytes();
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    client.call(&["WATCH", &grant.key("a")]).await;
    let reply = client.call(&["GET", &grant.key("a")]).await;
    assert!(reply == Resp::bulk(&large), "another value came back");
    assert_bounded(&guard, before, "a large reply");
    // The values of an EXEC with scripts are looked at as they pass.
    let eval = ["EVAL", "return redis.call('GET', KEYS[1])", "1", &grant.key("a")];
    let replies = client.pipeline(&[&["MULTI"], &eval, &["EXEC"]]).await;
    assert!(replies[2].items() == [Resp::bulk(&large)], "another value came back");
    assert_bounded(&guard, before, "a large reply to EXEC");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_too_large_is_refused() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = port(&setup(&redis.url()).args(&["--max-command-bytes", "1000000"])).await;
    let grant = Grant::new(1, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let fits = "x".repeat(900_000);
    assert_eq!(client.call(&["SET", &grant.key("a"), &fits]).await, Resp::simple("OK"));
    let large = "x".repeat(1_100_000);
    // It may be cut before all is written.
    let _ = client.try_send_raw(&request(&["SET", &grant.key("a"), &large])).await;
    if let Ok(reply) = client.try_reply().await {
        assert!(reply.expect_error("ERR").contains("invalid bulk length"), "{reply:?}");
    }
    let length: usize = redis.run(&["STRLEN", &grant.key("a")]).await;
    assert_eq!(length, fits.len());
    assert_alive(&guard, 2).await;
}

/// Beyond the default, up to the longest argument of Redis, by option.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_above_the_default_passes_by_option() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let command = (101 << 20).to_string();
    let buffers = (202 << 20).to_string();
    let args = ["--max-command-bytes", &command, "--max-redis-buffer-bytes", &buffers];
    let guard = port(&setup(&redis.url()).args(&args)).await;
    let grant = Grant::new(1, "1");
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let value = "x".repeat(100 << 20);
    for _ in 0..2 {
        assert_eq!(client.call(&["SET", &grant.key("a"), &value]).await, Resp::simple("OK"));
        assert_eq!(other.call(&["STRLEN", &grant.key("a")]).await, Resp::Integer(100 << 20));
    }
    let setup = setup(&redis.url()).args(&["--max-command-bytes", &command]);
    let refused = setup.args(&["--redis-threads", "8"]).refused().await;
    assert!(refused.stderr.contains("does not fit"), "{refused:?}");
}

/// Replies of the guard itself, behind a command that waits in Redis: a client that continues to
/// send is not read any further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_the_guard_behind_a_blocked_command() {
    let redis = Redis::start().await;
    let guard = port(&setup(&redis.url()).args(&["--max-redis-buffer-bytes", "1048576"])).await;
    let grant = Grant::new(1, "1");
    let mut blocked = RespClient::fenced(&guard.address, &grant.credential).await;
    let before = guard.server.process.resident_bytes();
    blocked.send(&["BLPOP", &grant.key("list"), "0"]).await;
    let help = request(&["FENCE", "HELP"]).repeat(1_000);
    push_within(Duration::from_secs(3), &mut blocked, &help, 600).await;
    let grown = guard.server.process.resident_bytes().saturating_sub(before);
    assert!(grown < SLACK_BYTES, "{} MiB more", grown >> 20);
    let mut other = RespClient::fenced(&guard.address, &grant.credential).await;
    other.call(&["RPUSH", &grant.key("list"), "x"]).await;
    assert_eq!(blocked.reply().await.items()[1], Resp::bulk("x"));
    assert_eq!(blocked.reply().await.items().len(), 6, "help comes behind it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_transaction_without_end() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small_with(&redis, &["--allow-unfenced-reads"]).await;
    let grant = Grant::new(1, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let before = guard.server.process.resident_bytes();
    client.call(&["MULTI"]).await;
    let long = "k".repeat(1 << 20);
    for number in 0..150 {
        // Patterns cover the keys of the connection's own lock, which are not remembered.
        let set = client.call(&["SET", &grant.key(&format!("{number}{long}")), "1"]).await;
        let get = client.call(&["GET", &format!("orders:2:{number}{long}")]).await;
        assert_eq!([set, get], [Resp::simple("QUEUED"), Resp::simple("QUEUED")]);
    }
    assert_bounded(&guard, before, "keys of a transaction");
    let script = client.call(&["EVAL", "return 1", "1", &grant.key("a")]).await;
    script.expect_error("DENIED");
    client.call(&["EXEC"]).await.expect_error("EXECABORT");
}

/// The memory of a command is free once it was sent on, though its client stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_command_is_given_back() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small(&redis).await;
    let grant = Grant::new(1, "1");
    let large = "x".repeat(24 << 20);
    let before = guard.server.process.resident_bytes();
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        assert_eq!(client.call(&["SET", &grant.key("a"), &large]).await, Resp::simple("OK"));
        clients.push(client);
    }
    assert_bounded(&guard, before, "clients that rest after a large command");
}

/// Clients that announce much and fall silent give way to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_halves_give_way() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small(&redis).await;
    let grant = Grant::new(1, "1");
    let head = b"*3\r\n$3\r\nSET\r\n$10\r\norders:1:a\r\n$60000000\r\n";
    let half = [&head[..], &vec![b'x'; 1 << 20]].concat();
    let mut silent = Vec::new();
    for _ in 0..60 {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        // Those before it give way.
        client.send_raw(&half).await;
        silent.push(client);
    }
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let value = "x".repeat(2 << 20);
    assert_eq!(client.call(&["SET", &grant.key("b"), &value]).await, Resp::simple("OK"));
    silent[0].reply().await.expect_error("UNAVAILABLE");
}

/// A key is not repeated to its sender at full length, four bytes for each of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_short() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small_with(&redis, &["--rule", "a:*=orders/1"]).await;
    let grant = Grant::new(1, "1");
    let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
    let long = "\u{1}".repeat(1 << 20);
    for (words, code) in [
        (&["SET", &format!("orders:2:{long}"), "1"][..], "NOTOKEN"),
        (&["SET", &long, "1"], "DENIED"),
        (&["EVAL", "return 1", "1", &format!("a: {long}")], "DENIED"),
    ] {
        let reply = client.call(words).await;
        assert!(reply.expect_error(code).len() < 4_000, "{code}");
    }
}

/// More scripts than any client reads the replies of: good ones, refused ones, and some that change
/// what the user may touch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_without_end() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = small_with(&redis, &["--rule", "a:*=orders/1"]).await;
    let grant = Grant::new(1, "1");
    let before = guard.server.process.resident_bytes();
    let refused = "return redis.call('GET', 'orders:2:a')";
    let mut flooding = Vec::new();
    for (token, words) in (2..).zip([
        vec![request(&["EVAL", "return 1", "0"])],
        vec![request(&["EVAL", refused, "0"])],
        vec![request(&["EVAL", "return 1", "1", "a:1"]), request(&["EVAL", "return 1", "0"])],
    ]) {
        let mut client = RespClient::fenced(&guard.address, &grant.credential).await;
        push(&mut client, &words.concat().repeat(10_000), 30).await;
        assert_bounded(&guard, before, "scripts without reading");
        assert_alive(&guard, token).await;
        flooding.push(client);
    }
    let mut other = RespClient::fenced(&guard.address, &Grant::new(1, "2").credential).await;
    assert_eq!(other.call(&["EVAL", "return 1", "0"]).await, Resp::Integer(1));
}

/// KEYS with more names than the guard may hold is answered with what to do, and costs nothing
/// else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_names_than_may_be_held() {
    let redis = Redis::with(&[("appendonly", "no")]).await;
    let guard = port(&setup(&redis.url()).args(&["--max-redis-buffer-bytes", "1048576"])).await;
    let long = "x".repeat(500);
    let fill = format!("for n = 1, 5000 do redis.call('SET', 'orders:1:{long}' .. n, 1) end");
    redis.run::<()>(&["EVAL", &fill, "0"]).await;
    let one = format!("orders:1:{long}7");
    let pattern = format!("*{long}777");
    let grant = Grant::new(1, "1");
    let mut shared = RespClient::fenced(&guard.address, &grant.credential).await;
    let mut own = RespClient::fenced(&guard.address, &grant.credential).await;
    own.pipeline(&[&["MULTI"], &["EXEC"]]).await;
    for client in [&mut shared, &mut own] {
        for _ in 0..2 {
            let replies = client.pipeline(&[&["PING"], &["KEYS", "*"], &["GET", &one]]).await;
            let text = replies[1].expect_error("DENIED");
            assert!(text.contains("use SCAN"), "{text}");
            assert_eq!((&replies[0], &replies[2]), (&Resp::simple("PONG"), &Resp::bulk("1")));
        }
        assert_eq!(client.call(&["KEYS", &pattern]).await.items().len(), 1);
    }
}
