//! A command that is taken out of the buffer, so that it can be held across waits.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::super::resp::encode;
use super::super::resp::request::{Command, Parsed, RequestLimits, RequestParser};

/// A whole command with its bytes as they are sent on.
#[derive(Debug)]
pub(super) struct OwnedCommand {
    raw: Bytes,
    args: Vec<Range<usize>>,
}

impl OwnedCommand {
    /// Takes the `len` bytes that `parser` has understood. An inline command is written anew, for
    /// it cannot be sent among others as it is.
    pub(super) fn take(
        buf: &mut BytesMut,
        len: usize,
        parser: &RequestParser,
        inline: bool,
    ) -> Self {
        let raw = buf.split_to(len).freeze();
        if inline {
            let command = parser.command(&raw);
            return Self::new(command.iter());
        }
        let args = parser.command(&raw).ranges().collect();
        Self { raw, args }
    }

    /// A command of these arguments.
    pub(super) fn new<'a>(args: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let mut raw = BytesMut::new();
        encode::request(&mut raw, args);
        Self::parsed(raw.freeze())
    }

    fn parsed(raw: Bytes) -> Self {
        let limits = RequestLimits {
            max_args: usize::MAX,
            max_command_bytes: usize::MAX,
            max_inline_bytes: 0,
        };
        let mut parser = RequestParser::new(limits);
        let args = match parser.parse(&raw) {
            Ok(Parsed::Complete { .. }) => parser.command(&raw).ranges().collect(),
            // What was just encoded is a command.
            _ => Vec::new(),
        };
        Self { raw, args }
    }

    /// What it holds, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.raw.len() + self.args.capacity() * size_of::<Range<usize>>()
    }

    pub(super) fn command(&self) -> Command<'_> {
        Command::from_parts(&self.raw, &self.args)
    }

    pub(super) fn raw(&self) -> Bytes {
        self.raw.clone()
    }
}
