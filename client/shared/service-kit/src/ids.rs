//! The one place of the servers that makes random identifiers.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use fence_protocol::{LeaseId, SessionId};
use uuid::Uuid;

/// The bytes of a request id: eight hexadecimal digits, a hyphen, twelve decimal digits.
pub(crate) const REQUEST_ID_BYTES: usize = 21;

/// The bytes of a version 4 UUID that hold its version and variant beside random bits.
const NOT_WHOLLY_RANDOM: [usize; 2] = [6, 8];

/// A new lease id: a random UUID.
pub fn lease_id() -> LeaseId {
    loop {
        // Only the nil UUID is refused, and a version 4 UUID never is nil.
        if let Ok(id) = LeaseId::new(random_uuid()) {
            return id;
        }
    }
}

/// A new session id: a random UUID.
pub fn session_id() -> SessionId {
    loop {
        // Only the nil UUID is refused, and a version 4 UUID never is nil.
        if let Ok(id) = SessionId::new(random_uuid()) {
            return id;
        }
    }
}

/// An id for a request: random digits of this process, then a number that rises, such as
/// `a1b2c3d4-000000000123`.
///
/// A UUID a request would cost a system call; this costs one atomic addition.
pub fn request_id() -> String {
    String::from_utf8_lossy(&request_id_bytes()).into_owned()
}

/// Random bytes from the operating system, as lower-case hexadecimal digits (two a byte).
pub fn random_hex(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes * 2);
    while text.len() < bytes * 2 {
        let uuid = random_uuid();
        let random = uuid.as_bytes().iter().enumerate();
        for (_, byte) in random.filter(|(at, _)| !NOT_WHOLLY_RANDOM.contains(at)) {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
        }
    }
    text.truncate(bytes * 2);
    text
}

pub(crate) fn request_id_bytes() -> [u8; REQUEST_ID_BYTES] {
    static PREFIX: OnceLock<String> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut text = [b'-'; REQUEST_ID_BYTES];
    text[..8].copy_from_slice(PREFIX.get_or_init(|| random_hex(4)).as_bytes());
    let mut number = NEXT.fetch_add(1, Ordering::Relaxed);
    for digit in text[9..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    text
}

#[expect(clippy::disallowed_methods, reason = "this module owns random identifiers")]
fn random_uuid() -> Uuid {
    Uuid::new_v4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_have_their_shape() {
        assert_ne!(lease_id(), lease_id());
        let one = request_id();
        let two = request_id();
        assert_ne!(one, two);
        assert_eq!(one.len(), REQUEST_ID_BYTES);
        assert_eq!(one[..9], two[..9], "the process keeps its prefix");
        assert!(one[9..].bytes().all(|b| b.is_ascii_digit()), "{one}");
    }

    #[test]
    fn random_hex_has_the_length_asked_for() {
        for bytes in [0, 1, 4, 14, 15, 64] {
            let text = random_hex(bytes);
            assert_eq!(text.len(), bytes * 2);
            assert!(text.bytes().all(|b| b.is_ascii_hexdigit()));
        }
        assert_ne!(random_hex(16), random_hex(16));
    }
}
