//! Fuzz target: a COMMAND reply, and commands planned with it.

use super::{CommandTable, KeyUse};
use crate::doors::redis::resp::reply::ReplyScanner;
use crate::doors::redis::resp::request::{Parsed, RequestLimits, RequestParser};

/// Plans commands with a reply to COMMAND that precedes them. Whatever both contain, a key is an
/// argument of its command, and none of them is one of the guard's own.
pub(crate) fn commands(input: &[u8]) {
    let end = match ReplyScanner::new().scan(input) {
        Ok(scan) if scan.done => scan.consumed,
        _ => return,
    };
    let (reply, mut stream) = input.split_at(end);
    let Ok(reply) = redis::parse_redis_value(reply) else { return };
    let Ok(table) = CommandTable::from_reply(&reply) else { return };
    let mut parser = RequestParser::new(RequestLimits::default());
    let mut keys: Vec<KeyUse> = Vec::new();
    loop {
        let len = match parser.parse(stream) {
            Ok(Parsed::Complete { len, .. }) => {
                let command = parser.command(stream);
                if table.plan(command, &mut keys).is_ok() {
                    for key in &keys {
                        assert!((1..command.len()).contains(&key.arg), "{key:?} of {command:?}");
                        assert!(!command.arg(key.arg).starts_with(b"{fence:"), "{key:?}");
                    }
                }
                len
            }
            Ok(Parsed::Blank { len }) => len,
            Ok(Parsed::Incomplete { .. }) | Err(_) => return,
        };
        stream = &stream[len..];
    }
}
