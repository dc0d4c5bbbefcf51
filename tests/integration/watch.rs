//! `fence lock explain`, `fence lock watch` and observers of an election, over real servers.

use fence_client::{Client, Observed, StreamItem};
use fence_protocol::wire::event::EventKind;
use fence_tests::fault_proxy::FaultProxy;
use fence_tests::key_file::lease_id;
use fence_tests::process::{Process, command};
use fence_tests::servers::{DataDir, Server, Setup};
use fence_tests::wait::{soon, until, until_true};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The command `fence` with these arguments, at this lock server.
pub(crate) fn fence(server: &Server, args: &[&str]) -> Process {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(args).env("FENCE_SERVER", &server.base);
    Process::spawn("fence", command)
}

/// Waits until it has printed a line with all of these.
async fn line(process: &Process, wanted: &[&str]) -> String {
    until(&format!("a line with {wanted:?}"), || async {
        let text = process.stdout();
        let complete = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        let is_meant = |line: &&str| wanted.iter().all(|word| line.contains(word));
        complete.lines().find(is_meant).map(str::to_owned)
    })
    .await
}

async fn interrupted(mut process: Process) -> String {
    process.signal(Signal::INT);
    let output = process.ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    output.stdout
}

/// `fence run` is stopped past its lease while its command continues. Its write is refused, and its
/// user learns why from the lock server that the guard reports to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_holder_learns_what_became_of_it() {
    let server = Setup::lock_server("memory:").start().await;
    let reports = ["--report-to", server.base.as_str()];
    let guard = Setup::fenced_store("memory:").args(&reports).start().await;
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    let script = "echo $FENCE_LEASE_ID > new; mv new lease
        while [ ! -e go ]; do sleep 0.02; done
        echo late | \"$FENCE_PROGRAM\" object put orders/42 2> said; echo $? > new; mv new code";
    let program = fence_tests::binaries::path("fence");
    let mut command = command(&program);
    command.args(["run", "--lock", "orders/42", "--ttl", "6s", "--", "sh", "-c", script]);
    command.env("FENCE_SERVER", &server.base).env("FENCE_GUARD", &guard.base);
    command.env("FENCE_OWNER", "stalled").env("FENCE_PROGRAM", &program);
    command.current_dir(folder.path());
    let holder = Process::spawn("fence run", command);
    let read = async |name: &str| {
        until(name, || async { std::fs::read_to_string(file(name)).ok() }).await.trim().to_owned()
    };
    let lease = read("lease").await;
    holder.pause();
    let ask = json!({"owner": "next", "ttl_ms": 60_000, "wait_ms": 20_000});
    let next = server.locks().acquire("orders/42", ask).await.lease();
    guard.guard().put("orders/42", &next.fencing_token, "new").await.expect(201);
    std::fs::write(file("go"), "").unwrap();
    assert_eq!(read("code").await, "77", "{}", read("said").await);

    let explain = ["lock", "explain", "orders/42", "--lease", &lease];
    let explained = until("the refusal to be reported", || async {
        let output = fence(&server, &explain).ended().await;
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout.contains("Refused").then_some(output.stdout)
    })
    .await;
    let token = next.token;
    for sentence in [
        format!("orders/42 is held by next (token {token}), for "),
        "stalled (token ".to_owned(),
        "is over: expired ".to_owned(),
        "its time passed without a renewal".to_owned(),
        format!("The next holder was next (token {token}), "),
        "PUT orders/42: stale-token (token ".to_owned(),
        format!(" of stalled met the mark {token})"),
        "Stop the work".to_owned(),
    ] {
        assert!(explained.contains(&sentence), "{sentence:?} is missing in\n{explained}");
    }
    let output = fence(&server, &[&explain[..], &["--output", "json"]].concat()).ended().await;
    let json: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(json["refusals"][0]["lease_id"], lease.as_str());
    assert_eq!(json["holder"]["token"], token.get());
    let own =
        fence(&server, &["lock", "explain", "orders/42", "--lease", &next.lease_id.to_string()]);
    let own = { own }.ended().await;
    assert!(own.stdout.contains("It holds the lock.\n  Nothing of yours was refused"), "{own:?}");
    let unknown = lease_id().to_string();
    let nothing =
        fence(&server, &["lock", "explain", "orders/42", "--lease", &unknown]).ended().await;
    assert_eq!(nothing.code, 1, "{nothing:?}");
    assert!(nothing.stdout.contains("Nothing is remembered of it"), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_the_state_of_a_lock() {
    let server = Setup::lock_server("memory:").start().await;
    let locks = server.locks();
    let explained = async |args: &[&str]| {
        let output = fence(&server, &[&["lock", "explain", "a"], args].concat()).ended().await;
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout
    };
    let text = explained(&[]).await;
    assert!(text.starts_with("a is free.\nIt has no waiters.\n"), "{text}");
    let ask = json!({"owner": "one", "ttl_ms": 60_000, "metadata": {"job": 7}});
    let one = locks.acquire("a", ask).await.lease();
    locks.renew("a", one.lease_id).await.expect(200);
    let waits = lease_id();
    let waiting = locks.clone();
    let asks = json!({"owner": "two", "ttl_ms": 60_000, "wait_ms": 60_000, "lease_id": waits});
    let waiting = tokio::spawn(async move { waiting.acquire("a", asks).await.lease() });
    locks.queue_of("a", 1).await;
    let text = explained(&["--lease", &waits.to_string()]).await;
    for sentence in [
        "a is held by one (token ",
        "It was renewed once, and expires in ",
        "Its holder says: {\"job\":7}",
        "One waits: two for ",
        "It waits, at position 1 of 1",
    ] {
        assert!(text.contains(sentence), "{sentence:?} is missing in\n{text}");
    }
    locks.revoke("a", "the host burns").await.expect(200);
    soon("the grant", waiting).await.unwrap();
    let text = explained(&[]).await;
    assert!(text.contains("an operator ended it (the host burns)"), "{text}");
    assert!(text.contains("is held by two (token "), "{text}");
}

/// The stream is followed over a restart of the server, and what was lost with it is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_continues_after_a_restart() {
    let data = DataDir::new();
    let address = format!("127.0.0.1:{}", fence_tests::ports::unused());
    let setup = Setup::lock_server(&data.store()).listen(address);
    let mut server = setup.start().await;
    let json = fence(&server, &["lock", "watch", "--output", "json"]);
    let table = fence(&server, &["lock", "watch", "orders/"]);
    line(&table, &["ready"]).await;
    let ready: Value = serde_json::from_str(&line(&json, &["\"ready\""]).await).unwrap();
    let locks = server.locks();
    locks.grant("other", 60_000).await;
    let lease = locks.acquire("orders/42", json!({"owner": "one", "ttl_ms": 60_000})).await.lease();
    let token = format!("token {}", lease.token);
    line(&table, &["granted", "orders/42", "one", &token, "for 1 m 0 s"]).await;
    let granted = line(&json, &["\"granted\"", "orders/42"]).await;
    let granted: Value = serde_json::from_str(&granted).unwrap();
    assert_eq!(granted["token"], lease.token.get());
    // The last id of an earlier stream leads back to where it was.
    let after = ready["id"].as_str().unwrap();
    let late = fence(&server, &["lock", "watch", "--after", after, "--output", "json"]);
    line(&late, &["\"granted\"", "other"]).await;
    line(&late, &["\"granted\"", "orders/42"]).await;
    interrupted(late).await;

    server.process.kill();
    until_true("both say so", || async {
        json.stderr().contains("it is resumed after") && table.stderr().contains("it is resumed")
    })
    .await;
    drop(server);
    let server = setup.start().await;
    until_true("both go on", || async {
        json.stderr().contains("the stream resumes") && table.stderr().contains("resumes")
    })
    .await;
    line(&table, &["gap"]).await;
    server.locks().release("orders/42", lease.lease_id).await.expect(200);
    line(&table, &["released", "orders/42"]).await;
    line(&json, &["\"released\"", "orders/42"]).await;
    let stdout = interrupted(table).await;
    assert!(!stdout.contains("other"), "{stdout}");
    let stdout = interrupted(json).await;
    for line in stdout.lines() {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

/// A watcher that is paused for too long is cut off, says so, and continues with the gap named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_is_too_slow_learns_what_it_missed() {
    let server = Setup::lock_server("memory:").args(&["--event-history", "64"]).start().await;
    let watch = fence(&server, &["lock", "watch"]);
    line(&watch, &["ready"]).await;
    watch.pause();
    let locks = server.locks();
    let refusal = json!({"lock": "s".repeat(256), "token": 7, "lease_id": lease_id(), "mark": 9,
                         "operation": "o".repeat(256), "owner": "w".repeat(256)});
    let report = json!({"refusals": vec![refusal; 64]});
    // Far more than the sockets between them hold.
    for _ in 0..300 {
        locks.0.post("/v1/refusals", &report).await.expect(200);
    }
    watch.resume();
    line(&watch, &["dropped", "you read slower"]).await;
    line(&watch, &["gap"]).await;
    let lease = locks.grant("after", 60_000).await;
    line(&watch, &["granted", "after", &format!("token {}", lease.token)]).await;
    interrupted(watch).await;
}

#[tokio::test]
async fn watch_refuses_what_it_cannot_do() {
    let mut server = Setup::lock_server("memory:").args(&["--event-history", "0"]).start().await;
    for args in [&["lock", "watch"][..], &["lock", "watch", "a b"]] {
        let output = fence(&server, args).ended().await;
        assert_eq!(output.code, 64, "{args:?}: {output:?}");
    }
    server.process.kill();
    for args in [&["lock", "watch"][..], &["lock", "explain", "a"]] {
        let output = fence(&server, args).ended().await;
        assert_eq!(output.code, 69, "{args:?}: {output:?}");
    }
}

/// Each change of leader is a line; while the server is unreachable no leader is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_follow_an_election() {
    let data = DataDir::new();
    let address = format!("127.0.0.1:{}", fence_tests::ports::unused());
    let setup = Setup::lock_server(&data.store()).listen(address);
    let mut server = setup.start().await;
    let args = ["elect", "--name", "office", "--observe", "--follow"];
    let (table, json) =
        (fence(&server, &args), fence(&server, &[&args[..], &["-o", "json"]].concat()));
    line(&table, &["office has no leader"]).await;
    line(&json, &["{\"leader\":null}"]).await;
    let locks = server.locks();
    let lead = |owner: &str| json!({"owner": owner, "ttl_ms": 60_000, "metadata": {"port": 80}});
    let first = locks.acquire("office", lead("a")).await.lease();
    // Its own name is the election's; those below it are others.
    locks.acquire("office/other", lead("x")).await.lease();
    line(&table, &["a leads office", &format!("token {}", first.token), "{\"port\":80}"]).await;
    line(&json, &["\"owner\":\"a\"", "\"port\":80"]).await;
    locks.release("office", first.lease_id).await.expect(200);
    let second = locks.acquire("office", lead("b")).await.lease();
    line(&table, &["b leads office", &format!("token {}", second.token)]).await;
    server.process.kill();
    until_true("it says so", || async { table.stderr().contains("not known now") }).await;
    drop(server);
    let server = setup.start().await;
    until_true("the same line again", || async {
        table.stdout().lines().filter(|line| line.starts_with("b leads")).count() == 2
    })
    .await;
    server.locks().revoke("office", "by the test").await.expect(200);
    until_true("the end", || async {
        json.stdout().ends_with("{\"leader\":null}\n")
            && table.stdout().ends_with("office has no leader\n")
    })
    .await;
    let printed = interrupted(table).await;
    let lines: Vec<&str> = printed.lines().map(|line| line.split("  ").next().unwrap()).collect();
    let no_leader = "office has no leader";
    let b = "b leads office";
    assert_eq!(lines, [no_leader, "a leads office", no_leader, b, b, no_leader]);
    interrupted(json).await;
}

/// A stream that is dropped again and again while it waits, and one whose server moves, loses
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdks_stream_loses_nothing_to_impatience_and_cuts() {
    let server = Setup::lock_server("memory:").start().await;
    let proxy = FaultProxy::before(&server.address()).await;
    let client =
        Client::builder().lock_server(format!("http://{}", proxy.address())).build().unwrap();
    let mut stream = client.events("n/").open().await.unwrap();
    let locks = server.locks();
    let grants = tokio::spawn(async move {
        for n in 0..200 {
            locks.grant(&format!("n/{n}"), 60_000).await;
        }
    });
    let mut seen = Vec::new();
    let mut resumed = 0;
    let mut is_cut = false;
    let all = async {
        while seen.len() < 200 {
            // A connection takes longer than the hurry allows.
            let hurry = std::time::Duration::from_micros(if is_cut { 10_000_000 } else { 300 });
            let Ok(next) = tokio::time::timeout(hurry, stream.next()).await else {
                tokio::task::yield_now().await;
                continue;
            };
            match next.unwrap() {
                StreamItem::Event { event, .. } if event.kind == EventKind::Granted => {
                    seen.push(event.lock.unwrap().to_string());
                    if seen.len() % 50 == 0 {
                        proxy.cut();
                        is_cut = true;
                    }
                }
                StreamItem::Event { event, .. } => {
                    assert_eq!(event.kind, EventKind::Ready, "{event:?}")
                }
                StreamItem::Broken(_) => is_cut = true,
                StreamItem::Resumed => (is_cut, resumed) = (false, resumed + 1),
                other => panic!("{other:?}"),
            }
        }
    };
    soon("all events", all).await;
    grants.await.unwrap();
    let expected: Vec<String> = (0..200).map(|n| format!("n/{n}")).collect();
    assert_eq!(seen, expected);
    assert!(resumed > 0);
}

/// The SDK's observer sees each term, and the end of each; none where one follows the other at
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdks_observer_sees_each_term() {
    let server = Setup::lock_server("memory:").start().await;
    let proxy = FaultProxy::before(&server.address()).await;
    let through = format!("http://{}", proxy.address());
    let client = Client::builder().lock_server(through).build().unwrap();
    let mut observer = client.election("office").observe().await.unwrap();
    let mut next = async || match soon("a change", observer.next()).await.unwrap() {
        Observed::Leader(leader) => Ok(Some(leader.token)),
        Observed::Vacant => Ok(None),
        Observed::Unknown(error) => Err(error),
        other => panic!("{other:?}"),
    };
    assert_eq!(next().await.unwrap(), None);
    let locks = server.locks();
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let lease = locks.grant("office", 60_000).await;
        locks.release("office", lease.lease_id).await.expect(200);
        tokens.push(Some(lease.token));
    }
    for token in tokens {
        assert_eq!(next().await.unwrap(), token);
        assert_eq!(next().await.unwrap(), None);
    }
    // The end of the old term is reported behind the begin of the new one.
    let mut last = None;
    for life in ["1", "2", "3"] {
        let ask = json!({"owner": "a", "incarnation": life, "takeover": true, "ttl_ms": 60_000});
        last = Some(locks.acquire("office", ask).await.lease().token);
        assert_eq!(next().await.unwrap(), last);
    }
    // Nothing is missing behind the break, and who leads was not known for a while.
    proxy.cut();
    assert!(next().await.is_err(), "the break is an error");
    assert_eq!(next().await.unwrap(), last);
    locks.revoke("office", "by the test").await.expect(200);
    assert_eq!(next().await.unwrap(), None);
}
