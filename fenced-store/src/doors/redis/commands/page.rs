//! docs/reference/redis-commands.md, made from the table and the policy.

use super::action::{Action, Keys};
use super::channels::Channels;
use super::policy::{self, ByHand, Verdict};
use super::refused::shown;
use super::spec::{Find, Spec};
use super::table::Entry;
use super::{CommandTable, Handling, KeyAccess};

const HEAD: &str = "\
# Redis commands

What the Redis port does with every command of Redis 7.0, and with those of later versions that it \
knows.
This page is made from the policy in `fenced-store/src/doors/redis/commands/policy.rs` and the \
COMMAND reply of a real Redis; a test compares them.

The keys of a command are checked against the locks whose tokens the connection holds.
*Read* and *write* say what happens to a key; the numbers are positions, the command's name is 0.
`HELP` of every command that has subcommands passes.
Keys that begin with `{fence:` are Fencepost's own and are refused in every position; so is a key \
whose first brace begins `{fence:`, as with the lock server's `--key-prefix`.
Wrong arguments are refused in Redis' own words.

PFCOUNT and BITFIELD count as writes even where they only look: PFCOUNT stores what it counted, and \
BITFIELD_RO is there for looking.
XREADGROUP is a write, for it moves its group on.
Channels are no keys, and no lock protects them. Fencepost's own, which begin with `{fence:`, are \
refused, and so are patterns that can match one, and notifications of Fencepost's own keys \
(`__keyspace@0__:{fence:…`). `__keyevent@…` names keys of any kind and needs what KEYS needs.
Fencepost's own names are left out of the replies to KEYS, SCAN, RANDOMKEY and PUBSUB CHANNELS; \
inside MULTI KEYS and SCAN reply all names, and PUBSUB CHANNELS is refused. DBSIZE and PUBSUB NUMPAT \
count Fencepost's own. A reply with more names than the guard \
[may hold](redis-connections.md#limits-on-a-client) is `DENIED`: use SCAN.
The names of all keys are read without a token where no rule protects a key's reads, or with \
`--allow-unfenced-reads`.
CONFIG GET offers appendonly, databases, maxmemory, maxmemory-policy and save. CLIENT LIST and CLIENT \
INFO show the client's own connection, as the guard knows it. CLIENT UNBLOCK takes the ids that CLIENT \
ID gives, of clients with the same tokens.
Inside MULTI these are queued with the reply that they have at that moment: ACL WHOAMI, CLIENT GETNAME, \
CLIENT ID, CLIENT INFO, CLIENT LIST, MODULE LIST. QUIT and RESET work. What else the guard answers, and \
WAIT, is refused there, and EXEC then replies `EXECABORT`.
FLUSHDB and FLUSHALL delete all keys but Fencepost's own; the guard sends a script in their place. They \
need a token of the lock of every rule, and a default that leaves no key to another lock \
(`--default-rule open`, or a last rule `**=…`); so they pass without a token where nothing is \
protected, and are refused where a rule is to `@deny` or makes its lock from the key.
BY and GET of SORT, with a `*`, need the right to read every key that begins as the pattern does, and \
a literal text in front of the `*`.
The port knows no administrators: its clients present fencing tokens, and the rights of an \
[access file](../operating/access.md) do not go for it. So what shows or changes the whole server is \
refused to every client; in observe mode [most of it passes](../guides/adopting.md#the-redis-port).

| passes as | means |
| --- | --- |
| shared | it may travel with commands of other connections that hold the same tokens |
| own | the connection gets an upstream connection of its own, for life |
| script | as own; the script can reach [what its connection may touch](#keys-in-scripts), by the \
commands that [scripts may run](#not-in-scripts) |
| transaction, subscription | as own |
| guard | the guard answers; Redis sees nothing of it |

A command that is not listed passes, as shared, if Redis gives all its keys by fixed positions or a \
count, calls it either a write or a read, and gives it no flags but `denyoom`, `fast` and \
`movablekeys` beside; each key of such a write counts as written.
So the plain data commands of later versions (HGETEX, HEXPIRE, MSETEX …) work at once.
Everything else that is not listed is refused: commands of modules, and commands that block, \
administer, or do not give their keys.

| command | passes as | keys |
| --- | --- | --- |
";

const NOT_IN_SCRIPTS: &str = "
## Keys in scripts

A script, or a function, reaches the keys that the rules give to the tokens of its connection, whether \
it declares them or builds their names:

| rule | the script reaches, without declaring it |
| --- | --- |
| `k:{id}:**=bench/{id}`, with a token of `bench/42` | `k:42` and `k:42:*` |
| `app:**=jobs`, `app:*:**=jobs`, with a token of `jobs` | `app` and `app:*`; `app:*` |
| `bull:**=@open` | `bull` and `bull:*` |
| `--default-rule open` | every key that no rule protects |
| `--default-rule fenced` | the key that is named like a lock held |
| `a:*=jobs`, `a:{id}:**=@open`, `a%20b:**=jobs`: one segment, text that must be a lock's name, a blank | none: a pattern of Redis' ACL cannot say it |

What an earlier rule refuses is never reached, nor what begins with `{fence:`. Keys beyond the patterns \
have to be declared in KEYS, and are checked like any others: at most 256, without white space or zero \
bytes, and each change of them costs a round trip. What ran before on the connection does not matter. \
A rule that stands in front of others, such as `*:x:**=@deny`, takes their patterns away where one of \
their keys may match it.
Names with something in front of `{fence:` (the lock server's `--key-prefix app1:`) are kept from \
scripts where a rule is `app1:**`; with an open default, or a rule that gives such names to a lock \
(`{app}:**={app}`), put `--rule 'app1:%7Bfence:**=@deny'` in front. The same goes for the keys that SORT reads by \
BY and GET.
A script that touches anything else is answered `DENIED`, with its SHA-1 (a function, with its name) \
and the tokens of its connection, in the reply to EXEC, too. What the script did before stays. It is \
[reported](../operating/events.md#what-guards-refused) at the locks of these tokens.

## Not in scripts

A script may run the commands above whose keys stand at fixed positions or are counted, and a few \
without keys. Redis refuses the rest to it (`DENIED`), commands of modules among them: Redis' ACL finds \
other keys for GEORADIUS and XREADGROUP than they take. The list is computed when the guard connects. \
Sent by themselves, or in a MULTI without a script, they work.
A script may PUBLISH and SPUBLISH on all channels but those that begin with `{fence:`.
Instead of GEORADIUS with STORE use GEOSEARCHSTORE, instead of GEORADIUS without it GEORADIUS_RO.

";

const FOOT: &str = "
## Refused

| command | reason |
| --- | --- |
";

/// The page.
pub(super) fn page(table: &CommandTable) -> String {
    let mut allowed: Vec<String> = table.entries.all().into_iter().filter_map(allowed).collect();
    let mut denied = Vec::new();
    for (verdict, names) in policy::all() {
        let known = |name: &&str| table.entries.all().iter().any(|e| e.name() == *name);
        for name in names.split_whitespace() {
            match verdict {
                Verdict::Denied(reason) => {
                    denied.push(format!("| {} | {reason} |\n", shown(name)));
                }
                Verdict::Keyless(handling) if !known(&name) => {
                    allowed.push(row(name, handling, "none"));
                }
                _ => {}
            }
        }
    }
    // Blanks before bars: COMMAND comes before COMMAND COUNT.
    allowed.sort_by_key(|row| row.replace(" |", "\0"));
    denied.sort_by_key(|row| row.replace(" |", "\0"));
    let not_in_scripts = not_in_scripts(table).join(", ");
    let (allowed, denied) = (allowed.concat(), denied.concat());
    format!("{HEAD}{allowed}{NOT_IN_SCRIPTS}{not_in_scripts}.\n{FOOT}{denied}")
}

/// What passes from a client and not from its scripts, in order.
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

fn allowed(entry: &Entry) -> Option<String> {
    let action = entry.outcome().ok()?;
    let is_help = entry.name().ends_with("|help");
    (!is_help).then(|| row(entry.name(), action.handling, &keys(action)))
}

fn row(name: &str, handling: Handling, keys: &str) -> String {
    let passes = match handling {
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
    };
    format!("| {} | {passes} | {keys} |\n", shown(name))
}

fn keys(action: &Action) -> String {
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
            ByHand::Sort { stores: true } => {
                "read 1; write behind STORE; read all that begin as the patterns of BY and GET do"
            }
            ByHand::Sort { stores: false } => {
                "read 1; read all that begin as the patterns of BY and GET do"
            }
            ByHand::Flush => "write all but Fencepost's own",
            ByHand::Streams { group: false } => "read behind STREAMS; own with BLOCK",
            ByHand::Streams { group: true } => "write behind STREAMS; own with BLOCK",
            ByHand::Radius { .. } => "read 1; write behind STORE and STOREDIST",
            ByHand::Tracking => {
                "none; with BCAST the names of all keys of each PREFIX, without which it is refused; \
                 REDIRECT is refused: use RESP3"
            }
        }
        .to_owned(),
    }
}

fn spec(spec: &Spec) -> String {
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
        Find::KeyNum { number, first, .. } => {
            format!("{access} from {}, as many as {} says", at + first, at + number)
        }
    }
}
