//! The pack's functions for objects broken on purpose: each probe holds for the real ones and fails
//! for its mutant.

use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::psql::{DONE, Psql};
use fence_tests::servers::{Server, Setup};
use fence_tests::wait::{soon, until_true};
use fenced_store::stores::postgres::pack;
use http::Method;

/// Tries to catch a mutant.
const TRIES: usize = 3;

/// Property of the objects of several guards.
#[derive(Clone, Copy, Debug)]
enum Probe {
    WritesAreDurable,
    NewObjectsAreNotOverwritten,
    LocksWaitForNoOther,
    StoppedGuardsWriteNothingLate,
}

/// Texts of the pack, what they are replaced by, and the probe that fails then.
const MUTANTS: [(&[(&str, &str)], Probe); 5] = [
    (&[("perform fence.commit_durably();\n  delete from", "delete from")], Probe::WritesAreDurable),
    (
        &[("o.etag = n.before and n.body is not null", "n.body is not null")],
        Probe::NewObjectsAreNotOverwritten,
    ),
    (&[("for share skip locked;", "for share;")], Probe::LocksWaitForNoOther),
    (&[("for share skip locked;", ";")], Probe::LocksWaitForNoOther),
    (
        &[("for share skip locked;", ";"), ("for share of m;", ";")],
        Probe::StoppedGuardsWriteNothingLate,
    ),
];

impl Probe {
    async fn holds(self, pack: &str) -> bool {
        match self {
            Self::WritesAreDurable => writes_are_durable(pack).await,
            Self::NewObjectsAreNotOverwritten => new_objects_are_not_overwritten(pack).await,
            Self::LocksWaitForNoOther => locks_wait_for_no_other(pack).await,
            Self::StoppedGuardsWriteNothingLate => nothing_lower_appears(pack, false).await,
        }
    }

    /// True if it fails once for a mutant. What the server does in its own time, such as to write
    /// its log or to end a wait, may hide that where the machine is slow.
    async fn catches(self, mutant: &str) -> bool {
        for _ in 0..TRIES {
            if !self.holds(mutant).await {
                return true;
            }
        }
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mutant_is_caught() {
    let pack = pack::sql();
    for (changes, probe) in MUTANTS {
        let mut mutant = pack.clone();
        for (from, to) in changes {
            assert_eq!(pack.matches(from).count(), 1, "{from}");
            mutant = mutant.replace(from, to);
        }
        let (sound, is_caught) = tokio::join!(probe.holds(&pack), probe.catches(&mutant));
        assert!(sound, "{probe:?} fails for the pack itself");
        assert!(is_caught, "{probe:?} does not catch {changes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_killed_in_a_transaction_writes_nothing_late() {
    assert!(nothing_lower_appears(&pack::sql(), true).await);
}

/// Starts guards whose locks are the first segments of the keys, over this pack.
async fn guards<const N: usize>(postgres: &Postgres, pack: &str) -> [Server; N] {
    let setup = Setup::fenced_store(&postgres.url()).args(&["--rule", "{lock}/**={lock}"]);
    let mut guards = Vec::new();
    for _ in 0..N {
        guards.push(setup.start().await);
    }
    // Their start-up probes are not what is tested.
    postgres.sql(pack).await;
    guards.try_into().unwrap()
}

/// The second write raises no mark, whose commit would be durable by itself.
async fn writes_are_durable(pack: &str) -> bool {
    let settings = [("synchronous_commit", "off"), ("wal_writer_delay", "10s")];
    let mut postgres = Postgres::with(&settings).await;
    let [server] = guards(&postgres, pack).await;
    let guard = server.guard();
    let token = unsigned(5, "d", lease_id());
    guard.put("d/1", &token, "one").await.expect(201);
    guard.put("d/1", &token, "two").await.expect(204);
    postgres.kill();
    postgres.start_again().await;
    let read = "SELECT convert_from(body, 'UTF8') FROM fence.objects";
    postgres.sql(read).await == "two"
}

/// Two guards create one object; the first one waits between its look and its write.
async fn new_objects_are_not_overwritten(pack: &str) -> bool {
    let postgres = Postgres::start().await;
    let [one, two] = guards(&postgres, pack).await;
    let token = unsigned(5, "d", lease_id());
    one.guard().put("d/0", &token, "x").await.expect(201);
    let mut holder = Psql::start(&postgres.url());
    assert_eq!(holder.run("BEGIN; LOCK TABLE fence.outcomes;").await, DONE);
    let slow = one.guard();
    let header = token.clone();
    let create = tokio::spawn(async move {
        let headers =
            [("fencing-token", &*header), ("if-none-match", "*"), ("idempotency-key", "n")];
        slow.with(Method::PUT, "d/1", &headers, "one").await.status
    });
    waits_for_a_lock(&postgres, "load_outcomes").await;
    two.guard().put("d/1", &token, "two").await.expect(201);
    assert_eq!(holder.run("COMMIT;").await, DONE);
    soon("the first guard's reply", create).await.unwrap() == 412
}

/// A client's transaction raises a mark and stays open: its lock's operations wait aside.
async fn locks_wait_for_no_other(pack: &str) -> bool {
    let postgres = Postgres::start().await;
    let [server] = guards(&postgres, pack).await;
    let guard = server.guard();
    let slow = unsigned(5, "slow", lease_id());
    let fast = unsigned(1, "fast", lease_id());
    guard.put("slow/1", &slow, "x").await.expect(201);
    guard.put("fast/1", &fast, "x").await.expect(201);
    let mut client = Psql::start(&postgres.url());
    let entered = format!("BEGIN; SELECT fence.enter('slow', 6, '{}');", lease_id());
    assert_eq!(client.run(&entered).await, DONE);
    let mut lower = Vec::new();
    let mut are_done = true;
    for _ in 0..10 {
        for _ in 0..2 {
            let guard = server.guard();
            let slow = slow.clone();
            lower.push(tokio::spawn(async move { guard.put("slow/1", &slow, "y").await.status }));
        }
        let writes = tokio::join!(guard.put("fast/1", &fast, "y"), guard.put("fast/2", &fast, "y"));
        are_done &= writes.0.status < 300 && writes.1.status < 300;
    }
    assert_eq!(client.run("COMMIT;").await, DONE);
    for late in lower {
        assert!(soon("a lower write", late).await.unwrap() >= 400);
    }
    are_done
}

/// A guard is killed or stopped with its token checked and its write not sent, while two others
/// admit higher tokens.
async fn nothing_lower_appears(pack: &str, is_killed: bool) -> bool {
    let postgres = Postgres::start().await;
    let [mut low, high, highest] = guards(&postgres, pack).await;
    let old = unsigned(5, "d", lease_id());
    low.guard().put("d/1", &old, "five").await.expect(201);
    let mut holder = Psql::start(&postgres.url());
    assert_eq!(holder.run("BEGIN; SELECT FROM fence.objects FOR UPDATE;").await, DONE);
    let guard = low.guard();
    let write = tokio::spawn(async move {
        let headers = [("fencing-token", old.as_str())];
        let write = guard.0.attempt(Method::PUT, "/v1/objects/d/1", &headers, "late".into());
        write.await.map_or(0, |reply| reply.status)
    });
    waits_for_a_lock(&postgres, "lock_objects").await;
    if is_killed {
        low.process.kill();
    } else {
        low.process.pause();
    }
    assert_eq!(holder.run("COMMIT;").await, DONE);
    let six = unsigned(6, "d", lease_id());
    let seven = unsigned(7, "d", lease_id());
    for (guard, token, key) in [(high.guard(), &six, "d/2"), (highest.guard(), &seven, "d/3")] {
        until_true("a higher token", || async { guard.put(key, token, "x").await.status < 300 })
            .await;
    }
    if !is_killed {
        low.process.resume();
    }
    soon("the end of the lower write", write).await.unwrap();
    highest.guard().fenced_get("d/1", &seven).await.expect(200).body.as_ref() == b"five"
}

async fn waits_for_a_lock(postgres: &Postgres, words: &str) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE query LIKE '%{words}%' AND wait_event_type = 'Lock'"
    );
    until_true("a statement to wait", || async { postgres.sql(&sql).await == "1" }).await;
}
