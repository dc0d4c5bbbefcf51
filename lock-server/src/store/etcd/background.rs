//! What goes on beside the requests: ending leases in time, hearing of what other servers did,
//! keeping this server's places in the queues, and watching etcd.

use std::time::Duration;

use fence_protocol::LockName;
use service_kit::health::{Health, Status};
use tokio_util::sync::CancellationToken;

use super::counter::Occasion;
use super::gateway::Gateway;
use super::keeper::Kept;
use super::keys::Subject;
use super::versions::Faults;
use super::wire::{Status as MemberStatus, WatchEvent};
use super::{EtcdStore, NAME};

/// How often etcd is looked at. An etcd that was stopped, restored and started again takes longer
/// than this, so that it is noticed before the next grant, or by it.
const LOOK: Duration = Duration::from_secs(1);
/// How soon ending a lease is tried again, in milliseconds.
const EXPIRE_AGAIN_MS: u64 = 200;
/// How many leases are ended at the same time.
const EXPIRE_AT_ONCE: usize = 64;
/// How long nothing is looked at where no lease is kept.
const IDLE: Duration = Duration::from_secs(60);
const REWATCH_PAUSE: Duration = Duration::from_millis(100);

/// Why etcd cannot be used at the start, where it says itself that it has no leader.
pub(super) async fn with_leader(gateway: &Gateway, error: String) -> String {
    match gateway.status().await {
        Ok(member) if member.leader == 0 => {
            format!("etcd has no leader: fewer than a majority of its members is up ({error})")
        }
        _ => error,
    }
}

pub(super) fn start(store: &EtcdStore, health: Health) {
    let tasks = &store.inner.tasks;
    let stop = tasks.shutdown_token();
    let spawn = |work: Task| {
        let (store, stop, health) = (store.clone(), stop.clone(), health.clone());
        tasks.spawn(run(store, work, health, stop));
    };
    spawn(Task::Expire);
    spawn(Task::Listen);
    spawn(Task::KeepPlaces);
    spawn(Task::SweepPlaces);
    spawn(Task::Look);
    tasks.spawn(super::sessions::run(store.clone()));
}

#[derive(Clone, Copy)]
enum Task {
    Expire,
    Listen,
    KeepPlaces,
    SweepPlaces,
    Look,
}

async fn run(store: EtcdStore, task: Task, health: Health, stop: CancellationToken) {
    let work = async {
        match task {
            Task::Expire => expire(&store).await,
            Task::Listen => listen(&store).await,
            Task::KeepPlaces => keep_places(&store).await,
            Task::SweepPlaces => super::sweep::run(&store).await,
            Task::Look => look(&store, &health).await,
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Ends the leases whose time is over.
async fn expire(store: &EtcdStore) {
    let keeper = &store.inner.keeper;
    loop {
        let now_ms = store.now_ms();
        let pause = match keeper.next_ms() {
            Some(next_ms) => Duration::from_millis(next_ms.saturating_sub(now_ms)),
            None => IDLE,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = keeper.sooner.notified() => continue,
        }
        let due = keeper.due(store.now_ms(), EXPIRE_AT_ONCE);
        let work = due.iter().map(|(lock, kept)| expire_one(store, lock, kept));
        futures_util::future::join_all(work).await;
    }
}

async fn expire_one(store: &EtcdStore, lock: &LockName, kept: &Kept) {
    if let Err(error) = store.expire(lock, kept).await {
        tracing::debug!(%lock, %error, "an expired lease is not ended yet");
        store.inner.keeper.retry(lock, kept, store.now_ms() + EXPIRE_AGAIN_MS);
    }
}

/// Hears of what is deleted; watches anew when the watch is lost, or another member answers.
async fn listen(store: &EtcdStore) {
    loop {
        if let Err(reason) = listen_once(store).await {
            tracing::debug!(reason, "the watch on etcd was lost; watching again");
        }
        // It breaks when etcd is stopped, and what is started then may be an older backup, of which
        // this server has nothing newer to hold against: it is looked at before the next grant.
        store.inner.counter.forget();
        tokio::time::sleep(REWATCH_PAUSE).await;
    }
}

async fn listen_once(store: &EtcdStore) -> Result<(), String> {
    let gateway = &store.inner.gateway;
    let watch = gateway.watch_deletions(&store.inner.keys.all(), 0).await;
    let mut watch = watch.map_err(|error| error.to_string())?;
    let first = watch.created(gateway.timeout()).await?;
    let member = watch.member();
    // What happened before this moment was missed.
    store.inner.keeper.forget_bound();
    store.inner.places.wake_all();
    first.events.iter().for_each(|event| hear(store, event));
    loop {
        tokio::select! {
            reply = watch.next() => match reply? {
                Some(reply) => {
                    // How far others are: whoever only watches notices an older backup by it.
                    store.inner.counter.saw(&reply.header);
                    reply.events.iter().for_each(|event| hear(store, event));
                }
                None => return Err("the stream has ended".to_owned()),
            },
            () = tokio::time::sleep(LOOK) => {
                // A member that does not answer does not end its streams either.
                if gateway.current() != member {
                    return Err("another member of etcd answers now".to_owned());
                }
            }
        }
    }
}

fn hear(store: &EtcdStore, event: &WatchEvent) {
    if event.kind != "DELETE" {
        return;
    }
    let places = &store.inner.places;
    match store.inner.keys.subject(&event.kv.key) {
        Subject::Holder(lock) => {
            store.inner.keeper.forget(&lock, event.kv.mod_revision);
            places.wake(&lock);
        }
        Subject::Waiter(lock, lease_id) => {
            places.wake_id(&lock, lease_id);
            places.wake(&lock);
        }
        Subject::Session(id) => places.wake_session(id),
        Subject::Other => {}
    }
}

/// Keeps the etcd lease alive that this server's places in the queues hang on. Every member is asked
/// at once: one that hangs takes longer to be passed over than the lease may have.
async fn keep_places(store: &EtcdStore) {
    let pause = store.places_pause();
    loop {
        tokio::time::sleep(pause).await;
        let Some(id) = store.inner.places.lease() else { continue };
        match store.inner.gateway.lease_keepalive_at_all(id).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    "this server was away from etcd for longer than --liveness: who waits here has \
                     lost its place, and takes a new one at the end of the queue"
                );
                store.inner.places.lease_is_gone(id);
            }
            Err(error) => tracing::debug!(%error, "places in the queues are not kept"),
        }
    }
}

/// Looks at etcd now and then; says in `/readyz` what was found, which logs what is new.
async fn look(store: &EtcdStore, health: &Health) {
    let mut was_away = false;
    let mut faults = Faults::default();
    loop {
        let status = match store.inner.gateway.status().await {
            Ok(member) => {
                let in_doubt = store.inner.counter.saw_status(&member);
                let verified = if was_away || in_doubt { verify(store).await } else { Ok(()) };
                was_away = verified.is_err();
                let fault = faults.of(&store.inner.gateway, store.now_ms()).await;
                verified.map_or_else(Status::Failing, |()| judge(store, &member, fault))
            }
            Err(error) => {
                was_away = true;
                // No grant before it was looked at again: it may come back as another one.
                store.inner.counter.forget();
                Status::Failing(error.to_string())
            }
        };
        health.set(NAME, status);
        tokio::time::sleep(LOOK).await;
    }
}

async fn verify(store: &EtcdStore) -> Result<(), String> {
    let verified = store.inner.counter.verify(&store.inner.gateway, Occasion::Later).await;
    verified.map_err(|error| error.to_string())
}

fn judge(store: &EtcdStore, member: &MemberStatus, fault: Option<&str>) -> Status {
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
    let doubt = store.inner.counter.doubt().map(|doubt| {
        format!(
            "etcd may have lost what it knew ({doubt}); tokens were lifted above everything issued \
             before"
        )
    });
    let warnings: Vec<String> = doubt.into_iter().chain(fault.map(str::to_owned)).collect();
    if warnings.is_empty() { Status::Ok } else { Status::Warn(warnings.join("; ")) }
}
