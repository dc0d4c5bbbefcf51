//! Clients: they acquire, renew and release, and they hang up, retry and stall.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use fence_protocol::{LeaseId, LockName, SessionId};
use lease::Mode;
use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

use crate::audit::ReportedLease;
use crate::faults::Faults;
use crate::seed::Seed;
use crate::server::Fleet;
use crate::store::World;

/// Locks that are taken exclusively, alone or together.
const EXCLUSIVE: [&str; 3] = ["a", "b", "c"];
/// A lock with readers and writers.
const READ_WRITE: &str = "rw";
/// A semaphore, and its size.
const SEMAPHORE: (&str, u32) = ("s", 2);
/// Number of retries of a request with an unknown outcome.
const RETRIES: u32 = 5;

/// One client, which does one thing after the other.
pub(crate) struct Client {
    owner: String,
    /// Nearly all of its requests are for one lock.
    is_hot: bool,
    seed: Seed,
    world: Arc<World>,
    fleet: Arc<Fleet>,
}

/// An acquire request of a client.
struct Wish {
    lease: LeaseId,
    locks: Vec<&'static str>,
    mode: Mode,
    wait_ms: u64,
    ttl_ms: u64,
    session: Option<SessionId>,
}

/// Result of a call, as far as the client knows.
enum CallResult {
    Done(Value),
    Refused(String, Value),
    Unknown,
}

fn name(lock: &str) -> LockName {
    LockName::new(lock).unwrap()
}

impl Client {
    pub(crate) fn new(
        number: u64,
        is_hot: bool,
        seed: Seed,
        world: Arc<World>,
        fleet: Arc<Fleet>,
    ) -> Self {
        Self { owner: format!("client-{number}"), is_hot, seed, world, fleet }
    }

    /// Another task of this client.
    fn fork(&mut self) -> Self {
        let seed = self.seed.fork();
        let owner = self.owner.clone();
        Self {
            owner,
            seed,
            is_hot: self.is_hot,
            world: self.world.clone(),
            fleet: self.fleet.clone(),
        }
    }

    /// Lives until the simulation ends.
    pub(crate) async fn live(mut self) {
        loop {
            sleep(self.seed.time_ms(0, 1_500)).await;
            match self.seed.below(20) {
                0..14 => {
                    let wish = self.wish(None);
                    self.hold(wish).await;
                }
                14..18 => self.in_session().await,
                18 => self.revoke().await,
                _ => self.read_lock().await,
            }
        }
    }

    fn id(&mut self) -> Uuid {
        let high = self.seed.next_u64();
        let low = self.seed.next_u64();
        Uuid::from_u64_pair(high | 1, low)
    }

    fn wish(&mut self, session: Option<SessionId>) -> Wish {
        let seed = &mut self.seed;
        let (locks, mode) = match seed.below(10) {
            1..10 if self.is_hot => (vec![EXCLUSIVE[0]], Mode::Exclusive),
            0..4 => (vec![EXCLUSIVE[seed.below(3) as usize]], Mode::Exclusive),
            4 => (vec![READ_WRITE], Mode::Exclusive),
            5 | 6 => (vec![READ_WRITE], Mode::Shared),
            7 => (vec![SEMAPHORE.0], Mode::Permit { size: SEMAPHORE.1 }),
            _ => {
                let out = seed.below(4) as usize;
                let locks = EXCLUSIVE.into_iter().chain([READ_WRITE]).enumerate();
                let mut locks: Vec<_> =
                    locks.filter(|(at, _)| *at != out).map(|(_, lock)| lock).collect();
                locks.rotate_left(seed.below(3) as usize);
                locks.truncate(2 + seed.below(2) as usize);
                (locks, Mode::Exclusive)
            }
        };
        let wait_ms = match seed.below(6) {
            0 | 1 if !self.is_hot => 0,
            2 => 200 + seed.below(20_000),
            _ => 200 + seed.below(9_000),
        };
        let ttl_ms = 600 + seed.below(4_000);
        let lease = LeaseId::new(self.id()).unwrap();
        Wish { lease, locks, mode, wait_ms, ttl_ms, session }
    }

    /// Sends a request to a running server, and hangs up from time to time.
    async fn call(&mut self, method: Method, path: &str, body: Value) -> CallResult {
        self.call_for(None, method, path, body).await
    }

    /// As [`call`](Self::call), for a lease.
    async fn call_for(
        &mut self,
        lease: Option<LeaseId>,
        method: Method,
        path: &str,
        body: Value,
    ) -> CallResult {
        let place = self.seed.below(self.fleet.count() as u64) as usize;
        self.call_at(place, lease, method, path, body).await
    }

    /// The audit knows first that a client hangs up.
    async fn call_at(
        &mut self,
        place: usize,
        lease: Option<LeaseId>,
        method: Method,
        path: &str,
        body: Value,
    ) -> CallResult {
        let faults = self.world.state().faults;
        let hangs_up = Faults::strikes(&mut self.seed, faults.hang_ups);
        let patience = if hangs_up { self.seed.below(2_000) } else { 30_000 };
        sleep(Duration::from_millis(self.seed.below(4))).await;
        let Some(server) = self.fleet.at(place) else { return CallResult::Unknown };
        let owner = self.owner.clone();
        self.world.log(|| format!("{owner} asks {place}: {method} {path} {body}"));
        let hang_up = async {
            sleep(Duration::from_millis(patience)).await;
            let now_ms = self.world.now_ms();
            lease.into_iter().for_each(|lease| self.world.state().audit.hangs_up(now_ms, lease));
        };
        let now_ms = self.world.now_ms();
        lease.into_iter().for_each(|lease| self.world.state().audit.calls(now_ms, lease));
        let reply = tokio::select! {
            biased;
            () = server.stopped.cancelled() => {
                lease.into_iter().for_each(|lease| self.world.state().audit.ends_call(lease));
                None
            }
            reply = server.call(method, path, &body) => Some(reply),
            () = hang_up => None,
        };
        if let Some((status, reply)) = &reply {
            let audit = &mut self.world.state().audit;
            lease.into_iter().for_each(|lease| audit.ends_call(lease));
            let is_unavailable = *status >= 500;
            audit.received_status(is_unavailable, &format!("{status} {reply}"));
        }
        let is_unread = Faults::strikes(&mut self.seed, faults.unread);
        self.world.log(|| match &reply {
            None => format!("{owner} got no reply"),
            Some((status, body)) if is_unread => format!("{owner} does not read {status} {body}"),
            Some((status, body)) => format!("{owner} got {status} {body}"),
        });
        match reply.filter(|_| !is_unread) {
            None => CallResult::Unknown,
            Some((200, body)) => CallResult::Done(body),
            Some((_, body)) => match body["code"].as_str() {
                None | Some("outcome-unknown" | "store-unavailable" | "shutting-down") => {
                    CallResult::Unknown
                }
                Some(code) => CallResult::Refused(code.to_owned(), body),
            },
        }
    }

    /// Acquires, uses and releases.
    async fn hold(&mut self, wish: Wish) {
        let locks: BTreeSet<LockName> = wish.locks.iter().map(|lock| name(lock)).collect();
        self.world.state().audit.asks(wish.lease, locks, wish.mode, wish.session, wish.wait_ms);
        for _ in 0..RETRIES {
            let invoked_ms = self.world.now_ms();
            let outcome = self.acquire(&wish).await;
            match outcome {
                CallResult::Done(_) => return self.use_lease(&wish).await,
                CallResult::Refused(code, body) => {
                    return self.record_refusal(&wish, &code, &body, invoked_ms);
                }
                CallResult::Unknown => {}
            }
            if self.seed.below(5) == 0 {
                return;
            }
            sleep(self.seed.time_ms(1, 400)).await;
        }
    }

    async fn acquire(&mut self, wish: &Wish) -> CallResult {
        let (mode, size) = match wish.mode {
            Mode::Exclusive => ("exclusive", None),
            Mode::Shared => ("shared", None),
            Mode::Permit { size } => ("permit", Some(size)),
        };
        let mut body = json!({
            "lease_id": wish.lease, "owner": self.owner, "ttl_ms": wish.ttl_ms,
            "wait_ms": wish.wait_ms,
        });
        if let Some(session) = wish.session {
            body["session_id"] = json!(session);
        }
        if let [lock] = wish.locks[..] {
            body["mode"] = json!(mode);
            if let Some(size) = size {
                body["size"] = json!(size);
            }
            return self.request(wish, &format!("/v1/locks/{lock}/acquire"), body).await;
        }
        body["locks"] = wish.locks.iter().map(|lock| json!({ "lock": lock })).collect();
        self.request(wish, "/v1/acquire", body).await
    }

    /// Sends the request once, or twice to the same server.
    async fn request(&mut self, wish: &Wish, path: &str, body: Value) -> CallResult {
        let place = self.seed.below(self.fleet.count() as u64) as usize;
        let repeated = self.world.state().faults.repeated;
        if !Faults::strikes(&mut self.seed, repeated) {
            return self.request_at(place, wish, path, body).await;
        }
        let mut twin = self.fork();
        let again = body.clone();
        let second = async move {
            sleep(twin.seed.time_ms(0, 300)).await;
            twin.request_at(place, wish, path, again).await
        };
        match tokio::join!(self.request_at(place, wish, path, body), second) {
            (CallResult::Done(body), _) => CallResult::Done(body),
            (_, second) => second,
        }
    }

    async fn request_at(
        &mut self,
        place: usize,
        wish: &Wish,
        path: &str,
        body: Value,
    ) -> CallResult {
        let invoked_ms = self.world.now_ms();
        let outcome = self.call_at(place, Some(wish.lease), Method::POST, path, body).await;
        match &outcome {
            CallResult::Done(body) => self.record_leases(wish, body, invoked_ms),
            CallResult::Unknown => self.world.state().audit.leaves(wish.lease),
            CallResult::Refused(..) => {}
        }
        outcome
    }

    fn record_leases(&self, wish: &Wish, body: &Value, invoked_ms: u64) {
        let leases = match body["leases"].as_array() {
            Some(leases) => leases.clone(),
            None => vec![body.clone()],
        };
        assert_eq!(leases.len(), wish.locks.len(), "a lease of each lock: {body}");
        for lease in leases {
            let reply_lease = ReportedLease {
                lock: name(lease["lock"].as_str().unwrap()),
                lease: wish.lease,
                token: lease["token"].as_u64().unwrap(),
                remaining_ms: lease["ttl_ms"].as_u64().unwrap(),
                invoked_ms,
            };
            let now_ms = self.world.now_ms();
            let engine_ms = self.world.engine_ms();
            let waited_ms = lease["waited_ms"].as_u64().unwrap();
            let audit = &mut self.world.state().audit;
            audit.received_lease(now_ms, engine_ms, &reply_lease);
            audit.received_waited(now_ms, waited_ms, wish.lease);
        }
    }

    fn record_refusal(&self, wish: &Wish, code: &str, body: &Value, invoked_ms: u64) {
        let now_ms = self.world.now_ms();
        let engine_ms = self.world.engine_ms();
        let audit = &mut self.world.state().audit;
        audit.received_refusal(wish.lease);
        let first = wish.locks[0];
        let lock = name(body["lock"].as_str().unwrap_or(first));
        match (code, wish.wait_ms) {
            ("lock-held", 0) if wish.locks.len() == 1 => {
                audit.received_held(now_ms, engine_ms, invoked_ms, &lock);
            }
            ("lock-held", wait_ms) => {
                audit.received_timed_out(now_ms, invoked_ms, wait_ms, wish.lease);
            }
            ("lease-lost", _) => audit.received_lost(engine_ms, invoked_ms, &lock, wish.lease),
            ("session-ended" | "session-unknown" | "session-blocked", _) => {}
            _ => panic!("{code}: {body}"),
        }
    }

    /// Renews as long as it works, or stalls, and releases at the end or never.
    async fn use_lease(&mut self, wish: &Wish) {
        let rounds = self.seed.below(4);
        for _ in 0..rounds {
            sleep(Duration::from_millis(wish.ttl_ms / 3)).await;
            for lock in &wish.locks {
                self.renew(lock, wish).await;
            }
        }
        match self.seed.below(10) {
            // It stalls past its lease, and resumes.
            0 => sleep(Duration::from_millis(wish.ttl_ms + self.seed.below(500))).await,
            // It is gone.
            1 => return,
            _ => sleep(self.seed.time_ms(0, wish.ttl_ms)).await,
        }
        for lock in &wish.locks {
            self.release(lock, wish.lease).await;
        }
    }

    async fn renew(&mut self, lock: &str, wish: &Wish) {
        let path = format!("/v1/locks/{lock}/renew");
        let invoked_ms = self.world.now_ms();
        match self.call(Method::POST, &path, json!({ "lease_id": wish.lease })).await {
            CallResult::Done(body) => {
                let reply_lease = ReportedLease {
                    lock: name(lock),
                    lease: wish.lease,
                    token: body["token"].as_u64().unwrap(),
                    remaining_ms: body["ttl_ms"].as_u64().unwrap(),
                    invoked_ms,
                };
                let now_ms = self.world.now_ms();
                let engine_ms = self.world.engine_ms();
                self.world.state().audit.received_lease(now_ms, engine_ms, &reply_lease);
            }
            CallResult::Refused(code, body) => {
                assert_eq!(code, "lease-lost", "{body}");
                let engine_ms = self.world.engine_ms();
                let audit = &mut self.world.state().audit;
                audit.received_lost(engine_ms, invoked_ms, &name(lock), wish.lease);
            }
            CallResult::Unknown => {}
        }
    }

    async fn release(&mut self, lock: &str, lease: LeaseId) {
        let path = format!("/v1/locks/{lock}/release");
        self.world.state().audit.releases(&name(lock), lease);
        for _ in 0..RETRIES {
            let invoked_ms = self.world.now_ms();
            let outcome = self.call(Method::POST, &path, json!({ "lease_id": lease })).await;
            let engine_ms = self.world.engine_ms();
            let audit = &mut self.world.state().audit;
            match outcome {
                CallResult::Done(_) => return audit.received_released(&name(lock), lease),
                CallResult::Refused(code, body) => {
                    assert_eq!(code, "lease-lost", "{body}");
                    return audit.received_lost(engine_ms, invoked_ms, &name(lock), lease);
                }
                CallResult::Unknown => {}
            }
        }
    }

    /// Holds locks in a session, which a heartbeat keeps for a while.
    async fn in_session(&mut self) {
        let id = SessionId::new(self.id()).unwrap();
        let ttl_ms = 1_500 + self.seed.below(3_000);
        let body = json!({ "session_id": id, "owner": self.owner, "ttl_ms": ttl_ms });
        let invoked_ms = self.world.now_ms();
        let outcome = self.call(Method::POST, "/v1/sessions", body).await;
        let CallResult::Done(body) = outcome else { return };
        self.received_session(id, &body, invoked_ms);
        let beats = self.seed.below(5);
        let mut heart = self.fork();
        heart.owner = format!("{}-heart", self.owner);
        let beating = async move {
            for _ in 0..beats {
                sleep(Duration::from_millis(ttl_ms / 3)).await;
                let path = format!("/v1/sessions/{id}/heartbeat");
                let invoked_ms = heart.world.now_ms();
                if let CallResult::Done(body) = heart.call(Method::POST, &path, Value::Null).await {
                    heart.received_session(id, &body, invoked_ms);
                }
            }
        };
        let mut wish = self.wish(Some(id));
        wish.ttl_ms = ttl_ms;
        tokio::join!(self.hold(wish), beating);
        if self.seed.below(3) > 0 {
            self.world.state().audit.ends_session(id);
            self.call(Method::DELETE, &format!("/v1/sessions/{id}"), Value::Null).await;
        }
    }

    fn received_session(&self, id: SessionId, body: &Value, invoked_ms: u64) {
        let remaining_ms = body["expires_in_ms"].as_u64().unwrap();
        let now_ms = self.world.now_ms();
        let engine_ms = self.world.engine_ms();
        let reply_lease = (remaining_ms, invoked_ms);
        self.world.state().audit.received_session(now_ms, engine_ms, id, reply_lease);
    }

    async fn revoke(&mut self) {
        if self.seed.below(4) > 0 {
            return;
        }
        // One lock alone, so that most leases are never revoked.
        let lock = EXCLUSIVE[2];
        self.world.state().audit.revokes(&name(lock));
        let path = format!("/v1/locks/{lock}/revoke");
        self.call(Method::POST, &path, json!({ "reason": "simulated" })).await;
        self.world.state().audit.revokes(&name(lock));
    }

    /// Reads a lock and the list of locks: no other check depends on it.
    async fn read_lock(&mut self) {
        let lock = EXCLUSIVE[self.seed.below(3) as usize];
        self.call(Method::GET, &format!("/v1/locks/{lock}"), Value::Null).await;
        self.call(Method::GET, "/v1/locks", Value::Null).await;
    }
}
