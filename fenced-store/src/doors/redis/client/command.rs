//! A command that owns its bytes, so that it can be held across waits.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::super::resp::encode;
use super::super::resp::request::{Command, RequestParser};

/// A whole command with its bytes as they are sent on.
#[derive(Debug)]
pub(super) struct OwnedCommand {
    raw: Bytes,
    args: Vec<Range<usize>>,
}

impl OwnedCommand {
    /// Takes the `len` bytes that `parser` has parsed. An inline command is encoded again: among
    /// others it cannot be sent as it is.
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
        encode::array(&mut raw, args.len());
        let add = |arg: &[u8]| {
            encode::bulk(&mut raw, arg);
            let end = raw.len() - b"\r\n".len();
            end - arg.len()..end
        };
        let args = args.map(add).collect();
        Self { raw: raw.freeze(), args }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::redis::resp::request::{Parsed, RequestLimits};

    #[test]
    fn a_command_that_is_made_is_one_that_is_parsed() {
        for words in [&[][..], &["PING"], &["SET", "", "a\r\nb"]] {
            let made = OwnedCommand::new(words.iter().map(|word| word.as_bytes()));
            let args: Vec<&[u8]> = made.command().iter().collect();
            assert_eq!(args, words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
            let mut parser = RequestParser::new(RequestLimits::default());
            let len = made.raw().len();
            let expected = match words {
                [] => Parsed::Blank { len },
                _ => Parsed::Complete { len, inline: false },
            };
            assert_eq!(parser.parse(&made.raw()), Ok(expected));
            assert!(words.is_empty() || parser.command(&made.raw()).ranges().eq(made.args));
        }
    }
}
