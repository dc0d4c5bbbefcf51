//! The pages in the order of the summary, at one `fence serve` with its default log: a reader who
//! leaves it running is never stuck, and sees on the screen what the page shows.

use std::any::Any;
use std::collections::BTreeMap;

use fence_tests::postgres_server::Postgres;
use fence_tests::redis_server::Redis;
use fence_tests::scenario::suite::package_check;
use tempfile::TempDir;

use super::steps::blocks;
use super::{PROGRAMS, free_ports, packages, play, read};

/// Pages below docs, and the ports of those that start servers of their own. All others use the
/// lock server and the guard that the reader left running, at 7420 and 7421.
const PAGES: [(&str, &[&str]); 21] = [
    ("../README.md", &[]),
    ("start.md", &[]),
    ("guides/cron-jobs.md", &[]),
    ("guides/workers.md", &[]),
    ("guides/leader-election.md", &[]),
    ("guides/python.md", &[]),
    ("guides/typescript.md", &[]),
    ("guides/go.md", &[]),
    ("guides/supervisors.md", &[]),
    ("guides/migrations.md", &[]),
    ("guides/terraform.md", &["7420", "7421"]),
    ("guides/adopting.md", &["7420", "7421"]),
    ("guides/from-other-locks.md", &[]),
    ("guides/redis.md", &["6379", "6380", "7420", "7421"]),
    ("guides/postgresql.md", &["6432", "7420", "7421"]),
    ("guides/http.md", &["6379", "7420", "7421", "7422", "7431", "7432", "9000", "9001"]),
    ("guides/redis-pools.md", &["6379", "6380", "7420", "7421"]),
    ("guides/deploy.md", &["32200", "32201", "32210"]),
    ("operating/revoking.md", &[]),
    ("operating/tls.md", &["7420"]),
    ("operating/access.md", &["6379", "6380", "7420", "7421"]),
];

/// Guides that are not played here, and why.
const LEFT_OUT: [(&str, &str); 5] = [
    (
        "guides/jobs.md",
        "each part needs a tool of its own; the checks of Python and TypeScript run three",
    ),
    ("guides/etcd.md", "all its servers are its own: it has a test of its own"),
    ("guides/quorum.md", "all its servers are its own: it has a test of its own"),
    ("guides/sentinel.md", "all its servers are its own: it has a test of its own"),
    ("guides/cluster.md", "all its servers are its own: it has a test of its own"),
];

/// Commands after a page: nothing that it started runs, and its variables, which would change
/// what later pages do, are gone. Then the locks of the server that the reader left running.
const AFTER: &str = r#"
for try in $(seq 100); do [ -z "$(jobs -rp)" ] || sleep 0.1; done
for job in $(jobs -rp); do echo "still running: $(tr '\0' ' ' < /proc/$job/cmdline)"; done
export -p | grep ' FENCE_' | grep -v -e '_SERVER="$SERVER"' -e '_GUARD="$GUARD"' |
  sed 's/declare -x/still set:/'
export FENCE_SERVER=LOCKS FENCE_GUARD=MARKS
fence lock list --output json | jq -r '.locks[] | "still held: " + .lock'
fence object list --output json | jq -r '.fences[] | "\(.lock) \(.mark)"'
"#;

/// The command with the ports that it has by default, which become others.
const LISTENING: &str = "fence serve --listen 127.0.0.1:7420 --guard-listen 127.0.0.1:7421 \
                         --redis-listen 127.0.0.1:6380 --redis";

/// The way from the sources of the TypeScript package to its tarball, and the same from what its
/// check compiled, which leaves no file among the sources, with the next command, which installs.
/// npm would install into the folder above, where drivers are, if this one were no project's.
const PACK: [&str; 2] = [
    "(cd client/typescript && npm ci && npm pack)",
    "(here=$PWD; echo '{}' > package.json; cd ../fencepost/target/sdk/typescript/package; \
     flock ../lock npm pack --pack-destination \"$here\"; \
     cd \"$here\"; npm install ./fencepost-0.1.0.tgz > installed)",
];

/// A server that a page presumes.
type Presumed = Option<Box<dyn Any + Send>>;

/// The demo, and what it prints, which the page shows in a block of its own.
fn readme(text: &str) -> String {
    const DEMO: &str = "cargo run -- demo gc-stall";
    assert!(text.contains(&format!("\n{DEMO} ")), "README.md does not show {DEMO}");
    let (_, prints) = blocks(text).into_iter().find(|(kind, _)| kind == "text").unwrap();
    format!("```console\n$ {DEMO}\n…\n{prints}```\n")
}

/// Text of a page at the addresses that its servers have here.
async fn prepared(page: &str, text: String, served: &str) -> (String, String, Presumed) {
    let mut presumed: Presumed = None;
    let mut programs = String::new();
    let text = match page {
        "../README.md" => readme(&text),
        "start.md" => text.replace("$ cargo run -- serve\n", &format!("$ cat {served}\n")),
        "guides/python.md" => {
            let driver = package_check("python", &["--prepare"]);
            let words: Vec<String> = serde_json::from_str(driver.lines().last().unwrap()).unwrap();
            programs = words[0].trim_end_matches("/python").to_owned();
            text
        }
        "guides/typescript.md" => {
            package_check("typescript", &["--prepare"]);
            text.replace(PACK[0], PACK[1])
        }
        "guides/redis.md" => {
            let text = text.replace("\"a\",\"ttl_ms\":60000", "\"a\",\"ttl_ms\":12000");
            text.replace("fence serve --redis", LISTENING)
        }
        "guides/redis-pools.md" => {
            package_check("typescript", &["--prepare"]);
            programs = packages("redis", "redis==8.1.0").await;
            text.replace("fence serve --redis", LISTENING)
        }
        "guides/adopting.md" | "operating/access.md" => {
            let redis = Redis::start().await;
            let text = text.replace("redis://127.0.0.1:6379", &redis.url());
            presumed = Some(Box::new(redis));
            text
        }
        "guides/postgresql.md" => {
            programs = packages("psycopg", "psycopg[binary]==3.2.3").await;
            let postgres = Postgres::start().await;
            let text = text.replace("5432", &postgres.port().to_string());
            presumed = Some(Box::new(postgres));
            text
        }
        _ => text,
    };
    (text, programs, presumed)
}

/// The addresses of the two servers that stand for the ports 7420 and 7421 in a text.
fn addresses(text: &str, locks: &str, guard: &str, ports: &[&str]) -> (String, String, String) {
    let marked = format!("{text}\0http://127.0.0.1:7420\0http://127.0.0.1:7421");
    let moved = free_ports(&marked, ports);
    let moved = moved.replace("http://127.0.0.1:7420", locks);
    let moved = moved.replace("http://127.0.0.1:7421", guard);
    let mut parts = moved.split('\0').map(ToOwned::to_owned);
    let mut next = || parts.next().unwrap();
    (next(), next(), next())
}

/// Plays one page; returns the marks of all locks afterwards.
async fn turn(
    page: &str,
    ports: &[&str],
    site: &[String; 3],
) -> Result<Vec<(String, u64)>, String> {
    let [locks, guard, served] = site;
    let (text, programs, _presumed) = prepared(page, read(page), served).await;
    let (text, own_locks, own_guard) = addresses(&text, locks, guard, ports);
    // Two stand for the ports by which all programs reach the servers, one for the terminal on
    // which redis-cli prints.
    let variables = [
        ("FAKETTY", "1"),
        ("FENCE_SERVER", own_locks.as_str()),
        ("FENCE_GUARD", own_guard.as_str()),
        (PROGRAMS, programs.as_str()),
    ];
    let after = AFTER.replace("$SERVER", &own_locks).replace("$GUARD", &own_guard);
    let after = after.replace("LOCKS", locks).replace("MARKS", guard);
    let end = play(page, &text, &variables, &after).await?;
    let mark = |line: &str| {
        let (lock, mark) = line.rsplit_once(' ')?;
        Some((lock.to_owned(), mark.parse().ok()?))
    };
    let marks = end.lines().map(mark).collect::<Option<_>>();
    marks.ok_or_else(|| format!("{page} leaves behind:\n{end}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_page_works_after_those_before_it() {
    let (server, locks, guard) = crate::cli::serve().await;
    let folder = TempDir::new().unwrap();
    let served = folder.path().join("served");
    std::fs::write(&served, server.stderr() + &server.stdout()).unwrap();
    let site = [locks, guard, served.display().to_string()];
    // A page to play alone, while it is written.
    let chosen = std::env::var("FENCE_PAGE").unwrap_or_default();
    // The mark of each lock, and the page that uses it.
    let mut used: BTreeMap<String, (u64, &str)> = BTreeMap::new();
    let mut failures = Vec::new();
    for (page, ports) in PAGES.into_iter().filter(|(page, _)| page.contains(&chosen)) {
        let site = site.clone();
        let played = tokio::spawn(async move { turn(page, ports, &site).await }).await;
        let marks = match played.unwrap_or_else(|panic| Err(format!("{page}: {panic}"))) {
            Ok(marks) => marks,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        for (lock, mark) in marks {
            let (old, other) = used.entry(lock.clone()).or_insert((mark, page));
            if *old != mark {
                failures.push(format!("{page} uses {lock}, a lock of {other}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// Pages of the summary in its order.
fn summary() -> Vec<String> {
    let summary = read("SUMMARY.md");
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(link, _)| link.to_owned()).collect()
}

#[test]
fn every_guide_is_played_in_its_order() {
    let is_played = |page: &String| PAGES.iter().any(|(played, _)| played == page);
    let (played, others): (Vec<String>, Vec<String>) = summary().into_iter().partition(is_played);
    let pages: Vec<&str> = PAGES.iter().map(|(page, _)| *page).skip(1).collect();
    assert_eq!(pages, played, "the summary (right) has another order");
    let guides = others.iter().filter(|page| page.starts_with("guides/"));
    let left_out: Vec<&str> = LEFT_OUT.iter().map(|(page, _)| *page).collect();
    assert_eq!(guides.collect::<Vec<_>>(), left_out, "guides that are not played");
}

#[test]
fn each_page_ends_with_the_way_to_the_next() {
    let summary = summary();
    let played = PAGES.map(|(page, _)| page);
    let left_out = LEFT_OUT.map(|(page, _)| page);
    let listed = [&played[..], &left_out, &["operating/console.md"]].concat();
    for pair in summary.windows(2).filter(|pair| listed.contains(&pair[0].as_str())) {
        let [page, next] = pair else { continue };
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        let link = match next.strip_prefix(folder) {
            Some(name) => name.trim_start_matches('/').to_owned(),
            None => format!("../{next}"),
        };
        let text = read(page);
        let end = text.lines().last().unwrap_or_default();
        let is_end = end.starts_with("You now have ") && end.contains(&format!("]({link})"));
        assert!(is_end, "{page} does not end with \"You now have …\" and a link to {link}: {end}");
    }
}
