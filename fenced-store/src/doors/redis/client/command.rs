//! A command that owns its bytes, so that it can be held across waits.

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
    /// Takes the `len` bytes that `parser` has parsed. An inline command is encoded again: among others
    /// it cannot be sent as it is.
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
            // The bytes were encoded as a command just now.
            _ => Vec::new(),
        };
        Self { raw, args }
    }

    /// Memory that the command occupies, in bytes.
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
