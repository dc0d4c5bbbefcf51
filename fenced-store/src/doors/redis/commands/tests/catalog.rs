//! Every command of the servers that the guard is tested with: its keys by the server's words, and
//! the guard's handling of it.

use std::collections::BTreeMap;

use super::super::policy::{self, LOCALS};
use super::super::table::Entry;
use super::*;

/// Servers, each with a list of its commands as they were looked through.
const LISTED: [&str; 3] = ["redis-7.0", "redis-8.2", "valkey-9.1"];

fn path(engine: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/doors/redis/commands/tests/servers");
    format!("{folder}/{engine}.txt")
}

/// Returns `true` if a list has this command.
pub(super) fn is_listed(name: &str) -> bool {
    let has = |text: String| text.lines().any(|line| line.split(' ').next() == Some(name));
    LISTED.iter().any(|engine| has(std::fs::read_to_string(path(engine)).unwrap()))
}

/// Commands that take other keys than their key specs have, each computed.
const BY_HAND: [&str; 6] =
    ["georadius", "georadiusbymember", "sort", "sort_ro", "xread", "xreadgroup"];

/// Commands that write or only read, as their words say; to the guard they write.
const VARIABLE: [&str; 1] = ["bitfield"];

#[test]
fn commands_of_the_installed_redis_are_those_of_the_list() {
    let mut redis = Redis::start();
    // The next test reads those of later versions.
    if redis.is_7_0() {
        check("redis-7.0", &mut redis);
    }
}

#[test]
fn commands_of_newer_servers_are_those_of_the_lists() {
    for engine in &LISTED[1..] {
        check(engine, &mut Redis::newer(engine));
    }
}

/// `FENCE_REGENERATE=1 cargo test -p fenced-store catalog` writes the lists.
#[expect(clippy::disallowed_methods, reason = "a switch for the caller of this test")]
fn check(engine: &str, redis: &mut Redis) {
    let metas = redis.metas();
    let table = redis.table();
    let categories = categories(redis);
    let of = |meta: &Meta| categories.get(&meta.name).map(|names| names.join(","));
    let line = |meta| line(meta, &of(meta).unwrap_or_default(), &table);
    let mut lines: Vec<String> = flat(&metas).into_iter().map(line).collect();
    lines.sort();
    let made = lines.join("\n") + "\n";
    if std::env::var("FENCE_REGENERATE").is_ok_and(|value| value == "1") {
        std::fs::write(path(engine), &made).unwrap();
    } else {
        let listed = std::fs::read_to_string(path(engine)).unwrap_or_default();
        let new: Vec<&String> = lines.iter().filter(|l| !listed.lines().any(|m| m == *l)).collect();
        assert!(
            made == listed,
            "{engine} has other commands than were looked through: {new:#?}; give each a row in \
             policy.rs and a sample, and write the list with FENCE_REGENERATE=1"
        );
    }
    let has_row = |meta: &&Meta| {
        policy::verdict(&meta.name).is_some() || LOCALS.iter().any(|(name, ..)| *name == meta.name)
    };
    let without: Vec<&str> =
        flat(&metas).into_iter().filter(|m| !has_row(m)).map(|m| m.name.as_str()).collect();
    assert!(without.is_empty(), "{engine} has commands without a row in policy.rs: {without:?}");
    let compared: usize =
        flat(&metas).into_iter().map(|meta| same_keys_in_numbers(redis, meta, &table)).sum();
    assert!(compared > 500, "the keys of only {compared} commands were compared");
}

/// Categories of each command by ACL CAT, in the order of the alphabet.
fn categories(redis: &mut Redis) -> BTreeMap<String, Vec<String>> {
    let names = |reply| redis::from_redis_value::<Vec<String>>(reply).unwrap();
    let mut categories = names(redis.line("ACL CAT").unwrap());
    categories.sort();
    let mut of_commands: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for category in categories {
        for command in names(redis.words(&["ACL", "CAT", &category]).unwrap()) {
            of_commands.entry(command).or_default().push(format!("@{category}"));
        }
    }
    of_commands
}

/// Name, arity, flags, categories and keys by the server; then the guard's handling.
fn line(meta: &Meta, categories: &str, table: &CommandTable) -> String {
    let mut flags: Vec<&str> = meta.flags().collect();
    flags.sort_unstable();
    let specs = meta.specs.iter().map(|spec| spec.as_ref().map_or("?".to_owned(), page::spec));
    let specs: Vec<String> = specs.collect();
    let entries = table.entries.all();
    let entry: &&Entry = entries.iter().find(|entry| entry.name() == meta.name).unwrap();
    let ours = match entry.outcome() {
        Ok(action) => format!("{}; {}", page::passes_as(action.handling), page::keys(action)),
        Err(_) => "refused".to_owned(),
    };
    let flags = flags.join(",");
    let name = &meta.name;
    let specs = specs.join("; ");
    format!("{name} {} [{flags}] [{categories}] [{specs}] {ours}", meta.arity)
}

/// Asks the server for the keys of a command whose words are their own positions, and so each
/// number of keys too. Returns how many forms of the command were compared.
fn same_keys_in_numbers(redis: &mut Redis, meta: &Meta, table: &CommandTable) -> usize {
    let mut compared = 0;
    let is_container = !meta.subcommands.is_empty();
    if is_container || BY_HAND.contains(&meta.name.as_str()) {
        return 0;
    }
    let least = usize::try_from(meta.arity.unsigned_abs()).unwrap();
    let most = if meta.arity < 0 { least + 5 } else { least };
    for len in least..=most {
        let mut words: Vec<String> = meta.name.split('|').map(str::to_owned).collect();
        words.extend((words.len()..len).map(|at| at.to_string()));
        let bytes: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        let Ok((plan, keys)) = plan(table, &bytes) else { continue };
        if matches!(plan.handling, Handling::Local(_)) {
            continue;
        }
        let asked = ["COMMAND", "GETKEYSANDFLAGS"].into_iter().map(str::to_owned);
        let asked: Vec<String> = asked.chain(words.clone()).collect();
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        // It refuses a command in which one of several specs finds nothing, such as PFMERGE a.
        let Ok(reply) = redis.words(&asked) else { continue };
        compared += usize::from(!keys.is_empty());
        let theirs: Vec<(String, Vec<String>)> = redis::from_redis_value(reply).unwrap();
        let is_reader = same_keys::READERS.contains(&meta.name.to_ascii_uppercase().as_str());
        let mut theirs: Vec<(String, bool)> = theirs
            .into_iter()
            .map(|(key, flags)| (key, !is_reader && !flags.iter().any(|flag| flag == "RO")))
            .collect();
        let mut ours: Vec<(String, bool)> = keys
            .iter()
            .map(|key| (words[key.arg].clone(), key.access == KeyAccess::Write))
            .collect();
        theirs.sort();
        ours.sort();
        if VARIABLE.contains(&meta.name.as_str()) {
            assert!(ours.iter().all(|(_, is_written)| *is_written), "{words:?}");
            theirs.iter_mut().for_each(|(_, is_written)| *is_written = true);
        }
        assert_eq!(ours, theirs, "{words:?}");
    }
    compared
}
