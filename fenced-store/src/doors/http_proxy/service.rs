//! The lanes while this guard may serve them, and their marks for the API.

use std::sync::Arc;

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::wire::lane::{LanePage, QuarantineRequest};
use fence_protocol::{LockName, Namespace, Token};
use service_kit::Kit;

use super::ProxyError;
use super::client::Client;
use super::conditional;
use super::conditions::Conditions;
use super::election::Election;
use super::journal::{FileJournal, Journal};
use super::lane::Inherited;
use super::lanes::{Lanes, whole_ms};
use super::leadership::{Leadership, ServedTerm};
use super::term::Term;
use super::upstream::{LaneState, Upstream};
use crate::counters::Counters;
use crate::stores::contract::{
    FenceList, FenceOutcome, FenceQuery, Fences, QuarantineChange, StoreError,
};
use crate::stores::redis::RedisOptions;
use crate::stores::redis::lanes::LanesInRedis;
use crate::stores::report::{Gaps, StoreReport};
use crate::verdict::{Fence, Mark};

/// The lanes before one upstream, of a guard alone or of a leader and its standby.
#[derive(Debug)]
pub struct LaneService {
    leader: Leader,
    /// Conditions of writes, if the upstream checks any.
    pub(super) conditions: Option<Arc<Conditions>>,
    pub(crate) upstream: Arc<Upstream>,
}

#[derive(Debug)]
enum Leader {
    /// The only guard: its term has no end.
    Alone { file: FileJournal, term: Arc<ServedTerm> },
    /// One of several guards.
    Elected(Arc<Leadership>),
}

impl Leader {
    async fn alone(
        folder: &std::path::Path,
        upstream: &Arc<Upstream>,
        counters: &Counters,
        kit: &Kit,
    ) -> Result<Self, ProxyError> {
        let file = FileJournal::open(folder, kit)?;
        let open = file.open_lanes().await?;
        let until_ms = kit.clock.monotonic_ms() + whole_ms(upstream.max_request_lifetime);
        let inherited = Inherited::of_restart(until_ms);
        let term = Term::default();
        let journal = Journal::in_file(file.clone());
        let lanes = Lanes::start(upstream, journal, term.clone(), open, inherited, counters, kit);
        let client = Client::new(upstream, term, &kit.tasks);
        Ok(Self::Alone { file, term: Arc::new(ServedTerm { lanes, client }) })
    }
}

/// Probes the upstream, if writes are to be conditional, and opens the lanes' state; operations in
/// flight when the last process ended have an unknown outcome. Where guards share the state, starts
/// to campaign.
///
/// # Errors
/// [`ProxyError`] with the path and the remedy.
pub async fn open(
    upstream: &Upstream,
    namespace: &Namespace,
    redis: RedisOptions,
    counters: &Counters,
    kit: &Kit,
) -> Result<Arc<LaneService>, ProxyError> {
    let upstream = &Arc::new(upstream.clone());
    let conditions = match &upstream.etag_probe {
        None => None,
        Some(folder) => {
            let probed = conditional::probe(upstream, folder, counters, kit).await;
            let failed = |reason| ProxyError::Probe {
                url: upstream.url.to_string(),
                folder: folder.to_string(),
                reason,
            };
            Some(probed.map_err(failed)?)
        }
    };
    let leader = match &upstream.state {
        LaneState::Folder(folder) => Leader::alone(folder, upstream, counters, kit).await?,
        LaneState::Shared(options) => {
            let target = options.redis.clone();
            let lock = &options.lock;
            let lanes = LanesInRedis::open(target, namespace, lock, redis, kit).await;
            let lanes = lanes.map_err(ProxyError::Redis)?;
            Leader::Elected(Election::start(lanes, options, upstream, counters, kit))
        }
    };
    Ok(Arc::new(LaneService { leader, conditions, upstream: Arc::clone(upstream) }))
}

impl LaneService {
    /// Returns the lanes and connections that may be used now.
    ///
    /// # Errors
    /// [`StoreError::NotLeader`].
    pub(super) fn term(&self) -> Result<Arc<ServedTerm>, StoreError> {
        match &self.leader {
            Leader::Alone { term, .. } => Ok(Arc::clone(term)),
            Leader::Elected(leadership) => leadership.term(),
        }
    }
}

#[async_trait]
impl Fences for LaneService {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Bounded
    }

    fn report(&self) -> StoreReport {
        let lifetime = whole_ms(self.upstream.max_request_lifetime);
        let mut gaps = Gaps::inherent([format!(
            "Effects of the datastore later than {lifetime} ms (--max-request-lifetime) after a \
             connection broke are not fenced."
        )]);
        let shown = match &self.conditions {
            None => "the datastore itself cannot be probed",
            Some(conditions) if conditions.is_trusted() => {
                gaps.inherent[0].push_str(" A PUT whose reply is atomic is, for its resource.");
                &conditions.shown
            }
            Some(_) => "the datastore passed the probe at start and reused an ETag later",
        };
        let place = match &self.leader {
            Leader::Alone { file, .. } => {
                gaps.inherent.push(
                    "A second proxy with a state folder of its own is not noticed, and shares no \
                     marks."
                        .to_owned(),
                );
                file.path().display().to_string()
            }
            Leader::Elected(leadership) => {
                gaps.inherent.push(
                    "A leader that is stopped between its check of the time and the system call that \
                     sends may send later; nothing but the upstream bounds that."
                        .to_owned(),
                );
                let report = leadership.lanes.store.report();
                gaps.inherent.extend(report.gaps.inherent);
                gaps.avoidable = report.gaps.avoidable;
                report.target
            }
        };
        StoreReport {
            kind: "http",
            target: self.upstream.url.to_string(),
            guarantee: Guarantee::Bounded,
            probe: format!("marks and open lanes are durable in {place}; {shown}"),
            gaps,
        }
    }

    async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        match &self.leader {
            Leader::Alone { file, .. } => file.record(fence).await,
            Leader::Elected(leadership) => {
                // A mark that the leader's lanes do not know of would stop its commits.
                leadership.term()?;
                leadership.lanes.store.record(fence).await
            }
        }
    }

    async fn set_floor(&self, floor: Token) -> Result<Option<Token>, StoreError> {
        match &self.leader {
            Leader::Alone { .. } => Ok(None),
            Leader::Elected(leadership) => leadership.set_floor(floor).await,
        }
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        match &self.leader {
            Leader::Alone { file, .. } => {
                file.check()?;
                Ok(file.highest())
            }
            Leader::Elected(leadership) => leadership.lanes.store.highest_mark().await,
        }
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.term()?.lanes.seal(&fence).await
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        match &self.leader {
            Leader::Alone { file, .. } => file.mark(lock).await,
            Leader::Elected(leadership) => leadership.lanes.mark(lock).await,
        }
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        match &self.leader {
            Leader::Alone { file, .. } => file.list(query).await,
            Leader::Elected(leadership) => leadership.lanes.store.list(query).await,
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
