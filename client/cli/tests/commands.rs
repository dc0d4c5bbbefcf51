//! The command against the services that it serves itself, as processes.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FENCE: &str = env!("CARGO_BIN_EXE_fence");

/// `fence serve` on ports of the system's choice.
struct Served {
    child: Child,
    server: String,
    store: String,
}

impl Served {
    fn start(extra: &[&str]) -> Self {
        let mut child = Command::new(FENCE)
            .args(["serve", "--listen", "127.0.0.1:0", "--guard-listen", "127.0.0.1:0"])
            .args(extra)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |prefix: &str| {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix(prefix).unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let server = address("lock-server listening on ");
        let store = address("fenced-store listening on ");
        Self { child, server, store }
    }

    /// `fence LINE` against these services, with `input` on stdin.
    fn fence_with(&self, line: &[&str], header: Option<&str>, input: &str) -> Output {
        let mut command = Command::new(FENCE);
        command.args(line).env("FENCE_SERVER", &self.server).env("FENCE_GUARD", &self.store);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match header {
            Some(header) => command.env("FENCE_HEADER", header),
            None => command.env_remove("FENCE_HEADER"),
        };
        let mut child = command.spawn().unwrap();
        // A command that reads no input may have ended already.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn fence(&self, line: &str) -> Output {
        self.fence_with(&line.split(' ').collect::<Vec<_>>(), None, "")
    }

    /// The JSON that a command prints, which must succeed.
    fn json(&self, line: &str) -> Value {
        let output = self.fence(&format!("{line} --output json"));
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Asked to end, so that it deletes its temporary folder.
        if let Ok(None) = self.child.try_wait() {
            let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_lease_from_acquire_to_its_end() {
    let served = Served::start(&[]);
    let grant = served.json("lock acquire a/b --ttl 1m");
    let lease = grant["lease_id"].as_str().unwrap();
    let credential =
        fence_protocol::credential::parse(grant["fencing_credential"].as_str().unwrap());
    assert_eq!(credential.unwrap()[0].to_string(), grant["fencing_token"].as_str().unwrap());
    let held = served.fence("lock acquire a/b");
    assert_eq!(code(&held), 75, "{held:?}");
    let renewed = served.json(&format!("lock renew a/b {lease} --ttl 2m"));
    assert_eq!(renewed["token"], grant["token"]);
    assert!(renewed["ttl_ms"].as_u64().unwrap() > 60_000);
    let shown = served.json("lock show a/b");
    assert_eq!((&shown["state"], &shown["holder"]["renewals"]), (&"held".into(), &1.into()));
    let listed = served.json("lock list --prefix a/");
    assert_eq!(listed["locks"][0]["lock"], "a/b");
    let text = served.fence("lock list --filter held --sort age");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("REFUSED") && text.contains("exclusive"), "{text}");
    let none = served.json("lock list --filter waiting --held-by worker");
    assert_eq!(none["locks"], serde_json::json!([]));
    let bad = served.fence("lock list --filter sick");
    assert!(code(&bad) == 64 && stderr(&bad).contains("held, waiting or refused"), "{bad:?}");
    assert_eq!(code(&served.fence(&format!("lock release a/b {lease}"))), 0);
    let again = served.fence(&format!("lock release a/b {lease}"));
    assert_eq!(code(&again), 76, "{again:?}");
    assert!(stderr(&again).contains("released"), "{again:?}");
    assert_eq!(served.json("lock show a/b")["state"], "free");
    assert_eq!(code(&served.fence(&format!("lock renew a/b {lease}"))), 76);

    served.json("lock acquire a/b");
    let revoked = served.json("lock revoke a/b --reason testing");
    assert_eq!(revoked["reason"], "revoked");
}

#[test]
fn objects_are_written_with_a_token_and_refused_with_a_stale_one() {
    let served = Served::start(&[]);
    let old = served.json("lock acquire doc --ttl 1m");
    let old_lease = old["lease_id"].as_str().unwrap();
    // A revocation would seal the guard at once; after this, only the new holder's write does.
    assert_eq!(code(&served.fence(&format!("lock release doc {old_lease}"))), 0);
    let new = served.json("lock acquire doc --ttl 1m");
    let old = old["fencing_token"].as_str();
    let new = new["fencing_token"].as_str();
    let put = |header, text| served.fence_with(&["object", "put", "doc"], header, text);
    let object = |line: &[&str], header| served.fence_with(line, header, "");

    assert_eq!(code(&put(old, "first")), 0);
    assert_eq!(code(&put(new, "second")), 0);
    let late = put(old, "too late");
    assert_eq!(code(&late), 77, "{late:?}");
    assert!(stderr(&late).contains("below the mark"), "{late:?}");
    let got = object(&["object", "get", "doc"], new);
    assert_eq!((code(&got), got.stdout.as_slice()), (0, &b"second"[..]));
    let refused = served.json("object show doc");
    assert_eq!(refused["refused_total"], 1);

    assert_eq!(code(&put(None, "unknown")), 64);
    assert_eq!(code(&object(&["object", "get", "doc"], None)), 64);
    let described = object(&["object", "get", "doc", "--output", "json"], new);
    let described: Value = serde_json::from_slice(&described.stdout).unwrap();
    assert_eq!(described["bytes"], 6);
    let etag = described["etag"].as_str().unwrap();
    assert_eq!(code(&object(&["object", "put", "doc", "--if-match", "\"other\""], new)), 77);
    assert_eq!(code(&object(&["object", "put", "doc", "--if-match", etag], new)), 0);
    assert_eq!(code(&object(&["object", "put", "doc", "--if-absent"], new)), 77);
    assert_eq!(code(&object(&["object", "seal"], new)), 0);
    assert_eq!(code(&object(&["object", "delete", "doc"], new)), 0);
    assert_eq!(code(&object(&["object", "get", "doc"], new)), 1);
    assert_eq!(served.json("object list")["fences"][0]["lock"], "doc");
}

#[test]
fn doctor_distinguishes_well_from_ill() {
    let served = Served::start(&[]);
    let well = served.fence("doctor --strict");
    assert_eq!(code(&well), 0, "{well:?}");
    let swapped = served.fence(&format!("doctor --server {}", served.store));
    assert_eq!(code(&swapped), 69);
    let text = String::from_utf8(swapped.stdout).unwrap();
    assert!(text.contains("this is a fenced-store, not a lock-server"), "{text}");
    let absent = served.fence("doctor --server http://127.0.0.1:1 --output json");
    assert_eq!(code(&absent), 69);
    let checks: Value = serde_json::from_slice(&absent.stdout).unwrap();
    assert_eq!(checks[0]["verdict"], "failing");
}

#[test]
fn a_given_folder_keeps_tokens_rising() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let mut served = Served::start(&["--dir", dir]);
        let token = served.json("lock acquire a --wait 30s")["token"].as_u64().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        served.json("lock revoke a --reason testing");
        // Killed outright: what was answered is on the disk.
        served.child.kill().unwrap();
        served.child.wait().unwrap();
    }
}

/// The server is gone and the command does not listen: it is killed before the lease can pass on,
/// whatever the grace says.
#[test]
fn a_command_that_ignores_term_is_killed_in_time() {
    let mut served = Served::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let script = "trap '' TERM; touch started; while :; do sleep 0.02; done";
    let run = Command::new(FENCE)
        .args(["run", "--lock", "a", "--ttl", "6s", "--grace", "1h", "--", "sh", "-c", script])
        .env("FENCE_SERVER", &served.server)
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    let mut run = Killed(run);
    soon("the command to start", || dir.path().join("started").exists().then_some(()));
    served.child.kill().unwrap();
    let status = soon("the command to be killed", || run.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(76));
}

/// A process that does not stay behind where its test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks until there is an answer; fails where there is none for a long time.
fn soon<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("waited for {what} in vain")
}

#[test]
fn serve_says_why_it_cannot_start() {
    let served = Served::start(&[]);
    let address = served.server.trim_start_matches("http://");
    for (line, expected, reason) in [
        (&["serve", "--listen", address][..], 69, "in use"),
        (&["serve", "--listen", "0.0.0.0:0"], 64, "can be reached from other machines"),
        (&["serve", "--listen", "127.0.0.1:0", "--rule", "a/**/b=c"], 64, "a/**/b=c"),
        (&["serve", "--listen", "nowhere"], 64, "nowhere"),
        (&["serve", "--dir", "/proc/fencepost"], 69, "/proc/fencepost"),
    ] {
        let output = served.fence_with(line, None, "");
        assert_eq!(code(&output), expected, "{line:?}: {output:?}");
        assert!(stderr(&output).contains(reason), "{line:?}: {output:?}");
    }
}

#[test]
fn settings_come_from_flags_then_variables_then_the_file() {
    let served = Served::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fence.toml");
    std::fs::write(&file, "ttl = \"20s\"\nowner = \"from the file\"\n").unwrap();
    let acquire = |lock: &str, extra: &[&str], owner: Option<&str>| {
        let mut command = Command::new(FENCE);
        command.args(["lock", "acquire", lock, "--output", "json", "--config"]).arg(&file);
        command.args(extra).env("FENCE_SERVER", &served.server);
        if let Some(owner) = owner {
            command.env("FENCE_OWNER", owner);
        }
        let output = command.output().unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (reply["owner"].as_str().unwrap().to_owned(), reply["ttl_ms"].as_u64().unwrap())
    };
    let (owner, ttl_ms) = acquire("a", &[], None);
    assert_eq!(owner, "from the file");
    assert!(ttl_ms > 15_000 && ttl_ms <= 20_000, "{ttl_ms}");
    assert_eq!(acquire("b", &[], Some("from the variable")).0, "from the variable");
    let (owner, ttl_ms) = acquire("c", &["--owner", "typed", "--ttl", "40s"], Some("variable"));
    assert_eq!(owner, "typed");
    assert!(ttl_ms > 20_000, "{ttl_ms}");

    let wrong = served.fence("lock acquire a --ttl soon");
    assert_eq!(code(&wrong), 64);
    assert!(stderr(&wrong).contains("soon"), "{wrong:?}");
}
