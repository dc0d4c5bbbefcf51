//! The holder changes while a lock is unlocked by force.

use fence_tests::paused_mint::PausedMint;
use fence_tests::wait::soon;

use super::*;

/// The id that `tofu force-unlock` sends is that of one lease: one that began after the comparison
/// stays, and its run pushes its state.
#[tokio::test]
async fn a_forced_unlock_ends_only_the_lease_that_was_named() {
    let mut paused = None;
    let backend = Backend::over(SEALED, |store| {
        let store = Arc::new(PausedMint::new(store));
        paused = Some(store.clone());
        store
    });
    let backend = Arc::new(backend.await);
    let paused = paused.expect("the server has a store");
    let first = backend.run("first");
    let next = backend.run("next");
    first.locked().await;
    let shown = next.lock().await.expect(423).json()["ID"].clone();
    paused.arm();
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
