//! The one place of this crate that makes random values.

use fence_protocol::{LeaseId, SessionId};
use uuid::Uuid;

/// A fresh lease id: a random UUID.
pub fn lease_id() -> LeaseId {
    loop {
        // The nil UUID is the one that is refused; a random UUID has version bits and is never nil.
        if let Ok(id) = LeaseId::new(random_uuid()) {
            return id;
        }
    }
}

/// A fresh session id: a random UUID.
pub fn session_id() -> SessionId {
    loop {
        // As above.
        if let Ok(id) = SessionId::new(random_uuid()) {
            return id;
        }
    }
}

/// A random number, for the jitter of repeats.
pub fn random() -> u64 {
    random_uuid().as_u64_pair().1
}

#[expect(clippy::disallowed_methods, reason = "this module is the replacement that clippy names")]
fn random_uuid() -> Uuid {
    Uuid::new_v4()
}
