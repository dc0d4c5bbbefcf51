//! `fenced-store --store postgres://…`: objects and marks in one transaction.

mod faults;
mod mutants;
mod sharing;
mod start;

use fence_protocol::Code;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::postgres_server::Postgres;
use fence_tests::servers::Setup;

#[tokio::test]
async fn what_one_guard_saw_the_other_refuses() {
    let postgres = Postgres::start().await;
    let setup = Setup::fenced_store(&postgres.url());
    let one = setup.start().await;
    let two = setup.start().await;
    let old = unsigned(33, "a", lease_id());
    let new = unsigned(34, "a", lease_id());
    one.guard().put("a", &old, "old").await.expect(201);
    two.guard().fenced_get("a", &new).await.expect(200);
    one.guard().put("a", &old, "late").await.problem(Code::StaleToken);
    one.guard().fenced_get("a", &old).await.problem(Code::StaleToken);
    two.guard().put("a", &new, "new").await.expect(204);
    let found = one.guard().fenced_get("a", &new).await.expect(200);
    assert_eq!((found.body.as_ref(), found.header("fencing-mark")), (&b"new"[..], "34"));
    assert_eq!(found.header("fencing-guarantee"), "atomic");
    assert_eq!(one.guard().fence("a").await.mark.map(|mark| mark.get()), Some(34));
    two.guard().sealed("b", &unsigned(40, "b", lease_id())).await;
    assert_eq!(one.guard().fence("b").await.mark.map(|mark| mark.get()), Some(40));
}

/// Bodies travel in arrays of a statement; none may be cut or changed.
#[tokio::test]
async fn large_and_empty_bodies_come_back_whole() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let guard = server.guard();
    let large: Vec<u8> = (0..16_usize << 20).map(|at| (at % 251) as u8).collect();
    for (key, body) in [("l:a-r.g_e/1", large), ("empty", Vec::new()), ("zero", vec![0; 3])] {
        let token = unsigned(7, key, lease_id());
        guard.put(key, &token, body.clone()).await.expect(201);
        let found = guard.fenced_get(key, &token).await.expect(200);
        assert!(found.body == body, "{key}: {} bytes came back", found.body.len());
        guard.delete(key, &token).await.expect(204);
        guard.fenced_get(key, &token).await.expect(404);
    }
}

/// Refused writes leave no row and cost no commit.
#[tokio::test]
async fn a_refusal_changes_no_row() {
    let postgres = Postgres::start().await;
    let server = Setup::fenced_store(&postgres.url()).start().await;
    let guard = server.guard();
    guard.put("a", &unsigned(34, "a", lease_id()), "kept").await.expect(201);
    let rows = "SELECT (SELECT string_agg(o::text, ',') FROM fence.objects o), \
                (SELECT string_agg(m::text, ',') FROM fence.marks m WHERE namespace = 'default')";
    let before = postgres.sql(rows).await;
    guard.put("a", &unsigned(33, "a", lease_id()), "late").await.problem(Code::StaleToken);
    guard.put("a", &unsigned(34, "a", lease_id()), "twin").await.problem(Code::TokenCollision);
    guard.delete("a", &unsigned(33, "a", lease_id())).await.problem(Code::StaleToken);
    assert_eq!(postgres.sql(rows).await, before);
    let left = "SELECT count(*) FROM fence.marks WHERE namespace <> 'default'";
    assert_eq!(postgres.sql(left).await, "0", "the probe left its marks");
}
