//! Lead of lanes that several guards share: campaign, take-over, renewal, end.
//!
//! The lock server decides which guard leads, and Redis decides for how long: a term is extended
//! only if both confirm it. From the step on by which a later leader has taken the lanes over,
//! Redis confirms no earlier one. So an earlier leader trusts its term for at most 0.8 of its time
//! to live from there, whatever the lock server forgot, revoked or granted twice.

mod lease;

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::Token;
use fence_protocol::wire::lane::QuarantineCause;
use service_kit::health::Status;
use service_kit::{Kit, clock};

use self::lease::{Acquired, Lease, LeaseError, Leases};
use super::client::Client;
use super::journal::Journal;
use super::lane::Inherited;
use super::lanes::{Lanes, whole_ms};
use super::leadership::{Leadership, ServedTerm};
use super::term::Term;
use super::upstream::{ElectionOptions, Upstream};
use crate::counters::Counters;
use crate::stores::redis::lanes::{LanesInRedis, LeadError, TakenOver};

/// Name in `/readyz?verbose`.
const CHECK: &str = "leader";
/// Pause before a failed call is retried.
const RETRY: Duration = Duration::from_millis(200);
/// Longest pause between the end of a term and the next campaign: what ended it may persist.
const REST: Duration = Duration::from_secs(1);
/// Longest wait for lanes to close when the process ends.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
const CLOSE_POLL: Duration = Duration::from_millis(20);

/// Reason of the end of a term at the end of the process.
const ENDS: &str = "the process ends";

/// One guard of an election.
#[derive(Debug)]
pub(super) struct Election {
    leadership: Arc<Leadership>,
    options: ElectionOptions,
    upstream: Arc<Upstream>,
    counters: Counters,
    kit: Kit,
    leases: Leases,
    /// The next token must exceed this one: a later leader has it.
    min_token: Option<Token>,
}

impl Election {
    /// Starts to campaign for the lead of `lanes`.
    pub(super) fn start(
        lanes: LanesInRedis,
        options: &ElectionOptions,
        upstream: &Arc<Upstream>,
        counters: &Counters,
        kit: &Kit,
    ) -> Arc<Leadership> {
        let leadership = Arc::new(Leadership::new(lanes, options.ttl.duration()));
        let election = Self {
            leadership: Arc::clone(&leadership),
            options: options.clone(),
            upstream: Arc::clone(upstream),
            counters: counters.clone(),
            kit: kit.clone(),
            leases: Leases::new(options),
            min_token: None,
        };
        kit.tasks.spawn(election.run());
        leadership
    }

    /// Campaigns and leads in turns, until the process ends.
    async fn run(mut self) {
        let stop = self.kit.tasks.shutdown_token();
        self.stand_by("no lock server has replied yet");
        loop {
            let lease = stop.run_until_cancelled(self.campaign()).await;
            let Some(lease) = lease else { return self.leases.withdraw().await };
            let term = Term::until(lease.until_ms);
            let why = self.lead(&term, &lease).await;
            term.end();
            self.step_down();
            let token = lease.token;
            tracing::warn!(%token, lock = %self.options.lock, "this guard leads no more: {why}");
            self.leases.release(lease.id).await;
            self.stand_by(&why);
            let rest = tokio::time::sleep(REST.min(self.options.ttl.duration() / 3));
            if stop.run_until_cancelled(rest).await.is_none() {
                return;
            }
        }
    }

    /// Waits until this guard has the lease.
    async fn campaign(&mut self) -> Lease {
        let mut is_leader_known = false;
        loop {
            match self.leases.acquire(self.min_token, is_leader_known).await {
                Ok(Acquired::Granted(lease)) => return lease,
                Ok(Acquired::Held(owner)) => {
                    is_leader_known = true;
                    self.stand_by(&format!("{owner} leads"));
                    self.leadership.set_leader(Some(owner));
                }
                Err(why) => {
                    is_leader_known = false;
                    self.leadership.set_leader(None);
                    self.stand_by(&format!("the leader is unknown: {why}"));
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Leads until the term ends, and returns the reason.
    async fn lead(&mut self, term: &Term, lease: &Lease) -> String {
        let stop = self.kit.tasks.shutdown_token();
        let taken = tokio::select! {
            () = stop.cancelled() => return ENDS.to_owned(),
            taken = self.take_over(lease) => taken,
            () = expired(term) => return "the lease ended before the lanes were taken over".to_owned(),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(why) => return why,
        };
        let serve = self.serve(term, lease, &taken);
        let renew = self.renew(term, lease, &taken);
        tokio::select! {
            biased;
            why = term.ended() => why,
            () = expired(term) => "the lease was not renewed in time".to_owned(),
            why = renew => why,
            why = serve => why,
        }
    }

    /// Writes this guard's token into the lanes' state: from here no earlier leader can commit.
    async fn take_over(&mut self, lease: &Lease) -> Result<TakenOver, String> {
        loop {
            let lanes = &self.leadership.lanes;
            match lanes.take_over(lease.token, lease.id, self.options.ttl.ms()).await {
                Ok(taken) => return Ok(taken),
                Err(error @ LeadError::Deposed { by }) => {
                    self.min_token = self.min_token.max(by);
                    return Err(error.to_string());
                }
                Err(error @ LeadError::Refused(_)) => {
                    return Err(format!("the lanes cannot be taken over: {error}"));
                }
                Err(LeadError::Failed(why)) => {
                    self.stand_by(&format!("the lanes cannot be taken over: {why}"));
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Serves the lanes until the process ends and they are closed.
    async fn serve(&self, term: &Term, lease: &Lease, taken: &TakenOver) -> String {
        // An earlier leader may trust its term for this long, its kernel may deliver what it sent
        // for this long, and the upstream may act on that for this long.
        let lifetime_ms = whole_ms(self.upstream.max_request_lifetime);
        let sends_ms = taken.ttl_ms + whole_ms(self.upstream.unacknowledged());
        let quarantine_ms = sends_ms + lifetime_ms;
        let now_ms = self.kit.clock.monotonic_ms();
        let inherited = Inherited {
            cause: QuarantineCause::TakeOver,
            until_ms: now_ms + quarantine_ms,
            unresolvable_until_ms: now_ms + sends_ms,
        };
        let stop = self.kit.tasks.shutdown_token();
        if !taken.has_predecessor {
            // Redis is new, or was emptied, and with it the list of open lanes.
            let text = format!("waits {quarantine_ms} ms for writes of guards that Redis forgot");
            self.stand_by(&text);
            let waits = tokio::time::sleep(Duration::from_millis(quarantine_ms));
            if stop.run_until_cancelled(waits).await.is_none() {
                return ENDS.to_owned();
            }
        }
        let journal =
            Journal::of_leader(self.leadership.lanes.clone(), taken.leader.clone(), term.clone());
        let open = taken.open.clone();
        let lanes = Lanes::start(
            &self.upstream,
            journal,
            term.clone(),
            open,
            inherited,
            &self.counters,
            &self.kit,
        );
        let client = Client::new(&self.upstream, term.clone(), &self.kit.tasks);
        self.leadership.set_term(ServedTerm { lanes: Arc::clone(&lanes), client });
        self.leadership.set_leader(None);
        self.counters.is_leader.set(1);
        self.counters.takeovers.inc();
        let text = format!("this guard leads with token {}", lease.token);
        self.kit.health.set(CHECK, Status::Info(text));
        stop.cancelled().await;
        let closed = async {
            while !lanes.are_closed() {
                tokio::time::sleep(CLOSE_POLL).await;
            }
        };
        // Lanes that stay open are quarantined by the next leader.
        let _ = tokio::time::timeout(CLOSE_WITHIN, closed).await;
        ENDS.to_owned()
    }

    /// Extends the term at a third of the time to live. Returns the reason of its end.
    async fn renew(&self, term: &Term, lease: &Lease, taken: &TakenOver) -> String {
        let ttl = self.options.ttl.duration();
        let mut leases = Leases::new(&self.options);
        let mut pause = ttl / 3;
        loop {
            tokio::time::sleep(pause).await;
            let sent_ms = clock::boottime_ms();
            let ttl_ms = match leases.renew(lease, term.remaining() / 2).await {
                Ok(ttl_ms) => ttl_ms,
                Err(LeaseError::Lost(why)) => return why,
                Err(LeaseError::Failed(why)) => {
                    tracing::warn!("the lead is not renewed, retrying: {why}");
                    pause = RETRY.min(ttl / 8);
                    continue;
                }
            };
            match self.leadership.lanes.confirm(&taken.leader).await {
                Ok(()) => {}
                Err(error @ (LeadError::Deposed { .. } | LeadError::Refused(_))) => {
                    return error.to_string();
                }
                Err(LeadError::Failed(why)) => {
                    tracing::warn!("the lead is not confirmed, retrying: {why}");
                    pause = RETRY.min(ttl / 8);
                    continue;
                }
            }
            if !term.extend(leases.trusted_until(sent_ms, ttl_ms)) {
                return "the lease was renewed too late".to_owned();
            }
            pause = ttl / 3;
        }
    }

    /// Cuts the connections of the term, and refuses whatever waits.
    fn step_down(&self) {
        let term = self.leadership.take_term();
        if let Some(term) = term {
            term.lanes.abandon_all();
        }
        self.counters.is_leader.set(0);
    }

    fn stand_by(&self, why: &str) {
        self.kit.health.set(CHECK, Status::Standby(why.to_owned()));
    }
}

/// Waits until the term is no longer trusted.
async fn expired(term: &Term) {
    while term.holds() {
        tokio::time::sleep(term.remaining()).await;
    }
}
