//! Replies of Redis: where one ends.

use super::ProtocolError;
use super::length::{Length, NoNumber};

/// How far one call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes of the buffer that belong to the reply. All of them, unless it is done.
    pub consumed: usize,
    /// Whether the reply ends with them.
    pub done: bool,
}

/// Finds the end of one reply after the other, in RESP2 and RESP3, without keeping any of it.
///
/// It can stop and go on at any byte, and passes over the content of bulks by counting. The end of
/// a nested reply is known by the number of values that are still to come, whatever their depth:
/// neither a claimed length nor depth costs memory, and so neither has a limit.
#[derive(Debug)]
pub(crate) struct ReplyScanner {
    step: Step,
    /// Values that are still to come, the one being read included.
    values: u64,
    kind: u8,
    /// Whether the type of the reply itself is known, and not only that of attributes before it.
    kind_known: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
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
    /// A scanner at the beginning of a connection.
    pub(crate) fn new() -> Self {
        Self { step: Step::Type, values: 0, kind: 0, kind_known: false }
    }

    /// Goes on with the reply that begins, or goes on, at the beginning of `buf`, and never
    /// further than its end. The next call takes the bytes behind those that were consumed.
    ///
    /// # Errors
    /// [`ProtocolError`] when the bytes are no reply. Nothing that follows can be understood, and
    /// the scanner is of no use any more.
    pub(crate) fn scan(&mut self, buf: &[u8]) -> Result<Scan, ProtocolError> {
        let mut at = 0;
        while let Some(&byte) = buf.get(at) {
            at += match self.step {
                Step::Type => self.begin_value(byte)?,
                Step::Line => self.line(&buf[at..]),
                Step::LineEnd => self.line_end(byte),
                Step::Length { kind, length } => self.length(kind, length, &buf[at..])?,
                Step::LengthEnd { kind, length } => self.header(kind, length, byte)?,
                Step::Bulk { left } => self.bulk(left, buf.len() - at),
                Step::BulkCr if byte == b'\r' => self.go_on(Step::BulkLf),
                Step::BulkLf if byte == b'\n' => self.end_value(),
                Step::BulkCr | Step::BulkLf => return Err(ProtocolError::ReplyEnd),
            };
            if self.values == 0 {
                return Ok(Scan { consumed: at, done: true });
            }
        }
        Ok(Scan { consumed: at, done: false })
    }

    /// The type of the reply that is being scanned or was done last, as its first byte says it:
    /// `-` for an error, `>` for a push. Attributes before a reply count as part of it, and the
    /// type is `|` until the reply itself begins. 0 before the first reply.
    pub(crate) fn kind(&self) -> u8 {
        self.kind
    }

    // The steps. Each takes at least a byte or goes on to another step, and returns how many bytes
    // it took.

    fn begin_value(&mut self, kind: u8) -> Result<usize, ProtocolError> {
        if self.values == 0 {
            self.values = 1;
            self.kind_known = false;
        }
        // Within an attribute, more than the reply itself is still to come.
        if !self.kind_known && self.values == 1 {
            self.kind = kind;
            self.kind_known = kind != b'|';
        }
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(self.go_on(Step::Line)),
            b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                Ok(self.go_on(Step::Length { kind, length: Length::default() }))
            }
            other => Err(ProtocolError::ReplyType(other)),
        }
    }

    /// Passes over a line up to its CR. It may be long: a script may reply any text.
    fn line(&mut self, rest: &[u8]) -> usize {
        match rest.iter().position(|&byte| byte == b'\r') {
            Some(text) => text + self.go_on(Step::LineEnd),
            None => rest.len(),
        }
    }

    fn line_end(&mut self, byte: u8) -> usize {
        match byte {
            b'\n' => self.end_value(),
            b'\r' => 1,
            _ => self.go_on(Step::Line),
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
                return Ok(at + self.go_on(Step::LengthEnd { kind, length }));
            }
            length.push(byte).map_err(|NoNumber| ProtocolError::ReplyLength)?;
        }
        self.step = Step::Length { kind, length };
        Ok(rest.len())
    }

    fn header(&mut self, kind: u8, length: Length, byte: u8) -> Result<usize, ProtocolError> {
        if byte != b'\n' {
            return Err(ProtocolError::ReplyLength);
        }
        let length = length.finish().map_err(|NoNumber| ProtocolError::ReplyLength)?;
        // RESP2 has two ways to say null.
        if length == -1 && matches!(kind, b'$' | b'*') {
            return Ok(self.end_value());
        }
        let length = u64::try_from(length).map_err(|_| ProtocolError::ReplyLength)?;
        let values = match kind {
            b'$' | b'!' | b'=' => return Ok(self.go_on(Step::Bulk { left: length })),
            b'%' | b'|' => length.checked_mul(2),
            _ => Some(length),
        };
        self.values = values
            .and_then(|values| self.values.checked_add(values))
            .ok_or(ProtocolError::ReplyLength)?;
        // An attribute belongs to the value behind it, and is none itself.
        Ok(if kind == b'|' { self.go_on(Step::Type) } else { self.end_value() })
    }

    fn bulk(&mut self, left: u64, available: usize) -> usize {
        match usize::try_from(left) {
            Ok(all) if all <= available => {
                self.step = Step::BulkCr;
                all
            }
            _ => {
                self.step = Step::Bulk { left: left - available as u64 };
                available
            }
        }
    }

    fn end_value(&mut self) -> usize {
        self.values -= 1;
        self.go_on(Step::Type)
    }

    /// Goes on to `step` behind the one byte that this step took.
    fn go_on(&mut self, step: Step) -> usize {
        self.step = step;
        1
    }
}
