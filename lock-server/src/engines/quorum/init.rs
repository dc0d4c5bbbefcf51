//! `lock-server init --fresh`: vouches that a quorum has never issued a token.

use fence_protocol::Namespace;
use service_kit::Kit;

use super::{QuorumStore, QuorumUrl};
use crate::engines::options::StoreOptions;
use crate::engines::redis::key_prefix::KeyPrefix;
use crate::guards::Guards;

/// Begins a quorum whose first token is 1.
///
/// # Errors
/// A sentence; also where the nodes are a quorum already, which is then left as it is, where one of
/// them does not answer, and where a guard has seen a token or does not say whether it has.
pub async fn init_fresh(
    url: &QuorumUrl,
    key_prefix: &KeyPrefix,
    namespace: &Namespace,
    guards: &Guards,
) -> Result<(), String> {
    guards.marks().await.vouch_for_a_new_namespace()?;
    let kit = Kit::new("init");
    let options = StoreOptions {
        namespace: namespace.clone(),
        key_prefix: key_prefix.clone(),
        ..StoreOptions::default()
    };
    let store = QuorumStore::prepare(url, options, guards.clone(), true, &kit);
    let begun = begun(&store).await;
    kit.tasks.begin_shutdown();
    begun
}

async fn begun(store: &QuorumStore) -> Result<(), String> {
    store.majority_answers().await?;
    let (voting, reasons) = store.inner.membership.summary();
    match store.inner.membership.has_begun() {
        true => Ok(()),
        false if voting > 0 => Err("the quorum is in use; nothing was changed".to_owned()),
        false => Err(format!("the quorum has not begun: {reasons}")),
    }
}
