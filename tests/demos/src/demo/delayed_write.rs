//! delayed-write: before a datastore that knows nothing of tokens, the older write is held on its
//! way while the newer one arrives. A proxy that checks and forwards loses an update; the lane does
//! not.

use super::account::{Account, DATASTORE};
use super::datastore::Datastore;
use super::late_write::{Delay, story};
use super::narrator::Narrator;
use super::stage::{Guarding, Stage};
use crate::backing::Backing;
use fence_terminal::exit::Failure;

pub(super) const TITLE: &str = "An old write is on the wire while the new one arrives";
pub(super) const EXPLANATION: &str = "\
A datastore that knows nothing of tokens, a plain HTTP server, holds worker A's write, and \
meanwhile the lease passes to B. A proxy that compares the token and then forwards (a naive one, \
written for this comparison) lets A's write land on top of B's; the guard's lane waits for the \
reply to A before it lets anything of B through.";

/// Runs it with the naive proxy and with the guard's.
pub(super) async fn run(narrator: &mut Narrator, backing: &Backing) -> Result<(), Failure> {
    let datastore = Datastore::start().await?;
    let upstream = datastore.url().to_owned();
    let stage = Stage::set(backing, &Guarding::Proxy { upstream }).await?;
    narrator.remark(&stage.described())?;
    let naive = datastore.naive_proxy();
    narrator.remark(&format!("the datastore is {}, its naive proxy {naive}\n", datastore.url()))?;
    let account = |key: &str| Account { key: key.to_owned(), fenced: true, lane: DATASTORE };

    let title = "a naive proxy: check the token, then forward";
    narrator.begin("unguarded", title, &Account::LANES_DATASTORE)?;
    story(narrator, &stage, &account("naive/account"), &naive, Delay::Held(&datastore)).await?;
    let title = "the guard's reverse proxy, with its lane";
    narrator.begin("guarded", title, &Account::LANES_DATASTORE)?;
    let laned = account("laned/account");
    let delay = Delay::HeldInLane(&datastore);
    story(narrator, &stage, &laned, &stage.proxied(), delay).await?;
    let fence = stage.client()?.objects().fence(&laned.lock()?).await?;
    let guarantee = fence.guarantee.as_str();
    narrator.remark(&format!(
        "the guard's guarantee here is \"{guarantee}\": it trusts the stated --max-request-lifetime"
    ))?;
    stage.strike().await;
    Ok(())
}
