//! Random ids and numbers; no other module of this crate generates them.

use std::num::{NonZeroU64, NonZeroU128};
use std::sync::OnceLock;

use fence_protocol::{LeaseId, Owner, SessionId, TraceContext};
use uuid::Uuid;

/// Generates a lease id: a random UUID.
pub fn lease_id() -> LeaseId {
    loop {
        // Only the nil UUID is refused; a random UUID has version bits and is never nil.
        if let Ok(id) = LeaseId::new(random_uuid()) {
            return id;
        }
    }
}

/// Generates a session id: a random UUID.
pub fn session_id() -> SessionId {
    loop {
        // As above.
        if let Ok(id) = SessionId::new(random_uuid()) {
            return id;
        }
    }
}

/// Default incarnation of this process: a random id, generated once.
pub fn incarnation() -> Owner {
    static OF_THIS_PROCESS: OnceLock<Owner> = OnceLock::new();
    let make = || {
        let id = random_uuid().simple().to_string();
        Owner::new(id).unwrap_or_else(|_| unreachable!("32 hexadecimal digits are a text"))
    };
    OF_THIS_PROCESS.get_or_init(make).clone()
}

/// Generates a random number, for the jitter of retries.
pub fn random() -> u64 {
    random_uuid().as_u64_pair().1
}

/// Generates a trace, which is to be recorded.
pub fn trace() -> TraceContext {
    let trace = NonZeroU128::new(random_uuid().as_u128()).unwrap_or(NonZeroU128::MIN);
    TraceContext::root(trace, NonZeroU64::new(random()).unwrap_or(NonZeroU64::MIN))
}

#[expect(clippy::disallowed_methods, reason = "this module is the replacement that clippy names")]
fn random_uuid() -> Uuid {
    Uuid::new_v4()
}
