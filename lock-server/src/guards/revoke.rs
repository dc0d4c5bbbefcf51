//! Revocation behind a seal: guards refuse the holder before the lock is granted again.
//!
//! 1. Mint a token. Every lease that is live by then has a lower token, every later lease a higher
//!    one.
//! 2. Seal the guards with it: they refuse the older leases from then on.
//! 3. End exactly the leases below it. A later lease was not sealed out, and stays.
//!
//! If step 3 finds nothing to end, the holder has changed since step 1, and the steps are retried.

use std::str::FromStr;

use fence_protocol::wire::lock::{EndedReply, GuardSeal, LockReply};
use fence_protocol::{LeaseId, LockName, Token};
use service_kit::ids;
use service_kit::tls::ServerUrl;

use super::sealer::{Cause, GuardSealed, Sealer, higher_mark};
use crate::guards::GUARD_TIMEOUT;
use crate::store::{LockStore, Revoke, StoreError};

/// Largest number of rounds.
const ROUNDS_MAX: usize = 8;
/// Largest number of reads of a lock's leases in one round: a read shows about a hundred of them,
/// and a lock has at most 1024.
const READS_MAX: usize = 16;

/// Outcome of a revocation when a guard cannot be sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsealed {
    /// The lease is revoked, and the reply names the guards that were not sealed.
    #[default]
    Report,
    /// The lease is not revoked.
    Refuse,
}

impl FromStr for Unsealed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "report" => Ok(Self::Report),
            "refuse" => Ok(Self::Refuse),
            _ => Err(format!("{text:?} is none of report and refuse")),
        }
    }
}

/// Effects of a revocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Done {
    /// The leases that ended, the oldest first.
    pub(crate) ended: Vec<EndedReply>,
    /// `true` if a lock-delay was lifted.
    pub(crate) is_delay_lifted: bool,
    /// Outcome of the seals.
    pub(crate) guards: Vec<GuardSeal>,
}

/// Reason why a revocation failed or was incomplete.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Why {
    /// The store refused.
    Store(StoreError),
    /// A guard was not sealed, and the mode is [`Unsealed::Refuse`].
    Unsealed,
}

/// A revocation that failed or was incomplete.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failed {
    pub(crate) why: Why,
    /// Effects before the failure.
    pub(crate) done: Done,
}

impl Failed {
    fn store(done: &Done) -> impl FnOnce(StoreError) -> Self {
        let done = done.clone();
        move |error| Self { why: Why::Store(error), done }
    }
}

/// A lease as [`LockStore::show`] lists it.
type Live = (LeaseId, Token);

fn live(shown: &LockReply) -> Vec<Live> {
    let holders = shown.holder.iter().chain(&shown.also_held);
    holders.map(|holder| (holder.lease_id, holder.info.token)).collect()
}

/// `true` if `meant` is not the only live lease that a seal with `token` would refuse (any token,
/// if none is minted yet): another would be refused with it, or it is not live at all.
fn is_not_alone(shown: &LockReply, meant: LeaseId, token: Option<Token>) -> bool {
    let live = live(shown);
    let is_other =
        |(lease, other): &Live| *lease != meant && token.is_none_or(|token| *other < token);
    let is_live = live.iter().any(|(lease, _)| *lease == meant);
    !is_live || shown.lease_count > live.len() || live.iter().any(is_other)
}

/// A revocation in progress.
#[derive(Debug)]
pub(crate) struct Revocation<'a> {
    pub(crate) store: &'a dyn LockStore,
    pub(crate) sealer: &'a Sealer,
    pub(crate) unsealed: Unsealed,
    pub(crate) lock: &'a LockName,
    pub(crate) wish: Revoke,
}

impl Revocation<'_> {
    /// Runs the revocation. Not cancel-safe: if dropped, guards may be sealed and nothing revoked.
    ///
    /// # Errors
    /// [`Failed`], with the effects before the failure.
    pub(crate) async fn run(self) -> Result<Done, Failed> {
        if self.sealer.urls().is_empty() {
            return self.end_now(Done::default(), self.wish.clone()).await;
        }
        let mut done = Done::default();
        for _ in 0..ROUNDS_MAX {
            let shown = self.store.show(self.lock).await.map_err(Failed::store(&done))?;
            match self.wish.lease {
                None if shown.holder.is_none() && shown.delayed_ms.is_none() => {
                    return Err(Failed::store(&done)(StoreError::NotHeld));
                }
                Some(meant) if is_not_alone(&shown, meant, None) => {
                    return self.end_unsealed().await;
                }
                _ => {}
            }
            let token = self.store.mint(self.lock).await.map_err(Failed::store(&done))?;
            if let Some(meant) = self.wish.lease {
                // Another shared lease may have been granted before the token was minted.
                let shown = self.store.show(self.lock).await.map_err(Failed::store(&done))?;
                if is_not_alone(&shown, meant, Some(token)) {
                    return self.end_unsealed().await;
                }
            }
            self.seal(token, &mut done).await?;
            self.end_below(token, &mut done).await?;
            if !done.ended.is_empty() || done.is_delay_lifted {
                return Ok(done);
            }
        }
        let lock = self.lock;
        let detail = format!("lock {lock} changes holders faster than it can be revoked; retry");
        Err(Failed::store(&done)(StoreError::Unavailable(detail)))
    }

    /// Ends one lease of several without a seal.
    async fn end_unsealed(&self) -> Result<Done, Failed> {
        let why = "not sealed: other leases of the lock are live, and a seal would refuse them too";
        let guard = |url: &ServerUrl| GuardSeal {
            guard: url.to_string(),
            mark: None,
            problem: Some(why.to_owned()),
        };
        let guards = self.sealer.urls().iter().map(guard).collect();
        self.end_now(Done { guards, ..Done::default() }, self.wish.clone()).await
    }

    async fn end_now(&self, mut done: Done, wish: Revoke) -> Result<Done, Failed> {
        let result = self.store.revoke(self.lock, wish).await;
        done.ended =
            result.map_err(|error| Failed { why: Why::Store(error), done: Done::default() })?;
        done.is_delay_lifted = done.ended.is_empty();
        Ok(done)
    }

    async fn seal(&self, token: Token, done: &mut Done) -> Result<(), Failed> {
        let grant = (self.lock, token, ids::lease_id());
        let results = self.sealer.seal(Cause::Revoke, grant, GUARD_TIMEOUT).await;
        done.guards = results.iter().map(GuardSealed::wire).collect();
        let is_incomplete = results.iter().any(|result| result.outcome.is_err());
        if self.unsealed == Unsealed::Refuse && is_incomplete {
            return Err(Failed { why: Why::Unsealed, done: done.clone() });
        }
        // The next holder's token must be above every mark.
        match higher_mark(&results) {
            Some(mark) => self.store.lift(mark).await.map_err(Failed::store(done)),
            None => Ok(()),
        }
    }

    /// Ends the leases to revoke whose token is below `token`, and a lock-delay if no other lease
    /// is live.
    async fn end_below(&self, token: Token, done: &mut Done) -> Result<(), Failed> {
        for _ in 0..READS_MAX {
            let shown = self.store.show(self.lock).await.map_err(Failed::store(done))?;
            let live = live(&shown);
            let is_meant = |(lease, other): &&Live| {
                *other < token && self.wish.lease.is_none_or(|meant| meant == *lease)
            };
            let meant: Vec<Live> = live.iter().filter(is_meant).copied().collect();
            if meant.is_empty() {
                return self.lift_delay(&shown, done).await;
            }
            for (lease, _) in meant {
                self.end_one(lease, done).await?;
            }
        }
        Ok(())
    }

    async fn end_one(&self, lease: LeaseId, done: &mut Done) -> Result<(), Failed> {
        let wish = Revoke { lease: Some(lease), ..self.wish.clone() };
        match self.store.revoke(self.lock, wish).await {
            Ok(ended) => done.ended.extend(ended),
            // It ended by itself; the next read shows the current leases.
            Err(StoreError::Lost { .. } | StoreError::NotHeld) if self.wish.lease.is_none() => {}
            Err(error) => return Err(Failed::store(done)(error)),
        }
        Ok(())
    }

    async fn lift_delay(&self, shown: &LockReply, done: &mut Done) -> Result<(), Failed> {
        let is_alone = shown.holder.is_none() && shown.delayed_ms.is_some();
        if self.wish.lease.is_some() || !is_alone {
            return Ok(());
        }
        match self.store.revoke(self.lock, self.wish.clone()).await {
            Ok(ended) => {
                done.ended.extend(ended);
                done.is_delay_lifted = true;
                Ok(())
            }
            Err(StoreError::NotHeld) => Ok(()),
            Err(error) => Err(Failed::store(done)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(number: u128) -> LeaseId {
        LeaseId::new(uuid::Uuid::from_u128(number)).unwrap()
    }

    /// Live leases 1, 2, … with these tokens, and so many in all.
    fn shown(tokens: &[u64], lease_count: usize) -> LockReply {
        let holders = tokens.iter().zip(1..).map(|(token, number)| {
            json!({"lease_id": lease(number), "token": token, "owner": "o", "held_ms": 0,
                   "expires_in_ms": 1, "ttl_ms": 1, "renewals": 0})
        });
        let mut holders: Vec<_> = holders.collect();
        let holder = (!holders.is_empty()).then(|| holders.remove(0));
        let reply = json!({"lock": "a", "state": "held", "holder": holder, "also_held": holders,
                           "lease_count": lease_count, "queue_length": 0, "queue": [], "history": []});
        serde_json::from_value(reply).unwrap()
    }

    #[test]
    fn a_lease_is_alone_where_no_other_would_be_shut_out() {
        let minted = Token::new(10).ok();
        assert!(!is_not_alone(&shown(&[7], 1), lease(1), None));
        assert!(!is_not_alone(&shown(&[7], 1), lease(1), minted));
        // Another that came before the token was minted, and one that came after it.
        assert!(is_not_alone(&shown(&[7, 9], 2), lease(1), None));
        assert!(is_not_alone(&shown(&[7, 9], 2), lease(1), minted));
        assert!(!is_not_alone(&shown(&[7, 11], 2), lease(1), minted));
        // Not live, or not known to be alone.
        assert!(is_not_alone(&shown(&[], 0), lease(1), minted));
        assert!(is_not_alone(&shown(&[7], 1), lease(2), minted));
        assert!(is_not_alone(&shown(&[7], 2), lease(1), minted));
    }
}
