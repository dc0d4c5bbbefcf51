//! docs/reference/redis-commands.md, made from the table and the policy.

use std::collections::{BTreeMap, BTreeSet};

use crate::doors::redis::commands::action::{Action, Keys};
use crate::doors::redis::commands::channels::Channels;
use crate::doors::redis::commands::policy::{ByHand, Verdict};
use crate::doors::redis::commands::refused::shown;
use crate::doors::redis::commands::spec::{Find, Spec};
use crate::doors::redis::commands::table::Entry;
use crate::doors::redis::commands::{CommandTable, Handling, KeyAccess, policy};

const HEAD: &str = "\
# Redis commands

At the Redis port; generated from the guard's policy and the COMMAND replies of Redis 7.0, Redis \
8.2 and Valkey 9.1. A command that your server does not have is an unknown one at the port too.

A command needs the tokens of its keys' locks. Numbers are positions of keys, the command's name \
is 0. `HELP` of every command that has subcommands passes.

- *Own names*: keys whose first brace begins `{fence:` are refused in every position. Replies to \
KEYS, SCAN, CLUSTERSCAN, RANDOMKEY and PUBSUB CHANNELS leave them out, but not KEYS and SCAN \
inside MULTI, nor the counts of DBSIZE and PUBSUB NUMPAT.
- *Names of all keys*: read without a token where no rule protects a key's reads, or with \
`--allow-unfenced-reads`. A reply beyond the [limit](redis-connections.md#limits-on-a-client) is \
`DENIED`: use SCAN.
- *Modules*: vector sets (VADD …), which Redis 8 has built in, pass; commands of every other \
module are refused.
- *Writes* are PFCOUNT, XREADGROUP, and BITFIELD that only reads: use BITFIELD_RO.
- *Channels* are no keys. Refused are Fencepost's own (`{fence:…`), patterns that can match one, \
and notifications of its keys (`__keyspace@0__:{fence:…`); `__keyevent@…` needs what KEYS needs.
- *MULTI*: ACL WHOAMI, CLIENT GETNAME, ID, INFO and LIST, and MODULE LIST are queued with the \
reply of that moment; QUIT and RESET work. Everything else that the guard answers, WAIT and \
PUBSUB CHANNELS are refused, and EXEC replies `EXECABORT`.
- *FLUSHDB, FLUSHALL* delete all keys but Fencepost's own. They need a token of the lock of every \
rule, and a default that leaves no key to another lock (`--default-rule open`, or a last rule \
`**=…`); a rule to `@deny`, or one that makes its lock from the key, refuses them.
- *SORT*: BY and GET with a `*` need a literal text before it, and the right to read every key \
that begins so.
- *CONFIG GET* offers appendonly, databases, maxmemory, maxmemory-policy and save; *CLIENT LIST* \
and *INFO* show the client's own connection; *CLIENT UNBLOCK* takes the ids of CLIENT ID, of \
clients with the same tokens.
- *CLIENT TRACKING* with BCAST reads the names of all keys of each PREFIX, and is refused without \
one; so is REDIRECT: use RESP3.
- *Administration* is refused; in observe mode [most of it \
passes](../guides/adopting.md#the-redis-port).

A command passes as

- *shared*: over a connection to Redis that clients with the same tokens share
- *own*, *transaction*, *subscription*: over a connection of the client's own, for its life
- *script*: as *own*; it reaches [what its connection may touch](#keys-in-scripts), by [some \
commands](#not-in-scripts)
- *guard*: answered by the guard

A command that is not on this page is refused by its name, also a later server's; in observe \
mode it passes, unless the server says that it administers.

";

const NOT_IN_SCRIPTS: &str = "
## Keys in scripts

A script or function reaches the keys that the rules give to the tokens of its connection, \
declared or built:

- `k:{id}:**=bench/{id}`, with a token of `bench/42`: `k:42` and `k:42:*`
- `app:**=jobs`, with a token of `jobs`: `app` and `app:*`; `app:*:**=jobs`: `app:*`
- `bull:**=@open`: `bull` and `bull:*`
- `--default-rule open`: every key that no rule protects
- `--default-rule fenced`: the key that is named like a lock held
- none, as Redis' ACL has no such pattern: `a:*=jobs` (one segment), `a:{id}:**=@open` (text that \
must be a lock's name), `a%20b:**=jobs` (a blank)

Other keys must be declared in KEYS, and are checked like any others: at most 256, without white \
space or zero bytes; each change of them costs a round trip.
Keys that an earlier rule refuses are never reached, nor those that begin with `{fence:`; an \
earlier rule such as `*:x:**=@deny` takes away the patterns of later rules that it may match.

Names with a text before `{fence:` (the lock server's `--key-prefix app1:`) are kept from \
scripts, and from BY and GET of SORT, by a rule `app1:**`; with an open default, an open rule \
with a shorter text (`app:**=@open` with the prefix `app:1:`), or a rule that gives such names to \
a lock (`{app}:**={app}`), put `--rule 'app1:%7Bfence:**=@deny'` first.

A script that touches anything else gets `DENIED`, also within EXEC, with its SHA-1 or name (not \
with EVAL at Valkey) and the tokens of its connection, and is \
[reported](../operating/events.md#what-guards-refused) at their locks; its earlier writes stay.

## Not in scripts

Redis' ACL refuses these commands and those of other modules to a script (`DENIED`), as computed \
when the guard connects; outside a script, and a MULTI with one, they work.
A script may PUBLISH and SPUBLISH on all channels but Fencepost's own.
Instead of GEORADIUS use GEORADIUS_RO, with STORE GEOSEARCHSTORE.

";

const FOOT: &str = "
## Refused

";

/// Makes the text of the page, for the servers of these tables.
pub(super) fn page(tables: &[CommandTable]) -> String {
    let mut allowed = Items::new();
    for entry in tables.iter().flat_map(|table| table.entries.all()) {
        if let Some((passes, keys)) = allowed_as(entry) {
            allowed
                .entry(format!("- *{passes}*; {keys}:"))
                .or_default()
                .insert(shown(entry.name()));
        }
    }
    let mut denied = Items::new();
    for (verdict, names) in policy::all() {
        let Verdict::Denied(reason) = verdict else { continue };
        let names = names.split_whitespace().map(shown);
        denied.entry(format!("- {reason}:")).or_default().extend(names);
    }
    let not_in_scripts: BTreeSet<String> = tables.iter().flat_map(not_in_scripts).collect();
    let not_in_scripts = not_in_scripts.into_iter().collect::<Vec<_>>().join(", ");
    let allowed = text(allowed);
    let denied = text(denied);
    format!("{HEAD}{allowed}{NOT_IN_SCRIPTS}{not_in_scripts}.\n{FOOT}{denied}")
}

/// The names of the commands by the text in front of them.
type Items = BTreeMap<String, BTreeSet<String>>;

fn text(items: Items) -> String {
    let item = |(head, names): (String, BTreeSet<String>)| {
        format!("{head} {}\n", names.into_iter().collect::<Vec<_>>().join(", "))
    };
    items.into_iter().map(item).collect()
}

/// Returns the commands that pass from a client and not from its scripts, in order.
pub(super) fn not_in_scripts(table: &CommandTable) -> Vec<String> {
    let is_denied = |entry: &&Entry| {
        let passes =
            |action: &Action| !matches!(action.handling, Handling::Local(_)) && !action.in_scripts;
        !entry.name().ends_with("|help") && entry.outcome().is_ok_and(passes)
    };
    let entries = table.entries.all();
    let mut names: Vec<String> =
        entries.into_iter().filter(is_denied).map(|entry| shown(entry.name())).collect();
    names.sort();
    names
}

fn allowed_as(entry: &Entry) -> Option<(&'static str, String)> {
    let action = entry.outcome().ok()?;
    let is_help = entry.name().ends_with("|help");
    (!is_help).then(|| (passes_as(action.handling), keys(action)))
}

pub(super) fn passes_as(handling: Handling) -> &'static str {
    match handling {
        Handling::Shared => "shared",
        Handling::Own => "own",
        Handling::Script => "script",
        Handling::Multi
        | Handling::Exec
        | Handling::Discard
        | Handling::Watch
        | Handling::Unwatch => "transaction",
        Handling::Subscribe | Handling::Unsubscribe => "subscription",
        Handling::Local(_) => "guard",
    }
}

pub(super) fn keys(action: &Action) -> String {
    match &action.keys {
        Keys::None => "none".to_owned(),
        Keys::Keyspace => "the names of all keys".to_owned(),
        Keys::Channels(which) => match which {
            Channels::All => "none; channels 1 to the last",
            Channels::Patterns => "none; patterns 1 to the last",
            Channels::First => "none; channel 1",
            Channels::Listed => "none; channels 2 to the last",
            Channels::Matching => "none; pattern 2",
        }
        .to_owned(),
        Keys::Specs { specs, .. } => specs.iter().map(spec).collect::<Vec<_>>().join("; "),
        Keys::ByHand(by_hand) => match by_hand {
            ByHand::Sort { stores: true } => "read 1, patterns of BY and GET; write behind STORE",
            ByHand::Sort { stores: false } => "read 1, patterns of BY and GET",
            ByHand::Flush => "write all but Fencepost's own",
            ByHand::Streams { group: false } => "read behind STREAMS; own with BLOCK",
            ByHand::Streams { group: true } => "write behind STREAMS; own with BLOCK",
            ByHand::Radius { .. } => "read 1; write behind STORE and STOREDIST",
            ByHand::Tracking => "none; with BCAST the names of all keys of each PREFIX",
        }
        .to_owned(),
    }
}

pub(super) fn spec(spec: &Spec) -> String {
    let access = match spec.access {
        KeyAccess::Read => "read",
        KeyAccess::Write => "write",
    };
    let at = spec.index;
    match spec.find {
        Find::Range { last: 0, .. } => format!("{access} {at}"),
        Find::Range { last: last @ 1.., step: 1, .. } => {
            let to = i64::try_from(at).map_or(i64::MAX, |at| at + last);
            format!("{access} {at} to {to}")
        }
        Find::Range { last: -1, step: 1, .. } => format!("{access} {at} to the last"),
        Find::Range { last: -2, step: 1, .. } => format!("{access} {at} to the last but one"),
        Find::Range { step, .. } => format!("{access} {at}, {}, …", at + step),
        Find::KeyNum { number, first, step: 1 } => {
            format!("{access} from {}, as many as {} says", at + first, at + number)
        }
        Find::KeyNum { number, first, step } => {
            let first = at + first;
            let second = first + step;
            format!("{access} {first}, {second}, …, as many as {} says", at + number)
        }
    }
}
