//! Starting: an obstacle is reported in one sentence with the value, and the exit code separates
//! usage (64) from circumstances.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use fence_protocol::Code;
use fence_tests::event_stream::EventStream;
use fence_tests::key_file::{KeyFile, lease_id, text, unsigned};
use fence_tests::ports;
use fence_tests::process;
use fence_tests::servers::{DataDir, Setup};
use lease::tokens;
use serde_json::json;
use service_kit::clock::{Clock as _, SystemClock};
use tempfile::TempDir;

const BOTH: [fn(&str) -> Setup; 2] = [Setup::lock_server, Setup::fenced_store];

#[tokio::test]
async fn a_port_in_use() {
    let port = ports::unused();
    let address = format!("127.0.0.1:{port}");
    let _taken = std::net::TcpListener::bind(&address).unwrap();
    for setup in BOTH {
        let output = setup("memory:").listen(&address).refused().await;
        assert!(output.stderr.contains(&address), "{}", output.stderr);
        assert!(output.stderr.contains("in use"), "{}", output.stderr);
    }
}

#[tokio::test]
async fn an_unknown_store() {
    for setup in BOTH {
        for store in ["ftp://x", "embedded", "redis:", "memory", "redis://127.0.0.1:notaport", ""] {
            let output = setup(store).refused().await;
            assert_eq!(output.code, 64, "{store}: {output:?}");
            assert!(output.stderr.contains(store), "{store}: {}", output.stderr);
        }
    }
}

#[tokio::test]
async fn an_address_that_others_could_reach() {
    for setup in BOTH {
        let output = setup("memory:").listen("0.0.0.0:0").refused().await;
        assert!(output.stderr.contains("0.0.0.0"), "{}", output.stderr);
        assert!(output.stderr.contains("can be reached from other machines"), "{}", output.stderr);
    }
}

/// `localhost` is loopback, a port alone every address, and no other name is looked up.
#[tokio::test]
async fn an_address_without_numbers() {
    for setup in BOTH {
        let server = setup("memory:").listen("localhost:0").start().await;
        assert!(server.base.starts_with("http://127.0.0.1:"), "{}", server.base);
        for all in [":0", "0"] {
            let output = setup("memory:").listen(all).refused().await;
            assert!(output.stderr.contains("--listen 0.0.0.0:0 can be reached"), "{output:?}");
        }
        for wrong in ["example.org:7420", "localhost"] {
            let output = setup("memory:").listen(wrong).refused().await;
            let remedy = format!("\"{wrong}\" is not valid for --listen: write ADDRESS:PORT");
            assert!(output.code == 64 && output.stderr.contains(&remedy), "{output:?}");
        }
    }
}

#[tokio::test]
async fn neither_keys_nor_unsigned() {
    for binary in ["lock-server", "fenced-store"] {
        let output = Setup::bare(binary).args(&["--store", "memory:"]).refused().await;
        assert_eq!(output.code, 64, "{output:?}");
        assert!(output.stderr.contains("--token-key-file"), "{}", output.stderr);
        assert!(output.stderr.contains("--unsigned"), "{}", output.stderr);
    }
}

#[tokio::test]
async fn a_bad_key_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("keys");
    for (content, shown) in
        [("", "no key"), ("k1", "kid:hex"), ("k1:abcd", "32"), ("k1:zz", "hexadecimal")]
    {
        std::fs::write(&path, content).unwrap();
        for setup in BOTH {
            let output = setup("memory:").keys(&path).refused().await;
            assert!(output.stderr.contains(shown), "{content}: {}", output.stderr);
            assert!(!output.stderr.contains("abcd"), "key material in a message");
        }
    }
    for setup in BOTH {
        let output = setup("memory:").keys(&folder.path().join("none")).refused().await;
        assert!(output.stderr.contains("none"), "{}", output.stderr);
    }
}

/// A reader of the keys can make tokens: both servers warn, and `fence keys new` makes a file that
/// its owner alone may read.
#[tokio::test]
async fn a_key_file_that_others_may_read() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("keys");
    let make =
        async |args: &[&str]| process::run("fence", &[&["keys", "new"], args].concat()).await;
    let made = make(&[text(&path)]).await;
    assert_eq!((made.code, made.stdout.as_str()), (0, ""), "{made:?}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    let content = std::fs::read_to_string(&path).unwrap();
    let again = make(&[text(&path)]).await;
    assert!(again.code == 64 && again.stderr.contains(text(&path)), "{again:?}");
    let second = make(&["--kid", "k2"]).await.stdout;
    assert!(second.starts_with("k2:") && second.trim_end().len() == 67, "{second}");
    assert_eq!(make(&["--kid", "a:b"]).await.code, 64);
    std::fs::write(&path, format!("{content}{second}")).unwrap();
    for setup in BOTH {
        for (mode, warned) in [(0o600, false), (0o640, true), (0o604, true)] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let server = setup("memory:").keys(&path).start().await;
            let ready = server.api().get("/readyz?verbose").await.expect(200);
            let ready = String::from_utf8_lossy(&ready.body).into_owned();
            let warning = format!("may read the keys {} (mode {mode:03o})", text(&path));
            assert_eq!(ready.contains("[!]token-key-file warning: other users"), warned, "{ready}");
            for place in [ready, server.process.stderr()] {
                assert_eq!(place.contains(&warning), warned, "{mode:o}: {place}");
            }
        }
    }
}

#[tokio::test]
async fn bad_rules() {
    for rule in ["nonsense", "=a", "a=", "a//b=c", "orders/{id}=orders/{x}", "a=b=c", "**/a=b"] {
        let output = Setup::fenced_store("memory:").args(&["--rule", rule]).refused().await;
        assert_eq!(output.code, 64, "{rule}: {output:?}");
        assert!(output.stderr.contains(rule), "{rule}: {}", output.stderr);
    }
}

#[tokio::test]
async fn unknown_and_bad_settings_are_reported_together() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("lock.toml");
    std::fs::write(&file, "stor = \"memory:\"\nended-retention = \"soon\"\n").unwrap();
    let output = Setup::lock_server("memory:")
        .args(&["--config", text(&file)])
        .env("LOCK_SERVER_MAX_WAITERS_PER_LOCK", "many")
        .refused()
        .await;
    assert_eq!(output.code, 64, "{output:?}");
    for shown in ["stor", "soon", "LOCK_SERVER_MAX_WAITERS_PER_LOCK", "many", text(&file)] {
        assert!(output.stderr.contains(shown), "{shown}: {}", output.stderr);
    }
}

#[tokio::test]
async fn a_flag_beats_a_variable_beats_a_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("lock.toml");
    std::fs::write(&file, "namespace = \"file\"\n").unwrap();
    let setup = || {
        Setup::bare("lock-server")
            .args(&["--store", "memory:", "--unsigned"])
            .args(&["--config", text(&file)])
    };
    for (setup, expected) in [
        (setup(), "file"),
        (setup().env("LOCK_SERVER_NAMESPACE", "variable"), "variable"),
        (setup().env("LOCK_SERVER_NAMESPACE", "variable").args(&["--namespace", "flag"]), "flag"),
    ] {
        let server = setup.start().await;
        let header = server.locks().grant("a", 60_000).await.fencing_token;
        assert!(header.contains(&format!("ns=\"{expected}\"")), "{header}");
    }
}

/// Limits whose other tests make the server in this process.
#[tokio::test]
async fn limits_come_from_the_command_line() {
    let waiters = ["--max-waiters-per-lock", "1"];
    let others = ["--max-shared-per-lock", "1", "--max-event-readers", "1"];
    let server = Setup::lock_server("memory:").args(&waiters).args(&others).start().await;
    let locks = server.locks();
    let shared = json!({"mode": "shared"});
    locks.acquire("a", shared.clone()).await.lease();
    locks.acquire("a", shared).await.problem(Code::LockHeld);
    let own = locks.clone();
    let patient = json!({"wait_ms": 60_000});
    let asked = patient.clone();
    let waiting = tokio::spawn(async move { own.try_acquire("a", asked).await });
    locks.queue_of("a", 1).await;
    locks.acquire("a", patient).await.problem(Code::LimitReached);
    waiting.abort();
    let _reader = EventStream::open(&server, "", "").await;
    locks.0.get("/v1/events").await.problem(Code::LimitReached);
}

#[tokio::test]
async fn a_data_folder_in_use() {
    for setup in BOTH {
        let data = DataDir::new();
        let _owner = setup(&data.store()).in_process().await;
        let output = setup(&data.store()).refused().await;
        assert!(output.stderr.contains(text(&data.path())), "{}", output.stderr);
        assert!(output.stderr.contains("use"), "{}", output.stderr);
    }
}

#[tokio::test]
async fn a_data_folder_that_cannot_be_written() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    for path in [file.join("data"), file.clone(), "/proc/none".into()] {
        for setup in BOTH {
            let output = setup(&format!("embedded:{}", text(&path))).refused().await;
            assert!(output.stderr.contains(text(&path)), "{}", output.stderr);
        }
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not a folder");
}

/// Damage is reported, and the files are left as they are for a repair.
#[tokio::test]
async fn a_damaged_data_folder() {
    for setup in BOTH {
        let data = DataDir::new();
        let mut server = setup(&data.store()).start().await;
        server.process.terminate();
        server.process.ended().await;
        let mut files = files_under(&data.path());
        // A file that was not complete when the server ended is removed at the next start.
        files.retain(|path| path.extension().is_none_or(|extension| extension != "tmp"));
        files.sort_by_key(|path| std::fs::metadata(path).unwrap().len());
        let largest = files.pop().unwrap();
        std::fs::write(&largest, b"this was a database once").unwrap();
        let output = setup(&data.store()).refused().await;
        assert!(output.stderr.contains(text(&data.path())), "{}", output.stderr);
        assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
        assert_eq!(std::fs::read(&largest).unwrap(), b"this was a database once");
    }
}

fn files_under(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_under(&path) } else { vec![path] }).collect()
}

/// L4 and G4: what was answered is there after a restart.
#[tokio::test]
async fn embedded_stores_remember() {
    let locks_data = DataDir::new();
    let guard_data = DataDir::new();
    let remembers = ["--ended-retention", "10m"];
    let setup = Setup::lock_server(&locks_data.store()).args(&remembers);
    let mut server = setup.start().await;
    let held = server.locks().grant("held", 60_000).await;
    let ended = server.locks().grant("ended", 60_000).await;
    server.locks().release("ended", ended.lease_id).await.expect(200);
    server.process.kill();
    let server = setup.start().await;
    assert_eq!(server.locks().renew("held", held.lease_id).await.lease().token, held.token);
    let again = serde_json::json!({"lease_id": ended.lease_id});
    assert_eq!(server.locks().acquire("ended", again).await.status, 410);
    assert!(server.locks().grant("next", 60_000).await.token > ended.token);

    let setup = Setup::fenced_store(&guard_data.store());
    let mut server = setup.start().await;
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    server.guard().put("a", &old, "kept").await.expect(201);
    server.guard().sealed("a", &new).await;
    server.process.kill();
    let server = setup.start().await;
    assert_eq!(server.guard().put("a", &old, "late").await.status, 412);
    assert_eq!(server.guard().fenced_get("a", &new).await.expect(200).body.as_ref(), b"kept");
}

#[tokio::test]
async fn a_server_ends_when_asked_and_finishes_what_it_has() {
    for setup in BOTH {
        let mut server = setup("memory:").start().await;
        server.locks().0.get("/livez").await.expect(200);
        server.process.terminate();
        assert_eq!(server.process.ended().await.code, 0);
    }
}

#[tokio::test]
async fn help_and_version() {
    for name in ["lock-server", "fenced-store", "fence"] {
        let help = fence_tests::process::run(name, &["--help"]).await;
        assert_eq!(help.code, 0, "{help:?}");
        assert!(help.stdout.contains("Usage"), "{}", help.stdout);
        let version = fence_tests::process::run(name, &["--version"]).await;
        assert_eq!(version.code, 0);
        assert!(version.stdout.contains("0.1.0"), "{}", version.stdout);
        let unknown = fence_tests::process::run(name, &["--colour"]).await;
        assert_eq!(unknown.code, 64, "{unknown:?}");
    }
}

/// A key ring is shared: what the lock server signs, the guard verifies; a rotated key stays valid.
#[tokio::test]
async fn both_servers_share_a_key_file() {
    let keys = KeyFile::new("k1", 9);
    let locks = Setup::lock_server("memory:").keys(&keys.path()).in_process().await;
    let guard = Setup::fenced_store("memory:").keys(&keys.path()).in_process().await;
    let lease = locks.locks().grant("orders/42", 60_000).await;
    guard.guard().put("orders/42", &lease.fencing_token, "paid").await.expect(201);
    let rotated = format!("k2:{}\nk1:{}\n", "0a".repeat(32), "09".repeat(32));
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("keys"), rotated).unwrap();
    let path = folder.path().join("keys");
    let new_locks = Setup::lock_server("memory:").keys(&path).in_process().await;
    let new_guard = Setup::fenced_store("memory:").keys(&path).in_process().await;
    new_guard.guard().put("orders/42", &lease.fencing_token, "paid").await.expect(201);
    let lease = new_locks.locks().grant("k2", 60_000).await;
    assert!(lease.fencing_token.contains("kid=\"k2\""), "{}", lease.fencing_token);
    new_guard.guard().put("k2", &lease.fencing_token, "x").await.expect(201);
    assert_eq!(guard.guard().put("k2", &lease.fencing_token, "x").await.status, 401);
}

/// A memory store forgets all with its process, also how far a client had lifted the counter: the
/// next one begins above it (L1).
#[tokio::test]
async fn a_memory_store_begins_above_a_lifted_counter() {
    let mut first = Setup::lock_server("memory:").start().await;
    let floor = tokens::clock_floor(SystemClock::new().wall_ms());
    let wish = json!({"ttl_ms": 60_000, "min_token": floor + tokens::LIFT_SLACK - 1});
    let lifted = first.locks().acquire("a", wish).await.lease().token;
    first.process.kill();
    let second = Setup::lock_server("memory:").start().await;
    assert!(second.locks().grant("a", 60_000).await.token > lifted);
}
