//! Checks of the stores behind a guard, from its own report.

use fence_protocol::wire::fence::{Front, WouldRefuse};
use serde::Deserialize;

use super::check::Check;
use super::http::{Answer, Http, get};

/// `GET /v1/stores`, as much of it as is shown: a word of the future is shown as it is.
#[derive(Debug, Deserialize)]
pub(super) struct Stores {
    mode: String,
    stores: Vec<Store>,
    #[serde(default)]
    would_refuse: Vec<WouldRefuse>,
}

#[derive(Debug, Deserialize)]
struct Store {
    kind: String,
    target: String,
    #[serde(default)]
    fronts: Vec<Front>,
    guarantee: String,
    probe: String,
    gaps: Vec<String>,
}

impl Stores {
    /// Address of the Redis port, as the guard says it.
    pub(super) fn redis_port(&self) -> Option<&str> {
        let fronts = self.stores.iter().flat_map(|store| &store.fronts);
        let mut ports = fronts.filter(|front| front.kind == "redis-port");
        ports.next().map(|front| front.listen.as_str())
    }
}

/// A line a store and a line a gap, of the guard at `base`, and what it said; nothing where it
/// cannot be reached, which others have said by then.
pub(super) async fn check(name: &str, base: &str, http: &Http) -> (Vec<Check>, Option<Stores>) {
    let answer = get(http, base, "/v1/stores").await;
    answer.map_or_else(|_| (Vec::new(), None), |answer| read(name, &answer))
}

fn read(name: &str, answer: &Answer) -> (Vec<Check>, Option<Stores>) {
    let about = format!("{name} stores");
    let alone = |check| (vec![check], None);
    if answer.status == 403 {
        let text = "its stores, and with them what it guarantees, are not shown to this bearer \
                    token; an access file allows it by the right \"read *\"";
        return alone(Check::information(about, text));
    }
    if answer.status != 200 {
        let text = format!(
            "it answers {} to /v1/stores, so what it guarantees is not known; it may be older than \
             this command",
            answer.status
        );
        return alone(Check::warning(about, text));
    }
    match serde_json::from_str::<Stores>(&answer.text) {
        Ok(stores) => (checks(name, &stores), Some(stores)),
        Err(error) => alone(Check::failing(about, format!("/v1/stores cannot be read: {error}"))),
    }
}

fn checks(name: &str, stores: &Stores) -> Vec<Check> {
    let mut checks = vec![mode(name, stores)];
    for would in &stores.would_refuse {
        let text = format!("{} times {}", would.total, would.code);
        checks.push(Check::warning(format!("{name} would refuse under {}", would.rule), text));
    }
    for store in &stores.stores {
        let about = format!("{name} store {}", store.kind);
        let Store { target, guarantee, probe, .. } = store;
        let text = format!("{target} is guaranteed {guarantee}: {probe}");
        checks.push(match guarantee.as_str() {
            "atomic" | "bounded" => Check::ok(&about, text),
            _ => Check::warning(&about, text),
        });
        checks.extend(store.gaps.iter().map(|gap| Check::information(format!("{about} gap"), gap)));
    }
    checks
}

fn mode(name: &str, stores: &Stores) -> Check {
    let about = format!("{name} mode");
    match stores.mode.as_str() {
        "enforce" => Check::ok(about, "what the fence refuses is refused"),
        "observe" => Check::warning(
            about,
            "it only observes: stale writes are done all the same; start it with --mode enforce \
             once nothing legitimate would be refused any more",
        ),
        other => Check::warning(about, format!("{other}, which this command does not know")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    fn verdicts(status: u16, text: &str) -> Vec<Verdict> {
        let answer = Answer { status, text: text.to_owned(), wall_ms: None };
        read("guard", &answer).0.into_iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn a_store_shows_its_guarantee_and_its_gaps() {
        use Verdict::{Failing, Note, Ok, Warning};
        let said = |mode: &str, guarantee: &str| {
            format!(
                r#"{{"namespace":"default","mode":"{mode}","stores":[{{"kind":"redis","target":"x",
                "fronts":[],"guarantee":"{guarantee}","probe":"seen","gaps":["one","two"]}}]}}"#
            )
        };
        assert_eq!(verdicts(200, &said("enforce", "atomic")), [Ok, Ok, Note, Note]);
        assert_eq!(verdicts(200, &said("observe", "observe")), [Warning, Warning, Note, Note]);
        assert_eq!(verdicts(200, &said("enforce", "none")), [Ok, Warning, Note, Note]);
        assert_eq!(verdicts(403, "{}"), [Note]);
        assert_eq!(verdicts(404, "nothing is here"), [Warning]);
        assert_eq!(verdicts(200, "<html>"), [Failing]);
        let counted = r#"{"mode":"observe","stores":[],
            "would_refuse":[{"rule":"a=b","code":"token-required","total":7}]}"#;
        assert_eq!(verdicts(200, counted), [Warning, Warning]);
    }
}
