//! The observer of an election.

use std::time::Duration;

use fence_protocol::wire::event::{Event, EventKind};
use fence_protocol::{LockName, Token};

use super::{Election, Leader};
use crate::clock::Moment;
use crate::events::is_passing;
use crate::{Error, EventStream, StreamItem, clock};

/// Pause before a failed query of the leader is retried.
const AGAIN: Duration = Duration::from_millis(500);
/// Period of the queries without an event: the server does not promise an event for every expiry.
const REFRESH_EVERY_MS: u64 = 60_000;

/// State of an election, as an observer sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observed {
    /// The office has this leader.
    Leader(Leader),
    /// The office is vacant.
    Vacant,
    /// The lock server is unreachable: the leader may have changed.
    Unknown(Error),
}

/// Observer of an election; see [`Election::observe`]. It is no candidate and does not delay them.
#[derive(Debug)]
pub struct Observer {
    election: Election,
    lock: LockName,
    stream: EventStream,
    office: Office,
    /// `true` if the leader must be queried, because the events are not complete.
    is_refresh_due: bool,
    /// Moment of the next query in any case.
    refresh_at: Moment,
    /// The grant of a leader that was not returned to the caller yet.
    elected: Option<Box<Event>>,
}

impl Observer {
    pub(super) async fn new(election: Election) -> Result<Self, Error> {
        let lock = election.request.lock_name()?.clone();
        // Before the first query, so that no change is missed in between.
        let stream = election.request.client().events_of(&lock).open().await?;
        let office = Office::default();
        let refresh_at = clock::now();
        Ok(Self { election, lock, stream, office, is_refresh_due: true, refresh_at, elected: None })
    }

    /// Returns the current state first, then each change. An unreachable server is reported once,
    /// as [`Observed::Unknown`], and the state again once the server is reachable.
    ///
    /// Short terms are included if the server remembers them. A leader was in office when the
    /// server sent it, and may not be now.
    ///
    /// Cancel-safe: no change is lost if the future is dropped.
    ///
    /// # Errors
    /// As [`Events::open`](crate::Events::open), except for an unreachable server.
    pub async fn next(&mut self) -> Result<Observed, Error> {
        loop {
            if self.elected.is_some() {
                return Ok(Observed::Leader(self.introduced().await?));
            }
            if self.is_refresh_due {
                if let Some(observed) = self.refresh().await? {
                    return Ok(observed);
                }
                continue;
            }
            let item = tokio::select! {
                biased;
                item = self.stream.next() => item?,
                () = clock::sleep_until(self.refresh_at) => {
                    self.is_refresh_due = true;
                    continue;
                }
            };
            match item {
                StreamItem::Broken(error) if self.office.is_known => return Ok(self.unknown(error)),
                StreamItem::Broken(_) => {}
                StreamItem::Resumed => self.is_refresh_due = true,
                StreamItem::Event { event, .. } => match self.office.apply(&self.lock, &event) {
                    OfficeChange::Nothing => {}
                    OfficeChange::Elected => self.elected = Some(event),
                    OfficeChange::Vacant => return Ok(Observed::Vacant),
                    OfficeChange::Incomplete => self.is_refresh_due = true,
                },
            }
        }
    }

    /// Queries the leader; returns it if that is a change.
    async fn refresh(&mut self) -> Result<Option<Observed>, Error> {
        match self.election.leader().await {
            Ok(leader) => {
                self.is_refresh_due = false;
                self.refresh_at = clock::now().plus_ms(REFRESH_EVERY_MS);
                let is_news = self.office.update(leader.as_ref().map(|leader| leader.token));
                Ok(is_news.then(|| leader.map_or(Observed::Vacant, Observed::Leader)))
            }
            Err(error) if is_passing(&error) && self.office.is_known => {
                Ok(Some(self.unknown(error)))
            }
            Err(error) if is_passing(&error) => {
                tokio::time::sleep(AGAIN).await;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn unknown(&mut self, error: Error) -> Observed {
        self.office.is_known = false;
        Observed::Unknown(error)
    }

    /// Returns the elected leader, with the metadata of its lock if it is still in office.
    async fn introduced(&mut self) -> Result<Leader, Error> {
        let shown = match self.election.leader().await {
            Ok(shown) => shown,
            Err(error) if is_passing(&error) => None,
            Err(error) => return Err(error),
        };
        let elected = self.elected.take().and_then(|event| Leader::from_event(&event));
        let is_same = |leader: &Leader| elected.as_ref().is_none_or(|h| h.token == leader.token);
        match (shown.filter(is_same), elected) {
            (Some(leader), _) | (None, Some(leader)) => Ok(leader),
            // `Office::apply` accepts no grant without these.
            (None, None) => unreachable!("a grant names its owner, its lease and its token"),
        }
    }
}

impl Leader {
    fn from_event(event: &Event) -> Option<Self> {
        Some(Self {
            owner: event.owner.clone()?,
            token: event.token?,
            lease_id: event.lease_id?,
            held_ms: event.happened_ms_ago(),
            metadata: None,
        })
    }
}

/// Change of the office by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfficeChange {
    Nothing,
    Elected,
    Vacant,
    Incomplete,
}

/// The known state of the office. Pure.
#[derive(Clone, Copy, Debug, Default)]
struct Office {
    leader: Option<Token>,
    /// The latest known term.
    latest: Option<Token>,
    is_known: bool,
}

impl Office {
    /// Applies the reply to a query; `true` if it is a change.
    fn update(&mut self, leader: Option<Token>) -> bool {
        let is_news = !self.is_known || leader != self.leader;
        *self = Self { leader, latest: leader.max(self.latest), is_known: true };
        is_news
    }

    /// Applies an event. Events may arrive in another order than their tokens: the end of a term
    /// may follow the start of the next one, and belong to a term that a query has returned
    /// already.
    fn apply(&mut self, lock: &LockName, event: &Event) -> OfficeChange {
        if event.kind == EventKind::Gap && event.lock.as_ref().is_none_or(|known| known == lock) {
            return OfficeChange::Incomplete;
        }
        if event.lock.as_ref() != Some(lock) || event.token.is_none() {
            return OfficeChange::Nothing;
        }
        if event.kind == EventKind::Granted && event.token > self.latest {
            if event.owner.is_none() || event.lease_id.is_none() {
                return OfficeChange::Incomplete;
            }
            (self.leader, self.latest) = (event.token, event.token);
            return OfficeChange::Elected;
        }
        if event.kind.is_end() && event.token == self.leader {
            self.leader = None;
            return OfficeChange::Vacant;
        }
        OfficeChange::Nothing
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::Owner;

    use super::*;

    fn event(kind: EventKind, lock: &str, token: u64) -> Event {
        let mut event = Event::new(kind).lock(&LockName::new(lock).unwrap());
        event.token = Token::new(token).ok();
        event.owner = Owner::new("a").ok();
        event.lease_id = Some(crate::ids::lease_id());
        event
    }

    fn apply(office: &mut Office, kind: EventKind, token: u64) -> OfficeChange {
        office.apply(&LockName::new("a").unwrap(), &event(kind, "a", token))
    }

    #[test]
    fn each_term_is_returned_once_in_any_order_of_events() {
        use EventKind::{Expired, Granted, Released, Superseded};
        let mut office = Office::default();
        assert!(office.update(Token::new(4).ok()), "the first query is a change");
        assert!(!office.update(Token::new(4).ok()));
        assert_eq!(apply(&mut office, Granted, 4), OfficeChange::Nothing, "it was seen");
        assert_eq!(apply(&mut office, Released, 3), OfficeChange::Nothing, "it ended before");
        assert_eq!(apply(&mut office, Granted, 5), OfficeChange::Elected);
        assert_eq!(apply(&mut office, Superseded, 4), OfficeChange::Nothing, "it arrived late");
        assert_eq!(apply(&mut office, Expired, 5), OfficeChange::Vacant);
        assert_eq!(apply(&mut office, Expired, 5), OfficeChange::Nothing);
        assert_eq!(apply(&mut office, Granted, 5), OfficeChange::Nothing, "that term is over");
    }

    #[test]
    fn other_locks_change_nothing_and_a_gap_causes_a_query() {
        let mut office = Office::default();
        let lock = LockName::new("a").unwrap();
        office.update(None);
        let granted = event(EventKind::Granted, "a/b", 9);
        assert_eq!(office.apply(&lock, &granted), OfficeChange::Nothing);
        assert_eq!(office.apply(&lock, &event(EventKind::Gap, "a/b", 9)), OfficeChange::Nothing);
        for gap in [Event::new(EventKind::Gap), event(EventKind::Gap, "a", 9)] {
            assert_eq!(office.apply(&lock, &gap), OfficeChange::Incomplete);
        }
        office.is_known = false;
        assert!(office.update(None), "an unknown state is returned again");
    }
}
