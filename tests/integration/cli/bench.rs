//! `fence bench lock`: every row is measured, and what is written into a given Redis is deleted.

use std::collections::BTreeSet;

use fence_tests::process::{Output, Process, command};
use fence_tests::redis_server::Redis;
use serde_json::Value;

async fn bench(args: &[&str]) -> Output {
    let mut command = command(fence_tests::binaries::path("fence"));
    command.args(["bench", "lock", "--clients", "2", "--rounds", "2", "--time", "20ms"]).args(args);
    Process::spawn("fence", command).ended_within(std::time::Duration::from_secs(180)).await
}

/// The JSON that a benchmark printed, which measured all that it was asked for.
fn report(output: &Output) -> Value {
    assert_eq!(output.code, 0, "{output:?}");
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(report.get("missing"), None, "{report}");
    report
}

#[tokio::test]
async fn a_benchmark_measures_every_store_beside_its_base() {
    let args = ["--redis", "--etcd", "--quorum", "--large=200", "--storm=200", "--output", "json"];
    let report = report(&bench(&args).await);
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        let [base, server] = &row["sides"].as_array().unwrap()[..] else { panic!("{row}") };
        for side in [base, server] {
            assert!(side["done"].as_u64().unwrap() > 0, "{row}");
            assert!(side["cpu_us"]["load"].is_f64(), "{row}");
        }
        assert!(server["ratios"]["per_sec"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(server["cpu_us"]["lock-server"].is_f64(), "{row}");
    }
    let names: BTreeSet<_> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    let stores = ["redis", "memory", "etcd", "quorum of three"];
    for store in stores {
        assert!(names.contains(store), "{names:?}");
        assert!(names.contains(&*format!("{store}, one contended lock")), "{names:?}");
    }
    assert!(names.contains("redis, beside a thin handler"), "{names:?}");
    assert_eq!(names.len(), 16, "{names:?}");
    assert_eq!(report["bytes"].as_object().unwrap().len(), 3, "{report}");
    let storms = report["storms"].as_array().unwrap();
    let of: Vec<_> = storms.iter().map(|storm| storm["store"].as_str().unwrap()).collect();
    assert_eq!(of, ["memory", "embedded", "redis", "etcd"]);
    assert!(storms.iter().all(|storm| storm["leases"] == 200), "{report}");
}

#[tokio::test]
async fn a_benchmark_leaves_nothing_in_a_redis_that_was_given() {
    let redis = Redis::start().await;
    let report = report(&bench(&["--redis", &redis.url(), "--output", "json"]).await);
    assert_eq!(report["rows"][0]["sides"][0]["what"], "raw Redis");
    let keys: u64 = redis.run(&["DBSIZE"]).await;
    assert_eq!(keys, 0);
}

/// The benchmark's client speaks no TLS, which it says before it measures anything.
#[tokio::test]
async fn a_benchmark_refuses_a_server_over_tls() {
    let fence = fence_tests::binaries::path("fence");
    for args in [
        &["lock", "--server", "https://127.0.0.1:1"][..],
        &["guard", "--server", "https://127.0.0.1:1", "--guard", "http://127.0.0.1:2"],
        &["guard", "--server", "http://127.0.0.1:1", "--guard", "https://127.0.0.1:2"],
    ] {
        let mut command = command(&fence);
        command.arg("bench").args(args);
        let output = Process::spawn("fence", command).ended().await;
        assert_eq!(output.code, 64, "{args:?}: {output:?}");
        assert!(output.stderr.contains("the benchmark speaks no TLS"), "{args:?}: {output:?}");
    }
}

/// On a terminal a line shows how far it is, and is gone when the row is printed.
#[tokio::test]
async fn a_benchmark_shows_its_progress_on_a_terminal() {
    let fence = fence_tests::binaries::path("fence");
    let load = "--clients 2 --rounds 3 --time 20ms";
    let line = format!("{} bench guard {load}", fence.display());
    let mut terminal = command("script");
    terminal.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", "1");
    let output = Process::spawn("script", terminal).ended().await;
    assert_eq!(output.code, 0, "{output:?}");
    for round in 1..=3 {
        let shown = format!("\rfenced-store, 2 clients: round {round} of 3");
        assert!(output.stdout.contains(&shown), "{round}: {output:?}");
    }
    let (_, report) = output.stdout.rsplit_once("\r\u{1b}[K").unwrap();
    assert!(report.contains("fenced write + read"), "{output:?}");
}
