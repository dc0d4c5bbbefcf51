//! Fuzz targets: commands of clients and replies of Redis, whole and in pieces, compared with a
//! simple parser.

use super::reply::{ReplyScanner, Scan};
use super::request::{Parsed, RequestLimits, RequestParser};
use super::{ProtocolError, encode};

/// Limits that a short input can exceed.
const NARROW: RequestLimits =
    RequestLimits { max_args: 6, max_command_bytes: 120, max_inline_bytes: 40 };

/// Result of parsing a stream of commands.
#[derive(Debug, Default, PartialEq)]
struct Commands {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    /// Bytes behind the last command and blank ones.
    rest: usize,
}

/// Checks the parser of commands: the same commands however the bytes arrive, those of a simple
/// parser, and no memory for announced bytes.
pub(crate) fn requests(stream: &[u8]) {
    let all = RequestLimits::default();
    let whole = commands(stream, 0, all);
    for limits in [all, NARROW] {
        let at_once = commands(stream, 0, limits);
        assert_eq!(at_once, commands(stream, 1, limits), "whole and byte by byte");
        assert_eq!(at_once, commands(stream, 7, limits), "whole and in pieces");
    }
    let narrow = commands(stream, 0, NARROW);
    assert!(whole.commands.starts_with(&narrow.commands), "limits change no command");
    for command in &narrow.commands {
        let bytes = command.iter().map(|arg| arg.len() + 6).sum::<usize>();
        assert!(command.len() <= NARROW.max_args && bytes <= 2 * NARROW.max_command_bytes);
    }
    let (simple, is_malformed) = simple_commands(stream);
    assert!(whole.commands.starts_with(&simple), "{whole:?}\nsimple: {simple:?}");
    assert!(!is_malformed || whole.error.is_some() || whole.commands.len() > simple.len());
}

/// Feeds a stream in pieces of `piece` bytes; 0 is all at once.
fn commands(stream: &[u8], piece: usize, limits: RequestLimits) -> Commands {
    let mut parser = RequestParser::new(limits);
    let mut found = Commands::default();
    let mut start = 0;
    let mut end = 0;
    let mut promised = 0;
    while end < stream.len() {
        end = if piece == 0 { stream.len() } else { (end + piece).min(stream.len()) };
        while start < end {
            let buf = &stream[start..end];
            let len = match parser.parse(buf) {
                Ok(Parsed::Incomplete { at_least }) => {
                    assert!(at_least > buf.len());
                    let most = limits.max_command_bytes.max(limits.max_inline_bytes + 1);
                    assert!(at_least <= most.max(buf.len() + 1), "{at_least} is above the limits");
                    promised = at_least;
                    break;
                }
                Ok(Parsed::Blank { len }) => len,
                Ok(Parsed::Complete { len, inline }) => {
                    let command = parser.command(buf);
                    assert!(command.len() > 0 && len >= promised, "{len} of {promised} promised");
                    let args: Vec<Vec<u8>> = command.iter().map(<[u8]>::to_vec).collect();
                    if !inline {
                        survives_encoding(&args, &buf[..len]);
                    }
                    found.commands.push(args);
                    len
                }
                Err(error) => {
                    assert_eq!(parser.parse(buf), Err(error.clone()), "an error is final");
                    found.error = Some(error);
                    return found;
                }
            };
            assert!((1..=buf.len()).contains(&len));
            (start, promised) = (start + len, 0);
        }
        let (args, text) = parser.capacities();
        assert!(args <= 1024 + stream.len() && text <= 4096 + 2 * stream.len(), "memory");
    }
    found.rest = stream.len() - start;
    found
}

/// Checks that an encoded command parses as the same command.
fn survives_encoding(args: &[Vec<u8>], raw: &[u8]) {
    let mut out = bytes::BytesMut::new();
    encode::request(&mut out, args);
    assert_eq!(out.escape_ascii().to_string(), raw.escape_ascii().to_string());
}

/// Parses the commands at the beginning of a stream, as long as they are arrays. The second value
/// is `true` if the rest is certainly no command: a complete line without a valid number, or bytes
/// in the wrong position.
fn simple_commands(stream: &[u8]) -> (Vec<Vec<Vec<u8>>>, bool) {
    let mut commands = Vec::new();
    let mut rest = stream;
    while let Some(behind) = rest.strip_prefix(b"*") {
        let Some((count, mut behind)) = simple_line(behind) else { return (commands, false) };
        let Some(count) = count else { return (commands, true) };
        let mut args = Vec::new();
        for _ in 0..count.max(0) {
            let Some(header) = behind.strip_prefix(b"$") else {
                return (commands, !behind.is_empty());
            };
            let Some((len, content)) = simple_line(header) else { return (commands, false) };
            let Some(len) = len.and_then(|len| usize::try_from(len).ok()) else {
                return (commands, true);
            };
            let Some(arg) = content.get(..len) else { return (commands, false) };
            match content.get(len..len + 2) {
                Some(b"\r\n") => {}
                end => return (commands, end.is_some()),
            }
            args.push(arg.to_vec());
            behind = &content[len + 2..];
        }
        if count > 0 {
            commands.push(args);
        }
        rest = behind;
    }
    (commands, false)
}

/// Parses the number of a line, if it is one, and returns the rest; `None` without a line end.
fn simple_line(bytes: &[u8]) -> Option<(Option<i64>, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let text = std::str::from_utf8(&bytes[..end]).ok();
    let number = text.and_then(|text| {
        // Only the shortest form of a number is valid.
        text.parse::<i64>().ok().filter(|number| number.to_string() == text && *number > i64::MIN)
    });
    Some((number, &bytes[end + 2..]))
}

/// Lengths of the replies of a stream, and the fault of the rest.
#[derive(Debug, Default, PartialEq)]
struct Replies {
    lengths: Vec<usize>,
    kinds: Vec<u8>,
    error: Option<ProtocolError>,
}

/// Checks the scanner of replies: the same ends however the bytes arrive, those of a simple parser,
/// and those of the driver's parser.
pub(crate) fn replies(stream: &[u8]) {
    let whole = ends(stream, stream.len().max(1));
    for piece in [1, 2, 7] {
        assert_eq!(whole, ends(stream, piece), "whole and in pieces of {piece}");
    }
    let mut rest = stream;
    for (len, kind) in whole.lengths.iter().zip(&whole.kinds) {
        let (reply, behind) = rest.split_at(*len);
        assert_eq!(simple_end(reply), Some(*len), "{}", reply.escape_ascii());
        assert!(reply[0] == *kind || reply[0] == b'|', "the type is that of the first byte");
        // No shorter prefix is a reply, for the driver's parser either.
        assert!(redis::parse_redis_value(&reply[..len - 1]).is_err());
        rest = behind;
    }
    if whole.error.is_none() {
        assert!(redis::parse_redis_value(rest).is_err() || rest.is_empty());
        assert_eq!(simple_end(rest), None, "{}", rest.escape_ascii());
    }
}

fn ends(stream: &[u8], piece: usize) -> Replies {
    let mut scanner = ReplyScanner::new();
    let mut found = Replies::default();
    let mut pending = 0;
    for mut piece in stream.chunks(piece) {
        while !piece.is_empty() {
            let Scan { consumed, done } = match scanner.scan(piece) {
                Ok(scan) => scan,
                Err(error) => {
                    found.error = Some(error);
                    return found;
                }
            };
            assert!(consumed > 0 && (done || consumed == piece.len()));
            (piece, pending) = (&piece[consumed..], pending + consumed);
            if done {
                found.kinds.push(scanner.kind());
                found.lengths.push(std::mem::take(&mut pending));
            }
        }
    }
    found
}

/// Returns the end of the reply at the beginning, if it is complete.
fn simple_end(bytes: &[u8]) -> Option<usize> {
    let kind = *bytes.first()?;
    let line = 1 + bytes[1..].windows(2).position(|pair| pair == b"\r\n")?;
    let text = std::str::from_utf8(&bytes[1..line]).ok();
    let mut at = line + 2;
    let values = match kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => return Some(at),
        b'$' | b'*' if text == Some("-1") => return Some(at),
        b'$' | b'!' | b'=' => {
            let len: usize = text?.parse().ok()?;
            let end = at.checked_add(len)?;
            return (bytes.get(end..end + 2)? == b"\r\n").then_some(end + 2);
        }
        b'*' | b'~' | b'>' => text?.parse().ok()?,
        b'%' => text?.parse::<u64>().ok()?.checked_mul(2)?,
        b'|' => text?.parse::<u64>().ok()?.checked_mul(2)?.checked_add(1)?,
        _ => return None,
    };
    for _ in 0..values {
        at += simple_end(bytes.get(at..)?)?;
    }
    Some(at)
}
