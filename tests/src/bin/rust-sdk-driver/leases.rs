//! Locks, sessions and elections.

use std::rc::Rc;
use std::time::Duration;

use fence_client::protocol::Token;
use fence_client::{Client, LockRequest};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::failure::{DriverResult, Failure};
use crate::held::{AnyLease, Held};
use crate::state::DriverState;

/// A request for a lock with the options that a request of the protocol names.
fn lock_request(client: &Client, request: &Arguments) -> Result<LockRequest, Failure> {
    let mut lock = client.lock(request.text("name")?);
    if let Some(ttl) = request.time("ttl_ms")? {
        lock = lock.ttl(ttl);
    }
    if let Some(wait) = request.time("wait_ms")? {
        lock = lock.wait(wait);
    }
    match request.text_or_none("mode").as_deref() {
        None | Some("exclusive") => {}
        Some("shared") => lock = lock.shared(),
        Some("permit") => lock = lock.permit(permits(request)?),
        Some(other) => return Err(Failure::invalid(format!("there is no mode {other}"))),
    }
    if !request.0["metadata"].is_null() {
        lock = lock.metadata(request.0["metadata"].clone());
    }
    if let Some(token) = request.number("min_token")? {
        lock = lock.min_token(Token::new(token)?);
    }
    if request.is_set("takeover") {
        lock = lock.takeover();
    }
    if let Some(limit) = request.time("progress_within_ms")? {
        lock = lock.progress_within(limit);
    }
    if let Some(limit) = request.time("max_hold_ms")? {
        lock = lock.max_hold(limit);
    }
    Ok(lock)
}

fn permits(request: &Arguments) -> Result<u32, Failure> {
    let size = request.number("size")?.unwrap_or_default();
    u32::try_from(size).map_err(|_| Failure::invalid(format!("size {size} is too large")))
}

/// The op `lock`.
pub(crate) async fn lock(state: &DriverState, request: &Arguments) -> DriverResult {
    let name = request.text("lease")?;
    let client = state.client_of(request)?;
    let Some(session) = request.text_or_none("session") else {
        let lease = lock_request(&client, request)?.acquire().await?;
        return Ok(
            Held::keep(state, &name, &client, AnyLease::Alone(Box::new(lease)), None).grant(state)
        );
    };
    let held = {
        let session = state.session_of(&session)?;
        let lock = request.text("name")?;
        let group = match request.text_or_none("mode").as_deref() {
            Some("shared") => session.group().shared(lock),
            Some("permit") => session.group().permit(lock, permits(request)?),
            _ => session.group().exclusive(lock),
        };
        group.wait(request.time("wait_ms")?.unwrap_or_default()).acquire_all().await?
    };
    let lease = held.into_iter().next();
    let lease = lease.ok_or_else(|| Failure::own("internal", "no lease for the one lock"))?;
    Ok(Held::keep(state, &name, &client, AnyLease::Bound(lease), Some(session)).grant(state))
}

/// The op `lock_all`: in Rust, of a session of its own.
pub(crate) async fn lock_all(state: &DriverState, request: &Arguments) -> DriverResult {
    let name = request.text("lease")?;
    let ttl = request.time("ttl_ms")?.unwrap_or(Duration::from_secs(15));
    let client = state.client_of(request)?;
    let session = client.session().ttl(ttl).begin().await?;
    let locks = session.locks(request.texts("names"));
    let held = locks.wait(request.time("wait_ms")?.unwrap_or_default()).acquire_all().await?;
    let leases: Vec<Value> = held
        .into_iter()
        .map(|lease| {
            let grant = lease.grant();
            let lock = grant.lock.to_string();
            let member = json!({"name": lock, "token": grant.token, "lease_id": grant.lease_id});
            let handle = format!("{name}:{lock}");
            Held::keep(state, &handle, &client, AnyLease::Bound(lease), Some(name.clone()));
            member
        })
        .collect();
    state.sessions.borrow_mut().insert(name, Rc::new(session));
    Ok(json!({"leases": leases}))
}

/// The op `run`.
pub(crate) async fn run(state: &DriverState, request: &Arguments) -> DriverResult {
    let lock = lock_request(&state.client_of(request)?, request)?;
    let body = request.text("body")?;
    let time = request.time("body_ms")?.unwrap_or_default();
    let done = lock.run(async |_| match body.as_str() {
        "fail" => Err(Failure::own("body", "the work failed")),
        "block" => {
            std::thread::sleep(time);
            Ok(())
        }
        _ => {
            tokio::time::sleep(time).await;
            Ok(())
        }
    });
    done.await??;
    Ok(json!({"body": "finished"}))
}

/// The op `check`.
pub(crate) fn check(state: &DriverState, request: &Arguments) -> DriverResult {
    let held = state.lease_of(request)?;
    crate::held::with!(held, lease => lease.check())?;
    Ok(json!({"remaining_ms": held.remaining_ms(state)}))
}

/// The op `progress`.
pub(crate) fn progress(state: &DriverState, request: &Arguments) -> DriverResult {
    let held = state.lease_of(request)?;
    match (&held.lease, &held.session) {
        (AnyLease::Alone(lease), _) => lease.report_progress()?,
        (AnyLease::Bound(_), Some(session)) => state.session_of(session)?.report_progress()?,
        (AnyLease::Bound(_), None) => {}
    }
    Ok(json!({}))
}

/// The ops `release` and `resign`; of a name of `lock_all`, all its leases.
pub(crate) async fn release(state: &DriverState, request: &Arguments) -> DriverResult {
    let name = request.text("leadership").or_else(|_| request.text("lease"))?;
    if request.text_or_none("leadership").is_none() && state.sessions.borrow().contains_key(&name) {
        state.leases.borrow_mut().retain(|_, held| held.session.as_ref() != Some(&name));
        return end(state, &name).await.map(|_| json!({}));
    }
    let held = state.leases.borrow_mut().remove(&name);
    let held =
        held.ok_or_else(|| Failure::invalid(format!("there is no lease {name}, or no longer")))?;
    let held = Rc::try_unwrap(held)
        .map_err(|_| Failure::invalid(format!("the lease {name} is in use by another request")))?;
    match held.lease {
        AnyLease::Alone(lease) => lease.release().await?,
        AnyLease::Bound(lease) => lease.release().await?,
    }
    Ok(json!({}))
}

/// The op `session`.
pub(crate) async fn session(state: &DriverState, request: &Arguments) -> DriverResult {
    let mut builder = state.client_of(request)?.session();
    if let Some(ttl) = request.time("ttl_ms")? {
        builder = builder.ttl(ttl);
    }
    let session = builder.begin().await?;
    let id = session.id();
    state.sessions.borrow_mut().insert(request.text("session")?, Rc::new(session));
    Ok(json!({"session_id": id}))
}

/// The op `session_check`.
pub(crate) fn session_check(state: &DriverState, request: &Arguments) -> DriverResult {
    state.session_of(&request.text("session")?)?.check()?;
    Ok(json!({}))
}

/// The op `session_end`.
pub(crate) async fn session_end(state: &DriverState, request: &Arguments) -> DriverResult {
    Ok(json!({"leases": end(state, &request.text("session")?).await?}))
}

async fn end(state: &DriverState, name: &str) -> Result<usize, Failure> {
    let session = state.sessions.borrow_mut().remove(name);
    let session = session
        .ok_or_else(|| Failure::invalid(format!("there is no session {name}, or no longer")))?;
    let session = Rc::try_unwrap(session).map_err(|_| {
        Failure::invalid(format!("the session {name} is in use by another request"))
    })?;
    Ok(session.end().await?)
}

/// The op `campaign`.
pub(crate) async fn campaign(state: &DriverState, request: &Arguments) -> DriverResult {
    let client = state.client_of(request)?;
    let mut election = client.election(request.text("name")?);
    if let Some(ttl) = request.time("ttl_ms")? {
        election = election.ttl(ttl);
    }
    let campaign = election.campaign();
    let leadership = match request.time("wait_ms")? {
        None => campaign.await?,
        Some(wait) => tokio::time::timeout(wait, campaign)
            .await
            .map_err(|_| Failure::own("contended", "not elected within the wait"))??,
    };
    let lease = leadership.into_lease();
    let token = lease.token();
    Held::keep(
        state,
        &request.text("leadership")?,
        &client,
        AnyLease::Alone(Box::new(lease)),
        None,
    );
    Ok(json!({"token": token}))
}

/// The op `leader`.
pub(crate) async fn leader(state: &DriverState, request: &Arguments) -> DriverResult {
    let leader = state.client_of(request)?.election(request.text("name")?).leader().await?;
    let (owner, token) = leader.map(|leader| (leader.owner, leader.token)).unzip();
    Ok(json!({"owner": owner, "token": token}))
}
