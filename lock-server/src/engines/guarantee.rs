//! Guarantee of an engine, in a line: the start-up log, `/readyz?verbose` and `fence doctor` show
//! the row of docs/reference/guarantees.md that applies.

use std::fmt;

use super::open::StoreUrl;

/// A row of the table: what holds on one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantee {
    /// The engine, as the page's headings name it.
    pub engine: &'static str,
    /// Condition under which tokens rise (L1).
    pub tokens: &'static str,
    /// Condition under which a lock has one live lease (L2), and what may be lost.
    pub leases: &'static str,
    /// Failures after which locks are still granted.
    pub availability: &'static str,
}

/// The row of the engine that `url` names.
pub fn guarantee(url: &StoreUrl) -> Guarantee {
    match url {
        StoreUrl::Memory => MEMORY,
        StoreUrl::Embedded(_) => EMBEDDED,
        StoreUrl::Redis(target) if target.is_sentinel() => SENTINEL,
        StoreUrl::Redis(target) if target.is_cluster() => CLUSTER,
        StoreUrl::Redis(_) => REDIS,
        StoreUrl::Quorum(_) => QUORUM,
        StoreUrl::Etcd(_) => ETCD,
        StoreUrl::Postgres(_) => POSTGRES,
    }
}

const LIFTED: &str = "tokens rise through every loss that is noticed, by the clock floor";

const MEMORY: Guarantee = Guarantee {
    engine: "memory",
    tokens: "tokens rise as long as the wall clock is not set back between two starts",
    leases: "a restart forgets every lease",
    availability: "one process",
};
const EMBEDDED: Guarantee = Guarantee {
    engine: "embedded",
    tokens: "tokens rise as long as the folder is kept",
    leases: "no restart and no power failure forgets a lease",
    availability: "one process, one disk",
};
const REDIS: Guarantee = Guarantee {
    engine: "redis",
    tokens: LIFTED,
    leases: "leases are kept as Redis keeps data: appendfsync always forgets none",
    availability: "one Redis, any number of lock servers",
};
const SENTINEL: Guarantee = Guarantee {
    engine: "redis-sentinel",
    tokens: "with --wait-replicas tokens rise through every failover; without, two masters at once may give lower ones, or one twice",
    leases: "a failover may forget leases; --after-loss wait lets them run out first",
    availability: "the master may fail; a failover takes seconds",
};
const CLUSTER: Guarantee = Guarantee {
    engine: "redis-cluster",
    tokens: "best effort: tokens rise through failovers, but two masters at once may give one twice",
    leases: "a failover may forget leases; --after-loss wait lets them run out first",
    availability: "the master of the namespace's slot may fail; nothing is granted while the slot moves",
};
const QUORUM: Guarantee = Guarantee {
    engine: "redis-quorum",
    tokens: "strict: the tokens of a lock rise whatever a minority of the nodes forgets",
    leases: "a majority keeps each lease; only clocks that run at other rates give a lock to two",
    availability: "one of three nodes, or two of five, may fail",
};
const ETCD: Guarantee = Guarantee {
    engine: "etcd",
    tokens: "strict: tokens rise through every failure of a minority and through restored backups",
    leases: "a lease that was answered is kept; it ends by its server's clock, or later by another \
             server's",
    availability: "one of three members, or two of five, may fail",
};
const POSTGRES: Guarantee = Guarantee {
    engine: "postgres",
    tokens: "tokens rise through restarts, failovers and restored backups; two primaries at once may give lower ones, or one twice",
    leases: "no crash forgets a lease; a failover forgets none with a synchronous replica, and --after-loss wait lets lost ones run out first",
    availability: "one PostgreSQL, or its promoted replica; any number of lock servers",
};

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, tokens, leases, availability } = self;
        write!(
            f,
            "{engine}: {tokens}; {leases}; {availability} (docs/reference/guarantees.md#{engine})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_its_row_in_the_docs() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/guarantees.md");
        let page = std::fs::read_to_string(page).unwrap();
        for url in [
            "memory:",
            "embedded:x",
            "redis://a",
            "redis-sentinel://a/m",
            "redis-cluster://a",
            "redis-quorum:redis://a,redis://b,redis://c",
            "etcd://a",
            "postgres://localhost",
        ] {
            let row = guarantee(&url.parse().unwrap());
            let heading = format!("## {}\n", row.engine);
            assert!(page.contains(&heading), "{heading:?} is missing");
            for text in [row.tokens, row.leases, row.availability] {
                assert!(page.contains(text), "{}: {text:?} is missing", row.engine);
            }
        }
    }
}
