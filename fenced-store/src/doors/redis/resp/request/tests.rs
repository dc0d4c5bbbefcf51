use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::doors::redis::resp::encode;

mod differential;

const LIMITS: RequestLimits =
    RequestLimits { max_args: 64, max_command_bytes: 4096, max_inline_bytes: 256 };

/// Result of parsing a stream: its commands and its end.
#[derive(Debug, Default, PartialEq)]
struct Understood {
    commands: Vec<Vec<Vec<u8>>>,
    blanks: usize,
    /// Bytes of an incomplete command.
    pending: usize,
    error: Option<ProtocolError>,
}

/// Feeds the stream in these pieces, as a connection would.
fn feed<'p>(limits: RequestLimits, pieces: impl IntoIterator<Item = &'p [u8]>) -> Understood {
    let mut parser = RequestParser::new(limits);
    let mut understood = Understood::default();
    let mut buf = Vec::new();
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            let len = match parser.parse(&buf) {
                Ok(Parsed::Incomplete { at_least }) => {
                    assert!(at_least > buf.len(), "{at_least} bytes are there");
                    assert!(at_least <= limits.max_command_bytes.max(buf.len() + 1));
                    break;
                }
                Ok(Parsed::Complete { len, inline }) => {
                    let command = parser.command(&buf);
                    assert_eq!(inline, buf[0] != b'*');
                    understood.commands.push(command.iter().map(<[u8]>::to_vec).collect());
                    len
                }
                Ok(Parsed::Blank { len }) => {
                    understood.blanks += 1;
                    len
                }
                Err(error) => {
                    assert_eq!(parser.parse(PING), Err(error.clone()), "an error is final");
                    understood.error = Some(error);
                    return understood;
                }
            };
            assert!(0 < len && len <= buf.len());
            buf.drain(..len);
        }
    }
    understood.pending = buf.len();
    understood
}

fn whole(stream: &[u8]) -> Understood {
    feed(LIMITS, [stream])
}

#[track_caller]
fn refused(stream: &[u8], text: &str) {
    let error = whole(stream).error.unwrap_or_else(|| panic!("{}", stream.escape_ascii()));
    assert_eq!(error.to_string(), text, "{}", stream.escape_ascii());
    assert_eq!(feed(LIMITS, stream.chunks(1)).error, Some(error));
}

#[track_caller]
fn waits(stream: &[u8]) {
    let expected = Understood { pending: stream.len(), ..Understood::default() };
    assert_eq!(whole(stream), expected, "{}", stream.escape_ascii());
}

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

// The texts are those of Redis 7.0.15 for the same bytes.
#[test]
fn malformed_arrays_are_refused_in_the_words_of_redis() {
    let multibulk = "Protocol error: invalid multibulk length";
    for count in ["abc", "", "01", "+1", "-0", "2147483648", "-99223372036854775808", "1 "] {
        refused(format!("*{count}\r\n").as_bytes(), multibulk);
    }
    let bulk = "Protocol error: invalid bulk length";
    for len in ["-1", "x", "", "01", "536870913", "99999999999999999999", "4 "] {
        refused(format!("*1\r\n${len}\r\n").as_bytes(), bulk);
    }
    refused(b"*1\r\nPING\r\n", "Protocol error: expected '$', got 'P'");
    refused(b"*1\r\n*1\r\n", "Protocol error: expected '$', got '*'");
}

#[test]
fn malformed_inline_commands_are_refused_in_the_words_of_redis() {
    let quotes = "Protocol error: unbalanced quotes in request";
    refused(b"\"PING\r\n", quotes);
    refused(b"PING \"a\"b\r\n", quotes);
    refused(&[b'a'; 257], "Protocol error: too big inline request");
    waits(&[b'a'; 256]);
    let words = b"w ".repeat(65);
    refused(
        &[&words, &b"\n"[..]].concat(),
        "Protocol error: more than 64 arguments in an inline request",
    );
}

// Redis accepts any two bytes behind a bulk, any byte behind a CR, and waits forever behind a zero
// byte. Bytes that the next reader may parse differently are not forwarded.
#[test]
fn what_redis_is_careless_about_is_refused() {
    refused(b"*1\r\n$4\r\nPINGxx", "Protocol error: expected CRLF after a bulk of 4 bytes");
    refused(b"*1\r\n$2\r\nPING\r\n", "Protocol error: expected CRLF after a bulk of 2 bytes");
    refused(b"*1\rx$4\r\nPING\r\n", "Protocol error: invalid multibulk length");
    refused(b"*1\r\n$4\rxPING\r\n", "Protocol error: invalid bulk length");
    refused(b"PI\0NG\r\n", "Protocol error: zero byte in an inline request");
}

#[test]
fn http_is_refused_before_its_body_is_read() {
    let text = "Protocol error: this is an HTTP request, and this port speaks RESP";
    refused(b"POST / HTTP/1.1\r\n\r\nSET k v\r\n", text);
    refused(b"host: example\r\nSET k v\r\n", text);
    let get = whole(b"GET / HTTP/1.1\r\nHost: example\r\n\r\nSET k v\r\n");
    assert_eq!((get.commands.len(), get.error), (1, Some(ProtocolError::Http)));
}

#[test]
fn nothing_is_no_command() {
    for blank in ["\r\n", "\n", "  \t\r\n", "*0\r\n", "*-1\r\n", "*-5\r\n", "\r\r\n"] {
        let understood = whole(&[blank.as_bytes(), PING].concat());
        assert_eq!(understood.commands, [[b"PING".to_vec()]], "{blank:?}");
        assert_eq!(understood.blanks, 1, "{blank:?}");
    }
    let empty_name = whole(b"*1\r\n$0\r\n\r\n\"\"\r\n");
    assert_eq!(empty_name.commands, [[Vec::<u8>::new()], [Vec::new()]]);
}

#[test]
fn a_claim_is_waited_for_within_the_limits_alone() {
    waits(b"");
    waits(b"*");
    waits(b"*2\r\n$4\r");
    waits(b"*1\r\n$4000\r\nabc");
    waits(b"*64\r\n");
    refused(b"*65\r\n", "Protocol error: invalid multibulk length");
    refused(b"*1\r\n$4097\r\n", "Protocol error: invalid bulk length");
    refused(
        b"*2\r\n$4080\r\n",
        "Protocol error: a command of at least 4099 bytes is above the limit of 4096 bytes; \
         split it, or raise the guard's limit",
    );
}

#[test]
fn the_limit_of_a_command_is_exact() {
    // `*1`, `$4081` and their ends are 11 bytes, and the end of the bulk is 2.
    let largest = [b"*1\r\n$4083\r\n".to_vec(), vec![b'x'; 4083], b"\r\n".to_vec()].concat();
    assert_eq!(largest.len(), 4096);
    assert_eq!(whole(&largest).commands, [[vec![b'x'; 4083]]]);
    assert!(matches!(
        whole(b"*1\r\n$4084\r\n").error,
        Some(ProtocolError::CommandTooLarge { bytes: 4097, max: 4096 })
    ));
}

#[test]
fn the_missing_size_is_returned() {
    let mut parser = RequestParser::new(LIMITS);
    assert_eq!(parser.parse(b""), Ok(Parsed::Incomplete { at_least: 1 }));
    assert_eq!(parser.parse(b"*3\r\n"), Ok(Parsed::Incomplete { at_least: 4 + 18 }));
    let begun = b"*3\r\n$100\r\nabc";
    assert_eq!(parser.parse(begun), Ok(Parsed::Incomplete { at_least: 10 + 102 + 12 }));
}

// A parser that reads the same bytes twice would be misled by bytes that changed. This one
// must not even read the content of a bulk.
#[test]
fn bytes_that_were_understood_are_not_looked_at_again() {
    let mut parser = RequestParser::new(LIMITS);
    let mut buf = b"*2\r\n$3\r\nGET\r\n$9\r\nabc".to_vec();
    assert!(matches!(parser.parse(&buf), Ok(Parsed::Incomplete { .. })));
    buf.fill(b'?');
    buf.extend_from_slice(b"\0\r\n$*?\r\n");
    assert_eq!(parser.parse(&buf), Ok(Parsed::Complete { len: buf.len(), inline: false }));
    assert_eq!(parser.command(&buf).len(), 2);
    assert_eq!(parser.command(&buf).arg(1), b"???\0\r\n$*?");

    let mut line = b"PING".to_vec();
    assert!(matches!(parser.parse(&line), Ok(Parsed::Incomplete { .. })));
    line.fill(b'\n');
    line.extend_from_slice(b" x\n");
    let parsed = parser.parse(&line);
    assert_eq!(parsed, Ok(Parsed::Complete { len: line.len(), inline: true }));
}

#[test]
fn an_unusual_command_does_not_keep_its_memory() {
    let limits = RequestLimits { max_args: 100_000, max_command_bytes: 1 << 20, ..LIMITS };
    let mut parser = RequestParser::new(limits);
    let mut stream = BytesMut::new();
    encode::request(&mut stream, vec![b"x"; 20_000]);
    assert!(matches!(parser.parse(&stream), Ok(Parsed::Complete { .. })));
    assert_eq!(parser.command(&stream).len(), 20_000);
    assert!(matches!(parser.parse(PING), Ok(Parsed::Complete { .. })));
    assert!(parser.args.capacity() <= KEPT_ARGS);
    assert!(matches!(parser.parse(b"*99999\r\n"), Ok(Parsed::Incomplete { .. })));
    assert!(parser.args.capacity() <= KEPT_ARGS, "a claim costs no memory");
}

#[test]
fn many_inline_commands_take_the_memory_of_one() {
    let mut parser = RequestParser::new(LIMITS);
    let line = [&[b'x'; 200][..], b"\n"].concat();
    for _ in 0..1000 {
        assert!(matches!(parser.parse(&line), Ok(Parsed::Complete { .. })));
    }
    assert!(parser.unquoted.capacity() <= KEPT_UNQUOTED_BYTES);
}

#[test]
fn a_command_gives_its_arguments() {
    let buf = b"FENCE 33 SET k v";
    let ranges = [0..5, 6..8, 9..12, 13..14, 15..16];
    let command = Command::from_parts(buf, &ranges);
    assert_eq!(command.len(), 5);
    assert_eq!((command.arg(1), command.arg(5)), (&b"33"[..], &b""[..]));
    let wrapped: Vec<_> = command.tail(2).iter().collect();
    assert_eq!(wrapped, [&b"SET"[..], b"k", b"v"]);
    assert_eq!((command.tail(5).len(), command.tail(6).len()), (0, 0));
}

fn args() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6)
}

/// Generates input of a client: well formed, blank, typed by hand, or none of these.
fn sent() -> impl Strategy<Value = Vec<u8>> {
    let request = args().prop_map(|args| {
        let mut out = BytesMut::new();
        encode::request(&mut out, &args);
        out.to_vec()
    });
    let inline = prop::collection::vec("[a-z \"'\\\\x0-9]{0,6}", 0..6)
        .prop_map(|words| (words.join(" ") + "\r\n").into_bytes());
    let blank = prop::sample::select(vec![&b"\r\n"[..], b"\n", b"*0\r\n", b"*-1\r\n", b" \r\n"]);
    let symbols = prop::sample::select(b"*$-0123\r\n\"' \0a".to_vec());
    let garbage = prop::collection::vec(prop_oneof![9 => symbols, 1 => any::<u8>()], 0..20);
    prop_oneof![6 => request, 2 => inline, 1 => blank.prop_map(<[u8]>::to_vec), 1 => garbage]
}

/// Splits the stream into pieces of these lengths, repeatedly.
fn pieces<'s>(stream: &'s [u8], lengths: &[usize]) -> Vec<&'s [u8]> {
    let mut rest = stream;
    let mut pieces = Vec::new();
    for &length in lengths.iter().cycle() {
        let (piece, more) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = more;
        if rest.is_empty() {
            break;
        }
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_split_is_understood_alike(
        stream in prop::collection::vec(sent(), 1..5).prop_map(|parts| parts.concat()),
        lengths in prop::collection::vec(1..30_usize, 1..8),
    ) {
        let expected = whole(&stream);
        prop_assert_eq!(&feed(LIMITS, pieces(&stream, &lengths)), &expected);
        prop_assert_eq!(&feed(LIMITS, stream.chunks(1)), &expected);
    }

    #[test]
    fn what_was_encoded_is_understood(commands in prop::collection::vec(args(), 0..8)) {
        let mut stream = BytesMut::new();
        for args in &commands {
            encode::request(&mut stream, args);
        }
        prop_assert_eq!(whole(&stream), Understood { commands, ..Understood::default() });
    }

    /// An inline command encoded as an array is the same command.
    #[test]
    fn a_rebuilt_command_is_the_same(line in "[a-zA-Z0-9 \"'\\\\]{0,30}") {
        let typed = whole((line + "\n").as_bytes());
        let mut rebuilt = BytesMut::new();
        for args in &typed.commands {
            encode::request(&mut rebuilt, args);
        }
        prop_assert_eq!(whole(&rebuilt).commands, typed.commands);
    }
}

#[test]
fn a_command_begins_with_its_words_in_any_case() {
    let mut parser = RequestParser::new(LIMITS);
    let line = b"Client TRACKING on\r\n";
    parser.parse(line).unwrap();
    let command = parser.command(line);
    for words in [&[][..], &["client"], &["client", "tracking"], &["CLIENT", "tracking", "ON"]] {
        assert!(command.begins(words), "{words:?}");
    }
    for words in [&["cli"][..], &["clients"], &["tracking"], &["client", "tracking", "on", "x"]] {
        assert!(!command.begins(words), "{words:?}");
    }
    assert!(command.tail(1).begins(&["tracking"]));
}
