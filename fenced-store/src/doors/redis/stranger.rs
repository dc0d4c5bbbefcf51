//! Limits of a client that has presented no token yet: those of Redis before a login.

use fence_protocol::wire::fence::Mode;

use super::resp::ProtocolError;
use super::resp::request::Begun;
use crate::guard::Guard;

/// Maximum number of arguments of a command.
const ARGS_MAX: usize = 10;
/// Maximum length of an argument, in bytes.
const ARG_BYTES_MAX: usize = 16 * 1024;

/// Returns `true` if clients without a token are limited: every key that is not denied needs one.
pub(super) fn are_limited(guard: &Guard) -> bool {
    guard.fencing.needs_tokens() && guard.observer.mode() == Mode::Enforce
}

/// Checks the beginning of a client's command. `FENCE credential COMMAND …` has its own token, so
/// the limits end behind the credential.
///
/// # Errors
/// The limit that is exceeded.
pub(super) fn check(
    begun: Begun<'_>,
    is_genuine: impl FnOnce(&[u8]) -> bool,
) -> Result<(), ProtocolError> {
    if begun.args <= ARGS_MAX && begun.longest_bytes <= ARG_BYTES_MAX {
        return Ok(());
    }
    let command = begun.command;
    let may_be_fence = command.len() == 0 || command.begins(&["fence"]);
    let is_admitted = match command.len() {
        0 | 1 => may_be_fence && begun.longest_bytes <= ARG_BYTES_MAX,
        _ => may_be_fence && is_genuine(command.arg(1)),
    };
    match is_admitted {
        true => Ok(()),
        false if begun.longest_bytes > ARG_BYTES_MAX => Err(ProtocolError::StrangersBulk),
        false => Err(ProtocolError::StrangersArguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::redis::resp::request::{RequestLimits, RequestParser};

    /// Checks the first bytes of a command; `good` is the only credential.
    fn checked(bytes: &str) -> Result<(), ProtocolError> {
        let mut parser = RequestParser::new(RequestLimits::default());
        parser.parse(bytes.as_bytes()).unwrap();
        check(parser.begun(bytes.as_bytes()), |credential| credential == b"good")
    }

    #[test]
    fn a_client_without_a_token_has_the_limits_of_redis() {
        assert_eq!(checked("*10\r\n$3\r\nDEL\r\n$1"), Ok(()));
        let many = Err(ProtocolError::StrangersArguments);
        assert_eq!(checked("*11\r\n$3\r\nDEL\r\n$1"), many);
        assert_eq!(checked("*3\r\n$3\r\nSET\r\n$16384\r\nx"), Ok(()));
        let long = Err(ProtocolError::StrangersBulk);
        assert_eq!(checked("*3\r\n$3\r\nSET\r\n$16385\r\nx"), long);
        assert_eq!(checked("*1\r\n$16385\r\n"), long);
        assert_eq!(checked("*1\r\n$4\r\nPING\r\n"), Ok(()));
    }

    #[test]
    fn a_command_with_a_token_is_not_limited() {
        assert_eq!(checked("*100\r\n"), Ok(()), "it may begin with FENCE");
        assert_eq!(checked("*100\r\n$5\r\nfence\r\n$4\r\ngoo"), Ok(()));
        let begun = "*100\r\n$5\r\nFENCE\r\n$4\r\ngood\r\n$3\r\nSET\r\n$999999\r\n";
        assert_eq!(checked(begun), Ok(()));
        let many = Err(ProtocolError::StrangersArguments);
        assert_eq!(checked("*100\r\n$5\r\nFENCE\r\n$4\r\nevil\r\n"), many);
        let long = Err(ProtocolError::StrangersBulk);
        assert_eq!(checked("*100\r\n$5\r\nFENCE\r\n$999999\r\n"), long);
    }
}
