//! Files that earlier versions wrote. Each record is here as it lay on the disk, letter for letter:
//! what writes it today must not have a say in it.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::wire::session::SessionEndReason;
use fence_protocol::{LeaseId, Owner, Token, Ttl};
use service_kit::clock::ManualClock;
use tempfile::TempDir;

use super::*;
use crate::store::{Acquire, Grant, Limits, NewSession, NoSession, StoreError, Takeover};
use lease::Reply;

const HELD: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";
const RELEASED: &str = "7f9619ff-8b86-4d01-b42d-00cf4fc964ff";
const NEVER_GRANTED: &str = "8f9619ff-8b86-4d01-b42d-00cf4fc964ff";
const SESSION: &str = "9f9619ff-8b86-4d01-b42d-00cf4fc964ff";

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn lease(id: &str) -> LeaseId {
    id.parse().unwrap()
}

fn session() -> SessionId {
    SESSION.parse().unwrap()
}

fn owner() -> Owner {
    Owner::new("worker").unwrap()
}

fn ask(name: &str, lease_id: LeaseId) -> Acquire {
    Acquire::new(lock(name), lease_id, owner(), Ttl::DEFAULT)
}

fn granted(reply: Reply) -> Grant {
    match reply {
        Reply::Done(Ok(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// A data file that was made by hand.
struct OldFile(TempDir);

impl OldFile {
    /// What the version before sessions and takeovers left: the tables `locks` and `meta` alone.
    fn before_sessions(counter: u64, records: &[(&str, String)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::create(folder.path().join("locks.redb")).unwrap();
        let write = database.begin_write().unwrap();
        let mut meta = write.open_table(META).unwrap();
        meta.insert("format", 1).unwrap();
        meta.insert("counter", counter).unwrap();
        let mut locks = write.open_table(LOCKS).unwrap();
        for (name, record) in records {
            locks.insert(*name, record.as_bytes()).unwrap();
        }
        drop((meta, locks));
        write.commit().unwrap();
        Self(folder)
    }

    /// With a session, as the first version that knew them wrote it.
    fn with_session(self, record: &str) -> Self {
        let database = Database::create(self.0.path().join("locks.redb")).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(SESSIONS).unwrap().insert(SESSION, record.as_bytes()).unwrap();
        write.commit().unwrap();
        self
    }

    fn open(&self) -> (RedbJournal, Machine) {
        let mut machine = Machine::new(0, Limits::default());
        let (folder, clock) = (self.0.path(), ManualClock::new(0, 0));
        let file = folder.join("locks.redb");
        let journal = RedbJournal::open(folder, &file, 0, &mut machine, &clock).unwrap();
        (journal, machine)
    }
}

fn held_and_released() -> [(&'static str, String); 2] {
    let holder = format!(
        r#"{{"lease_id":"{HELD}","token":41,"owner":"worker","ttl_ms":20000,"metadata":"{{\"pod\":7}}"}}"#
    );
    let ended = format!(
        r#"[{{"lease_id":"{RELEASED}","token":40,"owner":"worker","reason":"released","held_ms":12}},{{"lease_id":"{NEVER_GRANTED}","token":null,"owner":null,"reason":"released","held_ms":0}}]"#
    );
    [
        ("held", format!(r#"{{"holder":{holder},"ended":{ended}}}"#)),
        ("free", format!(r#"{{"holder":null,"ended":{ended}}}"#)),
    ]
}

/// L1, L3 and L4 across the step to a version that knows sessions and incarnations.
#[test]
fn a_file_from_before_sessions_keeps_its_leases() {
    let file = OldFile::before_sessions(42, &held_and_released());
    let (_journal, mut machine) = file.open();
    let holder = machine.show(1, &lock("held")).holder.unwrap();
    assert_eq!((holder.lease_id, holder.info.token.get()), (lease(HELD), 41));
    assert_eq!((holder.info.owner, holder.ttl_ms), (owner(), 20_000));
    assert_eq!((holder.session_id, holder.incarnation), (None, None));
    assert_eq!(holder.metadata.unwrap()["pod"].as_u64(), Some(7));
    let same = granted(machine.acquire(1, ask("held", lease(HELD))));
    assert_eq!((same.token.get(), same.remaining_ms), (41, 19_999), "the lease it was");
    for id in [RELEASED, NEVER_GRANTED] {
        let reason = EndReason::Released;
        let again = machine.acquire(2, ask("free", lease(id)));
        assert_eq!(
            again,
            Reply::Done(Err(StoreError::Lost { reason, why: None })),
            "{id} came back"
        );
    }
    let next = granted(machine.acquire(2, ask("free", service_kit::ids::lease_id())));
    assert_eq!(next.token.get(), 43, "above the counter, which is above the records");
}

/// What the file knows nothing of works with it all the same, and is there when it opens again.
#[test]
fn a_file_from_before_sessions_takes_sessions_and_takeovers() {
    let file = OldFile::before_sessions(42, &held_and_released());
    let (mut journal, mut machine) = file.open();
    let ttl = Ttl::from_ms(30_000).unwrap();
    let new =
        NewSession { session_id: session(), owner: owner(), ttl, metadata: None, principal: None };
    machine.create_session(1, new).unwrap();
    let heir = service_kit::ids::lease_id();
    let asked = Acquire {
        session: Some(session()),
        incarnation: Owner::new("boot 2").ok(),
        takeover: Takeover::Of(lease(HELD)),
        ..ask("held", heir)
    };
    let grant = granted(machine.acquire(1, asked));
    journal.commit(&mut machine).unwrap();
    drop(journal);

    let (_journal, mut machine) = file.open();
    let holder = machine.show(1, &lock("held")).holder.unwrap();
    assert_eq!((holder.lease_id, holder.info.token), (heir, grant.token));
    assert_eq!(holder.session_id, Some(session()));
    assert_eq!(holder.incarnation, Owner::new("boot 2").ok());
    assert_eq!(machine.show_session(1, session()).unwrap().lease_count, 1);
    let late = machine.renew(1, &lock("held"), lease(HELD), None).unwrap_err();
    assert_eq!(late, StoreError::Lost { reason: EndReason::Superseded, why: None });
}

/// The counter of a file that was put together from two is not believed where a record knows better.
#[test]
fn a_record_above_the_counter_lifts_it() {
    let file = OldFile::before_sessions(7, &held_and_released());
    let (_journal, mut machine) = file.open();
    let next = granted(machine.acquire(1, ask("new", service_kit::ids::lease_id())));
    assert_eq!(Token::new(42).unwrap(), next.token);
}

/// The first sessions, live and ended, and a lease of each.
#[test]
fn the_first_sessions_open_still() {
    let bound = |id: &str| {
        format!(
            r#"{{"holder":{{"lease_id":"{id}","token":5,"owner":"worker","session":"{SESSION}","ttl_ms":20000,"metadata":null}},"ended":[]}}"#
        )
    };
    let session_record = |blocked: &str, ended: &str| {
        format!(
            r#"{{"owner":"worker","ttl_ms":20000,"metadata":null,"blocked":{blocked},"ended":{ended}}}"#
        )
    };
    let file = OldFile::before_sessions(5, &[("held", bound(HELD))])
        .with_session(&session_record("null", "null"));
    let (_journal, mut machine) = file.open();
    let shown = machine.show_session(1, session()).unwrap();
    assert_eq!((shown.lease_count, shown.expires_in_ms), (1, 19_999));
    machine.heartbeat(2, session()).unwrap();

    let file = OldFile::before_sessions(5, &[("held", bound(HELD))])
        .with_session(&session_record(r#""host is replaced""#, "null"));
    let (_journal, mut machine) = file.open();
    let refused = machine.heartbeat(1, session()).unwrap_err();
    let StoreError::Session(refusal) = refused else { panic!("{refused:?}") };
    assert!(matches!(refusal.why, NoSession::Blocked { .. }), "{refusal:?}");

    // It ended, and the process died before the leases were written.
    let file = OldFile::before_sessions(5, &[("held", bound(HELD))])
        .with_session(&session_record("null", r#""ended""#));
    let (_journal, mut machine) = file.open();
    assert!(machine.show(1, &lock("held")).holder.is_none(), "a lease of an ended session");
    let refused = machine.heartbeat(1, session()).unwrap_err();
    assert_eq!(refused, NoSession::Ended(SessionEndReason::Ended).of(session()));
}
