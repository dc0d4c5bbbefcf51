//! Connections to Redis that are set up before a client needs one of its own.
//!
//! A command such as SUBSCRIBE, MULTI or BLPOP leaves the shared connection, and the set-up of
//! another one takes some round trips. A command that the same program sends elsewhere meanwhile
//! would overtake it: the message of a PUBLISH after a SUBSCRIBE would be missed. So while clients
//! of the thread need own connections, one is kept ready for each set of tokens in use. It is
//! registered like every other, and a higher token ends it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;

use tokio::net::TcpStream;

use super::confine::AclUser;
use super::profile::ConnectionProfile;
use super::retire::Ended;

/// Maximum number of spares of a thread; further clients wait for their connection.
const SPARES_MAX: usize = 256;
/// Number of sweeps after which an unused spare is closed.
const SWEEPS: u32 = 3;

/// A connection that was set up and has no reader yet.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) stream: TcpStream,
    pub(super) user: Option<AclUser>,
    /// Run id of its Redis process; known if it is registered.
    pub(super) run_id: Option<String>,
    /// Registration and user to be retired after its end.
    pub(super) ended: Ended,
}

impl Prepared {
    /// Returns `true` if Redis has neither closed it nor sent anything on it.
    fn is_fresh(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Spares of one thread.
#[derive(Debug, Default)]
pub(super) struct Spares {
    ready: RefCell<HashMap<ConnectionProfile, Spare>>,
    /// Clients have needed own connections lately.
    are_wanted: Cell<bool>,
    is_closed: Cell<bool>,
    begun: Cell<u64>,
}

#[derive(Debug)]
enum Spare {
    InTheMaking(Making),
    Ready { connection: Box<Prepared>, looks: u32 },
}

/// Permission to make one spare; no other is made for its profile meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Making(u64);

impl Spares {
    /// Returns the spare for clients of this profile, if one exists that leads to the Redis process
    /// `run_id` and is open. An unusable one is given to `retire`.
    pub(super) fn take(
        &self,
        profile: &ConnectionProfile,
        run_id: &str,
        retire: impl FnOnce(Ended),
    ) -> Option<Prepared> {
        self.are_wanted.set(true);
        let mut ready = self.ready.borrow_mut();
        if !matches!(ready.get(profile), Some(Spare::Ready { .. })) {
            return None;
        }
        let Some(Spare::Ready { connection, .. }) = ready.remove(profile) else { return None };
        let is_same = connection.run_id.as_ref().is_none_or(|made_to| made_to == run_id);
        if is_same && connection.is_fresh() {
            return Some(*connection);
        }
        retire(connection.ended);
        None
    }

    /// Starts making a spare, if one is wanted and missing.
    pub(super) fn begin(&self, profile: &ConnectionProfile) -> Option<Making> {
        let mut ready = self.ready.borrow_mut();
        let begins = self.are_wanted.get()
            && !self.is_closed.get()
            && ready.len() < SPARES_MAX
            && !ready.contains_key(profile);
        if !begins {
            return None;
        }
        let making = Making(self.begun.replace(self.begun.get() + 1));
        ready.insert(profile.clone(), Spare::InTheMaking(making));
        Some(making)
    }

    /// Stores a new spare. If it is no longer wanted, returns the parts to be retired.
    #[must_use]
    pub(super) fn keep(
        &self,
        profile: &ConnectionProfile,
        making: Making,
        connection: Prepared,
    ) -> Option<Ended> {
        match self.ready.borrow_mut().get_mut(profile) {
            Some(spare) if spare.is(making) => {
                *spare = Spare::Ready { connection: Box::new(connection), looks: 0 };
                None
            }
            _ => Some(connection.ended),
        }
    }

    /// Records that a spare could not be made.
    pub(super) fn forget(&self, profile: &ConnectionProfile, making: Making) {
        let mut ready = self.ready.borrow_mut();
        if ready.get(profile).is_some_and(|spare| spare.is(making)) {
            ready.remove(profile);
        }
    }

    /// Removes spares that no client took for a while; called periodically.
    pub(super) fn take_unused(&self) -> Vec<Ended> {
        let mut unused = Vec::new();
        self.ready.borrow_mut().retain(|_, spare| {
            let Spare::Ready { looks, connection } = spare else { return true };
            *looks += 1;
            let stays = *looks < SWEEPS && connection.is_fresh();
            if !stays {
                unused.push(std::mem::take(&mut connection.ended));
            }
            stays
        });
        if !unused.is_empty() {
            self.are_wanted.set(false);
        }
        unused
    }

    /// Removes all spares; those being made will not be stored.
    pub(super) fn take_all(&self) -> Vec<Ended> {
        let all = std::mem::take(&mut *self.ready.borrow_mut());
        let ended = all.into_values().filter_map(|spare| match spare {
            Spare::InTheMaking(_) => None,
            Spare::Ready { connection, .. } => Some(connection.ended),
        });
        ended.collect()
    }

    /// Removes all spares, and makes no more.
    pub(super) fn close(&self) -> Vec<Ended> {
        self.is_closed.set(true);
        self.take_all()
    }
}

impl Spare {
    fn is(&self, making: Making) -> bool {
        matches!(self, Self::InTheMaking(known) if *known == making)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::redis::resp::Protocol;
    use crate::doors::redis::tokens::HeldTokens;

    async fn prepared(user: &str) -> (Prepared, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let ended = Ended { registration: None, user: Some(user.to_owned()) };
        let redis = listener.accept().await.unwrap().0;
        (Prepared { stream, user: None, run_id: Some("a".to_owned()), ended }, redis)
    }

    fn profile() -> ConnectionProfile {
        ConnectionProfile { tokens: HeldTokens::default(), db: 0, protocol: Protocol::Resp2 }
    }

    #[tokio::test]
    async fn a_late_spare_is_not_stored() {
        let spares = Spares::default();
        let profile = profile();
        assert!(spares.begin(&profile).is_none(), "no client has needed one");
        assert!(spares.take(&profile, "a", |_| ()).is_none());
        let late = spares.begin(&profile).unwrap();
        assert!(spares.begin(&profile).is_none() && spares.take_all().is_empty());
        let next = spares.begin(&profile).unwrap();
        let (connection, _late) = prepared("late").await;
        let unwanted = spares.keep(&profile, late, connection).unwrap();
        assert_eq!(unwanted.user.as_deref(), Some("late"));
        let (connection, _redis) = prepared("next").await;
        assert!(spares.keep(&profile, next, connection).is_none());
        spares.forget(&profile, late);
        let taken = spares.take(&profile, "a", |_| ()).unwrap();
        assert_eq!(taken.ended.user.as_deref(), Some("next"));
        assert!(spares.close().is_empty() && spares.begin(&profile).is_none());
    }

    #[tokio::test]
    async fn a_spare_of_another_process_is_not_used() {
        let spares = Spares::default();
        let profile = profile();
        spares.take(&profile, "a", |_| ());
        let making = spares.begin(&profile).unwrap();
        let (connection, _redis) = prepared("one").await;
        assert!(spares.keep(&profile, making, connection).is_none());
        let mut retired = None;
        assert!(spares.take(&profile, "b", |ended| retired = ended.user).is_none());
        assert_eq!(retired.as_deref(), Some("one"));
    }
}
