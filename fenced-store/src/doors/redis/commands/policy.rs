//! Policy for each command of Redis: the one list to read, and to change.
//!
//! A command that is not listed is refused by its name.

use super::channels::Channels;
use super::refused::NO_CLUSTER;
use super::{Handling, Local};

/// Verdict on a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Works on the keys that its key specs give.
    Keys(Handling),
    /// Works on the key at position 1 and on nothing else, although it belongs to a module, the one
    /// that Redis 8 has built in. It reads the key, unless Redis calls it a write.
    VectorSet,
    /// Works on keys that no key spec gives for certain; they are computed.
    ByHand(ByHand),
    /// Touches no key.
    Keyless(Handling),
    /// Touches no key, but channels.
    Channels(Handling, Channels),
    /// Reads the names of all keys.
    Keyspace,
    /// Refused with this reason, and its subcommands too.
    Denied(&'static str),
    /// Subcommands have verdicts of their own.
    Container,
}

/// Commands whose keys are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByHand {
    /// SORT, and SORT_RO, which stores nothing: STORE may be at any position, and BY and GET reach
    /// keys that are named by data.
    Sort {
        /// `true` for SORT.
        stores: bool,
    },
    /// XREAD and XREADGROUP. The key spec finds the first STREAMS, which may be the name of a
    /// consumer; and it calls XREADGROUP a reader, although it changes the group.
    Streams {
        /// `true` for XREADGROUP.
        group: bool,
    },
    /// GEORADIUS and GEORADIUSBYMEMBER. The key spec finds the first STORE; Redis obeys the last.
    Radius {
        /// Index of the first option.
        options: usize,
    },
    /// CLIENT TRACKING: no keys, but in broadcasting mode it reveals the names of all changed keys.
    Tracking,
    /// FLUSHDB and FLUSHALL: all keys but Fencepost's own.
    Flush,
}

/// Handling in observe mode of a command that the policy refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observed {
    /// As any other command.
    Shared,
    /// On a connection of the client's own: it may block, and its effect is unknown.
    Own,
    /// As any other command, for clients that may administer Redis.
    Administration,
}

/// Commands that the guard replies to, with their arity, whatever Redis knows of them.
pub(super) const LOCALS: [(&str, i64, Local); 16] = [
    ("auth", -2, Local::Auth),
    ("hello", -1, Local::Hello),
    ("select", 2, Local::Select),
    ("quit", -1, Local::Quit),
    ("reset", 1, Local::Reset),
    ("client|setname", 3, Local::ClientSetName),
    ("client|getname", 2, Local::ClientGetName),
    ("client|setinfo", 4, Local::ClientSetInfo),
    ("client|id", 2, Local::ClientId),
    ("client|info", 2, Local::ClientInfo),
    ("client|list", -2, Local::ClientList),
    ("client|unblock", -3, Local::ClientUnblock),
    ("config|get", -3, Local::ConfigGet),
    ("acl|whoami", 2, Local::AclWhoAmI),
    ("module|list", 2, Local::ModuleList),
    ("fence", -2, Local::Fence),
];

/// Returns the verdict on a command or subcommand (`config|get`), if there is one.
pub(super) fn verdict(name: &str) -> Option<Verdict> {
    if LOCALS.iter().any(|(local, ..)| *local == name) {
        return None;
    }
    if let Some((verdict, _)) = ALLOWED.iter().find(|(_, names)| is_listed(names, name)) {
        return Some(*verdict);
    }
    if let Some((reason, _)) = DENIED.iter().find(|(_, names)| is_listed(names, name)) {
        return Some(Verdict::Denied(reason));
    }
    let (container, subcommand) = name.split_once('|')?;
    match verdict(container)? {
        _ if subcommand == "help" => Some(Verdict::Keyless(Handling::Shared)),
        Verdict::Denied(reason) => Some(Verdict::Denied(reason)),
        _ => None,
    }
}

/// Returns `true` if a name is among names between spaces. The search for its text goes first:
/// splitting every list for every command of Redis would take most of a start.
fn is_listed(names: &str, name: &str) -> bool {
    names.contains(name) && names.split_whitespace().any(|known| known == name)
}

/// Commands without keys that the user of a script may run. Those of a transaction are among them,
/// because its connection is confined while a script is queued. PUBLISH reaches the channels that
/// the user's rules allow.
const KEYLESS_IN_SCRIPTS: &str = "discard echo exec info lastsave lolwut multi ping publish role \
                                  select spublish time unwatch";

/// Returns `true` if a script's user may run this command without keys.
pub(super) fn is_keyless_in_scripts(name: &str) -> bool {
    is_listed(KEYLESS_IN_SCRIPTS, name)
}

/// Returns every verdict with its names.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (Verdict, &'static str)> {
    let denied = DENIED.iter().map(|(reason, names)| (Verdict::Denied(reason), *names));
    ALLOWED.iter().copied().chain(denied)
}

const SHARED: Verdict = Verdict::Keys(Handling::Shared);
const BLOCKING: Verdict = Verdict::Keys(Handling::Own);
const SCRIPT: Verdict = Verdict::Keys(Handling::Script);
const KEYLESS: Verdict = Verdict::Keyless(Handling::Shared);
const STATE: Verdict = Verdict::Keyless(Handling::Own);

const ALLOWED: &[(Verdict, &str)] = &[
    // Keys of any type. MOVE and COPY to another database use the same key there.
    (SHARED, "copy del dump exists expire expireat expiretime move persist pexpire pexpireat"),
    (SHARED, "pexpiretime pttl rename renamenx restore touch ttl type unlink memory|usage"),
    (SHARED, "object|encoding object|freq object|idletime object|refcount"),
    // Strings and bitmaps. BITFIELD counts as a write even if it only gets.
    (SHARED, "append decr decrby get getdel getex getrange getset incr incrby incrbyfloat lcs"),
    (SHARED, "mget mset msetnx psetex set setex setnx setrange strlen substr delifeq msetex"),
    (SHARED, "bitcount bitfield bitfield_ro bitop bitpos getbit setbit"),
    // Hashes, lists, sets.
    (SHARED, "hdel hexists hget hgetall hincrby hincrbyfloat hkeys hlen hmget hmset hrandfield"),
    (
        SHARED,
        "hscan hset hsetnx hstrlen hvals hexpire hexpireat hexpiretime hgetdel hgetex hpersist",
    ),
    (SHARED, "hpexpire hpexpireat hpexpiretime hpttl hsetex httl"),
    (SHARED, "lindex linsert llen lmove lmpop lpop lpos lpush lpushx lrange lrem lset ltrim rpop"),
    (SHARED, "rpoplpush rpush rpushx"),
    (SHARED, "sadd scard sdiff sdiffstore sinter sintercard sinterstore sismember smembers"),
    (SHARED, "smismember smove spop srandmember srem sscan sunion sunionstore"),
    // Sorted sets and places.
    (SHARED, "zadd zcard zcount zdiff zdiffstore zincrby zinter zintercard zinterstore zlexcount"),
    (SHARED, "zmpop zmscore zpopmax zpopmin zrandmember zrange zrangebylex zrangebyscore"),
    (SHARED, "zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore zrevrange"),
    (SHARED, "zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore"),
    (SHARED, "geoadd geodist geohash geopos georadius_ro georadiusbymember_ro geosearch"),
    (SHARED, "geosearchstore"),
    // HyperLogLogs: PFCOUNT may store the count, so it is a write, as in its key spec.
    (SHARED, "pfadd pfcount pfmerge"),
    // Streams.
    (SHARED, "xack xadd xautoclaim xclaim xdel xlen xpending xrange xrevrange xsetid xtrim"),
    (SHARED, "xgroup|create xgroup|createconsumer xgroup|delconsumer xgroup|destroy xgroup|setid"),
    (SHARED, "xinfo|consumers xinfo|groups xinfo|stream xackdel xdelex"),
    // Vector sets.
    (Verdict::VectorSet, "vadd vcard vdim vemb vgetattr vinfo vismember vlinks vrandmember vrem"),
    (Verdict::VectorSet, "vsetattr vsim"),
    // Blocking commands.
    (BLOCKING, "blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin"),
    // Keys that are computed.
    (Verdict::ByHand(ByHand::Sort { stores: true }), "sort"),
    (Verdict::ByHand(ByHand::Sort { stores: false }), "sort_ro"),
    (Verdict::ByHand(ByHand::Streams { group: false }), "xread"),
    (Verdict::ByHand(ByHand::Streams { group: true }), "xreadgroup"),
    (Verdict::ByHand(ByHand::Radius { options: 6 }), "georadius"),
    (Verdict::ByHand(ByHand::Radius { options: 5 }), "georadiusbymember"),
    // All keys.
    (Verdict::Keyspace, "clusterscan dbsize keys randomkey scan"),
    (Verdict::ByHand(ByHand::Flush), "flushall flushdb"),
    // Scripts and functions. Loading a script runs nothing; a function is shared by all, so
    // libraries are an operator's.
    (SCRIPT, "eval eval_ro evalsha evalsha_ro fcall fcall_ro"),
    (KEYLESS, "script|exists script|load script|show function|dump function|list function|stats"),
    // Transactions.
    (Verdict::Keyless(Handling::Multi), "multi"),
    (Verdict::Keyless(Handling::Exec), "exec"),
    (Verdict::Keyless(Handling::Discard), "discard"),
    (Verdict::Keys(Handling::Watch), "watch"),
    (Verdict::Keyless(Handling::Unwatch), "unwatch"),
    // Messages: no lock protects a channel, but clients may not use Fencepost's own.
    (Verdict::Channels(Handling::Subscribe, Channels::All), "ssubscribe subscribe"),
    (Verdict::Channels(Handling::Subscribe, Channels::Patterns), "psubscribe"),
    (Verdict::Keyless(Handling::Unsubscribe), "punsubscribe sunsubscribe unsubscribe"),
    (Verdict::Channels(Handling::Shared, Channels::First), "publish spublish"),
    (Verdict::Channels(Handling::Shared, Channels::Listed), "pubsub|numsub pubsub|shardnumsub"),
    (Verdict::Channels(Handling::Shared, Channels::Matching), "pubsub|channels"),
    (KEYLESS, "pubsub|numpat pubsub|shardchannels"),
    // The connection. WAIT counts the writes of its own connection alone.
    (STATE, "wait waitaof client|caching client|getredir client|no-touch"),
    (STATE, "client|trackinginfo"),
    (Verdict::ByHand(ByHand::Tracking), "client|tracking"),
    // Information on the server, without effect.
    (KEYLESS, "command command|count command|docs command|getkeys command|getkeysandflags"),
    (KEYLESS, "command|info command|list echo info lastsave lolwut ping role time"),
    (KEYLESS, "memory|doctor memory|malloc-stats memory|stats"),
    (Verdict::Container, "client function memory object pubsub script xgroup xinfo"),
];

/// Commands that pass in observe mode although they are refused otherwise: they neither change the
/// mode of a connection nor touch the guard's own keys, users and connections. Subcommands are
/// listed one by one if some of them do.
const OBSERVED: &[(Observed, &str)] = &[
    (Observed::Shared, "function|delete function|flush function|kill function|load"),
    (Observed::Shared, "function|restore script|flush script|kill"),
    (
        Observed::Administration,
        "acl|cat acl|dryrun acl|genpass acl|getuser acl|list acl|log acl|users",
    ),
    (
        Observed::Administration,
        "bgrewriteaof bgsave commandlog config latency memory|purge migrate",
    ),
    (Observed::Administration, "pfdebug pfselftest restore-asking save slowlog"),
];

/// Returns the handling of a refused command in observe mode; `None` if it is refused there too.
pub(super) fn observed(name: &str) -> Option<Observed> {
    let of = |name| OBSERVED.iter().find(|(_, names)| is_listed(names, name)).map(|(how, _)| *how);
    of(name).or_else(|| of(name.split_once('|')?.0))
}

const DENIED: &[(&str, &str)] = &[
    (
        "it moves Fencepost's own keys away with all others; an operator runs it on Redis itself",
        "swapdb",
    ),
    (
        "it shows the commands and values of every client, and no credential of the port gives the \
         right to see them; an operator runs it on Redis itself",
        "commandlog monitor slowlog",
    ),
    (
        "it moves keys to another server, out of the fence's reach; use DUMP and RESTORE",
        "migrate restore-asking",
    ),
    (
        "it administers the server; an operator runs it on Redis itself",
        "acl bgrewriteaof bgsave config debug failover latency memory|purge module pfdebug \
         pfselftest replconf save shutdown",
    ),
    ("it rewires replication; an operator runs it on Redis itself", "psync replicaof slaveof sync"),
    (
        "the guard selects the node of a key, and a client's own connection to a node would bypass the guard",
        "client|capa",
    ),
    (NO_CLUSTER, "asking cluster readonly readwrite"),
    (
        "it changes what other clients' scripts find; an operator runs it on Redis itself",
        "function|delete function|flush function|kill function|load function|restore script|flush \
         script|kill",
    ),
    ("it stops the server for a debugger; run it on a Redis of your own", "script|debug"),
    (
        "it shows or disturbs other clients' connections; an operator runs it on Redis itself",
        "client|kill client|pause client|unpause",
    ),
    (
        "it spares a connection from the server's limits, which an operator has set",
        "client|no-evict client|import-source",
    ),
    ("the guard has to see every reply; read and ignore it", "client|reply"),
];
