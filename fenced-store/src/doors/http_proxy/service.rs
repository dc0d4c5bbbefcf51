//! The lanes while this guard may serve them, and their marks for the API.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::wire::lane::{LanePage, QuarantineRequest};
use fence_protocol::{LockName, Namespace, Token};
use service_kit::Kit;

use super::ProxyError;
use super::client::Client;
use super::conditions::Conditions;
use super::election::Election;
use super::journal::{FileJournal, Journal};
use super::lane::Inherited;
use super::lanes::{Lanes, whole_ms};
use super::term::Term;
use super::upstream::{LaneState, Upstream};
use crate::counters::Counters;
use crate::stores::contract::{
    FenceList, FenceOutcome, FenceQuery, Fences, QuarantineChange, StoreError,
};
use crate::stores::redis::RedisOptions;
use crate::stores::redis::lanes::LanesInRedis;
use crate::stores::report::StoreReport;
use crate::verdict::{Fence, Mark};

/// Lanes and connections of one term.
#[derive(Debug)]
pub(super) struct ServedTerm {
    pub(super) lanes: Arc<Lanes>,
    pub(super) client: Client,
}

/// The lanes before one upstream, of a guard alone or of a leader and its standby.
#[derive(Debug)]
pub struct LaneService {
    seat: Seat,
    /// Conditions of writes, if the upstream checks any.
    conditions: Option<Arc<Conditions>>,
    target: String,
    lifetime_ms: u64,
}

#[derive(Debug)]
enum Seat {
    /// The only guard: its term has no end.
    Alone { file: FileJournal, term: Arc<ServedTerm> },
    /// One of several guards.
    Elected(Arc<Office>),
}

/// Lead of the lanes, held by this guard or another.
#[derive(Debug)]
pub(super) struct Office {
    pub(super) lanes: LanesInRedis,
    /// Time to live of this guard's leases.
    ttl: Duration,
    term: RwLock<Option<Arc<ServedTerm>>>,
    /// Leader as last seen, for refusals.
    leader: Mutex<Option<String>>,
}

impl Office {
    /// Begins to serve a term.
    pub(super) fn set_term(&self, term: ServedTerm) {
        *self.term.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(term));
    }

    /// Ends the service of a term.
    pub(super) fn take_term(&self) -> Option<Arc<ServedTerm>> {
        self.term.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Records which guard leads, as far as this one knows.
    pub(super) fn set_leader(&self, leader: Option<String>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
    }

    /// Sets the floor, and returns once no lane that is open below it is served: those of this
    /// guard end with its term, and another leader confirms its own no more.
    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        let floor = self.lanes.store.set_floor(floor).await?;
        let lead = self.lanes.lead().await?;
        match self.term() {
            Ok(_) if floor.is_some_and(|floor| floor.get() == lead.floor) => {}
            Ok(term) => term.client.term().end_because("the floor was set".to_owned()),
            Err(_) => tokio::time::sleep(lead.ttl.max(self.ttl)).await,
        }
        Ok(floor)
    }

    fn term(&self) -> Result<Arc<ServedTerm>, StoreError> {
        let term = self.term.read().unwrap_or_else(PoisonError::into_inner).clone();
        term.filter(|term| term.client.term().holds()).ok_or_else(|| {
            let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone();
            StoreError::NotLeader { leader }
        })
    }
}

impl LaneService {
    pub(super) async fn open(
        upstream: &Upstream,
        conditions: Option<Arc<Conditions>>,
        namespace: &Namespace,
        redis: RedisOptions,
        counters: &Counters,
        kit: &Kit,
    ) -> Result<Arc<Self>, ProxyError> {
        let seat = match &upstream.state {
            LaneState::Folder(folder) => Self::alone(folder, upstream, counters, kit).await?,
            LaneState::Shared(options) => {
                let target = options.redis.clone();
                let lock = &options.lock;
                let lanes = LanesInRedis::open(target, namespace, lock, redis, kit).await;
                let lanes = lanes.map_err(ProxyError::Redis)?;
                let office = Arc::new(Office {
                    lanes,
                    ttl: options.ttl.duration(),
                    term: RwLock::default(),
                    leader: Mutex::default(),
                });
                let election = Election::new(
                    Arc::clone(&office),
                    (**options).clone(),
                    upstream.clone(),
                    counters.clone(),
                    kit.clone(),
                );
                kit.tasks.spawn(election.run());
                Seat::Elected(office)
            }
        };
        let target = upstream.url.to_string();
        let lifetime_ms = whole_ms(upstream.max_request_lifetime);
        Ok(Arc::new(Self { seat, conditions, target, lifetime_ms }))
    }

    /// Returns the conditions of writes, if the upstream checks any.
    pub(super) fn conditions(&self) -> Option<&Arc<Conditions>> {
        self.conditions.as_ref()
    }

    async fn alone(
        folder: &std::path::Path,
        upstream: &Upstream,
        counters: &Counters,
        kit: &Kit,
    ) -> Result<Seat, ProxyError> {
        let file = FileJournal::open(folder, kit)?;
        let open = file.open_lanes().await?;
        let until_ms = kit.clock.monotonic_ms() + whole_ms(upstream.max_request_lifetime);
        let inherited = Inherited::of_restart(until_ms);
        let term = Term::default();
        let journal = Journal::in_file(file.clone());
        let lanes = Lanes::start(upstream, journal, term.clone(), open, inherited, counters, kit);
        let client = Client::new(upstream, term, &kit.tasks);
        Ok(Seat::Alone { file, term: Arc::new(ServedTerm { lanes, client }) })
    }

    /// Returns the lanes and connections that may be used now.
    ///
    /// # Errors
    /// [`StoreError::NotLeader`].
    pub(super) fn term(&self) -> Result<Arc<ServedTerm>, StoreError> {
        match &self.seat {
            Seat::Alone { term, .. } => Ok(Arc::clone(term)),
            Seat::Elected(office) => office.term(),
        }
    }
}

#[async_trait]
impl Fences for LaneService {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Bounded
    }

    fn report(&self) -> StoreReport {
        let lifetime = self.lifetime_ms;
        let mut gaps = vec![format!(
            "Effects of the datastore later than {lifetime} ms (--max-request-lifetime) after a \
             connection broke are not fenced."
        )];
        let shown = match &self.conditions {
            None => "the datastore itself cannot be probed",
            Some(conditions) if conditions.is_trusted() => {
                gaps[0].push_str(" A PUT whose reply is atomic is, for its resource.");
                &conditions.shown
            }
            Some(_) => "the datastore passed the probe at start and reused an ETag later",
        };
        let place = match &self.seat {
            Seat::Alone { file, .. } => {
                gaps.push(
                    "A second proxy with a state folder of its own is not noticed, and shares no \
                     marks."
                        .to_owned(),
                );
                file.path().display().to_string()
            }
            Seat::Elected(office) => {
                gaps.push(
                    "A leader that is stopped between its check of the time and the system call that \
                     sends may send later; nothing but the upstream bounds that."
                        .to_owned(),
                );
                let report = office.lanes.store.report();
                gaps.extend(report.gaps);
                report.target
            }
        };
        StoreReport {
            kind: "http",
            target: self.target.clone(),
            guarantee: Guarantee::Bounded,
            probe: format!("marks and open lanes are durable in {place}; {shown}"),
            gaps,
        }
    }

    async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        match &self.seat {
            Seat::Alone { file, .. } => file.record(fence).await,
            Seat::Elected(office) => {
                // A mark that the leader's lanes do not know of would stop its commits.
                office.term()?;
                office.lanes.store.record(fence).await
            }
        }
    }

    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        match &self.seat {
            Seat::Alone { .. } => Ok(None),
            Seat::Elected(office) => office.set_floor(floor).await,
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        match &self.seat {
            Seat::Alone { file, .. } => {
                file.check()?;
                Ok(file.highest())
            }
            Seat::Elected(office) => office.lanes.store.highest_mark().await,
        }
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.term()?.lanes.seal(&fence).await
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        match &self.seat {
            Seat::Alone { file, .. } => file.mark(lock).await,
            Seat::Elected(office) => office.lanes.mark(lock).await,
        }
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        match &self.seat {
            Seat::Alone { file, .. } => file.list(query).await,
            Seat::Elected(office) => office.lanes.store.list(query).await,
        }
    }

    fn lanes(&self, query: &FenceQuery) -> Result<Option<LanePage>, StoreError> {
        Ok(Some(self.term()?.lanes.page(query)))
    }

    fn change_quarantine(
        &self,
        lock: &LockName,
        request: &QuarantineRequest,
    ) -> Result<Option<QuarantineChange>, StoreError> {
        Ok(Some(self.term()?.lanes.change(lock, request)))
    }
}
