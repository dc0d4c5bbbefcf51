//! The pack broken on purpose: each probe holds for the real one and fails for its mutant.

use fence_tests::psql::DONE;
use fence_tests::wait::until_true;

use super::*;

/// Property of a pack, probed by clients.
#[derive(Clone, Copy, Debug)]
enum Probe {
    OpenTransactionsHoldTheMark,
    TruncateIsGuarded,
    AnotherStartIsAnotherSession,
    OwnNamesAreUsed,
    ClaimsAreSigned,
    SnapshotsAreYoung,
    LowerSessionsEndFirst,
    SealsEndStoppedClients,
    BothRowsOfAMoveAreChecked,
    ReplicasAreGuarded,
    ClaimsDoNotHold,
    RaisesAreRolledBack,
    NothingLowerOvertakesASeal,
    SealsEndLowerSessions,
    AnnouncedTokensAreRead,
    FloorsEndLeases,
    FloorsAreRead,
}

/// The raise, and one that commits in a transaction of its own: then it is another one than that of
/// the effects.
const RAISE: &str = "insert into fence.marks as m (namespace, lock, token, lease)
    values (p_namespace, p_lock, p_token, p_lease)
    on conflict (namespace, lock) do update
      set token = excluded.token, lease = excluded.lease, raised_at = clock_timestamp()
      where m.token < excluded.token;";
const RAISE_ELSEWHERE: &str = "perform public.dblink_exec(
    format('host=127.0.0.1 user=postgres dbname=%s port=%s', current_database(),
      current_setting('port')),
    format('insert into fence.marks values (%L, %L, %L, %L) on conflict (namespace, lock)
      do update set token = excluded.token, lease = excluded.lease',
      p_namespace, p_lock, p_token, p_lease));";

/// A text of the pack, what it is replaced by, and the probe that fails then.
const MUTANTS: [(&str, &str, Probe); 21] = [
    ("for share of m;", "for key share of m;", Probe::OpenTransactionsHoldTheMark),
    ("for share of m;", ";", Probe::OpenTransactionsHoldTheMark),
    (RAISE, RAISE_ELSEWHERE, Probe::RaisesAreRolledBack),
    ("perform fence.show_raise(p_namespace, p_lock);", "null;", Probe::NothingLowerOvertakesASeal),
    (
        "perform fence.end_lower_or_refuse(p_namespace, p_lock, p_token);\n    perform \
         fence.raise_ending",
        "perform fence.raise_ending",
        Probe::SealsEndLowerSessions,
    ),
    (
        "values (p_namespace, p_lock, p_token, p_lease, p_pid, start)",
        "select p_namespace, p_lock, p_token, p_lease, p_pid, start where false",
        Probe::LowerSessionsEndFirst,
    ),
    ("before truncate on", "before update on", Probe::TruncateIsGuarded),
    ("return started = p_start;", "return true;", Probe::AnotherStartIsAnotherSession),
    (
        "is_running := session.started is not distinct from session.backend_start;",
        "is_running := session.is_there;",
        Probe::AnotherStartIsAnotherSession,
    ),
    ("set search_path = pg_catalog, pg_temp", "", Probe::OwnNamesAreUsed),
    (
        "fence.sign(substr(setting, 65)) then\n    return '';",
        "fence.sign(substr(setting, 65)) then\n    null;",
        Probe::ClaimsAreSigned,
    ),
    (
        "if current_setting('transaction_isolation') <> 'read committed' then\n    perform \
         fence.refuse('FE425', format('lock",
        "if false then\n    perform fence.refuse('FE425', format('lock",
        Probe::SnapshotsAreYoung,
    ),
    ("elsif session.token < p_token then", "elsif false then", Probe::LowerSessionsEndFirst),
    (
        "perform fence.end_holders(p_namespace, p_lock, p_token);",
        "null;",
        Probe::SealsEndStoppedClients,
    ),
    (
        "if new_lock is distinct from old_lock then",
        "if false then",
        Probe::BothRowsOfAMoveAreChecked,
    ),
    (
        "enable always trigger fence_change",
        "enable trigger fence_change",
        Probe::ReplicasAreGuarded,
    ),
    (
        "perform fence.hold_or_refuse(p_namespace, p_lock, own_token, own_lease);",
        "null;",
        Probe::ClaimsDoNotHold,
    ),
    ("substr(setting, 65)) = left(setting, 64) then", "'') <> '' then", Probe::ClaimsAreSigned),
    ("coalesce(s.token, 0) <= m.token and", "", Probe::AnnouncedTokensAreRead),
    (
        "update fence.marks set lease = gen_random_uuid() where",
        "update fence.marks set raised_at = clock_timestamp() where",
        Probe::FloorsEndLeases,
    ),
    (" and b.floor <= m.token for", " for", Probe::FloorsAreRead),
];

impl Probe {
    async fn holds(self, server: &Database) -> bool {
        match self {
            Self::OpenTransactionsHoldTheMark => {
                let mut old = app(server);
                let mut new = app(server);
                assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
                assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
                assert_eq!(new.run("set lock_timeout = '50ms';").await, DONE);
                new.run(&enter("docs/1", 34, NEW)).await == "55P03"
            }
            Self::TruncateIsGuarded => app(server).run("truncate docs;").await == "FE428",
            Self::AnotherStartIsAnotherSession => another_start(server).await,
            Self::OwnNamesAreUsed => own_names(server).await,
            Self::ClaimsAreSigned => {
                assert_eq!(app(server).run(&enter("docs/1", 34, NEW)).await, DONE);
                let setting = format!("{}default docs/1 34 {NEW}\n", "0".repeat(64));
                let forged =
                    format!("begin; select pg_current_xact_id(); set fence.claims = '{setting}';");
                let mut client = app(server);
                assert_eq!(client.run(&forged).await, DONE);
                client.run("update docs set v = 'x' where id = 1;").await == "FE428"
            }
            Self::SnapshotsAreYoung => {
                assert_eq!(app(server).run(&enter("docs/1", 33, OLD)).await, DONE);
                let begin = "begin isolation level repeatable read;";
                app(server).run(&format!("{begin} {}", enter("docs/1", 34, NEW))).await == "FE425"
            }
            Self::LowerSessionsEndFirst => {
                let mut old = Psql::start(&server.url());
                assert_eq!(old.run(&register(33, OLD)).await, DONE);
                server.sql(&register(34, NEW)).await == "sealing"
            }
            Self::SealsEndStoppedClients => {
                let mut old = app(server);
                assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
                old.process().pause();
                app(server).run(&seal("docs/1", 34, NEW, 1)).await == DONE
            }
            Self::BothRowsOfAMoveAreChecked => {
                let mut client = app(server);
                assert_eq!(client.run(&format!("begin; {}", enter("docs/1", 1, OLD))).await, DONE);
                client.run("update docs set id = 9 where id = 1;").await == "FE428"
            }
            Self::ReplicasAreGuarded => {
                let mut owner = Psql::start(&server.url());
                owner.run("set session_replication_role = replica; delete from docs;").await
                    == "FE428"
            }
            Self::ClaimsDoNotHold => claims_do_not_hold(server).await,
            Self::RaisesAreRolledBack => {
                server.sql("create extension dblink").await;
                let mut client = app(server);
                let entered = format!("begin; {}", enter("docs/1", 34, NEW));
                assert_eq!(client.run(&entered).await, DONE);
                assert_eq!(client.run("rollback;").await, DONE);
                client.run(&enter("docs/1", 33, OLD)).await == DONE
            }
            Self::NothingLowerOvertakesASeal => overtakes_no_seal(server).await,
            Self::SealsEndLowerSessions => seals_end_lower_sessions(server).await,
            Self::AnnouncedTokensAreRead => {
                let _old = announced_over_an_open_one(server).await;
                app(server).run(&enter("docs/1", 33, OLD)).await == "FE412"
            }
            Self::FloorsEndLeases => floors_end_leases(server).await,
            Self::FloorsAreRead => floors_are_read(server).await,
        }
    }
}

/// A session whose transaction holds the mark of docs/1, below a token that was announced since.
async fn announced_over_an_open_one(server: &Database) -> Psql {
    let mut old = app(server);
    assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    let announce = format!("select verdict from fence.register('default', 'docs/1', 34, '{NEW}')");
    assert_eq!(server.sql(&announce).await, "sealing");
    old
}

async fn floors_end_leases(server: &Database) -> bool {
    assert_eq!(app(server).run(&enter("docs/1", 33, OLD)).await, DONE);
    let mut owner = Psql::start(&server.url());
    assert_eq!(owner.run("begin; select fence.set_floor(100);").await, DONE);
    let mut late = app(server);
    let waits = late.send(&enter("docs/1", 33, OLD));
    let waiting = "select count(*) > 0 from pg_locks where not granted";
    until_true("the old holder to wait", || async { server.sql(waiting).await == "t" }).await;
    assert_eq!(owner.run("commit;").await, DONE);
    late.result(waits).await == "FE412"
}

async fn floors_are_read(server: &Database) -> bool {
    let mut old = announced_over_an_open_one(server).await;
    assert_eq!(old.run("commit;").await, DONE);
    assert_eq!(server.sql("select fence.set_floor(100)").await, "100");
    let settle = "select fence.settle('default', 'docs/1')";
    assert_eq!(server.sql(settle).await, "");
    assert_eq!(server.sql("select token from fence.marks where lock = 'docs/1'").await, "34");
    app(server).run(&enter("docs/1", 34, NEW)).await == "FE412"
}

async fn claims_do_not_hold(server: &Database) -> bool {
    let mut client = app(server);
    assert_eq!(client.run("begin; savepoint s;").await, DONE);
    assert_eq!(client.run(&enter("docs/1", 34, NEW)).await, DONE);
    let keep = "select current_setting('fence.claims') as kept \\gset\nrollback to s;";
    assert_eq!(client.run(keep).await, DONE);
    assert_eq!(app(server).run(&seal("docs/1", 35, NEW, 1000)).await, DONE);
    assert_eq!(client.run("set fence.claims = :'kept';").await, DONE);
    client.run("update docs set v = 'x' where id = 1;").await == "FE412"
}

async fn seals_end_lower_sessions(server: &Database) -> bool {
    let mut old = Psql::start(&server.url());
    assert_eq!(old.run(&register(33, OLD)).await, DONE);
    assert_eq!(old.run("begin; update docs set v = v;").await, "FE428");
    assert_eq!(app(server).run(&seal("shop", 34, NEW, 1)).await, DONE);
    let left =
        "select count(*) from pg_stat_activity join fence.sessions using (pid, backend_start)";
    server.sql(left).await == "0"
}

async fn overtakes_no_seal(server: &Database) -> bool {
    let mut old = app(server);
    let mut new = app(server);
    let mut other = app(server);
    assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    let waits = new.send(&seal("docs/1", 34, NEW, 30_000));
    let waiting = "select count(*) > 0 from pg_locks where not granted";
    until_true("the seal to wait", || async { server.sql(waiting).await == "t" }).await;
    assert_eq!(other.run("set lock_timeout = '50ms';").await, DONE);
    let overtaking = other.run(&enter("docs/1", 33, OLD)).await;
    assert_eq!(old.run("commit;").await, DONE);
    assert_eq!(new.result(waits).await, DONE);
    overtaking == "55P03"
}

fn register(token: u64, lease: &str) -> String {
    format!("select verdict from fence.register('default', 'shop', {token}, '{lease}');")
}

async fn another_start(server: &Database) -> bool {
    let mut bystander = Psql::start(&server.url());
    assert_eq!(bystander.run(&register(33, OLD)).await, DONE);
    server.sql("update fence.sessions set backend_start = backend_start - interval '1 s'").await;
    server.sql(&seal("shop", 34, NEW, 1)).await;
    let running = "select count(*) from pg_stat_activity join fence.sessions using (pid)";
    server.sql(running).await == "1" && server.sql(&register(34, NEW)).await == "admitted"
}

async fn own_names(server: &Database) -> bool {
    server.sql("create schema evil authorization app").await;
    assert_eq!(app(server).run(&enter("docs/1", 34, NEW)).await, DONE);
    let mut client = app(server);
    let hijack = "
      create function evil.no(bigint, bigint) returns boolean language sql as 'select false';
      create operator evil.< (leftarg = bigint, rightarg = bigint, procedure = evil.no);
      create operator evil.> (leftarg = bigint, rightarg = bigint, procedure = evil.no);
      set search_path = evil, pg_catalog;";
    assert_eq!(client.run(hijack).await, DONE);
    client.run(&enter("docs/1", 33, OLD)).await == "FE412"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mutant_is_caught() {
    let pack = pack::sql();
    let server = Postgres::start().await;
    server.sql(APP).await;
    for (at, (from, to, probe)) in MUTANTS.iter().enumerate() {
        assert!(pack.contains(from), "{from}");
        let sound = server.create(&format!("sound_{at}")).await;
        sound.script(&[&pack, TABLES]).await;
        assert!(probe.holds(&sound).await, "{probe:?} fails for the pack itself");
        let mutant = server.create(&format!("mutant_{at}")).await;
        mutant.script(&[&pack.replace(from, to), TABLES]).await;
        assert!(!probe.holds(&mutant).await, "{probe:?} does not catch {to:?} for {from:?}");
    }
}
