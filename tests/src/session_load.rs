//! Processes that hold many locks under one heartbeat, and note what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{LeaseId, SessionId};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::{Locks, Reply};
use crate::history::{Granted, History};
use crate::key_file::{lease_id, session_id};
use crate::seed::Seed;
use crate::session_client::Sessions;
use crate::wait::{patience, soon, until_true};

/// Longer than a death, shorter than a run: heartbeats are what keeps the leases.
const TTL_MS: u64 = 4_000;
/// Between two tries of a request that got no answer.
const PAUSE: Duration = Duration::from_millis(5);

/// Processes at work, each with one session after the other.
#[derive(Debug)]
pub struct SessionLoad {
    history: Arc<History>,
    rounds: Arc<AtomicU64>,
    stop: CancellationToken,
    workers: Vec<JoinHandle<()>>,
}

impl SessionLoad {
    /// Sets `workers` processes to work on these locks. Each begins a session, acquires some of
    /// them in its name, in the order of their names, renews the session, has a supervisor take one
    /// of them over at times, lets one go, and ends the session or is silent until it ends by
    /// itself. Every request without an answer is repeated with the same ids.
    pub fn start(locks: &Locks, names: &[String], workers: usize, seed: &mut Seed) -> Self {
        Self::with(locks, names, workers, seed, true)
    }

    /// Starts the load on a store that offers no takeover: no request asks for one.
    pub fn without_takeover(
        locks: &Locks,
        names: &[String],
        workers: usize,
        seed: &mut Seed,
    ) -> Self {
        Self::with(locks, names, workers, seed, false)
    }

    fn with(
        locks: &Locks,
        names: &[String],
        workers: usize,
        seed: &mut Seed,
        takes_over: bool,
    ) -> Self {
        let history = Arc::new(History::new());
        let rounds = Arc::new(AtomicU64::new(0));
        let stop = CancellationToken::new();
        let tasks = (0..workers).map(|number| {
            let worker = Worker {
                owner: format!("process {number}"),
                locks: locks.clone(),
                sessions: Sessions(locks.0.clone()),
                names: names.to_vec(),
                history: history.clone(),
                seed: seed.fork(),
                takes_over,
            };
            tokio::spawn(worker.run(rounds.clone(), stop.clone()))
        });
        let workers = tasks.collect();
        Self { history, rounds, stop, workers }
    }

    /// Waits until so many more sessions have been through.
    ///
    /// # Panics
    /// If a process panicked, or they stand still.
    pub async fn progress(&self, sessions: u64) {
        let goal = self.rounds.load(Ordering::SeqCst) + sessions;
        until_true("the processes to make progress", || async {
            let dead = self.workers.iter().any(JoinHandle::is_finished);
            assert!(!dead, "a process panicked; see above");
            self.rounds.load(Ordering::SeqCst) >= goal
        })
        .await;
    }

    /// Lets every process come to the end of its session, and checks what DESIGN promises.
    ///
    /// # Panics
    /// If an invariant is broken, or a process does not come to its end.
    pub async fn judge(self) {
        self.stop.cancel();
        for worker in self.workers {
            soon("a process to finish", worker).await.expect("no process panicked");
        }
        let grants = self.history.grants();
        let kept = grants.iter().filter(|grant| grant.kept_ns.is_some()).count();
        eprintln!("{} grants, {kept} of them kept by heartbeats", grants.len());
        crate::checks::tokens_rise(&grants).unwrap();
        crate::checks::one_grant_an_id(&grants).unwrap();
        assert_eq!(crate::checks::overlaps(&grants), Vec::<String>::new());
        assert!(kept > 0, "no heartbeat kept a lease: the run shows nothing");
    }
}

/// Final reply to a request that is retried until it is answered.
#[derive(Debug)]
struct Answer {
    reply: Reply,
    /// `true` if an earlier try may have been carried out, too.
    is_repeat: bool,
    /// When the try that was answered began.
    invoked_ns: u64,
}

impl Answer {
    /// Time to live of the session as the reply has it: less than the request's if Redis' clock was
    /// ahead of the time that the server assumed.
    fn expires_in_ms(&self) -> u64 {
        let expires_in_ms = self.reply.json()["expires_in_ms"].as_u64().expect("a session");
        assert!(expires_in_ms <= TTL_MS, "more than was asked: {self:?}");
        expires_in_ms
    }

    /// Time until which the session certainly lives, by the history's clock.
    fn until_ns(&self) -> u64 {
        self.invoked_ns + self.expires_in_ms() * 1_000_000
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
enum Call<'a> {
    Create(&'a Value),
    Heartbeat(SessionId),
    End(SessionId),
    /// A verb on a lock.
    Lock(&'a str, &'a str, &'a Value),
}

/// The session of a process, and what it believes to hold.
struct Held {
    session: SessionId,
    leases: Vec<LeaseReply>,
    /// Until when the session certainly lives, by the history's clock.
    until_ns: u64,
}

struct Worker {
    owner: String,
    locks: Locks,
    sessions: Sessions,
    names: Vec<String>,
    history: Arc<History>,
    seed: Seed,
    takes_over: bool,
}

impl Worker {
    async fn run(mut self, rounds: Arc<AtomicU64>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            self.round().await;
            rounds.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn round(&mut self) {
        let mut held = self.begin().await;
        let names = self.names.clone();
        for name in names {
            if self.seed.below(2) == 0 && !self.acquire(&mut held, &name).await {
                return;
            }
            if self.seed.below(3) == 0 && !self.beat(&mut held).await {
                return;
            }
        }
        if !self.beat(&mut held).await {
            return;
        }
        if self.takes_over && self.seed.below(3) == 0 {
            self.supervise(&mut held).await;
        }
        if self.seed.below(3) == 0
            && let Some(lease) = held.leases.pop()
        {
            self.release(&lease).await;
        }
        self.end(&held).await;
        for lease in &held.leases {
            self.gone(&held, lease).await;
        }
    }

    async fn begin(&self) -> Held {
        let session = session_id();
        let ask = json!({"owner": self.owner, "ttl_ms": TTL_MS, "session_id": session});
        let answer = self.answered(Call::Create(&ask), &[200]).await;
        Held { session, leases: Vec::new(), until_ns: answer.until_ns() }
    }

    /// `true` if the session lives still. It never ends before its time.
    fn lives(&self, held: &Held, answer: &Answer) -> bool {
        if answer.reply.status == 200 {
            return true;
        }
        let text = format!("a session ended before its time: {answer:?}");
        assert!(self.history.now_ns() >= held.until_ns, "{text}");
        false
    }

    async fn beat(&self, held: &mut Held) -> bool {
        let answer = self.answered(Call::Heartbeat(held.session), &[200, 404, 410]).await;
        if !self.lives(held, &answer) {
            return false;
        }
        let invoked_ns = answer.invoked_ns;
        held.until_ns = answer.until_ns();
        for lease in &held.leases {
            self.history.kept(lease.lease_id, invoked_ns, answer.expires_in_ms());
        }
        true
    }

    /// Acquires the lock in the session's name; false if the session has ended. If no holder
    /// releases it, or the grant was rolled back because it could not be delivered, there is none.
    async fn acquire(&mut self, held: &mut Held, name: &str) -> bool {
        let lease = lease_id();
        let ask = json!({"lease_id": lease, "session_id": held.session, "wait_ms": 300,
                         "owner": self.owner});
        let Some(granted) = self.granted(held, name, lease, &ask, None).await else {
            return self.history.now_ns() < held.until_ns;
        };
        if self.seed.below(3) == 0 {
            // L3, at whatever server comes next.
            self.granted(held, name, lease, &ask, Some(&granted)).await;
        }
        held.leases.push(granted);
        true
    }

    /// The grant, if there is one; `known` is an earlier answer to the same request.
    async fn granted(
        &self,
        held: &Held,
        name: &str,
        lease: LeaseId,
        ask: &Value,
        known: Option<&LeaseReply>,
    ) -> Option<LeaseReply> {
        let invoked_ns = self.history.now_ns();
        let call = Call::Lock(name, "acquire", ask);
        let answer = self.answered(call, &[200, 404, 410, 423]).await;
        match answer.reply.status {
            200 => {}
            423 => {
                assert!(known.is_none(), "{known:?} was forgotten: {answer:?}");
                return None;
            }
            _ if answer.reply.json()["code"] == "lease-lost" => {
                let reason = answer.reply.json()["reason"].clone();
                let text = format!("{known:?} ended before any client released it: {answer:?}");
                // A grant that its server could not claim in time expires, and nothing else does.
                let unheard = known.is_none() && (answer.is_repeat || reason == "expired");
                assert!(unheard || reason == "session-ended", "{text}");
                return None;
            }
            _ => {
                self.lives(held, &answer);
                return None;
            }
        }
        let granted = answer.reply.lease();
        // It has no time of its own: what is left of the session's is the least that it has.
        let left_ns = held.until_ns.saturating_sub(invoked_ns);
        self.history.granted(Granted {
            lock: name.to_owned(),
            lease,
            token: granted.token.get(),
            ttl_ms: left_ns / 1_000_000,
            span: self.history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Some(granted)
    }

    /// A supervisor believes that the process has died: it takes one of its locks over by name, for
    /// the same session, and the old lease is gone.
    async fn supervise(&self, held: &mut Held) {
        let Some(old) = held.leases.pop() else { return };
        let name = old.lock.as_str();
        let lease = lease_id();
        let ask = json!({"lease_id": lease, "session_id": held.session, "owner": self.owner,
                         "takeover_of": old.lease_id});
        self.history.releasing(old.lease_id);
        let Some(new) = self.granted(held, name, lease, &ask, None).await else { return };
        assert!(new.token > old.token, "{new:?} took over from {old:?}");
        let ask = json!({"lease_id": old.lease_id});
        let late = self.answered(Call::Lock(name, "renew", &ask), &[410]).await;
        assert_eq!(late.reply.json()["code"], "lease-lost", "{late:?}");
        held.leases.push(new);
    }

    async fn release(&self, lease: &LeaseReply) {
        self.history.releasing(lease.lease_id);
        let ask = json!({"lease_id": lease.lease_id});
        let call = Call::Lock(lease.lock.as_str(), "release", &ask);
        self.answered(call, &[200, 410]).await;
    }

    async fn end(&self, held: &Held) {
        for lease in &held.leases {
            self.history.releasing(lease.lease_id);
        }
        let answer = self.answered(Call::End(held.session), &[200, 404, 410]).await;
        if answer.reply.status != 200 {
            let expired = self.history.now_ns() >= held.until_ns;
            assert!(answer.is_repeat || expired, "a session was forgotten: {answer:?}");
        }
    }

    /// Its session has ended, and so has the lease, wherever one asks.
    async fn gone(&self, held: &Held, lease: &LeaseReply) {
        let ask = json!({"lease_id": lease.lease_id});
        let name = lease.lock.as_str();
        for verb in ["renew", "acquire"] {
            let mut ask = ask.clone();
            if verb == "acquire" {
                ask["session_id"] = json!(held.session);
                ask["owner"] = json!(self.owner);
            }
            if let Ok(reply) = self.locks.try_post(name, verb, ask).await {
                let text = format!("a lease outlived its session: {verb} {reply:?}");
                assert!(matches!(reply.status, 404 | 410 | 503 | 504), "{text}");
            }
        }
    }

    /// Repeats a request until it gets one of these statuses.
    async fn answered(&self, call: Call<'_>, statuses: &[u16]) -> Answer {
        let mut is_repeat = false;
        let asking = async {
            loop {
                let invoked_ns = self.history.now_ns();
                match self.send(call).await {
                    Ok(reply) if statuses.contains(&reply.status) => {
                        return Answer { reply, is_repeat, invoked_ns };
                    }
                    // Nothing was done.
                    Ok(reply) if reply.status == 503 => {}
                    // The outcome is unknown.
                    Ok(reply) if reply.status == 504 => is_repeat = true,
                    Ok(reply) => panic!("{}: {call:?}: {reply:?}", self.owner),
                    Err(_) => is_repeat = true,
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        let limit = patience();
        match tokio::time::timeout(limit, asking).await {
            Ok(answer) => answer,
            Err(_) => panic!("{}: {call:?}: no answer for {limit:?}", self.owner),
        }
    }

    async fn send(&self, call: Call<'_>) -> Result<Reply, String> {
        match call {
            Call::Create(ask) => self.sessions.try_create(ask).await,
            Call::Heartbeat(session) => self.sessions.heartbeat(session).await,
            Call::End(session) => self.sessions.end(session).await,
            Call::Lock(name, verb, ask) => self.locks.try_post(name, verb, ask.clone()).await,
        }
    }
}
