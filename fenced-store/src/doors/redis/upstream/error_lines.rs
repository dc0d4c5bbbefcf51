//! Replacement of the errors of refused scripts in Redis' output.

use super::super::resp::ProtocolError;
use super::super::resp::reply::ReplyScanner;

/// Maximum length of Redis' refusal of a script; a longer line is the script's own text.
const LINE_BYTES_MAX: usize = 4096;

/// Returns the line in place of an error line, if it is to be replaced.
pub(super) type InPlaceOf<'a> = &'a dyn Fn(&[u8]) -> Option<String>;

/// Filter of values that arrive in pieces. An error among them is held until its line is whole.
#[derive(Debug, Default)]
pub(super) struct ErrorLines {
    held: Vec<u8>,
}

impl ErrorLines {
    /// Returns the client's bytes for a piece of an error; none while the error is held. `None` for
    /// a piece of any other value, which passes unchanged.
    pub(super) fn pass(
        &mut self,
        piece: &[u8],
        begins: bool,
        ends: bool,
        in_place_of: InPlaceOf<'_>,
    ) -> Option<Vec<u8>> {
        let is_error = if begins { piece.first() == Some(&b'-') } else { !self.held.is_empty() };
        if !is_error {
            return None;
        }
        self.held.extend_from_slice(piece);
        if !ends && self.held.len() <= LINE_BYTES_MAX {
            return Some(Vec::new());
        }
        let error = std::mem::take(&mut self.held);
        let line = if ends { in_place_of(&error) } else { None };
        Some(line.map_or(error, |line| format!("-{line}\r\n").into_bytes()))
    }
}

/// Filter of a reply to EXEC that arrives in pieces: a line and, if that begins an array, a value
/// for each command.
#[derive(Debug)]
pub(super) struct ExecReply {
    is_behind_line: bool,
    values: ReplyScanner,
    is_within_value: bool,
    errors: ErrorLines,
}

impl ExecReply {
    /// Makes a filter before the first piece.
    pub(super) fn new() -> Self {
        Self {
            is_behind_line: false,
            values: ReplyScanner::new(),
            is_within_value: false,
            errors: ErrorLines::default(),
        }
    }

    /// Returns the client's bytes for a piece.
    ///
    /// # Errors
    /// [`ProtocolError`] if the bytes are no values.
    pub(super) fn pass(
        &mut self,
        piece: &[u8],
        in_place_of: InPlaceOf<'_>,
    ) -> Result<Vec<u8>, ProtocolError> {
        let mut at = 0;
        if !self.is_behind_line {
            let end = piece.iter().position(|byte| *byte == b'\n');
            self.is_behind_line = end.is_some();
            at = end.map_or(piece.len(), |end| end + 1);
        }
        let mut out = Vec::with_capacity(piece.len());
        out.extend_from_slice(&piece[..at]);
        while at < piece.len() {
            let scan = self.values.scan(&piece[at..])?;
            let value = &piece[at..at + scan.consumed];
            let begins = !std::mem::replace(&mut self.is_within_value, !scan.done);
            match self.errors.pass(value, begins, scan.done, in_place_of) {
                Some(error) => out.extend_from_slice(&error),
                None => out.extend_from_slice(value),
            }
            at += scan.consumed;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_place_of(error: &[u8]) -> Option<String> {
        error.starts_with(b"-NOPERM").then(|| "DENIED".to_owned())
    }

    /// Returns the client's bytes for a reply to EXEC in pieces of this size.
    fn passed(reply: &[u8], size: usize) -> String {
        let mut exec = ExecReply::new();
        let pieces = reply.chunks(size).map(|piece| exec.pass(piece, &in_place_of).unwrap());
        String::from_utf8(pieces.collect::<Vec<_>>().concat()).unwrap()
    }

    #[test]
    fn errors_among_the_values_of_exec_are_replaced() {
        let own = "x".repeat(2 * LINE_BYTES_MAX);
        let reply = format!(
            "*6\r\n:1\r\n-NOPERM a key\r\n$11\r\n\r\n-NOPERM a\r\n*2\r\n+a\r\n-NOPERM in a value\r\n-{own}\r\n\
             -NOPERM {own}\r\n"
        );
        let expected = reply.replace("-NOPERM a key", "-DENIED");
        let whole = expected.replace(&format!("-NOPERM {own}"), "-DENIED");
        for size in [1, 2, 3, 7, 100] {
            assert_eq!(passed(reply.as_bytes(), size), expected, "{size}");
        }
        assert_eq!(passed(reply.as_bytes(), reply.len()), whole);
        for same in ["*0\r\n", "*-1\r\n", "_\r\n", "-EXECABORT x\r\n"] {
            assert_eq!(passed(same.as_bytes(), 1), same);
            assert_eq!(passed(same.as_bytes(), 99), same);
        }
    }
}
