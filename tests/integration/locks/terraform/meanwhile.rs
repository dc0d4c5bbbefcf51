//! The holder changes while a lock is unlocked by force.

use fence_tests::paused_store::{PausedStep, PausedStore};
use fence_tests::wait::soon;

use super::*;

async fn pausable() -> (Backend, Arc<PausedStore>) {
    let mut paused = None;
    let backend = Backend::over(SEALED, |store| {
        let store = Arc::new(PausedStore::new(store));
        paused = Some(store.clone());
        store
    });
    (backend.await, paused.expect("the server has a store"))
}

/// The repeat of an unlock whose reply was lost: it is well only if no other run came in between.
#[tokio::test]
async fn an_unlock_that_was_overtaken_is_no_success() {
    let (backend, paused) = pausable().await;
    let first = backend.run("first");
    let next = backend.run("next");
    first.locked().await;
    first.unlock().await.expect(200);
    first.unlock().await.expect(200);
    paused.arm(PausedStep::Release);
    let again = tokio::spawn(async move { first.unlock().await });
    soon("the release to begin", paused.reached()).await;
    next.locked().await;
    paused.resume();
    soon("the reply", again).await.unwrap().problem(Code::LeaseLost);
    next.unlock().await.expect(200);
}

/// The id that `tofu force-unlock` sends is that of one lease: one that began after the comparison
/// stays, and its run pushes its state.
#[tokio::test]
async fn a_forced_unlock_ends_only_the_lease_that_was_named() {
    let (backend, paused) = pausable().await;
    let first = backend.run("first");
    let next = backend.run("next");
    first.locked().await;
    let shown = next.lock().await.expect(423).json()["ID"].clone();
    paused.arm(PausedStep::Mint);
    let ops = backend.run("ops");
    let forced = tokio::spawn(async move { ops.force_unlock_of(&shown).await });
    soon("the revocation to begin", paused.reached()).await;
    first.unlock().await.expect(200);
    next.locked().await;
    paused.resume();
    soon("the end of the revocation", forced).await.unwrap().problem(Code::LeaseLost);
    next.push("{\"serial\":1}").await.expect(201);
    next.unlock().await.expect(200);
}
