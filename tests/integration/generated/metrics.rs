//! The metrics, from where the sources register them: docs/operating/metrics.md.

use std::path::Path;

use super::Table;
use crate::docs::files;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Prefix that the registry adds to every name but those of the process.
const SHARED_PREFIX: &str = "fencepost_";

/// Beginnings of the names in the sources.
const PREFIXES: [&str; 9] = [
    "http_",
    "tls_",
    "access_file_",
    "trace_",
    "process_",
    "lock_",
    "fence_",
    "redis_port_",
    "postgres_port_",
];

struct Metric {
    name: String,
    kind: &'static str,
    labels: String,
    help: String,
}

impl Metric {
    /// The name in the sources.
    fn local_name(&self) -> &str {
        self.name.strip_prefix(SHARED_PREFIX).unwrap_or(&self.name)
    }

    fn line(&self) -> String {
        let Self { name, kind, labels, help } = self;
        let labels = if labels.is_empty() { String::new() } else { format!("; {labels}") };
        format!("- `{name}` ({kind}{labels}): {help}\n")
    }
}

pub(super) fn tables() -> Vec<Table> {
    let kit = ["client/shared/service-kit/src", "client/shared/access-control/src"];
    let folders = ["lock-server/src", "fenced-store/src"].into_iter().chain(kit);
    let mut metrics: Vec<Metric> = folders.flat_map(registered).collect();
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(metrics.len() > 35, "only {} metrics were found", metrics.len());
    let of = |prefixes: &[&str]| {
        let begins = |m: &&Metric| prefixes.iter().any(|prefix| m.local_name().starts_with(prefix));
        metrics.iter().filter(begins).map(Metric::line).collect::<String>()
    };
    vec![
        Table::new("metrics of both", of(&[&PREFIXES[..5], &["build_"]].concat())),
        Table::new("metrics of lock-server", of(&["lock_"])),
        Table::new("metrics of fenced-store", of(&["fence_", "redis_port_", "postgres_port_"])),
    ]
}

fn registered(folder: &str) -> Vec<Metric> {
    let mut found = Vec::new();
    for file in files(&Path::new(ROOT).join(folder), "rs") {
        let source = without_alias(std::fs::read_to_string(file).unwrap());
        // Every other piece is a string literal; a name is followed by a comma and its help text.
        let pieces: Vec<&str> = source.split('"').collect();
        for window in pieces.windows(5).step_by(2) {
            let &[before, name, comma, help, after] = window else { continue };
            let is_name = name == "build" || PREFIXES.iter().any(|p| name.starts_with(p));
            if is_name && comma.trim() == "," && after.trim_start().starts_with([',', ')']) {
                found.push(metric(&source, (before, after), name, help));
            }
        }
    }
    found
}

/// The source with the name `Counter` where it imports that under another one.
fn without_alias(source: String) -> String {
    match source.split_once("Counter as ").and_then(|(_, rest)| rest.split([';', ',']).next()) {
        Some(alias) => source.replace(&format!(": {alias}"), ": Counter"),
        None => source,
    }
}

/// `before` ends with the call that registers, and `after` begins with the value, if that is given:
/// `seals: metrics.counter(` and `)`, or `seals: metrics.register(` and `, Family::default())`.
fn metric(source: &str, (before, after): (&str, &str), name: &str, help: &str) -> Metric {
    let prefix = if name.starts_with("process_") { "" } else { SHARED_PREFIX };
    let value = after.trim_start_matches([',', ' ', '\n', '&']);
    let value = value.split([',', ')', '(']).next().unwrap_or_default();
    let value = value.trim().trim_end_matches(".clone");
    if value.ends_with("Info::new") {
        let labels = "`service`, `version`".to_owned();
        return Metric {
            name: format!("{prefix}{name}_info"),
            kind: "info",
            labels,
            help: help.to_owned(),
        };
    }
    // A value that is made in the call has its type where its field or variable is declared.
    let field = match value.is_empty() || value.contains("::") {
        true => assigned(before),
        false => value.rsplit('.').next().unwrap_or_default(),
    };
    let declared = [format!("{field}: "), format!("{field} = ")];
    let kinds = ["Counter", "Gauge", "Histogram"];
    let of = |text: &str| kinds.into_iter().find(|kind| text.contains(kind));
    let types = declared.iter().flat_map(|begin| source.split(begin.as_str()).skip(1));
    let types = types.map(|rest| rest.lines().next().unwrap_or_default());
    let made = |kind: &&str| before.trim_end().ends_with(&format!("{}(", kind.to_lowercase()));
    let kind = kinds.into_iter().find(made).or_else(|| types.clone().find_map(of));
    let kind = kind.unwrap_or_else(|| panic!("{name}: no type of {value} in {field}"));
    let family = types.filter_map(|text| text.strip_prefix("Family<")).next();
    let labels = family.and_then(|rest| rest.split(',').next()).map(|name| labels(source, name));
    let (name, kind) = match kind {
        "Counter" => (format!("{prefix}{name}_total"), "counter"),
        "Gauge" => (format!("{prefix}{name}"), "gauge"),
        _ => (format!("{prefix}{name}"), "histogram"),
    };
    Metric { name, kind, labels: labels.unwrap_or_default(), help: help.to_owned() }
}

/// Field or variable that a call makes, of the text before its arguments.
fn assigned(before: &str) -> &str {
    let statement = before.rsplit(';').next().unwrap_or_default();
    let name = match statement.rsplit_once("let ") {
        Some((_, name)) => name,
        None => before.rsplit([',', '{']).next().unwrap_or_default(),
    };
    name.split([':', ' ', '=']).find(|word| !word.trim().is_empty()).unwrap_or_default().trim()
}

/// The fields of the struct of labels.
fn labels(source: &str, name: &str) -> String {
    let (_, rest) = source.split_once(&format!("struct {name} {{")).expect("its labels");
    let (fields, _) = rest.split_once('}').unwrap();
    let fields = fields.lines().filter_map(|line| line.trim().split_once(": "));
    fields.map(|(field, _)| format!("`{field}`")).collect::<Vec<_>>().join(", ")
}
