//! A client's ways around the pack: each ends in a refusal.

use fence_protocol::{Keyring, Namespace};
use fence_tests::psql::DONE;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_have_no_rights_on_tables_and_inner_functions() {
    let server = installed().await;
    let mut client = app(&server);
    assert_eq!(client.run(&enter("docs/1", 34, NEW)).await, DONE);
    for attempt in [
        "select * from fence.marks;",
        "delete from fence.marks;",
        "select * from fence.keys;",
        "insert into fence.sessions select 'default', 'docs/1', 34, lease from fence.marks;",
        "select fence.register('default', 'docs/1', 99, gen_random_uuid());",
        "select fence.abort('default', 'docs/1');",
        "select fence.set_floor(9);",
        "select fence.claim('default', 'docs/1', 34, gen_random_uuid());",
        "select fence.enter_checked('default', 'docs/1', 99, gen_random_uuid());",
        "select fence.raise_mark('default', 'docs/1', 99, gen_random_uuid());",
        "select fence.set_key('k', '\\x00');",
        "create function fence.mine() returns int language sql as 'select 1';",
        "alter function fence.require(text, text) owner to app;",
        "set role postgres;",
        "set session authorization postgres;",
        "alter table docs disable trigger all;",
        "set session_replication_role = replica;",
        "drop trigger fence_change on docs;",
    ] {
        assert_eq!(client.run(attempt).await, "42501", "{attempt}");
    }
    assert_eq!(document(&server).await, "first");
}

/// A client's own functions and operators before the system's change nothing in functions of the
/// owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_s_search_path_is_not_used() {
    let server = installed().await;
    server.sql("create schema evil authorization app").await;
    assert_eq!(app(&server).run(&enter("docs/1", 34, NEW)).await, DONE);
    let mut client = app(&server);
    let hijack = "
      create function evil.lt(bigint, bigint) returns boolean language sql as 'select false';
      create operator evil.< (leftarg = bigint, rightarg = bigint, procedure = evil.lt);
      create function evil.sha256(bytea) returns bytea language sql as $$select '\\x00'::bytea$$;
      create function evil.pg_backend_pid() returns int language sql as 'select 1';
      create temp table marks as select 'default' namespace, 'docs/1' lock, 33 token;
      create temp table sessions as select 'docs/1' lock;
      create function pg_temp.set_config(text, text, boolean) returns text
        language sql as 'select null';
      set search_path = evil, pg_temp, pg_catalog, fence;";
    assert_eq!(client.run(hijack).await, DONE);
    assert_eq!(client.run(&format!("begin; {}", enter("docs/1", 33, OLD))).await, "FE412");
    assert_eq!(client.run("rollback;").await, DONE);
    let write = "update public.docs set v = 'x' where id = 1;";
    assert_eq!(client.run(write).await, "FE428");
}

/// Functions without a search_path of their own are for these alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_can_start_has_its_own_search_path() {
    let server = installed().await;
    let open = "select string_agg(oid::regprocedure::text, ' ') from pg_proc p
                where p.pronamespace = 'fence'::regnamespace
                and (p.prosecdef or p.prorettype = 'trigger'::regtype
                  or has_function_privilege('app', p.oid, 'execute'))
                and not exists (select from unnest(p.proconfig) c (setting)
                  where setting = 'search_path=pg_catalog, pg_temp')";
    assert_eq!(server.sql(open).await, "");
}

/// The setting with a transaction's claims is signed for that transaction alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_cannot_be_made_or_carried_over() {
    let server = installed().await;
    let mut client = app(&server);
    let write = "update docs set v = 'x' where id = 1;";
    let forged = format!("default docs/1 34 {NEW}\n");
    let setting = format!("{}{forged}", "0".repeat(64));
    assert_eq!(client.run(&format!("begin; set local fence.claims = '{setting}';")).await, DONE);
    assert_eq!(client.run("create table mine (v text);").await, "42501");
    assert_eq!(client.run("rollback; begin;").await, DONE);
    assert_eq!(client.run(&format!("set local fence.claims = '{setting}';")).await, DONE);
    assert_eq!(client.run(write).await, "FE428");
    assert_eq!(client.run(&format!("rollback; begin; {}", enter("docs/1", 34, NEW))).await, DONE);
    let keep = "select current_setting('fence.claims') as kept \\gset\ncommit; begin;";
    assert_eq!(client.run(keep).await, DONE);
    assert_eq!(client.run("select pg_current_xact_id();").await, DONE);
    assert_eq!(client.run("set local fence.claims = :'kept';").await, DONE);
    assert_eq!(client.run(write).await, "FE428");
    // Nor past a savepoint: the claim returns, the right to it does not.
    assert_eq!(client.run("rollback; begin; savepoint s;").await, DONE);
    assert_eq!(client.run(&enter("docs/1", 34, NEW)).await, DONE);
    let keep = "select current_setting('fence.claims') as kept \\gset\nrollback to s;";
    assert_eq!(client.run(keep).await, DONE);
    assert_eq!(app(&server).run(&seal("docs/1", 35, NEW, 1000)).await, DONE);
    assert_eq!(client.run("set local fence.claims = :'kept';").await, DONE);
    assert_eq!(client.run(write).await, "FE412");
    assert_eq!(document(&server).await, "first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures_are_verified_in_the_database() {
    let server = installed().await;
    let key = "ab".repeat(80);
    let keyring = Keyring::parse(&format!("k1:{key}")).unwrap();
    let lock = "docs/1".parse().unwrap();
    let lease = OLD.parse().unwrap();
    let header = keyring.sign("33".parse().unwrap(), lock, lease, Namespace::default()).to_string();
    server
        .sql(
            "revoke execute on all functions in schema fence from app;
             grant execute on function fence.enter(text), fence.seal(text) to app",
        )
        .await;
    let mut client = app(&server);
    assert_eq!(client.run(&format!("select fence.enter('{header}');")).await, "FE401");
    server.sql(&format!("select fence.set_key('k1', '\\x{key}')")).await;
    assert_eq!(client.run(&enter("docs/1", 99, OLD)).await, "42501");
    for (from, to, code) in [
        ("33;", "34;", "FE401"),
        ("docs/1", "docs/2", "FE401"),
        (OLD, NEW, "FE401"),
        ("\"default\"", "\"other\"", "FE401"),
        ("\"k1\"", "\"\"", "FE400"),
        ("kid=", "kidd=", "FE400"),
        ("sig=:", "sig=:AA", "FE400"),
    ] {
        let altered = header.replace(from, to);
        assert_ne!(altered, header);
        assert_eq!(client.run(&format!("select fence.enter('{altered}');")).await, code, "{to}");
    }
    assert_eq!(client.run(&format!("select fence.seal('{header}');")).await, DONE);
    assert_eq!(client.run(&format!("begin; select fence.enter('{header}');")).await, DONE);
    assert_eq!(client.run("update docs set v = 'x' where id = 1; commit;").await, DONE);
    assert_eq!(document(&server).await, "x");
}
