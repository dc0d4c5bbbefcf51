//! Background work: beats of this server, messages of other servers, and monitoring of etcd.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use service_kit::health::{Health, Status};
use tokio::sync::mpsc;

use super::client::EtcdClient;
use super::clock::Process;
use super::lineage::Occasion;
use super::txn::{self, Range};
use super::wire::{KeyValue, Status as MemberStatus, Txn};
use super::{EtcdInner, NAME, locked, store_error, sweep};
use crate::engines::contract::{ServerId, WAKEUPS_MAX, Wakeup};
use crate::store::StoreError;

/// Interval of probes of etcd. An etcd that was stopped, restored and started again takes longer
/// than this, so that it is noticed before the next commit, or by it.
const LOOK: Duration = Duration::from_secs(1);
/// The readiness check of the members.
const MEMBERS: &str = "etcd-members";
const REWATCH_PAUSE: Duration = Duration::from_millis(100);
/// Interval of probes of every member.
const LOOK_AT_MEMBERS: Duration = Duration::from_secs(5);
/// Interval at which messages that were read are removed.
const EMPTY: Duration = Duration::from_secs(10);
/// Interval at which messages to dead servers are removed, in milliseconds.
const SWEEP_MS: u64 = 5_000;
/// Probes between two signs of life of this server's last commit.
const LOOKS_A_SIGN: u64 = 600;

/// Why etcd cannot be used at the start, where it says itself that it has no leader.
pub(super) async fn with_leader(client: &EtcdClient, error: String) -> String {
    match client.status().await {
        Ok(member) if member.leader == 0 => {
            format!("etcd has no leader: fewer than a majority of its members is up ({error})")
        }
        _ => error,
    }
}

pub(super) fn start(inner: &Arc<EtcdInner>, health: Health) {
    spawn(inner, sweep::run(inner.clone()));
    spawn(inner, probe(inner.clone(), health.clone()));
    if inner.client.endpoint_count() > 1 {
        spawn(inner, probe_members(inner.clone(), health));
    }
    let listener = inner.clone();
    let servers = inner.keys.servers();
    spawn(inner, async move {
        let clocks = listener.clone();
        let receive = move |kv: Option<&KeyValue>| clocks.receive_clock(kv);
        listener.listen(servers, receive).await;
    });
}

fn spawn(inner: &Arc<EtcdInner>, work: impl Future<Output = ()> + Send + 'static) {
    let stop = inner.tasks.shutdown_token();
    inner.tasks.spawn(async move {
        stop.run_until_cancelled(work).await;
    });
}

/// Notifications of other servers to this one.
pub(super) fn wakeups(inner: &Arc<EtcdInner>, server: ServerId) -> mpsc::Receiver<Wakeup> {
    let (sender, receiver) = mpsc::channel(WAKEUPS_MAX);
    let listener = inner.clone();
    let inbox = inner.keys.inbox(server);
    let read = Arc::new(tokio::sync::Notify::new());
    let empty = inner.clone();
    let emptied = (inbox.clone(), read.clone());
    spawn(inner, async move {
        let keys = listener.keys.clone();
        let receive = move |kv: Option<&KeyValue>| {
            let wakeup = match kv {
                Some(kv) => keys.subject_of_message(&kv.name()).map(Wakeup::Record),
                None => Some(Wakeup::All),
            };
            if kv.is_some() {
                read.notify_one();
            }
            // A server that stops reads no more.
            wakeup.map(|wakeup| sender.try_send(wakeup));
        };
        listener.listen(inbox, receive).await;
    });
    spawn(inner, async move {
        let (inbox, read) = emptied;
        loop {
            read.notified().await;
            tokio::time::sleep(EMPTY).await;
            // A watch also shows what was deleted since.
            let txn = Txn { success: vec![txn::delete_all(&inbox)], ..Txn::default() };
            if let Err(error) = empty.client.run(&txn).await {
                tracing::debug!(%error, "messages that were read are not removed yet");
            }
        }
    });
    receiver
}

impl EtcdInner {
    /// Says that a server lives, and shows its clock; the servers that live.
    pub(super) async fn beat(
        self: &Arc<Self>,
        server: ServerId,
        ms: u64,
    ) -> Result<Vec<ServerId>, StoreError> {
        let lease = self.lease_of(server, ms.div_ceil(1_000)).await?;
        let value = format!("{:08x} {}", self.writer, self.now_ms());
        let put = txn::put_on(&self.keys.server(server), value.as_bytes(), lease);
        let read = txn::get_all(&self.keys.servers());
        let txn = Txn { success: vec![put, read], ..Txn::default() };
        let reply = match self.client.run(&txn).await {
            Err(error) if error.is_no_lease() => {
                // At the next beat with another one.
                locked(&self.beats).remove(&server);
                return Err(store_error(error));
            }
            reply => reply.map_err(store_error)?,
        };
        self.lineage.saw(&reply.header);
        let kvs = reply.ranges().next().map(|range| range.kvs).unwrap_or_default();
        kvs.iter().for_each(|kv| self.receive_clock(Some(kv)));
        let servers: Vec<ServerId> =
            kvs.iter().filter_map(|kv| self.keys.server_of(&kv.name())).collect();
        let writers = kvs.iter().filter_map(read_beat).map(|(writer, _)| writer).collect();
        let has_lost = self.has_lost_one(writers);
        if servers.first() == Some(&server) && (has_lost || self.is_sweep_due()) {
            // It may take longer than this server counts as alive without a beat.
            let inner = self.clone();
            let stop = self.tasks.shutdown_token();
            self.tasks.spawn(async move {
                let _one_at_a_time = inner.adopting.lock().await;
                stop.run_until_cancelled(inner.clean_up(has_lost)).await;
            });
        }
        Ok(servers)
    }

    /// The etcd lease that a server's key hangs on, given its time again.
    async fn lease_of(&self, server: ServerId, ttl_s: u64) -> Result<u64, StoreError> {
        let known = locked(&self.beats).get(&server).copied();
        if let Some((lease, known_s)) = known
            && known_s == ttl_s
            && self.is_kept(lease).await?
        {
            return Ok(lease);
        }
        let lease = self.new_lease(ttl_s).await?;
        locked(&self.beats).insert(server, (lease, ttl_s));
        Ok(lease)
    }

    /// Another server shows its clock.
    fn receive_clock(&self, kv: Option<&KeyValue>) {
        let Some(kv) = kv else { return };
        let Some((writer, at_ms)) = read_beat(kv).filter(|(writer, _)| *writer != self.writer)
        else {
            return;
        };
        let server = self.keys.server_of(&kv.name()).map(Process::Server);
        let mut clocks = locked(&self.clocks);
        for process in std::iter::once(Process::Writer(writer)).chain(server) {
            clocks.saw(process, at_ms, self.now_ms());
        }
    }

    /// Returns whether a writer has died since the last beat, or this is the first beat.
    fn has_lost_one(&self, alive: BTreeSet<u32>) -> bool {
        let mut known = locked(&self.writers);
        let alive: Vec<u32> = alive.into_iter().collect();
        let has_lost =
            known.as_ref().is_none_or(|known| known.iter().any(|writer| !alive.contains(writer)));
        *known = Some(alive);
        has_lost
    }

    fn is_sweep_due(&self) -> bool {
        let now_ms = self.now_ms();
        let swept_ms = self.swept_ms.load(Ordering::Relaxed);
        let is_due = now_ms.saturating_sub(swept_ms) >= SWEEP_MS;
        if is_due {
            self.swept_ms.store(now_ms, Ordering::Relaxed);
        }
        is_due
    }

    /// Looks through what servers left that are gone.
    async fn clean_up(&self, has_lost: bool) {
        if let Err(error) = self.sweep_messages().await {
            tracing::debug!(%error, "messages to servers that are gone are not removed yet");
        }
        if !has_lost {
            return;
        }
        let writers = locked(&self.writers).clone().unwrap_or_default();
        if let Err(error) = self.adopt(&writers).await {
            tracing::debug!(%error, "what servers left that are gone is not looked through yet");
            // At the next beat again.
            *locked(&self.writers) = None;
        }
    }

    /// Reads what is written in a range; watches anew when the watch is lost, or another member
    /// answers. None stands for messages that were lost.
    async fn listen(&self, range: Range, receive: impl Fn(Option<&KeyValue>) + Send) {
        loop {
            if let Err(reason) = self.listen_once(&range, &receive).await {
                tracing::debug!(reason, "a watch on etcd was lost; watching again");
            }
            // It breaks when etcd is stopped, and what is started then may be an older backup, of
            // which this server has nothing newer to hold against: it is verified before the next
            // commit.
            self.lineage.forget();
            tokio::time::sleep(REWATCH_PAUSE).await;
        }
    }

    async fn listen_once(
        &self,
        range: &Range,
        receive: &(impl Fn(Option<&KeyValue>) + Send),
    ) -> Result<(), String> {
        let watch = self.client.watch(range).await;
        let mut watch = watch.map_err(|error| error.to_string())?;
        let first = watch.created(self.client.timeout()).await?;
        let member = watch.member();
        // What was written before this moment was missed.
        receive(None);
        first.events.iter().for_each(|event| receive(Some(&event.kv)));
        loop {
            tokio::select! {
                reply = watch.next() => match reply? {
                    Some(reply) => {
                        // Progress of other servers: a server that only watches notices an older
                        // backup by it.
                        self.lineage.saw(&reply.header);
                        reply.events.iter().for_each(|event| receive(Some(&event.kv)));
                    }
                    None => return Err("the stream has ended".to_owned()),
                },
                () = tokio::time::sleep(LOOK) => {
                    // A member that does not answer does not end its streams either.
                    if self.client.current() != member {
                        return Err("another member of etcd answers now".to_owned());
                    }
                }
            }
        }
    }

    async fn keep_marker(&self) {
        let lease = self.marker.lock().await.lease;
        if lease != 0
            && let Err(error) = self.client.lease_keepalive_at_all(lease).await
        {
            tracing::debug!(%error, "the last commit of this server is not kept alive");
        }
    }
}

/// A server's writer, and its clock.
fn read_beat(kv: &KeyValue) -> Option<(u32, u64)> {
    let text = std::str::from_utf8(&kv.value).ok()?;
    let (writer, at_ms) = text.split_once(' ')?;
    Some((u32::from_str_radix(writer, 16).ok()?, at_ms.parse().ok()?))
}

/// Probes etcd now and then and shows the result in `/readyz`, which logs changes.
async fn probe(inner: Arc<EtcdInner>, health: Health) {
    let mut was_away = false;
    for looks in 1_u64.. {
        let status = match inner.client.status().await {
            Ok(member) => {
                let is_suspect = inner.lineage.saw_status(&member);
                let verified = if was_away || is_suspect { inner.verify().await } else { Ok(()) };
                was_away = verified.is_err();
                verified.map_or_else(Status::Failing, |()| judge(&inner, &member))
            }
            Err(error) => {
                was_away = true;
                // No commit before it was probed again: it may come back as another one.
                inner.lineage.forget();
                Status::Failing(error.to_string())
            }
        };
        health.set(NAME, status);
        if looks.is_multiple_of(LOOKS_A_SIGN) {
            inner.keep_marker().await;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Probes every endpoint now and then, and shows in `/readyz` which of them are missing, while the
/// others suffice.
async fn probe_members(inner: Arc<EtcdInner>, health: Health) {
    loop {
        let probes = (0..inner.client.endpoint_count()).map(|at| inner.client.trouble_at(at));
        let found = futures_util::future::join_all(probes).await;
        let troubles: Vec<String> = found.into_iter().flatten().collect();
        let status = match troubles.as_slice() {
            [] => Status::Ok,
            some => Status::Warn(format!("missing: {}", some.join("; "))),
        };
        health.set(MEMBERS, status);
        tokio::time::sleep(LOOK_AT_MEMBERS).await;
    }
}

impl EtcdInner {
    async fn verify(&self) -> Result<(), String> {
        let verified = self.lineage.verify(&self.client, Occasion::Later).await;
        verified.map_err(|error| error.to_string())
    }
}

fn judge(inner: &EtcdInner, member: &MemberStatus) -> Status {
    if member.leader == 0 {
        return Status::Failing(
            "etcd has no leader: fewer than a majority of its members is up".to_owned(),
        );
    }
    if !member.errors.is_empty() {
        let alarms = member.errors.join("; ");
        let hint = if alarms.contains("NOSPACE") {
            ": etcd is full and takes no writes; compact, defragment, then \"etcdctl alarm disarm\""
        } else {
            ""
        };
        return Status::Failing(format!("etcd raises {alarms}{hint}"));
    }
    match inner.lineage.doubt() {
        Some(doubt) => Status::Warn(format!(
            "etcd may have lost what it knew ({doubt}); tokens were lifted above everything issued \
             before"
        )),
        None => Status::Ok,
    }
}
