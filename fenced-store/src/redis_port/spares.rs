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
use super::hub::Likeness;
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
    ready: RefCell<HashMap<Likeness, Spare>>,
    /// Whether clients have asked for own connections lately.
    are_wanted: Cell<bool>,
}

#[derive(Debug)]
enum Spare {
    InTheMaking,
    Ready { connection: Prepared, looks: u32 },
}

impl Spares {
    /// The spare for clients of this likeness, where there is one that Redis has not closed; an
    /// unusable one is given to `retire`.
    pub(super) fn take(&self, likeness: &Likeness, retire: impl FnOnce(Ended)) -> Option<Prepared> {
        self.are_wanted.set(true);
        let mut ready = self.ready.borrow_mut();
        if !matches!(ready.get(likeness), Some(Spare::Ready { .. })) {
            return None;
        }
        let Some(Spare::Ready { connection, .. }) = ready.remove(likeness) else { return None };
        if connection.is_fresh() {
            return Some(connection);
        }
        retire(connection.ended);
        None
    }

    /// Whether one is to be made; if so, it counts as being made until [`Spares::keep`] or
    /// [`Spares::forget`].
    pub(super) fn begin(&self, likeness: &Likeness) -> bool {
        let mut ready = self.ready.borrow_mut();
        let begins =
            self.are_wanted.get() && ready.len() < SPARES_MAX && !ready.contains_key(likeness);
        if begins {
            ready.insert(likeness.clone(), Spare::InTheMaking);
        }
        begins
    }

    /// Keeps one that was begun; gives it back where it was forgotten meanwhile.
    pub(super) fn keep(&self, likeness: &Likeness, connection: Prepared) -> Result<(), Prepared> {
        match self.ready.borrow_mut().get_mut(likeness) {
            Some(spare @ Spare::InTheMaking) => {
                *spare = Spare::Ready { connection, looks: 0 };
                Ok(())
            }
            _ => Err(connection),
        }
    }

    /// It could not be made.
    pub(super) fn forget(&self, likeness: &Likeness) {
        self.ready.borrow_mut().remove(likeness);
    }

    /// Takes out those that nobody took for a while; to be called now and then.
    pub(super) fn take_unused(&self) -> Vec<Ended> {
        let mut unused = Vec::new();
        self.ready.borrow_mut().retain(|_, spare| {
            let Spare::Ready { looks, connection } = spare else { return true };
            *looks += 1;
            let stays = *looks < LOOKS && connection.is_fresh();
            if !stays {
                unused.push(std::mem::replace(&mut connection.ended, Ended::default()));
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
            Spare::InTheMaking => None,
            Spare::Ready { connection, .. } => Some(connection.ended),
        });
        ended.collect()
    }
}
