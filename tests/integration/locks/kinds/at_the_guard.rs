//! Tokens of leases that share a lock, at the guard: as docs/concepts/kinds-of-lock.md says.

use fence_tests::api::Guard;
use fence_tests::in_process::InProcess;

use super::*;

async fn shared(locks: &Locks, lock: &str) -> LeaseReply {
    locks.acquire(lock, json!({"mode": "shared", "ttl_ms": 60_000})).await.lease()
}

async fn guard_with(args: &[&str]) -> (InProcess, Guard) {
    let server = Setup::fenced_store("memory:").args(args).in_process().await;
    let guard = server.guard();
    (server, guard)
}

/// Under one name the guard serves one of them: the highest token that it has seen. The others are
/// refused, their reads too, though their leases live.
#[tokio::test]
async fn of_several_shared_leases_the_newest_that_came_is_served() {
    let server = memory().await;
    let (_guard, guard) = guard_with(&[]).await;
    let locks = server.locks();
    let (one, two, three) =
        (shared(&locks, "doc").await, shared(&locks, "doc").await, shared(&locks, "doc").await);
    guard.put("doc", &one.fencing_token, "draft").await.expect(201);
    guard.fenced_get("doc", &two.fencing_token).await.expect(200);
    guard.fenced_get("doc", &one.fencing_token).await.problem(Code::StaleToken);
    guard.fenced_get("doc", &two.fencing_token).await.expect(200);
    locks.renew("doc", one.lease_id).await.expect(200);
    guard.fenced_get("doc", &one.fencing_token).await.problem(Code::StaleToken);
    guard.fenced_get("doc", &three.fencing_token).await.expect(200);
    guard.fenced_get("doc", &two.fencing_token).await.problem(Code::StaleToken);
    // Permits are no different.
    let permit = json!({"mode": "permit", "size": 2, "ttl_ms": 60_000});
    let one = locks.acquire("pool", permit.clone()).await.lease();
    let two = locks.acquire("pool", permit).await.lease();
    guard.put("pool", &two.fencing_token, "x").await.expect(201);
    guard.put("pool", &one.fencing_token, "y").await.problem(Code::StaleToken);
}

/// Readers that present no token are served side by side, and a writer is protected from late
/// writers all the same; what it does not have is protection from late readers.
#[tokio::test]
async fn reads_without_a_token_are_served_side_by_side() {
    let server = memory().await;
    let (_guard, guard) = guard_with(&["--allow-unfenced-reads"]).await;
    let locks = server.locks();
    let writer = locks.grant("doc", 60_000).await;
    guard.put("doc", &writer.fencing_token, "1").await.expect(201);
    locks.release("doc", writer.lease_id).await.expect(200);
    let readers = [shared(&locks, "doc").await, shared(&locks, "doc").await];
    for _ in 0..2 {
        for _ in &readers {
            assert_eq!(guard.get("doc").await.expect(200).body, "1");
        }
    }
    for reader in &readers {
        locks.release("doc", reader.lease_id).await.expect(200);
    }
    let next = locks.grant("doc", 60_000).await;
    guard.put("doc", &next.fencing_token, "2").await.expect(204);
    guard.put("doc", &writer.fencing_token, "late").await.problem(Code::StaleToken);
    assert_eq!(guard.get("doc").await.expect(200).body, "2");
}

/// A later token is above all of them: a writer that has been at the guard shuts late readers and
/// late writers out, and so does a reader.
#[tokio::test]
async fn a_writer_that_comes_after_is_protected_from_late_readers() {
    let server = memory().await;
    let (_guard, guard) = guard_with(&[]).await;
    let locks = server.locks();
    let readers = [shared(&locks, "doc").await, shared(&locks, "doc").await];
    guard.put("doc", &readers[1].fencing_token, "draft").await.expect(201);
    for reader in &readers {
        locks.release("doc", reader.lease_id).await.expect(200);
    }
    let writer = locks.grant("doc", 60_000).await;
    guard.put("doc", &writer.fencing_token, "final").await.expect(204);
    for reader in &readers {
        guard.fenced_get("doc", &reader.fencing_token).await.problem(Code::StaleToken);
        guard.put("doc", &reader.fencing_token, "late").await.problem(Code::StaleToken);
    }
    locks.release("doc", writer.lease_id).await.expect(200);
    let reader = shared(&locks, "doc").await;
    guard.fenced_get("doc", &reader.fencing_token).await.expect(200);
    guard.put("doc", &writer.fencing_token, "late").await.problem(Code::StaleToken);
}

/// Two holders of a permit work side by side where each has a slot of its own, whose token it
/// presents; the slot's next holder is protected from the last one.
#[tokio::test]
async fn a_permit_with_a_slot_of_its_own_is_fenced() {
    let server = memory().await;
    let (_guard, guard) = guard_with(&[]).await;
    let locks = server.locks();
    let wish = |slot: &str| {
        let pool = json!({"lock": "pool", "mode": "permit", "size": 2});
        json!({"ttl_ms": 60_000, "locks": [pool, {"lock": slot}]})
    };
    let one = leases(all(&locks.0, &wish("pool/slot-1")).await);
    let two = leases(all(&locks.0, &wish("pool/slot-2")).await);
    for _ in 0..2 {
        for held in [&one, &two] {
            let reply = guard.put(held[1].lock.as_str(), &held[1].fencing_token, "x").await;
            assert!(matches!(reply.status, 201 | 204), "{reply:?}");
        }
    }
    let problem = all(&locks.0, &wish("pool/slot-3")).await.problem(Code::LockHeld);
    assert_eq!(problem.extension::<String>("lock").as_deref(), Some("pool"));
    for lease in &one {
        locks.release(lease.lock.as_str(), lease.lease_id).await.expect(200);
    }
    let next = leases(all(&locks.0, &wish("pool/slot-1")).await);
    guard.put("pool/slot-1", &next[1].fencing_token, "y").await.expect(204);
    guard.put("pool/slot-1", &one[1].fencing_token, "late").await.problem(Code::StaleToken);
    guard.put("pool/slot-2", &two[1].fencing_token, "still mine").await.expect(204);
}
