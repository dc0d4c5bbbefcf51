//! Registered sessions: preempted and ended.

use fence_tests::psql::DONE;

use super::*;

fn register(lock: &str, token: u64, lease: &str) -> String {
    format!("select verdict from fence.register('default', '{lock}', {token}, '{lease}')")
}

/// Registers a session from another one, as a guard does.
async fn register_pid(server: &Postgres, token: u64, lease: &str, pid: &str) -> String {
    let call = format!("fence.register('default', 'shop', {token}, '{lease}', {pid})");
    server.sql(&format!("select verdict from {call}")).await
}

async fn pid_of(server: &Postgres, name: &str) -> String {
    server.sql(&format!("select pid from pg_stat_activity where application_name = '{name}'")).await
}

/// Nothing guards the table: the session itself is ended before the next one is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lower_session_ends_before_the_next_is_admitted() {
    let server = installed().await;
    server.sql("create table plain (v int); grant all on plain to app").await;
    let mut old = app(&server);
    assert_eq!(old.run("set application_name = 'old';").await, DONE);
    let pid = pid_of(&server, "old").await;
    assert_eq!(register_pid(&server, 33, OLD, &pid).await, "admitted");
    assert_eq!(old.run("begin; insert into plain values (1);").await, DONE);
    old.process().pause();
    let mut new = app(&server);
    assert_eq!(new.run("set application_name = 'new';").await, DONE);
    let own = pid_of(&server, "new").await;
    assert_eq!(register_pid(&server, 34, NEW, &own).await, "sealing");
    // Announced: nothing lower is registered any more, and the seal is not done.
    assert_eq!(register_pid(&server, 33, OLD, &own).await, "stale");
    assert_eq!(server.sql("select pid from fence.settle('default', 'shop')").await, pid);
    assert_eq!(server.sql("select pid from fence.abort('default', 'shop')").await, "");
    assert_eq!(server.sql("select pid from fence.settle('default', 'shop')").await, "");
    assert_eq!(register_pid(&server, 34, NEW, &own).await, "admitted");
    old.send("commit;");
    old.process().resume();
    assert_ne!(old.ended().await.code, 0);
    assert_eq!(server.sql("select count(*) from plain").await, "0");
    assert_eq!(server.sql("select token from fence.marks where lock = 'shop'").await, "34");
}

/// A pid is used again: with another start it is another session, and the registered one is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pid_that_is_used_again_is_another_session() {
    let server = installed().await;
    let mut bystander = app(&server);
    assert_eq!(bystander.run("set application_name = 'bystander';").await, DONE);
    let pid = pid_of(&server, "bystander").await;
    assert_eq!(register_pid(&server, 33, OLD, &pid).await, "admitted");
    server.sql("update fence.sessions set backend_start = backend_start - interval '1 s'").await;
    // It has no token either.
    assert_eq!(bystander.run("update docs set v = 'x' where id = 1;").await, "FE428");
    let mut new = app(&server);
    assert_eq!(new.run("set application_name = 'new';").await, DONE);
    let own = pid_of(&server, "new").await;
    assert_eq!(register_pid(&server, 34, NEW, &own).await, "admitted");
    assert_eq!(bystander.run("select 1;").await, DONE);
    assert_eq!(server.sql("select pid from fence.sessions").await, own);
}

/// A registered session's writes to a guarded table need nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registered_session_is_the_token() {
    let server = installed().await;
    let mut own = Psql::start(&server.url());
    assert_eq!(
        own.run(&format!("{}; {};", register("docs/1", 3, OLD), register("docs/2", 4, OLD))).await,
        DONE
    );
    assert_eq!(own.run("select fence.close();").await, DONE);
    assert_eq!(own.run("update docs set v = 'a' where id = 1;").await, DONE);
    assert_eq!(own.run("update docs set v = 'a' where id = 2;").await, DONE);
    assert_eq!(own.run("update docs set v = 'a' where id = 3;").await, "FE428");
    // Closed: what the session does not hold it cannot take.
    assert_eq!(own.run(&format!("{};", register("docs/3", 5, OLD))).await, "FE403");
    assert_eq!(own.run(&enter("docs/3", 5, OLD)).await, "FE403");
    assert_eq!(own.run(&seal("docs/1", 9, OLD, 1)).await, "FE403");
    assert_eq!(own.run(&enter("docs/1", 3, OLD)).await, DONE);
    // A seal ends it, with its open transaction.
    assert_eq!(own.run("begin; update docs set v = 'late' where id = 1;").await, DONE);
    assert_eq!(app(&server).run(&seal("docs/1", 4, NEW, 1)).await, DONE);
    own.send("commit;");
    assert_ne!(own.ended().await.code, 0);
    assert_eq!(document(&server).await, "a");
}

/// Whatever stops between two steps: the next caller finishes the seal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_caller_finishes_a_seal() {
    let server = installed().await;
    let mut old = app(&server);
    assert_eq!(old.run(&seal("docs/1", 33, OLD, 1)).await, DONE);
    assert_eq!(old.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, DONE);
    let mut guard = Psql::start(&server.url());
    // An open transaction without a session: one row, without a pid.
    let verdict = server.sql(&format!("{} where pid is null", register("docs/1", 34, NEW))).await;
    assert_eq!(verdict, "sealing");
    assert_eq!(old.run("commit; begin;").await, DONE);
    assert_eq!(old.run(&enter("docs/1", 33, OLD)).await, "FE412");
    assert_eq!(guard.run("select * from fence.settle('default', 'docs/1');").await, DONE);
    assert_eq!(server.sql("select token from fence.marks where lock = 'docs/1'").await, "34");
    assert_eq!(server.sql("select sealing from fence.seals where lock = 'docs/1'").await, "f");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_an_earlier_run_are_void() {
    let mut server = installed().await;
    let mut old = app(&server);
    assert_eq!(old.run("set application_name = 'old';").await, DONE);
    let pid = pid_of(&server, "old").await;
    assert_eq!(register_pid(&server, 33, OLD, &pid).await, "admitted");
    server.kill();
    server.start_again().await;
    assert_eq!(server.sql("select token from fence.marks").await, "33");
    assert_eq!(server.sql(&register("shop", 34, NEW)).await, "admitted");
    assert_eq!(server.sql("select count(*) from fence.sessions").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_floor_ends_and_refuses_what_is_below() {
    let server = installed().await;
    let mut old = app(&server);
    assert_eq!(old.run("set application_name = 'old';").await, DONE);
    let pid = pid_of(&server, "old").await;
    assert_eq!(register_pid(&server, 33, OLD, &pid).await, "admitted");
    assert_eq!(app(&server).run(&enter("docs/1", 33, OLD)).await, DONE);
    assert_eq!(server.sql("select fence.set_floor(100)").await, "100");
    assert_eq!(server.sql("select fence.set_floor(50)").await, "100");
    old.send("select 1;");
    assert_ne!(old.ended().await.code, 0);
    assert_eq!(app(&server).run(&enter("docs/1", 33, OLD)).await, "FE412");
    assert_eq!(app(&server).run(&enter("other", 99, OLD)).await, "FE412");
    assert_eq!(app(&server).run(&enter("docs/1", 100, NEW)).await, DONE);
}

/// A token that was raised and announced, and then lost to a floor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seal_below_a_floor_settles() {
    let server = installed().await;
    let mut old = app(&server);
    assert_eq!(old.run("set application_name = 'old';").await, DONE);
    let pid = pid_of(&server, "old").await;
    assert_eq!(register_pid(&server, 33, OLD, &pid).await, "admitted");
    assert_eq!(old.run(&enter("shop", 34, NEW)).await, DONE);
    assert_eq!(server.sql(&register("shop", 34, NEW)).await, "sealing");
    assert_eq!(server.sql("select fence.set_floor(100)").await, "100");
    assert_eq!(server.sql("select * from fence.settle('default', 'shop')").await, "");
    assert_eq!(server.sql("select token, sealing from fence.seals").await, "34|f");
    assert_eq!(app(&server).run(&enter("shop", 34, NEW)).await, "FE412");
}
