//! Guards as witnesses of what was issued: `--guard`, with stores of this machine.

use fence_protocol::Token;
use fence_tests::api::{Endpoint, Locks};
use fence_tests::fault_proxy::{Fault, FaultProxy};
use fence_tests::in_process::InProcess;
use fence_tests::key_file::{KeyFile, lease_id, unsigned};
use fence_tests::ports;
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::wait::{until, until_true};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// Far above the clock floor of these years, and below what an unsigned token may be.
pub(crate) const FAR: u64 = 300_000_000_000_000;

/// An empty folder is refused at once while a guard does not vouch for it.
const IMPATIENT: [&str; 2] = ["--start-timeout", "0s"];

/// A guard that has seen this token.
pub(crate) async fn guard_at(mark: u64) -> Server {
    let server = Setup::fenced_store("memory:").start().await;
    raise(&server, mark).await;
    server
}

pub(crate) async fn raise(guard: &Server, mark: u64) {
    let seal = guard.guard().sealed("witness", &unsigned(mark, "witness", lease_id())).await;
    assert_eq!(seal.mark.get(), mark);
}

pub(crate) fn with_guards(store: &str, guards: &[&str]) -> Setup {
    guards.iter().fold(Setup::lock_server(store), |setup, guard| setup.args(&["--guard", guard]))
}

pub(crate) async fn token(server: &impl Endpoint, lock: &str) -> u64 {
    Locks(server.api()).acquire(lock, json!({"ttl_ms": 60_000})).await.lease().token.get()
}

pub(crate) async fn readiness(server: &impl Endpoint) -> String {
    let reply = server.api().get("/readyz?verbose").await;
    String::from_utf8_lossy(&reply.body).into_owned()
}

/// The line of the check, which must warn, and must not make the server unready.
pub(crate) async fn warning(server: &impl Endpoint) -> String {
    let text = readiness(server).await;
    let line = text.lines().find(|line| line.starts_with("[!]guards"));
    let line = line.unwrap_or_else(|| panic!("no warning of guards: {text}")).to_owned();
    server.api().get("/readyz").await.expect(200);
    line
}

/// Starts of a server until its guards reply in time: busy ones may not.
const STARTS: usize = 3;

/// The server, once its guards have replied in time at a start.
async fn informed(setup: &Setup) -> InProcess {
    for _ in 0..STARTS {
        let server = setup.in_process().await;
        if readiness(&server).await.contains("[+]guards ok") {
            return server;
        }
    }
    panic!("the guards were read at none of {STARTS} starts");
}

/// The server as a process of its own, once its guards have replied in time at a start.
pub(crate) async fn informed_process(setup: &Setup) -> Server {
    for _ in 0..STARTS {
        let server = setup.start().await;
        if readiness(&server).await.contains("[+]guards ok") {
            return server;
        }
    }
    panic!("the guards were read at none of {STARTS} starts");
}

fn unused_url() -> String {
    format!("http://127.0.0.1:{}", ports::unused())
}

#[tokio::test]
async fn tokens_begin_above_the_highest_of_all_marks() {
    let low = guard_at(7).await;
    let high = guard_at(FAR).await;
    let server = informed(&with_guards("memory:", &[&low.base, &high.base])).await;
    assert!(token(&server, "a").await > FAR);
    assert!(readiness(&server).await.contains("[+]guards ok"));
}

/// The variable takes several too, and so does the file.
#[tokio::test]
async fn guards_come_from_a_variable_too() {
    let low = guard_at(7).await;
    let high = guard_at(FAR).await;
    let both = format!("{};{}", low.base, high.base);
    let server = informed(&Setup::lock_server("memory:").env("LOCK_SERVER_GUARD", &both)).await;
    assert!(token(&server, "a").await > FAR);
}

/// A folder that was put back from an older copy: its counter is below what a guard has seen.
#[tokio::test]
async fn a_counter_below_a_mark_is_lifted_for_good() {
    let data = DataDir::new();
    let guard = guard_at(FAR).await;
    let mut first = Setup::lock_server(&data.store()).start().await;
    assert_eq!(token(&first, "a").await, 1);
    first.process.kill();
    let mut second = with_guards(&data.store(), &[&guard.base]).start().await;
    second.process.kill();
    // Nothing was granted in between: the lift itself is durable.
    let third = Setup::lock_server(&data.store()).start().await;
    assert!(token(&third, "b").await > FAR);
}

/// An empty folder and a guard that has seen tokens: the folder's content is lost. What was issued
/// and never reached the guard is above its mark, so the mark alone is not enough.
#[tokio::test]
async fn an_emptied_folder_begins_above_all_that_can_have_been_issued() {
    let data = DataDir::new();
    let guard = guard_at(34).await;
    let server = with_guards(&data.store(), &[&guard.base]).in_process().await;
    let first = token(&server, "a").await;
    assert!(first > 10_000_000_000_000, "{first} is about the mark, not about the clock");
}

#[tokio::test]
async fn a_folder_is_new_where_every_guard_has_seen_nothing() {
    let data = DataDir::new();
    let guard = Setup::fenced_store("memory:").start().await;
    let server = with_guards(&data.store(), &[&guard.base]).in_process().await;
    assert_eq!(token(&server, "a").await, 1);
}

#[tokio::test]
async fn an_empty_folder_is_not_begun_while_a_guard_is_silent() {
    let data = DataDir::new();
    let guard = Setup::fenced_store("memory:").start().await;
    let silent = unused_url();
    let setup = with_guards(&data.store(), &[&guard.base, &silent]).args(&IMPATIENT);
    let output = setup.refused().await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.contains(&silent), "{}", output.stderr);
    // Nothing was begun: when the guard answers, the folder is still an empty one.
    raise(&guard, 34).await;
    let server = with_guards(&data.store(), &[&guard.base]).start().await;
    assert!(token(&server, "a").await > 34);
}

/// The guard of a site that is started all at once may be a moment later than its lock server.
#[tokio::test]
async fn an_empty_folder_waits_for_a_guard_that_starts_later() {
    let data = DataDir::new();
    let address = format!("127.0.0.1:{}", ports::unused());
    let setup = with_guards(&data.store(), &[&format!("http://{address}")]);
    let mut early = setup.args(&["--start-timeout", "10m"]).spawn();
    until_true("a try without the guard", || async { early.stderr().contains("gave no mark") })
        .await;
    let _guard = Setup::fenced_store("memory:").listen(&address).start().await;
    let base = early.line_after("lock-server listening on ").await;
    let reply = Locks::new(&base).acquire("a", json!({"ttl_ms": 60_000})).await;
    assert_eq!(reply.lease().token.get(), 1, "the guard was read, and had seen nothing");
}

/// A folder with a counter serves at once; the mark of a guard that comes later counts later.
#[tokio::test]
async fn a_guard_that_comes_late_counts_all_the_same() {
    let data = DataDir::new();
    let marks = DataDir::new();
    let mut before = Setup::fenced_store(&marks.store()).start().await;
    raise(&before, FAR).await;
    before.process.kill();
    let mut first = Setup::lock_server(&data.store()).start().await;
    assert_eq!(token(&first, "a").await, 1);
    first.process.kill();
    let late = unused_url();
    let server = with_guards(&data.store(), &[&late]).start().await;
    assert!(warning(&server).await.contains(&late));
    assert_eq!(token(&server, "b").await, 2);
    let listen = late.trim_start_matches("http://");
    let _guard = Setup::fenced_store(&marks.store()).listen(listen).start().await;
    until_true("the guard to count", || async {
        readiness(&server).await.contains("[+]guards ok")
    })
    .await;
    let mut number = 0;
    let lifted = until("a token above its mark", || {
        number += 1;
        let lock = format!("c/{number}");
        let server = &server;
        async move { Some(token(server, &lock).await).filter(|token| *token > FAR) }
    })
    .await;
    assert!(lifted > FAR);
}

/// A guard of another namespace knows nothing of these tokens, however high its marks are.
#[tokio::test]
async fn a_guard_of_another_namespace_does_not_count() {
    let other = Setup::fenced_store("memory:").args(&["--namespace", "other"]).start().await;
    let server = with_guards("memory:", &[&other.base]).in_process().await;
    let line = until("the namespace to be named", || async {
        Some(warning(&server).await).filter(|line| line.contains("namespace other"))
    })
    .await;
    assert!(line.contains("default"), "{line}");
    let data = DataDir::new();
    let setup = with_guards(&data.store(), &[&other.base]).args(&IMPATIENT);
    let output = setup.refused().await;
    assert!(output.stderr.contains("namespace other"), "{}", output.stderr);
}

/// Answers every request on every connection with these bytes, and closes. `PATH` in them is the
/// path that was asked for.
struct Canned {
    base: String,
    _accepting: AbortOnDropHandle<()>,
}

impl Canned {
    async fn start(reply: impl Into<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let reply = reply.into();
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let reply = reply.clone();
                tokio::spawn(async move {
                    let mut request = vec![0; 4096];
                    let bytes = stream.read(&mut request).await.unwrap_or_default();
                    let request = String::from_utf8_lossy(&request[..bytes]).into_owned();
                    let path = request.split(' ').nth(1).unwrap_or_default();
                    let _ = stream.write_all(reply.replace("PATH", path).as_bytes()).await;
                });
            }
        }));
        Self { base, _accepting: accepting }
    }

    /// The same JSON to every question, so that it is both the stores and the fences.
    async fn json(body: &str) -> Self {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        Self::start(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await
    }
}

/// Whatever answers on a guard's address: it is bounded, it lifts nothing, it is named, and it
/// hides none of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_guards_answer_lifts_nothing_and_hides_nothing() {
    let lease = lease_id();
    let line = format!(r#"{{"lock":"a","mark":{FAR},"lease_id":"{lease}","refused_total":0}}"#);
    let said =
        |rest: &str| format!(r#"{{"namespace":"default","mode":"enforce","stores":[]{rest}}}"#);
    let huge = said(&format!(r#","fences":[],"pad":"{}""#, "x".repeat(10 << 20)));
    let real = guard_at(FAR).await;
    let moved = format!("HTTP/1.1 302 Found\r\nlocation: {}PATH\r\n\r\n", real.base);
    let hole = FaultProxy::before(&real.address()).await;
    hole.set(Fault::Blackhole);
    let garbage = [
        Canned::json("<html>hello</html>").await,
        Canned::json(&said(&format!(r#","fences":[{line}]"#))).await,
        Canned::json(&said(&format!(r#","fences":[{line}],"highest_mark":7"#))).await,
        Canned::json(&said(r#","fences":[],"highest_mark":-1"#)).await,
        Canned::json(&said(r#","fences":[],"highest_mark":1e30"#)).await,
        Canned::json(&said("")).await,
        Canned::json(&huge).await,
        Canned::start(moved).await,
        Canned::start("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n").await,
        Canned::start("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"namespace\"").await,
        Canned::start("SSH-2.0-OpenSSH_9.2\r\n").await,
        Canned::start("").await,
    ];
    let hole = format!("http://{}", hole.address());
    let mut guards: Vec<&str> = garbage.iter().map(|canned| canned.base.as_str()).collect();
    guards.push(&hole);
    let server = with_guards("memory:", &guards).in_process().await;
    assert!(token(&server, "a").await < FAR);
    let said = warning(&server).await;
    for guard in &guards {
        assert!(said.contains(guard), "{guard}: {said}");
    }
    // A folder that may be new is begun on the word of none of them.
    for guard in &guards {
        let setup = with_guards(&DataDir::new().store(), &[guard]).args(&IMPATIENT);
        let output = setup.refused().await;
        assert!(output.stderr.contains(guard), "{guard}: {}", output.stderr);
    }
    let good = guard_at(FAR + 5).await;
    let three = &guards[..3];
    let among: Vec<&str> = three.iter().copied().chain([good.base.as_str()]).collect();
    let server = with_guards("memory:", &among).in_process().await;
    assert!(token(&server, "a").await > FAR + 5);
}

/// A forged mark must not use up the tokens of the namespace.
#[tokio::test]
async fn a_mark_that_no_server_can_have_issued_is_named_and_not_followed() {
    let keys = KeyFile::new("k1", 7);
    let guard = Setup::fenced_store("memory:").keys(&keys.path()).start().await;
    guard.guard().sealed("witness", &keys.sign(Token::MAX, "witness", lease_id())).await;
    let server = with_guards("memory:", &[&guard.base]).in_process().await;
    assert!(token(&server, "a").await < FAR);
    // The guards are read again where one did not reply in time.
    until_true("the mark to be named", || async {
        warning(&server).await.contains(&Token::MAX.to_string())
    })
    .await;
    assert!(token(&server, "b").await < FAR);
    let data = DataDir::new();
    let server = with_guards(&data.store(), &[&guard.base]).in_process().await;
    let first = token(&server, "a").await;
    assert!((10_000_000_000_000..FAR).contains(&first), "{first}: the namespace is not new");
}

#[tokio::test]
async fn bad_addresses_of_guards_are_refused() {
    for guard in ["", "127.0.0.1:7421", "ftp://127.0.0.1:1", "http://u:p@a", "http://a?b"] {
        let output = Setup::lock_server("memory:").args(&["--guard", guard]).refused().await;
        assert_eq!(output.code, 64, "{guard}: {output:?}");
        assert!(output.stderr.contains("--guard"), "{guard}: {}", output.stderr);
    }
    let many: Vec<String> = (1..=17).map(|port| format!("http://127.0.0.1:{port}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let output = with_guards("memory:", &many).refused().await;
    assert_eq!(output.code, 64, "{output:?}");
    assert!(output.stderr.contains("17"), "{}", output.stderr);
}
