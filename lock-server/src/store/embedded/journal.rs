//! The redb side of the embedded store.

use std::path::Path;

use fence_protocol::{LockName, SessionId};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use service_kit::clock::Clock;
use service_kit::data_file::{self, Cause, FolderError};

use crate::store::engine::Journal;
use lease::{Machine, Record, Session, StoredRecord, StoredSession};

/// Lock name → the record's stored part, as JSON.
const LOCKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("locks");
/// Session id → the session's stored part, as JSON.
const SESSIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("sessions");
/// Facts about the namespace: `counter`, `format`.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const COUNTER: &str = "counter";
const FORMAT: &str = "format";
/// The version of the layout. A file of an earlier one is read, and is of this one from then on: a
/// program that knows only the earlier one would take a lock with several leases for a free one. A
/// file of another version is refused, never guessed at.
const FORMAT_VERSION: u64 = 2;
/// The earliest version that is read.
const FORMAT_READ: u64 = 1;

pub(super) struct RedbJournal {
    database: Database,
    counter: u64,
}

impl RedbJournal {
    /// Opens the file in its folder and restores what it holds into `machine`. The counter of a new
    /// file is `begins_at`.
    pub(super) fn open(
        folder: &Path,
        file: &Path,
        begins_at: u64,
        machine: &mut Machine,
        clock: &dyn Clock,
    ) -> Result<Self, FolderError> {
        let database = data_file::open(folder, file, |write| make_tables(write, begins_at))?;
        let mut journal = Self { database, counter: 0 };
        journal
            .restore(machine, clock.monotonic_ms())
            .map_err(|why| FolderError::new(file, format!("{why}; restore it from a backup")))?;
        let renewed = journal.mark_format();
        renewed.map_err(|error| FolderError::new(file, error.to_string()))?;
        Ok(journal)
    }

    /// Says that the file is of this version from now on.
    fn mark_format(&self) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        let before = write.open_table(META)?.insert(FORMAT, FORMAT_VERSION)?.map(|old| old.value());
        if before == Some(FORMAT_VERSION) {
            write.abort()?;
        } else {
            write.commit()?;
        }
        Ok(())
    }

    fn restore(&mut self, machine: &mut Machine, now_ms: u64) -> Result<(), String> {
        let text = |error: redb::Error| error.to_string();
        let read = self.database.begin_read().map_err(|error| text(error.into()))?;
        let meta = read.open_table(META).map_err(|error| text(error.into()))?;
        let number = |key: &str| -> Result<u64, String> {
            let value = meta.get(key).map_err(|error| text(error.into()))?;
            value.map(|value| value.value()).ok_or_else(|| format!("it lacks the number {key}"))
        };
        let format = number(FORMAT)?;
        if !(FORMAT_READ..=FORMAT_VERSION).contains(&format) {
            return Err(format!(
                "its format is {format}, this program reads {FORMAT_READ} to {FORMAT_VERSION}"
            ));
        }
        self.counter = number(COUNTER)?;
        machine.raise_counter(self.counter);
        let sessions = read.open_table(SESSIONS).map_err(|error| text(error.into()))?;
        for entry in sessions.iter().map_err(|error| text(error.into()))? {
            let (id, session) = entry.map_err(|error| text(error.into()))?;
            let id: SessionId =
                id.value().parse().map_err(|error: fence_protocol::Invalid| error.to_string())?;
            let stored: StoredSession = serde_json::from_slice(session.value())
                .map_err(|error| format!("the record of session {id} cannot be read: {error}"))?;
            machine.restore_session(id, Session::from_stored(stored, now_ms));
        }
        let locks = read.open_table(LOCKS).map_err(|error| text(error.into()))?;
        for entry in locks.iter().map_err(|error| text(error.into()))? {
            let (name, record) = entry.map_err(|error| text(error.into()))?;
            let lock = LockName::new(name.value()).map_err(|error| error.to_string())?;
            let stored: StoredRecord = serde_json::from_slice(record.value())
                .map_err(|error| format!("the record of lock {lock} cannot be read: {error}"))?;
            machine.restore(now_ms, lock, Record::from_stored(stored, now_ms));
        }
        Ok(())
    }

    fn write(&mut self, machine: &mut Machine) -> Result<(), redb::Error> {
        let counter = machine.counter();
        let write = self.database.begin_write()?;
        {
            let mut locks = write.open_table(LOCKS)?;
            for (lock, record) in machine.take_changes() {
                match record {
                    Some(record) => {
                        let bytes = json(&record.to_stored())?;
                        locks.insert(lock.as_str(), bytes.as_slice())?;
                    }
                    None => {
                        locks.remove(lock.as_str())?;
                    }
                }
            }
            let mut sessions = write.open_table(SESSIONS)?;
            for (id, session) in machine.take_session_changes() {
                let id = id.to_string();
                match session {
                    Some(session) => {
                        sessions.insert(id.as_str(), json(&session.to_stored())?.as_slice())?;
                    }
                    None => {
                        sessions.remove(id.as_str())?;
                    }
                }
            }
            if counter != self.counter {
                write.open_table(META)?.insert(COUNTER, counter)?;
            }
        }
        write.commit()?;
        self.counter = counter;
        Ok(())
    }
}

impl Journal for RedbJournal {
    fn commit(&mut self, machine: &mut Machine) -> Result<(), String> {
        if !machine.has_news() && machine.counter() == self.counter {
            return Ok(());
        }
        self.write(machine).map_err(|error| error.to_string())
    }
}

fn json(stored: &impl serde::Serialize) -> Result<Vec<u8>, redb::Error> {
    serde_json::to_vec(stored)
        .map_err(|error| redb::Error::Io(std::io::Error::other(error.to_string())))
}

/// Makes the tables of a new file.
fn make_tables(write: &WriteTransaction, begins_at: u64) -> Result<(), Cause> {
    let mut meta = write.open_table(META)?;
    if meta.get(FORMAT)?.is_none() {
        meta.insert(FORMAT, FORMAT_VERSION)?;
        meta.insert(COUNTER, begins_at)?;
    }
    write.open_table(LOCKS)?;
    write.open_table(SESSIONS)?;
    Ok(())
}

#[cfg(test)]
mod old_files;
#[cfg(test)]
mod tests {
    use fence_protocol::{LeaseId, Owner, Ttl};
    use service_kit::clock::ManualClock;

    use super::*;
    use crate::store::{Acquire, Limits};
    use lease::Reply;

    fn ask(lock: &LockName, lease_id: LeaseId) -> Acquire {
        Acquire::new(lock.clone(), lease_id, Owner::new("me").unwrap(), Ttl::DEFAULT)
    }

    fn token(reply: Reply) -> u64 {
        match reply {
            Reply::Done(Ok(grant)) => grant.token.get(),
            other => panic!("not granted: {other:?}"),
        }
    }

    /// L1 across a restart after which nothing but the counter is left of a lock.
    #[test]
    fn the_counter_outlives_the_records() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.redb");
        let clock = ManualClock::new(0, 0);
        let limits = Limits { ended_retention_ms: 10, ..Limits::default() };
        let (lock, lease) = (LockName::new("a").unwrap(), service_kit::ids::lease_id());

        let mut machine = Machine::new(0, limits);
        let mut journal = RedbJournal::open(folder.path(), &file, 0, &mut machine, &clock).unwrap();
        let first = token(machine.acquire(0, ask(&lock, lease)));
        machine.release(1, &lock, lease).unwrap();
        journal.commit(&mut machine).unwrap();
        machine.tick(50);
        journal.commit(&mut machine).unwrap();
        drop(journal);

        let mut machine = Machine::new(0, limits);
        let _journal = RedbJournal::open(folder.path(), &file, 0, &mut machine, &clock).unwrap();
        assert!(machine.show(50, &lock).history.is_empty(), "nothing is left of the lock");
        let next = token(machine.acquire(50, ask(&lock, service_kit::ids::lease_id())));
        assert!(next > first, "{next} after {first}");
    }

    /// A counter that was lifted, and nothing else: the next process must know of it.
    #[test]
    fn a_lift_outlives_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.redb");
        let clock = ManualClock::new(0, 0);
        let open = |machine: &mut Machine| {
            RedbJournal::open(folder.path(), &file, 40, machine, &clock).unwrap()
        };
        let mut machine = Machine::new(0, Limits::default());
        let mut journal = open(&mut machine);
        assert_eq!(machine.counter(), 40, "where a new file begins");
        machine.raise_counter(90);
        journal.commit(&mut machine).unwrap();
        drop(journal);
        let mut machine = Machine::new(0, Limits::default());
        drop(open(&mut machine));
        assert_eq!(machine.counter(), 90);
    }

    /// A file of the version before is read, and then refused by programs of that version.
    #[test]
    fn an_earlier_format_is_read_and_marked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.redb");
        let clock = ManualClock::new(0, 0);
        let (lock, lease) = (LockName::new("a").unwrap(), service_kit::ids::lease_id());
        let mut machine = Machine::new(0, Limits::default());
        let journal = RedbJournal::open(folder.path(), &file, 0, &mut machine, &clock).unwrap();
        let old = format!(
            r#"{{"holder":{{"lease_id":"{lease}","token":34,"owner":"me","ttl_ms":15000,
            "metadata":null}},"ended":[]}}"#
        );
        let write = journal.database.begin_write().unwrap();
        write.open_table(META).unwrap().insert(FORMAT, FORMAT_READ).unwrap();
        write.open_table(LOCKS).unwrap().insert("a", old.as_bytes()).unwrap();
        write.commit().unwrap();
        drop(journal);
        let journal = RedbJournal::open(folder.path(), &file, 0, &mut machine, &clock).unwrap();
        assert_eq!(token(machine.acquire(0, ask(&lock, lease))), 34, "its holder has it still");
        let read = journal.database.begin_read().unwrap();
        let format = read.open_table(META).unwrap().get(FORMAT).unwrap().unwrap().value();
        assert_eq!(format, FORMAT_VERSION);
    }

    #[test]
    fn another_format_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.redb");
        let clock = ManualClock::new(0, 0);
        let mut machine = Machine::new(0, Limits::default());
        let journal = RedbJournal::open(folder.path(), &file, 0, &mut machine, &clock).unwrap();
        let write = journal.database.begin_write().unwrap();
        write.open_table(META).unwrap().insert(FORMAT, 99).unwrap();
        write.commit().unwrap();
        drop(journal);
        let error = RedbJournal::open(folder.path(), &file, 0, &mut machine, &clock).err().unwrap();
        assert!(error.to_string().contains("its format is 99"), "{error}");
    }
}
