//! Connections to Redis that are ready before a client needs one of its own.
//!
//! A command such as SUBSCRIBE, MULTI or BLPOP leaves the shared connection, and setting up another
//! one takes some exchanges with Redis. A command that the same program sends meanwhile elsewhere
//! would overtake it: the message of a PUBLISH that follows a SUBSCRIBE would be missed. So where
//! clients of the thread ask for own connections, one is kept ready for each set of tokens in use.
//! It is registered like every other, and a higher token ends it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;

use tokio::net::TcpStream;

use super::confine::AclUser;
use super::profile::ConnectionProfile;
use super::retire::Ended;

/// At most so many a thread; clients beyond that wait for their connection.
const SPARES_MAX: usize = 256;
/// A spare that was not taken between so many looks is closed.
const LOOKS: u32 = 3;

/// A connection that was set up and that nothing reads yet.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) stream: TcpStream,
    pub(super) user: Option<AclUser>,
    /// The process that it was made to; known where it is registered.
    pub(super) run_id: Option<String>,
    /// What is to be retired after its end.
    pub(super) ended: Ended,
}

impl Prepared {
    /// Whether Redis has neither closed it nor sent anything on it.
    fn is_fresh(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// The spares of one thread.
#[derive(Debug, Default)]
pub(super) struct Spares {
    ready: RefCell<HashMap<ConnectionProfile, Spare>>,
    /// Whether clients have asked for own connections lately.
    are_wanted: Cell<bool>,
    is_closed: Cell<bool>,
    begun: Cell<u64>,
}

#[derive(Debug)]
enum Spare {
    InTheMaking(Making),
    Ready { connection: Box<Prepared>, looks: u32 },
}

/// One that is being made, and that nothing else is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Making(u64);

impl Spares {
    /// The spare for clients of this profile, where there is one to the Redis process `run_id` that
    /// Redis has not closed. An unusable one is given to `retire`.
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

    /// Begins to make one, where it is wanted and there is none.
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

    /// Keeps what was made. Where it is not wanted any more, what is to be retired.
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

    /// It could not be made.
    pub(super) fn forget(&self, profile: &ConnectionProfile, making: Making) {
        let mut ready = self.ready.borrow_mut();
        if ready.get(profile).is_some_and(|spare| spare.is(making)) {
            ready.remove(profile);
        }
    }

    /// Takes out those that nobody took for a while; to be called now and then.
    pub(super) fn take_unused(&self) -> Vec<Ended> {
        let mut unused = Vec::new();
        self.ready.borrow_mut().retain(|_, spare| {
            let Spare::Ready { looks, connection } = spare else { return true };
            *looks += 1;
            let stays = *looks < LOOKS && connection.is_fresh();
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

    /// Takes out all; those that are being made are not kept.
    pub(super) fn take_all(&self) -> Vec<Ended> {
        let all = std::mem::take(&mut *self.ready.borrow_mut());
        let ended = all.into_values().filter_map(|spare| match spare {
            Spare::InTheMaking(_) => None,
            Spare::Ready { connection, .. } => Some(connection.ended),
        });
        ended.collect()
    }

    /// As [`Spares::take_all`]; none is made any more.
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
    async fn one_that_comes_too_late_takes_no_place() {
        let (spares, profile) = (Spares::default(), profile());
        assert!(spares.begin(&profile).is_none(), "no client has asked");
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
    async fn none_of_another_process_is_used() {
        let (spares, profile) = (Spares::default(), profile());
        spares.take(&profile, "a", |_| ());
        let making = spares.begin(&profile).unwrap();
        let (connection, _redis) = prepared("one").await;
        assert!(spares.keep(&profile, making, connection).is_none());
        let mut retired = None;
        assert!(spares.take(&profile, "b", |ended| retired = ended.user).is_none());
        assert_eq!(retired.as_deref(), Some("one"));
    }
}
