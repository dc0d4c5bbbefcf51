//! The alert rules and the dashboard in docs/deploy.

use std::collections::BTreeSet;
use std::path::Path;

use fence_tests::process::{Process, command};
use serde_json::Value;

use crate::docs::ROOT;

const ALERTS: &str = "docs/deploy/prometheus/alerts.yml";
const DASHBOARD: &str = "docs/deploy/grafana/fencepost.json";

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

#[tokio::test]
async fn the_alert_rules_pass_their_unit_tests() {
    let folder = Path::new(ROOT).join("tests/integration/observability");
    let mut promtool = command("promtool");
    promtool.args(["test", "rules", "alerts.test.yml"]).current_dir(folder);
    let output = Process::spawn("promtool", promtool).ended().await;
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let tests = read("tests/integration/observability/alerts.test.yml");
    let rules = read(ALERTS);
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert} has no test");
    }
}

/// The names that begin as this project's do.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("fencepost_") || word.starts_with("process_");
    words.filter(is_metric).map(ToOwned::to_owned).collect()
}

#[test]
fn rules_and_dashboard_name_metrics_that_exist() {
    let page = read("docs/operating/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("` ("));
    let mut known = BTreeSet::new();
    for (name, kind) in rows {
        let endings: &[&str] =
            if kind.starts_with("histogram") { &["_bucket", "_count", "_sum"] } else { &[""] };
        known.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    for file in [ALERTS, DASHBOARD] {
        let named = metrics_in(&read(file));
        assert!(named.len() > 10, "{file} names {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} names metrics that no server has: {unknown:?}");
    }
}

#[test]
fn the_panels_of_the_dashboard_have_a_place_each() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{} overlaps another", panel["title"]);
            }
        }
        let targets = panel["targets"].as_array().map_or(0, Vec::len);
        assert_eq!(targets == 0, panel["type"] == "row", "{}", panel["title"]);
    }
}
