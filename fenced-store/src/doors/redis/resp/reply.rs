//! Scanner for the ends of Redis' replies.

use super::ProtocolError;
use super::length::{Length, NoNumber};

/// Result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes of the buffer that belong to the reply. All of them, unless it is done.
    pub consumed: usize,
    /// The reply ends with them.
    pub done: bool,
}

/// Scanner for the end of one reply after another, in RESP2 and RESP3, which keeps none of it.
///
/// It can stop and resume at any byte, and skips the content of bulks by counting. It finds the end
/// of a nested reply by the number of remaining values, at any depth: neither an announced length
/// nor depth costs memory, so neither has a limit.
#[derive(Debug)]
pub(crate) struct ReplyScanner {
    state: ReplyState,
    /// Number of values to come, the one being read included.
    values: u64,
    kind: u8,
    /// The type of the reply itself is known, not only that of attributes before it.
    kind_known: bool,
}

#[derive(Clone, Copy, Debug)]
enum ReplyState {
    /// Before a value, or between two replies.
    Type,
    /// In a line that is a value by itself.
    Line,
    /// Behind a CR of such a line.
    LineEnd,
    /// In the number of a header line.
    Length { kind: u8, length: Length },
    /// Behind the CR of a header line.
    LengthEnd { kind: u8, length: Length },
    /// In a bulk, of which so many bytes are to come.
    Bulk { left: u64 },
    /// Behind a bulk.
    BulkCr,
    /// Behind the CR after a bulk.
    BulkLf,
}

impl ReplyScanner {
    /// Makes a scanner at the beginning of a connection.
    pub(crate) fn new() -> Self {
        Self { state: ReplyState::Type, values: 0, kind: 0, kind_known: false }
    }

    /// Scans the reply that begins or continues at the beginning of `buf`, at most to its end. The
    /// next call takes the bytes behind the consumed ones.
    ///
    /// # Errors
    /// [`ProtocolError`] if the bytes are no reply. The scanner must not be used again.
    pub(crate) fn scan(&mut self, buf: &[u8]) -> Result<Scan, ProtocolError> {
        let mut at = 0;
        while let Some(&byte) = buf.get(at) {
            at += match self.state {
                ReplyState::Type => self.begin_value(byte)?,
                ReplyState::Line => self.line(&buf[at..]),
                ReplyState::LineEnd => self.line_end(byte),
                ReplyState::Length { kind, length } => self.length(kind, length, &buf[at..])?,
                ReplyState::LengthEnd { kind, length } => self.header(kind, length, byte)?,
                ReplyState::Bulk { left } => self.bulk(left, buf.len() - at),
                ReplyState::BulkCr if byte == b'\r' => self.enter(ReplyState::BulkLf),
                ReplyState::BulkLf if byte == b'\n' => self.end_value(),
                ReplyState::BulkCr | ReplyState::BulkLf => return Err(ProtocolError::ReplyEnd),
            };
            if self.values == 0 {
                return Ok(Scan { consumed: at, done: true });
            }
        }
        Ok(Scan { consumed: at, done: false })
    }

    /// Returns the type of the current or last reply, its first byte: `-` for an error, `>` for a
    /// push. Attributes before a reply count as part of it, and the type is `|` until the reply
    /// itself begins. 0 before the first reply.
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    // The states. Each consumes a byte or more, or enters another state, and returns the number of
    // bytes that it consumed.

    fn begin_value(&mut self, kind: u8) -> Result<usize, ProtocolError> {
        if self.values == 0 {
            self.values = 1;
            self.kind_known = false;
        }
        // Within an attribute, more values than the reply itself are to come.
        if !self.kind_known && self.values == 1 {
            self.kind = kind;
            self.kind_known = kind != b'|';
        }
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(self.enter(ReplyState::Line)),
            b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                Ok(self.enter(ReplyState::Length { kind, length: Length::default() }))
            }
            other => Err(ProtocolError::ReplyType(other)),
        }
    }

    /// Skips a line up to its CR. It may be long: a script may reply any text.
    fn line(&mut self, rest: &[u8]) -> usize {
        match rest.iter().position(|&byte| byte == b'\r') {
            Some(text) => text + self.enter(ReplyState::LineEnd),
            None => rest.len(),
        }
    }

    fn line_end(&mut self, byte: u8) -> usize {
        match byte {
            b'\n' => self.end_value(),
            b'\r' => 1,
            _ => self.enter(ReplyState::Line),
        }
    }

    fn length(
        &mut self,
        kind: u8,
        mut length: Length,
        rest: &[u8],
    ) -> Result<usize, ProtocolError> {
        for (at, &byte) in rest.iter().enumerate() {
            if byte == b'\r' {
                return Ok(at + self.enter(ReplyState::LengthEnd { kind, length }));
            }
            length.push(byte).map_err(|NoNumber| ProtocolError::ReplyLength)?;
        }
        self.state = ReplyState::Length { kind, length };
        Ok(rest.len())
    }

    fn header(&mut self, kind: u8, length: Length, byte: u8) -> Result<usize, ProtocolError> {
        if byte != b'\n' {
            return Err(ProtocolError::ReplyLength);
        }
        let length = length.finish().map_err(|NoNumber| ProtocolError::ReplyLength)?;
        // RESP2 has two forms of null.
        if length == -1 && matches!(kind, b'$' | b'*') {
            return Ok(self.end_value());
        }
        let length = u64::try_from(length).map_err(|_| ProtocolError::ReplyLength)?;
        let values = match kind {
            b'$' | b'!' | b'=' => return Ok(self.enter(ReplyState::Bulk { left: length })),
            b'%' | b'|' => length.checked_mul(2),
            _ => Some(length),
        };
        self.values = values
            .and_then(|values| self.values.checked_add(values))
            .ok_or(ProtocolError::ReplyLength)?;
        // An attribute belongs to the value behind it, and is no value itself.
        Ok(if kind == b'|' { self.enter(ReplyState::Type) } else { self.end_value() })
    }

    fn bulk(&mut self, left: u64, available: usize) -> usize {
        match usize::try_from(left) {
            Ok(all) if all <= available => {
                self.state = ReplyState::BulkCr;
                all
            }
            _ => {
                self.state = ReplyState::Bulk { left: left - available as u64 };
                available
            }
        }
    }

    fn end_value(&mut self) -> usize {
        self.values -= 1;
        self.enter(ReplyState::Type)
    }

    /// Enters `state` behind the one consumed byte.
    fn enter(&mut self, state: ReplyState) -> usize {
        self.state = state;
        1
    }
}

#[cfg(test)]
mod tests;
