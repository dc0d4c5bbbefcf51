//! Test that every command of the installed Redis is classified.

use super::super::action::Keys;
use super::super::policy::{self, LOCALS, Verdict};
use super::*;

#[test]
fn the_policy_knows_every_command() {
    let mut redis = Redis::start();
    if !redis.is_7_0() {
        return the_rule_takes_no_risk(&redis.metas(), &redis.table());
    }
    let metas = redis.metas();
    let is_local = |name: &str| LOCALS.iter().any(|(local, ..)| *local == name);
    let unknown: Vec<&str> = flat(&metas)
        .into_iter()
        .map(|meta| meta.name.as_str())
        .filter(|name| policy::verdict(name).is_none() && !is_local(name))
        .collect();
    assert!(unknown.is_empty(), "no verdict on {unknown:?}");
    the_rule_takes_no_risk(&metas, &redis.table());
}

/// In any version: no write without keys, no administration, every key certain.
fn the_rule_takes_no_risk(metas: &[Meta], table: &CommandTable) {
    let mut walked = 0;
    for meta in flat(metas) {
        let entries = table.entries.all();
        let entry = entries.iter().find(|entry| entry.name() == meta.name).unwrap();
        let Ok(action) = entry.outcome() else { continue };
        walked += 1;
        if matches!(action.handling, Handling::Local(_)) {
            continue;
        }
        let has_keys = matches!(action.keys, Keys::Specs { .. } | Keys::ByHand(_));
        assert!(has_keys || !meta.has("write"), "{} writes without keys", meta.name);
        assert!(!meta.has("admin"), "{} administers", meta.name);
        let is_own = matches!(action.handling, Handling::Own);
        let may_wait = meta.has("blocking") && !meta.name.starts_with("xread");
        assert!(is_own || !may_wait, "{} blocks a connection that others share", meta.name);
        let claims_keys = meta.specs.iter().any(Option::is_some);
        assert!(has_keys || !claims_keys, "{} has keys that are not checked", meta.name);
    }
    assert!(walked > 200, "only {walked} commands pass");
}

#[test]
fn the_policy_has_no_name_that_nothing_has() {
    let mut redis = Redis::start();
    let metas = redis.metas();
    let known: Vec<&str> = flat(&metas).into_iter().map(|meta| meta.name.as_str()).collect();
    let mut seen = std::collections::HashSet::new();
    for name in policy::all().flat_map(|(_, names)| names.split_whitespace()) {
        let is_later = catalog::is_listed(name);
        assert!(is_later || known.contains(&name), "{name} is no command");
        assert!(seen.insert(name), "{name} has two verdicts");
    }
}

#[test]
fn a_container_has_verdicts_for_its_subcommands() {
    let mut redis = Redis::start();
    let table = redis.table();
    for entry in table.entries.all().into_iter().filter(|entry| entry.is_container()) {
        let verdict = policy::verdict(entry.name());
        let fits = matches!(verdict, Some(Verdict::Container | Verdict::Denied(_)));
        assert!(fits || entry.name() == "command", "{}: {verdict:?}", entry.name());
    }
}

/// RESP2 and RESP3 encode maps and sets differently, with the same meaning.
#[test]
fn both_protocols_give_one_table() {
    let mut redis = Redis::start();
    let mut resp3 = redis.connect("?protocol=resp3");
    let other = real::run(&mut resp3, &["COMMAND"]).unwrap();
    let first = redis.words(&["COMMAND"]).unwrap();
    assert_ne!(format!("{first:?}"), format!("{other:?}"), "RESP3 was not spoken");
    let shown = |reply: &Value| {
        let table = CommandTable::from_reply(reply).unwrap();
        let mut all: Vec<String> = table
            .entries
            .all()
            .iter()
            .map(|entry| format!("{} {:?}", entry.name(), entry.outcome()))
            .collect();
        all.sort();
        all
    };
    assert_eq!(shown(&first), shown(&other));
}
