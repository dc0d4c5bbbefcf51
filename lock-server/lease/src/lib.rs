//! The lease rules: pure, without I/O, clock or runtime.
//!
//! A [`Machine`] holds locks and sessions of a namespace. Its caller passes the time, in
//! milliseconds of a clock that never goes back, and carries out what the machine returns. The same
//! rules run over every engine and in the simulation.

mod grant;
mod limits;
mod machine;
mod principal;
mod record;
mod refusal;
mod request;
mod session;
mod stored_form;
mod takeover;
pub mod tokens;

pub use grant::Grant;
pub use limits::Limits;
pub use machine::{Bond, Bonds, Delivery, Due, Machine, Related, Reply, lift};
pub use principal::is_anothers;
pub use record::{
    Closed, Ended, GroupId, Holder, Holders, Queue, Reading, Record, StoredClosed, StoredEnded,
    StoredHolder, StoredRecord, StoredWaiter, Waiter, place_name, place_of,
};
pub use refusal::{NoSession, NoTakeover, SessionRefusal, StoreError};
pub use request::{Acquire, Kind, ListQuery, Mode, NewSession, Revoke, Takeover};
pub use session::{Session, StoredSession};
pub use stored_form::{from_bytes, to_bytes};
