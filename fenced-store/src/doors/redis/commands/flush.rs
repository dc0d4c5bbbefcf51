//! FLUSHDB and FLUSHALL: sent as a script that empties the database around Fencepost's own keys.

use bytes::{Bytes, BytesMut};

use crate::doors::redis::resp::encode;
use crate::doors::redis::resp::request::Command;

/// Returns the script for FLUSHDB or FLUSHALL; `None` for any other command.
pub(crate) fn instead_of(command: Command<'_>) -> Option<Bytes> {
    let databases: &[u8] = match (command.begins(&["flushdb"]), command.begins(&["flushall"])) {
        (true, _) => b"one",
        (_, true) => b"all",
        _ => return None,
    };
    let script: [&[u8]; 4] = [b"EVAL", include_bytes!("flush.lua"), b"0", databases];
    let words: Vec<&[u8]> = script.into_iter().chain(command.iter().skip(1)).collect();
    let mut raw = BytesMut::new();
    encode::request(&mut raw, words);
    Some(raw.freeze())
}
