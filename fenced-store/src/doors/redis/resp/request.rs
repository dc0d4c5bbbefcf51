//! Commands of clients: where one ends and what its arguments are.

use std::ops::Range;

use super::{ProtocolError, inline, length};

#[cfg(test)]
mod differential;
#[cfg(test)]
mod tests;

/// What a client may send at the most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Arguments of a command, its name among them.
    pub max_args: usize,
    /// Bytes of a whole command, headers included.
    pub max_command_bytes: usize,
    /// Bytes of an inline command, without its LF. Redis allows 65 536.
    pub max_inline_bytes: usize,
}

impl Default for RequestLimits {
    /// A million arguments, and otherwise what Redis itself allows unless it is told otherwise.
    fn default() -> Self {
        Self {
            max_args: 1024 * 1024,
            max_command_bytes: 512 * 1024 * 1024,
            max_inline_bytes: 64 * 1024,
        }
    }
}

/// What the buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The command goes on behind the end of the buffer.
    Incomplete {
        /// What the whole command will take, as far as is known; more than the buffer has. It is
        /// the client's claim and within the limits: reserve for it as bytes arrive, not before.
        at_least: usize,
    },
    /// A command, which [`RequestParser::command`] gives.
    Complete {
        /// Bytes of the buffer that are this command; the next one follows them.
        len: usize,
        /// Whether it came as a line of words. Such a line is not to be forwarded as it is:
        /// `encode::request(out, command.iter())` makes an array of it.
        inline: bool,
    },
    /// An empty line, `*0` or `*-1`: no command, and no reply is due. The next one follows it.
    Blank {
        /// Bytes of the buffer to pass over.
        len: usize,
    },
}

/// Finds the end of one command after the other.
///
/// It remembers where it stopped, so that bytes are looked at once however they arrive, and it
/// keeps its memory from command to command. A claimed length costs no memory. An error is final:
/// the same one is returned from then on.
#[derive(Debug)]
pub(crate) struct RequestParser {
    limits: RequestLimits,
    step: Step,
    /// How far the current command is understood.
    at: usize,
    /// Arguments that are still to come, a begun one included.
    left: usize,
    args: Vec<Range<usize>>,
    /// The words of an inline command, without their quotes; `args` points here for such a one.
    unquoted: Vec<u8>,
    inline: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Begin,
    InlineLine,
    ArgumentHeader,
    Argument { len: usize },
    Failed(ProtocolError),
}

/// The longest argument that Redis takes by default (`proto-max-bulk-len`). It closes a
/// connection on which a longer one comes, and others may share that.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 512 << 20;

/// `$0`, CRLF, nothing, CRLF.
const SMALLEST_ARGUMENT_BYTES: usize = 6;

/// An unusually long command must not occupy its memory for the rest of the connection.
const KEPT_ARGS: usize = 1024;
const KEPT_UNQUOTED_BYTES: usize = 4096;

impl RequestParser {
    /// A parser at the beginning of a connection.
    pub(crate) fn new(limits: RequestLimits) -> Self {
        Self {
            limits,
            step: Step::Begin,
            at: 0,
            left: 0,
            args: Vec::new(),
            unquoted: Vec::new(),
            inline: false,
        }
    }

    /// Goes on with the command at the beginning of `buf`. After [`Parsed::Incomplete`] the next
    /// call takes the same bytes with more behind them; otherwise it begins anew.
    ///
    /// # Errors
    /// [`ProtocolError`] when the bytes are no command or above a limit: answer it and hang up,
    /// for the beginning of the next command is not known.
    pub(crate) fn parse(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        let parsed = match self.step {
            Step::Failed(ref error) => Err(error.clone()),
            Step::Begin => self.begin(buf),
            Step::InlineLine => self.inline_line(buf),
            Step::ArgumentHeader | Step::Argument { .. } => self.arguments(buf),
        };
        match &parsed {
            Ok(Parsed::Complete { .. } | Parsed::Blank { .. }) => self.step = Step::Begin,
            Ok(Parsed::Incomplete { .. }) => {}
            Err(error) => self.step = Step::Failed(error.clone()),
        }
        parsed
    }

    /// The command that was completed last, in the buffer in which it was found. Of no use before
    /// [`Parsed::Complete`].
    pub(crate) fn command<'b>(&'b self, buf: &'b [u8]) -> Command<'b> {
        Command { buf: if self.inline { &self.unquoted } else { buf }, args: &self.args }
    }

    /// The arguments of a command that is not complete yet, as many as have come, in the buffer in which
    /// they were found.
    pub(crate) fn begun<'b>(&'b self, buf: &'b [u8]) -> Begun<'b> {
        let longest = self.args.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let current = match self.step {
            Step::Argument { len } => len,
            _ => 0,
        };
        Begun {
            command: self.command(buf),
            args: self.args.len() + self.left,
            longest_bytes: longest.max(current),
        }
    }

    /// What it holds for the current command beside the buffer, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.args.capacity() * size_of::<Range<usize>>() + self.unquoted.capacity()
    }

    /// Room for arguments and for bytes without quotes that is occupied now.
    #[cfg(any(test, fuzzing))]
    pub(super) fn capacities(&self) -> (usize, usize) {
        (self.args.capacity(), self.unquoted.capacity())
    }

    /// Gives back what an unusually long command took. Between two commands.
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
        self.step = Step::ArgumentHeader;
        self.within_limit(self.at_least())?;
        self.arguments(buf)
    }

    fn arguments(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        while self.left > 0 {
            let len = match self.step {
                Step::Argument { len } => len,
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
            self.step = Step::ArgumentHeader;
        }
        Ok(Parsed::Complete { len: self.at, inline: false })
    }

    /// The length of the argument that begins at `at`, which is then the first of its bytes.
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
        self.step = Step::Argument { len };
        self.within_limit(self.at_least())?;
        Ok(Some(len))
    }

    /// The smallest command that begins with what is understood so far.
    fn at_least(&self) -> usize {
        let (begun, to_come) = match self.step {
            Step::Argument { len } => (len.saturating_add(2), self.left - 1),
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

    /// Goes on with a line of words, of which the bytes before `at` hold no end.
    fn inline_line(&mut self, buf: &[u8]) -> Result<Parsed, ProtocolError> {
        let longest = self.limits.max_inline_bytes.saturating_add(1);
        let seen = &buf[..buf.len().min(longest)];
        let rest = seen.get(self.at..).unwrap_or_default();
        let Some(found) = rest.iter().position(|&byte| byte == b'\n' || byte == 0) else {
            if seen.len() == longest {
                return Err(ProtocolError::InlineTooLarge);
            }
            self.at = seen.len();
            self.step = Step::InlineLine;
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

/// A page in a browser can have an HTTP request sent to any port, with commands as its body. None
/// of these lines is a Redis command, so the first of them ends the connection, as Redis does it.
fn refuse_http(name: &[u8]) -> Result<(), ProtocolError> {
    if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:") {
        return Err(ProtocolError::Http);
    }
    Ok(())
}

/// A command that need not be complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun<'b> {
    /// The arguments that have come.
    pub(crate) command: Command<'b>,
    /// How many arguments it has in all.
    pub(crate) args: usize,
    /// The longest of them, the one being received included.
    pub(crate) longest_bytes: usize,
}

/// The arguments of one command, its name first, where they were received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'b> {
    buf: &'b [u8],
    args: &'b [Range<usize>],
}

impl<'b> Command<'b> {
    /// A command whose arguments are these ranges of `buf`.
    pub(crate) fn from_parts(buf: &'b [u8], args: &'b [Range<usize>]) -> Self {
        Self { buf, args }
    }

    /// How many arguments there are, the name included.
    pub(crate) fn len(self) -> usize {
        self.args.len()
    }

    /// The argument at `index`, of which 0 is the name; empty beyond the end.
    #[inline]
    pub(crate) fn arg(self, index: usize) -> &'b [u8] {
        self.args.get(index).and_then(|range| self.buf.get(range.clone())).unwrap_or_default()
    }

    /// The command that begins with the argument at `first`: what is wrapped in
    /// `FENCE <token> SET k v` is its `tail(2)`. Empty beyond the end.
    pub(crate) fn tail(self, first: usize) -> Self {
        Self { buf: self.buf, args: self.args.get(first..).unwrap_or_default() }
    }

    /// Where the arguments are in the buffer.
    pub(crate) fn ranges(self) -> impl ExactSizeIterator<Item = Range<usize>> {
        self.args.iter().cloned()
    }

    /// All arguments in their order.
    pub(crate) fn iter(self) -> impl ExactSizeIterator<Item = &'b [u8]> {
        (0..self.len()).map(move |index| self.arg(index))
    }
}
