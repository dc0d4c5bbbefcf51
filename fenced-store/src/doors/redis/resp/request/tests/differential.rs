//! Differential test: Redis and the parser must understand the same commands in the same bytes.
//!
//! Redis replies to an unknown command by repeating its arguments, which shows how it parsed them,
//! and its errors are the text that the parser's must have.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command as Process, Stdio};

use bytes::BytesMut;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::doors::redis::resp::encode;
use crate::doors::redis::resp::request::*;

/// Limits of Redis itself.
const LIMITS: RequestLimits = RequestLimits {
    max_args: i32::MAX as usize,
    max_command_bytes: i64::MAX as usize,
    max_inline_bytes: 64 * 1024,
};

/// A Redis of this test, on a socket in its own folder; it ends with the test.
struct Redis {
    child: Child,
    folder: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Process::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "socket", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is needed; tests/run installs it");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.unwrap().contains("ready to accept"));
        assert!(ready, "redis-server did not start");
        Self { child, folder }
    }

    /// Returns all that Redis replies to a stream. It replies to what it has read before it sees
    /// the end.
    fn answers(&self, stream: &[u8]) -> Vec<u8> {
        let mut socket = UnixStream::connect(self.folder.path().join("socket")).unwrap();
        socket.write_all(stream).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut answers = Vec::new();
        socket.read_to_end(&mut answers).unwrap();
        answers
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Makes Redis' replies to these commands if it knows none of them.
fn unknown(command: Command<'_>) -> Vec<u8> {
    let shown = |arg: &[u8], max: usize| arg[..arg.len().min(max)].to_vec();
    let mut args = Vec::new();
    for arg in command.iter().skip(1) {
        if args.len() < 128 {
            let room = 128 - args.len();
            args.extend([b"'", &shown(arg, room)[..], b"' "].concat());
        }
    }
    let name = shown(command.arg(0), 128);
    let text = [b"ERR unknown command '", &name[..], b"', with args beginning with: ", &args];
    // A line end in the text would end the reply.
    let line =
        text.concat().into_iter().map(|byte| if b"\r\n".contains(&byte) { b' ' } else { byte });
    [b"-".to_vec(), line.collect(), b"\r\n".to_vec()].concat()
}

/// Parses a stream and returns the replies that Redis would give, and the error at which it
/// stopped.
fn understood(stream: &[u8]) -> (Vec<u8>, Option<ProtocolError>) {
    let mut parser = RequestParser::new(LIMITS);
    let mut answers = Vec::new();
    let mut rest = stream;
    loop {
        let len = match parser.parse(rest) {
            Ok(Parsed::Incomplete { .. }) => return (answers, None),
            Ok(Parsed::Blank { len }) => len,
            Ok(Parsed::Complete { len, .. }) => {
                answers.extend(unknown(parser.command(rest)));
                len
            }
            Err(error) => return (answers, Some(error)),
        };
        rest = &rest[len..];
    }
}

/// Generates streams that are well formed, typed by hand, blank or none of these; never the name of
/// a command, and no zero byte, behind which Redis sees nothing.
fn sent() -> impl Strategy<Value = Vec<u8>> {
    let args = prop::collection::vec(prop::collection::vec(1..=255_u8, 0..12), 0..4);
    let request = args.prop_map(|mut args| {
        args.insert(0, b"xx".to_vec());
        let mut out = BytesMut::new();
        encode::request(&mut out, &args);
        out.to_vec()
    });
    let inline = prop::collection::vec("[a-z \"'\\\\x0-9\\x0b\\x0c\t\r]{0,6}", 0..6)
        .prop_map(|words| format!("xx{}\r\n", words.join(" ")).into_bytes());
    let blank = "[ \t]{0,2}\r?\n|\\*(0|-1|-7)\r\n".prop_map(String::into_bytes);
    let header = "[*$][-0-9+]{0,3}\r\n".prop_map(String::into_bytes);
    let symbols = prop::sample::select(b"*$-0123\r\n\"' a\\".to_vec());
    let garbage = prop::collection::vec(prop_oneof![9 => symbols, 1 => 128..=255_u8], 0..20);
    prop_oneof![6 => request, 4 => inline, 1 => blank, 1 => header, 1 => garbage]
}

/// Returns `true` if the parser is the stricter of the two: Redis accepts any byte behind a CR, and
/// ignores the bytes behind a bulk. The parser also need not wait for a line's end to refuse it.
fn stricter(error: &ProtocolError, stream: &[u8], theirs: &[u8]) -> bool {
    let lone_cr = stream.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n');
    match error {
        ProtocolError::BulkEnd(_) => true,
        ProtocolError::MultibulkLength | ProtocolError::BulkLength => theirs.is_empty() || lone_cr,
        // Redis writes the byte unescaped.
        ProtocolError::ExpectedBulk(_) => {
            theirs.is_empty() || theirs.starts_with(b"-ERR Protocol error: expected '$', got '")
        }
        _ => false,
    }
}

#[test]
fn redis_understands_the_same() {
    let redis = Redis::start();
    let streams = prop::collection::vec(sent(), 1..5).prop_map(|parts| parts.concat());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) };
    let compared = TestRunner::new(config).run(&streams, |stream| {
        let (ours, error) = understood(&stream);
        let theirs = redis.answers(&stream);
        let shown = stream.escape_ascii();
        let Some(theirs_last) = theirs.strip_prefix(&ours[..]) else {
            let ours = ours.escape_ascii();
            let theirs = theirs.escape_ascii();
            return Err(TestCaseError::fail(format!("{shown}\nours:   {ours}\ntheirs: {theirs}")));
        };
        let ours_last = error.as_ref().map(|error| format!("-ERR {error}\r\n")).unwrap_or_default();
        if error.is_none_or(|error| !stricter(&error, &stream, theirs_last)) {
            let theirs_last = String::from_utf8_lossy(theirs_last);
            prop_assert_eq!(ours_last, theirs_last, "{}", shown);
        }
        Ok(())
    });
    compared.unwrap();
}
