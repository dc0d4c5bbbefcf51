//! Parser of clients' commands: their ends and arguments.

use std::ops::Range;

use super::{ProtocolError, inline, length};

#[cfg(test)]
mod tests;

/// Limits of a client's commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Maximum number of arguments, the name included.
    pub max_args: usize,
    /// Maximum size of a command, headers included, in bytes.
    pub max_command_bytes: usize,
    /// Maximum size of an inline command without its LF, in bytes. Redis allows 65 536.
    pub max_inline_bytes: usize,
}

impl Default for RequestLimits {
    /// A million arguments, and otherwise Redis' own defaults.
    fn default() -> Self {
        Self {
            max_args: 1024 * 1024,
            max_command_bytes: 512 * 1024 * 1024,
            max_inline_bytes: 64 * 1024,
        }
    }
}

/// Content of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The command continues behind the end of the buffer.
    Incomplete {
        /// Minimum size of the whole command; more than the buffer has. It is the client's claim,
        /// within the limits: reserve memory as bytes arrive, not before.
        at_least: usize,
    },
    /// A command, returned by [`RequestParser::command`].
    Complete {
        /// Size of this command in the buffer; the next one follows.
        len: usize,
        /// Set for a line of words. Such a line must not be forwarded unchanged:
        /// `encode::request(out, command.iter())` makes an array of it.
        inline: bool,
    },
    /// An empty line, `*0` or `*-1`: no command, without a reply. The next one follows.
    Blank {
        /// Number of bytes to skip.
        len: usize,
    },
}

/// Incremental parser of one command after another.
///
/// It remembers its position, so that each byte is read once however it arrives, and reuses its
/// memory. An announced length costs no memory. An error is final: it is returned from then on.
#[derive(Debug)]
pub(crate) struct RequestParser {
    limits: RequestLimits,
    state: RequestState,
    /// Parsed part of the current command.
    at: usize,
    /// Number of arguments to come, a begun one included.
    left: usize,
    args: Vec<Range<usize>>,
    /// Words of an inline command, without their quotes; `args` then refers to them.
    unquoted: Vec<u8>,
    inline: bool,
}

#[derive(Clone, Debug)]
enum RequestState {
    Begin,
    InlineLine,
    ArgumentHeader,
    Argument { len: usize },
    Failed(ProtocolError),
}

/// Maximum length of an argument in Redis by default (`proto-max-bulk-len`). Redis closes a
/// connection with a longer one, and other clients may share that.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 512 << 20;

/// `$0`, CRLF, nothing, CRLF.
const SMALLEST_ARGUMENT_BYTES: usize = 6;

/// Memory kept after a command; an unusually long one must not occupy more for the rest of the
/// connection.
const KEPT_ARGS: usize = 1024;
const KEPT_UNQUOTED_BYTES: usize = 4096;

impl RequestParser {
    /// Makes a parser at the beginning of a connection.
    pub(crate) fn new(limits: RequestLimits) -> Self {
        Self {
            limits,
            state: RequestState::Begin,
            at: 0,
            left: 0,
            args: Vec::new(),
            unquoted: Vec::new(),
            inline: false,
        }
    }

    /// Parses the command at the beginning of `buf`. After [`Parsed::Incomplete`] the next call
    /// takes the same bytes with more behind them; otherwise it begins anew.
    ///
    /// # Errors
    /// [`ProtocolError`] if the bytes are no command or exceed a limit: reply with it and close the
    /// connection, as the beginning of the next command is unknown.
    pub(crate) fn parse(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        let parsed = match self.state {
            RequestState::Failed(ref error) => Err(error.clone()),
            RequestState::Begin => self.begin(buf),
            RequestState::InlineLine => self.inline_line(buf),
            RequestState::ArgumentHeader | RequestState::Argument { .. } => self.arguments(buf),
        };
        match &parsed {
            Ok(Parsed::Complete { .. } | Parsed::Blank { .. }) => self.state = RequestState::Begin,
            Ok(Parsed::Incomplete { .. }) => {}
            Err(error) => self.state = RequestState::Failed(error.clone()),
        }
        parsed
    }

    /// Returns the last complete command, in the buffer in which it was found. Unspecified before
    /// [`Parsed::Complete`].
    pub(crate) fn command<'b>(&'b self, buf: &'b [u8]) -> Command<'b> {
        Command { buf: if self.inline { &self.unquoted } else { buf }, args: &self.args }
    }

    /// Returns the arguments received so far of an incomplete command, in the buffer in which they
    /// were found.
    pub(crate) fn begun<'b>(&'b self, buf: &'b [u8]) -> Begun<'b> {
        let longest = self.args.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let current = match self.state {
            RequestState::Argument { len } => len,
            _ => 0,
        };
        Begun {
            command: self.command(buf),
            args: self.args.len() + self.left,
            longest_bytes: longest.max(current),
        }
    }

    /// Returns the memory held for the current command beside the buffer, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.args.capacity() * size_of::<Range<usize>>() + self.unquoted.capacity()
    }

    /// Returns the current capacity for arguments and for bytes without quotes.
    #[cfg(any(test, fuzzing))]
    pub(super) fn capacities(&self) -> (usize, usize) {
        (self.args.capacity(), self.unquoted.capacity())
    }

    /// Releases the memory of an unusually long command. Call it between two commands.
    pub(crate) fn shrink(&mut self) {
        self.args.clear();
        self.args.shrink_to(KEPT_ARGS);
        self.unquoted.clear();
        self.unquoted.shrink_to(KEPT_UNQUOTED_BYTES);
    }

    fn begin(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        self.shrink();
        self.at = 0;
        match *buf {
            [] => Ok(Parsed::Incomplete { at_least: 1 }),
            [b'*', ref rest @ ..] => match length::line(rest) {
                Ok(None) => Ok(Parsed::Incomplete { at_least: buf.len() + 1 }),
                Ok(Some((count, line))) => self.begin_array(buf, count, 1 + line),
                Err(length::NoNumber) => Err(ProtocolError::MultibulkLength),
            },
            _ => self.inline_line(buf),
        }
    }

    fn begin_array(
        &mut self,
        buf: &[u8],
        count: i64,
        header_bytes: usize,
    ) -> Result<Parsed, ProtocolError> {
        if count <= 0 {
            return Ok(Parsed::Blank { len: header_bytes });
        }
        match usize::try_from(count) {
            Ok(count) if count <= self.limits.max_args => self.left = count,
            _ => return Err(ProtocolError::MultibulkLength),
        }
        self.at = header_bytes;
        self.inline = false;
        self.state = RequestState::ArgumentHeader;
        self.within_limit(self.at_least())?;
        self.arguments(buf)
    }

    fn arguments(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        while self.left > 0 {
            let len = match self.state {
                RequestState::Argument { len } => len,
                _ => match self.argument_header(buf)? {
                    Some(len) => len,
                    None => return Ok(self.incomplete(buf)),
                },
            };
            let end = self.at + len;
            match buf.get(end..end + 2) {
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::BulkEnd(len)),
                None => return Ok(self.incomplete(buf)),
            }
            self.args.push(self.at..end);
            self.at = end + 2;
            self.left -= 1;
            self.state = RequestState::ArgumentHeader;
        }
        Ok(Parsed::Complete { len: self.at, inline: false })
    }

    /// Returns the length of the argument at `at`, which then is its first byte.
    fn argument_header(&mut self, buf: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let rest = match buf.get(self.at..) {
            None | Some([]) => return Ok(None),
            Some([b'$', rest @ ..]) => rest,
            Some([other, ..]) => return Err(ProtocolError::ExpectedBulk(*other)),
        };
        let (len, line) = match length::line(rest) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(None),
            Err(length::NoNumber) => return Err(ProtocolError::BulkLength),
        };
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len <= self.limits.max_command_bytes.min(ARGUMENT_BYTES_MAX))
            .ok_or(ProtocolError::BulkLength)?;
        self.at += 1 + line;
        self.state = RequestState::Argument { len };
        self.within_limit(self.at_least())?;
        Ok(Some(len))
    }

    /// Returns the size of the smallest command with the parsed beginning.
    fn at_least(&self) -> usize {
        let (begun, to_come) = match self.state {
            RequestState::Argument { len } => (len.saturating_add(2), self.left - 1),
            _ => (0, self.left),
        };
        self.at
            .saturating_add(begun)
            .saturating_add(to_come.saturating_mul(SMALLEST_ARGUMENT_BYTES))
    }

    fn incomplete(&self, buf: &[u8]) -> Parsed {
        Parsed::Incomplete { at_least: self.at_least().max(buf.len() + 1) }
    }

    fn within_limit(&self, bytes: usize) -> Result<(), ProtocolError> {
        let max = self.limits.max_command_bytes;
        if bytes <= max { Ok(()) } else { Err(ProtocolError::CommandTooLarge { bytes, max }) }
    }

    /// Continues a line of words, whose bytes before `at` have no end.
    fn inline_line(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        let longest = self.limits.max_inline_bytes.saturating_add(1);
        let seen = &buf[..buf.len().min(longest)];
        let rest = seen.get(self.at..).unwrap_or_default();
        let Some(found) = rest.iter().position(|&byte| byte == b'\n' || byte == 0) else {
            if seen.len() == longest {
                return Err(ProtocolError::InlineTooLarge);
            }
            self.at = seen.len();
            self.state = RequestState::InlineLine;
            return Ok(Parsed::Incomplete { at_least: buf.len() + 1 });
        };
        let end = self.at + found;
        if seen[end] == 0 {
            return Err(ProtocolError::InlineZero);
        }
        let line = seen[..end].strip_suffix(b"\r").unwrap_or(&seen[..end]);
        self.inline = true;
        inline::split(line, self.limits.max_args, &mut self.unquoted, &mut self.args)?;
        if self.args.is_empty() {
            return Ok(Parsed::Blank { len: end + 1 });
        }
        refuse_http(self.command(buf).arg(0))?;
        Ok(Parsed::Complete { len: end + 1, inline: true })
    }
}

/// Refuses HTTP, as Redis does. A page in a browser can have an HTTP request sent to any port, with
/// commands as its body; none of these lines is a Redis command.
fn refuse_http(name: &[u8]) -> Result<(), ProtocolError> {
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        return Err(ProtocolError::Http);
    }
    Ok(())
}

/// A command that may be incomplete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun<'b> {
    /// Arguments received so far.
    pub(crate) command: Command<'b>,
    /// Number of all its arguments.
    pub(crate) args: usize,
    /// Length of the longest argument, the one being received included.
    pub(crate) longest_bytes: usize,
}

/// Arguments of one command, its name first, in the receive buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'b> {
    buf: &'b [u8],
    args: &'b [Range<usize>],
}

impl<'b> Command<'b> {
    /// Makes a command whose arguments are these ranges of `buf`.
    pub(crate) fn from_parts(buf: &'b [u8], args: &'b [Range<usize>]) -> Self {
        Self { buf, args }
    }

    /// Returns the number of arguments, the name included.
    pub(crate) fn len(self) -> usize {
        self.args.len()
    }

    /// Returns the argument at `index`, 0 for the name; empty beyond the end.
    #[inline]
    pub(crate) fn arg(self, index: usize) -> &'b [u8] {
        self.args.get(index).and_then(|range| self.buf.get(range.clone())).unwrap_or_default()
    }

    /// Returns the command that begins with the argument at `first`: the command in `FENCE <token>
    /// SET k v` is its `tail(2)`. Empty beyond the end.
    pub(crate) fn tail(self, first: usize) -> Self {
        Self { buf: self.buf, args: self.args.get(first..).unwrap_or_default() }
    }

    /// Returns `true` if its first arguments are these words, in any case.
    #[inline]
    pub(crate) fn begins(self, words: &[&str]) -> bool {
        let is = |(at, word): (usize, &&str)| self.arg(at).eq_ignore_ascii_case(word.as_bytes());
        words.iter().enumerate().all(is)
    }

    /// Returns the ranges of the arguments in the buffer.
    pub(crate) fn ranges(self) -> impl ExactSizeIterator<Item = Range<usize>> {
        self.args.iter().cloned()
    }

    /// Returns all arguments in order.
    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = &'b [u8]> {
        (0..self.len()).map(move |index| self.arg(index))
    }
}
