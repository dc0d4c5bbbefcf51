//! Records and sessions as bytes.

use fence_protocol::{LeaseId, LockName};
use lease::{
    Bond, Bonds, Mode, Reading, Record, Session, StoredRecord, StoredSession, StoredWaiter, Waiter,
    place_of,
};
use serde::de::DeserializeOwned;

use crate::engines::contract::{ItemName, Key, RecordStore, ServerId, Snapshot, Version};
use crate::store::StoreError;

/// The parts of the groups that wait in a queue, by their ids.
pub(super) type Groups = Vec<(u64, Vec<(LockName, Mode)>)>;

/// A record without its queue. Tokens above `counter` are new.
pub(super) fn record(record: &Record, counter: u64) -> Vec<u8> {
    lease::to_bytes(&record.to_stored(counter))
}

/// A waiter with the parts of its group.
pub(super) fn waiter(waiter: &Waiter, parts: Option<&[(LockName, Mode)]>) -> Vec<u8> {
    lease::to_bytes(&StoredWaiter::new(waiter, parts))
}

/// A session without its leases.
pub(super) fn session(session: &Session) -> Vec<u8> {
    lease::to_bytes(&session.to_stored())
}

/// The value of a bond that is a waiting request; that of a lease is empty.
const WAITS: &[u8] = b"w";

/// Encodes the changes to the bonds of a session.
pub(super) fn bonds(bonds: Bonds) -> Vec<(ItemName, Option<Vec<u8>>)> {
    let value = |bond| match bond {
        None => Some(None),
        Some(Bond::Held) => Some(Some(Vec::new())),
        Some(Bond::Waits) => Some(Some(WAITS.to_vec())),
        // A bond that ended with its session is counted, and deleted with the session.
        Some(Bond::Ended) => None,
    };
    let bonds = bonds.into_iter();
    bonds.filter_map(|((lock, id), bond)| Some((format!("{lock} {id}"), value(bond)?))).collect()
}

/// Decodes a bond.
pub(super) fn read_bond(name: &str, value: &[u8]) -> Option<(LockName, LeaseId, Bond)> {
    let (lock, lease_id) = name.rsplit_once(' ')?;
    let bond = if value == WAITS { Bond::Waits } else { Bond::Held };
    Some((LockName::new(lock).ok()?, lease_id.parse().ok()?, bond))
}

fn read<T: DeserializeOwned>(key: &Key, bytes: &[u8]) -> Result<T, StoreError> {
    if bytes.is_empty() {
        return Err(damaged(key, "no lock server has written it"));
    }
    lease::from_bytes(bytes).map_err(|why| damaged(key, &why))
}

fn damaged(key: &Key, why: &str) -> StoreError {
    let what = match key {
        Key::Lock(lock) => format!("lock {lock}"),
        Key::Session(id) => format!("session {id}"),
    };
    StoreError::Unavailable(format!(
        "the stored record of {what} cannot be read ({why}); nothing is granted there until it is \
         restored or removed"
    ))
}

fn reading(snapshot: &Snapshot) -> Reading {
    Reading::Shared { base: snapshot.base, shift_ms: snapshot.shift_ms }
}

/// The times of a waiter are those of its own server's clock, whichever server wrote the record.
fn reading_of_waiter(waiter: &StoredWaiter, own: ServerId, store: &dyn RecordStore) -> Reading {
    let (server, since_ms) = waiter.origin();
    let server = ServerId(server);
    let shift_ms = if server == own { 0 } else { store.shift_ms(server, since_ms) };
    Reading::Shared { base: 0, shift_ms }
}

/// Decodes a record with its queue and the groups in it; `None` if it is absent. `own` is the
/// server that reads it.
pub(super) fn read_record(
    snapshot: &Snapshot,
    own: ServerId,
    store: &dyn RecordStore,
) -> Result<Option<(Record, Groups)>, StoreError> {
    let Snapshot { key, version, .. } = snapshot;
    let Key::Lock(lock) = key else { return Ok(None) };
    if *version == Version::ABSENT {
        return Ok(None);
    }
    let stored: StoredRecord = read(key, &snapshot.value)?;
    let record = Record::from_stored(stored, reading(snapshot));
    let mut record = record.ok_or_else(|| damaged(key, "a token that is none"))?;
    let mut groups = Vec::new();
    for (name, value) in &snapshot.items {
        let place = place_of(name).ok_or_else(|| damaged(key, "a place that is none"))?;
        let stored: StoredWaiter = read(key, value)?;
        let reading = reading_of_waiter(&stored, own, store);
        let (waiter, parts) = stored.read(lock, place, reading);
        groups.extend(waiter.group.zip(parts));
        record.queue.insert(waiter);
    }
    Ok(Some((record, groups)))
}

/// Decodes a session; `None` if it is absent.
pub(super) fn read_session(snapshot: &Snapshot) -> Result<Option<Session>, StoreError> {
    if snapshot.version == Version::ABSENT {
        return Ok(None);
    }
    let stored: StoredSession = read(&snapshot.key, &snapshot.value)?;
    Ok(Some(Session::from_stored(stored, reading(snapshot))))
}
