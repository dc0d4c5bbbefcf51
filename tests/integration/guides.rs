//! Guides work as they are written: their scripts are written to a folder, their commands are run
//! one after the other in one shell, and what they print is compared.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use fence_tests::process::{Output, Process, command};
use serde_json::Value;
use tempfile::TempDir;

const GUIDES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides");
/// Line that the shell prints before the output of the next command; no command prints this.
const MARK: &str = "=== command ";
/// Longest time of a guide: some start servers of their own, and wait for what these do.
const LIMIT: Duration = Duration::from_secs(300);

/// Variable with a folder of programs that a page uses, such as a virtual environment's.
const PROGRAMS: &str = "GUIDE_PROGRAMS";

/// A command of a page, and what it is said to print.
#[derive(Debug)]
struct Shown {
    command: String,
    prints: String,
}

/// The blocks of a page between fences, with what stands behind the opening one.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((kind.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, text)), None) => writeln!(text, "{line}").unwrap(),
            (None, None) => {}
        }
    }
    blocks
}

/// A script says in its second line what it is called.
fn write_scripts(folder: &Path, blocks: &[(String, String)]) -> Vec<String> {
    let mut names = Vec::new();
    for (_, text) in blocks.iter().filter(|(kind, _)| kind == "sh") {
        let name = text.lines().nth(1).and_then(|line| line.strip_prefix("# "));
        let path = folder.join(name.unwrap_or_else(|| panic!("a script without a name:\n{text}")));
        std::fs::write(&path, text).unwrap();
        names.extend(name.map(ToOwned::to_owned));
    }
    for (_, text) in blocks.iter().filter(|(kind, _)| kind == "python" || kind == "sql") {
        let first = text.lines().next().unwrap_or_default();
        let name = first.strip_prefix("# ").or_else(|| first.strip_prefix("-- "));
        if let Some(name) = name.filter(|name| name.contains('.') && !name.contains(' ')) {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }
    names
}

fn commands(blocks: &[(String, String)]) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    for (_, text) in blocks.iter().filter(|(kind, _)| kind == "console") {
        if text.starts_with("$ cargo ") {
            continue;
        }
        for line in text.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => {
                    all.push(Shown { command: command.to_owned(), prints: String::new() });
                }
                None => {
                    let last = all.last_mut().expect("a block begins with a command");
                    match line.strip_prefix("> ") {
                        Some(more) => write!(last.command, "\n{more}").unwrap(),
                        None => writeln!(last.prints, "{line}").unwrap(),
                    }
                }
            }
        }
    }
    all
}

/// Text that is equal in every run: ids, numbers, dates and times are made equal, as are signed
/// values, and the width of a table. A number alone in its line is an exit code and stays what it
/// is. The shell's own notes on what was killed depend on the shell.
fn essence(text: &str) -> String {
    // Whether a wait is long enough to be shown depends on the machine.
    let is_chance = |line: &str| line.contains("Killed") || line.starts_with("fence: waiting for");
    let lines = text.lines().filter(|line| !is_chance(line)).map(|line| {
        let line = line.trim();
        if line.bytes().all(|byte| byte.is_ascii_digit()) {
            return line.to_owned();
        }
        if let Ok(mut json) = serde_json::from_str(line) {
            even(&mut json);
            return json.to_string();
        }
        line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    });
    // A time is a number and a unit, or two of both.
    let text = lines.collect::<Vec<_>>().join("\n").replace("N ms", "TIME").replace("N s", "TIME");
    text.replace("N m TIME", "TIME")
}

/// A reply of a server: numbers and what is made of them are other ones in every run.
fn even(json: &mut Value) {
    match json {
        Value::Number(number) => *number = 0.into(),
        Value::Array(items) => items.iter_mut().for_each(even),
        Value::Object(members) => {
            members.remove("request_id");
            for (name, value) in members {
                match name.as_str() {
                    "fencing_token" | "fencing_credential" => *value = Value::Null,
                    "detail" => *value = essence(value.as_str().unwrap_or_default()).into(),
                    _ => even(value),
                }
            }
        }
        Value::String(text) => *text = word(text).to_owned(),
        Value::Null | Value::Bool(_) => {}
    }
}

/// `true` if a word is a day, as `date -u +%F` prints it.
fn is_date(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let digits = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    digits && parts.iter().map(|part| part.len()).eq([4, 2, 2])
}

fn word(word: &str) -> &str {
    if is_date(word) {
        "DATE"
    } else if word.starts_with("pod-") {
        // Of those that start at once, which one is first.
        "POD"
    } else if word.starts_with("fc1_") {
        "CREDENTIAL"
    } else if word.starts_with('"') && word.len() == 51 {
        "ETAG"
    } else if word.contains('@') && word.contains(':') {
        "OWNER"
    } else if word.contains(";lock=") {
        "HEADER"
    } else if word.len() == 36 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
    {
        "ID"
    } else if word.parse::<f64>().is_ok() && word != "0.8" {
        "N"
    } else {
        word
    }
}

/// Output of a shell at its end. A guide awaits several things one after the other, so that it may
/// take longer than what a test awaits at once.
async fn ended(mut shell: Process) -> Output {
    shell.ended_within(LIMIT).await
}

/// Runs a guide from its beginning to its end, before the servers of `fence serve`.
async fn run(page: &str) {
    let text = std::fs::read_to_string(Path::new(GUIDES).join(page)).unwrap();
    let (_server, locks, guard) = super::cli::serve().await;
    let text = text.replace("http://127.0.0.1:7420", &locks);
    let text = text.replace("http://127.0.0.1:7421", &guard);
    run_text(page, &text, &[("FENCE_SERVER", &locks), ("FENCE_GUARD", &guard)]).await;
}

/// Times of the pages, and those in their place: a lease that survives a reader's speed is too long
/// for a test, and what passes soon for a reader passes too soon on a busy machine.
const TIMES: [(&str, &str); 15] = [
    ("\"ttl_ms\":40000", "\"ttl_ms\":12000"),
    ("--ttl 2s", "--ttl 8s"),
    ("--ttl 3s", "--ttl 9s"),
    ("--max-hold 2s", "--max-hold 8s"),
    ("held for 2s", "held for 8s"),
    ("--progress-within 3s", "--progress-within 9s"),
    ("reported for 3s", "reported for 9s"),
    ("--warn-before 1s", "--warn-before 4s"),
    ("--wait-replicas 1 --unsigned", REPLICAS),
    ("--cluster-node-timeout 1500", "--cluster-node-timeout 4000"),
    ("down-after-milliseconds orders 2000", "down-after-milliseconds orders 4000"),
    ("tries=100", "tries=600"),
    ("sleep 600 & sleep 1", HELD),
    ("--upstream-timeout 1s --max-request-lifetime 1s", LIFETIME),
    ("--leader-ttl 2s", "--leader-ttl 6s"),
];
const REPLICAS: &str = "--wait-replicas 1 --wait-timeout 5s --store-timeout 10s --unsigned";
const HELD: &str = "sleep 600 & until fence lock show jobs/nightly | grep -q '^state *held'; \
                    do sleep 0.1; done";
const LIFETIME: &str = "--upstream-timeout 3s --max-request-lifetime 3s";

/// Runs the text of a guide with these variables.
async fn run_text(page: &str, text: &str, variables: &[(&str, &str)]) {
    let text = TIMES.iter().fold(text.to_owned(), |text, (named, here)| text.replace(named, here));
    let blocks = blocks(&text);
    let folder = TempDir::new().unwrap();
    let scripts = write_scripts(folder.path(), &blocks);
    let shown = commands(&blocks);
    assert!(!shown.is_empty(), "{page} shows nothing");
    for script in scripts {
        assert!(text.contains(&format!("./{script}")), "{page} never runs {script}");
    }
    let mut script = String::new();
    for (index, one) in shown.iter().enumerate() {
        writeln!(script, "echo '{MARK}{index}'\n{}", one.command).unwrap();
    }
    let mut bash = command("bash");
    bash.args(["-c", &format!("exec 2>&1\n{script}")]).current_dir(folder.path());
    bash.envs(variables.iter().copied());
    let fence = fence_tests::binaries::path("fence");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(fence.parent().unwrap().to_owned());
    let folders = folders.chain(
        variables.iter().filter(|(name, _)| *name == PROGRAMS).map(|(_, folder)| folder.into()),
    );
    let folders = folders.chain(std::env::split_paths(&path));
    bash.env("PATH", std::env::join_paths(folders).unwrap());
    let output = ended(Process::spawn("bash", bash)).await;
    let printed: Vec<&str> = output.stdout.split(MARK).skip(1).collect();
    assert_eq!(printed.len(), shown.len(), "{output:?}");
    for (one, printed) in shown.iter().zip(printed) {
        let printed = printed.split_once('\n').map_or("", |(_, rest)| rest);
        assert!(
            is_shown(&essence(printed), &essence(&one.prints)),
            "{page}: $ {}\n--- printed\n{printed}--- shown\n{}",
            one.command,
            one.prints
        );
    }
}

/// True if a page shows what was printed; its line `…` stands for any lines.
fn is_shown(printed: &str, shown: &str) -> bool {
    let mut printed = printed.lines();
    let mut is_cut = false;
    for line in shown.lines() {
        let found = match line {
            "…" => true,
            _ if is_cut => printed.any(|other| other == line),
            _ => printed.next() == Some(line),
        };
        is_cut = line == "…";
        if !found {
            return false;
        }
    }
    is_cut || printed.next().is_none()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn supervisors() {
    run("supervisors.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cron_jobs() {
    run("cron-jobs.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers() {
    run("workers.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_election() {
    run("leader-election.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations() {
    run("migrations.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum() {
    run("quorum.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_other_locks() {
    run("from-other-locks.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel() {
    run("sentinel.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    run("cluster.md").await;
}

/// Two machines' worth of processes, on addresses of the loopback network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deploy() {
    let text = std::fs::read_to_string(Path::new(GUIDES).join("deploy.md")).unwrap();
    run_text("deploy.md", &text, &[]).await;
}

/// The first page: all of it but what `cargo` does, which takes minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start() {
    run("../start.md").await;
}

/// Text of a guide that starts its servers itself, with ports that are free here instead of those
/// that it names.
fn with_free_ports(page: &str, named: &[&str]) -> String {
    let mut text = std::fs::read_to_string(Path::new(GUIDES).join(page)).unwrap();
    for (index, port) in named.iter().enumerate() {
        // In two steps: a free port may hold the digits of one that is named.
        text = text.replace(port, &format!("<port {index}>"));
    }
    let ports: Vec<String> =
        named.iter().map(|_| fence_tests::ports::unused().to_string()).collect();
    for (index, port) in ports.iter().enumerate() {
        text = text.replace(&format!("<port {index}>"), port);
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terraform() {
    let text = with_free_ports("terraform.md", &["7420", "7421"]);
    run_text("terraform.md", &text, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http() {
    let text =
        with_free_ports("http.md", &["6379", "7420", "7421", "7422", "7431", "7432", "9000"]);
    run_text("http.md", &text, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    let named = ["2379", "2380", "2389", "2390", "2399", "2400"];
    let text = with_free_ports("etcd.md", &named);
    let server = format!("127.0.0.1:{}", fence_tests::ports::unused());
    let text = text.replace("127.0.0.1:7420", &server);
    let url = format!("http://{server}");
    let variables = [("LOCK_SERVER_LISTEN", server.as_str()), ("FENCE_SERVER", url.as_str())];
    run_text("etcd.md", &text, &variables).await;
}

/// Folder of a python3 that has psycopg, which is downloaded once.
async fn psycopg() -> String {
    let target = fence_tests::binaries::path("fence");
    let kept = target.ancestors().nth(2).unwrap().join("drivers/psycopg");
    let programs = kept.join("bin").display().to_string();
    if !kept.join("installed").exists() {
        let script = format!(
            "python3 -m venv --clear {0} && {0}/bin/pip install --quiet \
             --disable-pip-version-check 'psycopg[binary]==3.2.3' && touch {0}/installed",
            kept.display()
        );
        let mut bash = command("bash");
        bash.args(["-c", &script]);
        let output = ended(Process::spawn("pip", bash)).await;
        assert_eq!(output.code, 0, "{}", output.stderr);
    }
    programs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql() {
    let server = fence_tests::postgres_server::Postgres::start().await;
    let text = with_free_ports("postgresql.md", &["7420", "7421", "6432"]);
    let text = text.replace("127.0.0.1:5432", &server.address());
    let port = server.port().to_string();
    let programs = psycopg().await;
    let variables = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGUSER", "postgres"),
        ("PGDATABASE", "postgres"),
        (PROGRAMS, &programs),
    ];
    run_text("postgresql.md", &text, &variables).await;
}

#[test]
fn a_page_that_says_something_else_is_noticed() {
    let page = "```console\n$ a\ntoken 7\n76\n$ b\n```\n```sh\n#!/bin/sh\n# x.sh\n```\n";
    let shown = commands(&blocks(page));
    assert_eq!(shown.len(), 2);
    assert_eq!((shown[0].command.as_str(), shown[0].prints.as_str()), ("a", "token 7\n76\n"));
    assert_eq!(essence("token 8\n76\n"), essence(&shown[0].prints));
    for other in ["token 7\n75\n", "tokens 7\n76\n", "token 7\n", "token 7\n76\nmore\n"] {
        assert_ne!(essence(other), essence(&shown[0].prints), "{other}");
    }
    assert!(is_shown("a\nb\nc\nd", "a\n…\nc\n…") && is_shown("a\nb", "a\nb"));
    assert!(!is_shown("a\nb", "a") && !is_shown("a\nb", "a\n…\nc") && !is_shown("a", "b"));
    let table = "id  2f6c7a0e-9a0f-4d6c-b7f8-52a0c3c1b9ab  98 ms  2.9 s";
    assert_eq!(essence(table), "id ID TIME TIME");
    assert_eq!(essence("{\"token\":7,\"a\":\"b\"}"), essence("{\"token\":8,\"a\":\"b\"}"));
    assert_ne!(essence("{\"token\":7,\"a\":\"b\"}"), essence("{\"token\":7,\"a\":\"c\"}"));
    assert_eq!(essence("of 2026-11-21"), essence("of 2027-01-01"));
    let long = commands(&blocks("```console\n$ for i in 1; do\n> echo $i; done\n1\n```\n"));
    assert_eq!(
        (long[0].command.as_str(), long[0].prints.as_str()),
        ("for i in 1; do\necho $i; done", "1\n")
    );
}
