//! Replacement of the errors of refused scripts in Redis' output.

use super::super::resp::ProtocolError;
use super::super::resp::reply::ReplyScanner;

/// Maximum length of Redis' refusal of a script; a longer line is the script's own text.
const LINE_BYTES_MAX: usize = 4096;

/// Returns the line in place of an error line, if it is to be replaced.
pub(super) type InPlaceOf<'a> = &'a dyn Fn(&[u8]) -> Option<String>;

/// Filter of a reply that arrives in pieces. An error in it, at any depth, is held until its line
/// is whole.
#[derive(Debug)]
pub(super) struct ErrorLines {
    part: Part,
    value: ReplyScanner,
    held: Vec<u8>,
}

/// Part of a reply that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The first of another part.
    Start,
    /// The line before the values of an array or map.
    Header,
    /// A value without others in it.
    Value,
    /// An error that is held.
    Error,
}

impl Default for ErrorLines {
    fn default() -> Self {
        Self { part: Part::Start, value: ReplyScanner::new(), held: Vec::new() }
    }
}

impl ErrorLines {
    /// Returns the client's bytes for a piece; `None` if the piece passes unchanged.
    ///
    /// # Errors
    /// [`ProtocolError`] if the bytes are no values.
    pub(super) fn pass(
        &mut self,
        piece: &[u8],
        in_place_of: InPlaceOf<'_>,
    ) -> Result<Option<Vec<u8>>, ProtocolError> {
        let mut changed: Option<Vec<u8>> = None;
        let mut copied = 0;
        let mut at = 0;
        while let Some(first) = piece.get(at) {
            if self.part == Part::Start {
                self.part = match first {
                    b'*' | b'~' | b'%' | b'|' => Part::Header,
                    b'-' => Part::Error,
                    _ => Part::Value,
                };
            }
            let (len, ends) = self.scan(&piece[at..])?;
            if self.part == Part::Error {
                let out = changed.get_or_insert_default();
                out.extend_from_slice(&piece[copied..at]);
                self.held.extend_from_slice(&piece[at..at + len]);
                copied = at + len;
                self.release(ends, out, in_place_of);
            }
            if ends {
                self.part = Part::Start;
            }
            at += len;
        }
        if let Some(out) = &mut changed {
            out.extend_from_slice(&piece[copied..]);
        }
        Ok(changed)
    }

    /// Returns how many bytes belong to the part that has begun, and `true` if it ends with them.
    fn scan(&mut self, rest: &[u8]) -> Result<(usize, bool), ProtocolError> {
        if self.part == Part::Header {
            let end = rest.iter().position(|byte| *byte == b'\n');
            return Ok(end.map_or((rest.len(), false), |end| (end + 1, true)));
        }
        let scan = self.value.scan(rest)?;
        Ok((scan.consumed, scan.done))
    }

    /// Adds the held error or its replacement, once it is whole; a longer one as it is.
    fn release(&mut self, ends: bool, out: &mut Vec<u8>, in_place_of: InPlaceOf<'_>) {
        if !ends && self.held.len() <= LINE_BYTES_MAX {
            return;
        }
        let error = std::mem::take(&mut self.held);
        let line = if ends { in_place_of(&error) } else { None };
        match line {
            Some(line) => out.extend_from_slice(format!("-{line}\r\n").as_bytes()),
            None => out.extend_from_slice(&error),
        }
        if !ends {
            self.part = Part::Value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_place_of(error: &[u8]) -> Option<String> {
        error.starts_with(b"-NOPERM").then(|| "DENIED".to_owned())
    }

    /// Returns the client's bytes for a reply in pieces of this size.
    fn passed(reply: &[u8], size: usize) -> String {
        let mut errors = ErrorLines::default();
        let pass = |piece: &[u8]| {
            let changed = errors.pass(piece, &in_place_of).unwrap();
            changed.unwrap_or_else(|| piece.to_vec())
        };
        let pieces: Vec<Vec<u8>> = reply.chunks(size).map(pass).collect();
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[test]
    fn errors_among_the_values_are_replaced() {
        let own = "x".repeat(2 * LINE_BYTES_MAX);
        let reply = format!(
            "*7\r\n:-1\r\n-NOPERM a key\r\n$11\r\n\r\n-NOPERM a\r\n*2\r\n+a\r\n-NOPERM in an array\r\n\
             %1\r\n$-1\r\n*-1\r\n-{own}\r\n-NOPERM {own}\r\n"
        );
        let expected = reply.replace("-NOPERM a key", "-DENIED");
        let expected = expected.replace("-NOPERM in an array", "-DENIED");
        let whole = expected.replace(&format!("-NOPERM {own}"), "-DENIED");
        for size in [1, 2, 3, 7, 100] {
            assert_eq!(passed(reply.as_bytes(), size), expected, "{size}");
        }
        assert_eq!(passed(reply.as_bytes(), reply.len()), whole);
        for same in ["*0\r\n", "*-1\r\n", "_\r\n", "-EXECABORT x\r\n"] {
            assert_eq!(passed(same.as_bytes(), 1), same);
            assert_eq!(passed(same.as_bytes(), 99), same);
        }
        for size in [1, 99] {
            assert_eq!(passed(b"-NOPERM a key\r\n", size), "-DENIED\r\n");
        }
    }
}
