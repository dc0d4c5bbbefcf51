//! Clients that work while servers are hurt, and note what they saw.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fence_protocol::wire::lock::LeaseReply;
use http::Method;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::api::{Guard, Locks, Reply};
use crate::history::{Action, Granted, History, Operation, OperationResult};
use crate::key_file::lease_id;
use crate::seed::Seed;
use crate::wait::{patience, soon, until, until_true};

/// Longer than any run: whatever is lost was lost by a server, not by time.
const TTL_MS: u64 = 60_000;
/// Ended leases that the record of a lock remembers.
const ENDED_KEPT: usize = 8;
/// Between two tries of a request that got no answer.
const PAUSE: Duration = Duration::from_millis(5);

/// Servers that the clients use; each worker takes one of either list.
#[derive(Clone, Debug)]
pub struct Rig {
    /// Lock servers on one store.
    pub locks: Vec<Locks>,
    /// Guards on one store.
    pub guards: Vec<Guard>,
    /// The locks, and the keys, that they compete for.
    pub names: Vec<String>,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    rig: Rig,
    history: Arc<History>,
    cycles: Arc<AtomicU64>,
    stop: CancellationToken,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Sets `workers` clients to work. Each acquires, reads and writes with its token, sometimes
    /// renews, releases, and sometimes writes once more with the token of the lease that it no
    /// longer has. Every request without an answer is repeated with the same lease id.
    pub fn start(rig: &Rig, workers: usize, seed: &mut Seed) -> Self {
        let history = Arc::new(History::new());
        let cycles = Arc::new(AtomicU64::new(0));
        let stop = CancellationToken::new();
        let tasks = (0..workers).map(|number| {
            let worker = Worker {
                number,
                locks: rig.locks[number % rig.locks.len()].clone(),
                guard: rig.guards[number % rig.guards.len()].clone(),
                names: rig.names.clone(),
                history: history.clone(),
                seed: seed.fork(),
                writes: 0,
            };
            tokio::spawn(worker.run(cycles.clone(), stop.clone()))
        });
        let workers = tasks.collect();
        Self { rig: rig.clone(), history, cycles, stop, workers }
    }

    /// Waits until the clients have completed so many more rounds together.
    ///
    /// # Panics
    /// If one of them panicked, or they stand still.
    pub async fn progress(&self, rounds: u64) {
        let goal = self.cycles.load(Ordering::SeqCst) + rounds;
        until_true("the clients to make progress", || async {
            let dead = self.workers.iter().any(JoinHandle::is_finished);
            assert!(!dead, "a client panicked; see above");
            self.cycles.load(Ordering::SeqCst) >= goal
        })
        .await;
    }

    /// Lets every client finish its round, then reads what every key holds in the end.
    ///
    /// # Panics
    /// If a client panicked or does not come to an end.
    pub async fn stop(self) -> (Arc<History>, BTreeMap<String, Option<String>>) {
        self.stop.cancel();
        for worker in self.workers {
            soon("a client to finish", worker).await.expect("no client panicked");
        }
        let mut finally = BTreeMap::new();
        for name in &self.rig.names {
            let lease = self.rig.locks[0].grant(name, TTL_MS).await;
            let reply = until("what a key holds", || async {
                let reply = self.rig.guards[0].fenced_get(name, &lease.fencing_token).await;
                (!reply.is_of_a_slow_store()).then_some(reply)
            })
            .await;
            let found = (reply.status != 404)
                .then(|| String::from_utf8_lossy(&reply.expect(200).body).into_owned());
            finally.insert(name.clone(), found);
        }
        (self.history, finally)
    }
}

/// Final reply to a request that is retried until it is answered.
#[derive(Debug)]
struct Answer {
    reply: Reply,
    /// `true` if an earlier try may have been carried out, too.
    is_repeat: bool,
}

struct Worker {
    number: usize,
    locks: Locks,
    guard: Guard,
    names: Vec<String>,
    history: Arc<History>,
    seed: Seed,
    writes: u64,
}

impl Worker {
    async fn run(mut self, cycles: Arc<AtomicU64>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let at = self.seed.below(self.names.len() as u64);
            let name = self.names[usize::try_from(at).expect("small")].clone();
            self.cycle(&name).await;
            cycles.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn cycle(&mut self, name: &str) {
        let Some(lease) = self.acquire(name).await else { return };
        self.read(name, &lease).await;
        for _ in 0..=self.seed.below(2) {
            self.write(name, &lease).await;
        }
        if self.seed.below(3) == 0 {
            self.renew(name, &lease).await;
        }
        self.history.releasing(lease.lease_id);
        self.release(name, &lease).await;
        if self.seed.below(4) == 0 {
            self.write(name, &lease).await;
        }
        if self.seed.below(4) == 0 {
            self.acquire_again(name, &lease).await;
        }
    }

    /// The grant; none if an earlier try got no answer and its grant was rolled back because it
    /// could not be delivered.
    async fn acquire(&self, name: &str) -> Option<LeaseReply> {
        let lease = lease_id();
        let ask = json!({"lease_id": lease, "ttl_ms": TTL_MS, "wait_ms": 2_000,
                         "owner": format!("worker {}", self.number)});
        let invoked_ns = self.history.now_ns();
        let answer = self.answered(name, "acquire", ask, &[200, 410]).await;
        if answer.reply.status == 410 {
            let text = format!("ended before any reply arrived: {answer:?}");
            // Nothing expires in a run but a grant that its server could not claim in time.
            assert!(answer.is_repeat || answer.reply.json()["reason"] == "expired", "{text}");
            return None;
        }
        let granted = answer.reply.lease();
        self.history.granted(Granted {
            lock: name.to_owned(),
            lease,
            token: granted.token.get(),
            ttl_ms: TTL_MS,
            span: self.history.since(invoked_ns),
            released_ns: None,
            kept_ns: None,
        });
        Some(granted)
    }

    /// L4: a lease that was answered lives on, whichever process was killed since.
    async fn renew(&self, name: &str, lease: &LeaseReply) {
        let ask = json!({"lease_id": lease.lease_id});
        let renewed = self.answered(name, "renew", ask, &[200]).await.reply.lease();
        assert_eq!(renewed.token, lease.token, "a renewal changed the token");
    }

    async fn release(&self, name: &str, lease: &LeaseReply) {
        let ask = json!({"lease_id": lease.lease_id});
        let answer = self.answered(name, "release", ask, &[200, 410]).await;
        if answer.reply.status == 410 {
            // Only an earlier try whose reply was lost can have ended the lease. Its record has
            // forgotten that after as many others.
            let later = self.granted_between(name, lease.token.get(), u64::MAX);
            let is_known = answer.reply.json()["reason"] == "released" || later >= ENDED_KEPT;
            let text = format!("an acknowledged lease was forgotten ({later} later): {answer:?}");
            assert!(answer.is_repeat && is_known, "{text}");
        }
    }

    /// L3: an id that ended is not granted again, whichever process was killed since. Its record
    /// has forgotten it after as many others: the request may have been held up for that long.
    async fn acquire_again(&self, name: &str, lease: &LeaseReply) {
        let lease_id = lease.lease_id;
        let ask = json!({"lease_id": lease_id, "owner": format!("worker {}", self.number)});
        let Ok(reply) = self.locks.try_acquire(name, ask).await else { return };
        if reply.status != 200 {
            return assert!(matches!(reply.status, 410 | 503 | 504), "{reply:?}");
        }
        let again = reply.lease().token.get();
        until_true("as many later leases: an ended id was granted again", || async {
            self.granted_between(name, lease.token.get(), again) >= ENDED_KEPT
        })
        .await;
        let _ = self.locks.try_post(name, "release", json!({"lease_id": lease_id})).await;
    }

    /// Number of grants of a lock with tokens between these, of those that clients know.
    fn granted_between(&self, name: &str, after: u64, before: u64) -> usize {
        let is_between = |grant: &&Granted| grant.token > after && grant.token < before;
        self.history.grants().iter().filter(|grant| grant.lock == name).filter(is_between).count()
    }

    /// Repeats a request until it gets one of these statuses.
    async fn answered(
        &self,
        name: &str,
        verb: &str,
        ask: serde_json::Value,
        statuses: &[u16],
    ) -> Answer {
        let mut is_repeat = false;
        let asking = async {
            loop {
                match self.locks.try_post(name, verb, ask.clone()).await {
                    Ok(reply) if statuses.contains(&reply.status) => {
                        return Answer { reply, is_repeat };
                    }
                    // Nothing was done.
                    Ok(reply) if matches!(reply.status, 423 | 503) => {}
                    // The outcome is unknown.
                    Ok(reply) if reply.status == 504 => is_repeat = true,
                    Ok(reply) => panic!("{verb} {name}: {reply:?}"),
                    Err(_) => is_repeat = true,
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        // Others go first in the queue, each at most as long as it needs for its own repeats.
        let limit = patience();
        match tokio::time::timeout(limit, asking).await {
            Ok(answer) => answer,
            Err(_) => panic!("{verb} {name}: no answer for {limit:?}"),
        }
    }

    async fn read(&self, name: &str, lease: &LeaseReply) {
        self.at_guard(Method::GET, name, lease, Action::Raise, Bytes::new()).await;
    }

    async fn write(&mut self, name: &str, lease: &LeaseReply) {
        self.writes += 1;
        let value = format!("{}-{}", self.number, self.writes);
        let body = Bytes::from(value.clone());
        let action = Action::Write { key: name.to_owned(), value };
        self.at_guard(Method::PUT, name, lease, action, body).await;
    }

    async fn at_guard(
        &self,
        method: Method,
        name: &str,
        lease: &LeaseReply,
        action: Action,
        body: Bytes,
    ) {
        let invoked_ns = self.history.now_ns();
        let path = format!("/v1/objects/{name}");
        let headers = [("fencing-token", lease.fencing_token.as_str())];
        let outcome = match self.guard.0.attempt(method, &path, &headers, body).await {
            Ok(reply) => match reply.status {
                // A read that finds nothing was admitted, too.
                200..=299 | 404 => OperationResult::Applied,
                412 | 503 => OperationResult::Refused,
                504 => OperationResult::Unknown,
                _ => panic!("{action:?}: {reply:?}"),
            },
            Err(_) => OperationResult::Unknown,
        };
        self.history.operation(Operation {
            lock: name.to_owned(),
            token: lease.token.get(),
            action,
            outcome,
            span: self.history.since(invoked_ns),
        });
    }
}

/// Everything that DESIGN promises of such a run.
///
/// # Panics
/// If an invariant is broken; the message shows where.
pub fn check(history: &History, finally: &BTreeMap<String, Option<String>>) {
    let grants = history.grants();
    let operations = history.operations();
    let applied = operations.iter().filter(|op| op.outcome == OperationResult::Applied).count();
    eprintln!("{} grants, {applied} of {} operations applied", grants.len(), operations.len());
    crate::checks::tokens_rise(&grants).unwrap();
    crate::checks::one_grant_an_id(&grants).unwrap();
    assert_eq!(crate::checks::overlaps(&grants), Vec::<String>::new());
    crate::checks::nothing_stale(&operations).unwrap();
    crate::checks::nothing_lost(&operations, finally).unwrap();
    assert!(applied > 0, "nothing was applied: the run shows nothing");
}
