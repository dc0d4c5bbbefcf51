use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::doors::redis::resp::{Protocol, ProtocolError, encode};

/// Replies of a stream by type and length, and the rest or its fault.
#[derive(Debug, Default, PartialEq)]
struct Found {
    replies: Vec<(char, usize)>,
    pending: usize,
    error: Option<ProtocolError>,
}

fn feed<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Found {
    let mut scanner = ReplyScanner::new();
    let mut found = Found::default();
    for mut piece in pieces {
        while !piece.is_empty() {
            match scanner.scan(piece) {
                Ok(Scan { consumed, done }) => {
                    assert!(consumed > 0 && (done || consumed == piece.len()));
                    found.pending += consumed;
                    piece = &piece[consumed..];
                    if done {
                        let len = std::mem::take(&mut found.pending);
                        found.replies.push((scanner.kind().into(), len));
                    }
                }
                Err(error) => {
                    return Found { error: Some(error), pending: 0, ..found };
                }
            }
        }
    }
    found
}

/// Checks one reply, whole and byte by byte, with another one behind it.
#[track_caller]
fn one(kind: char, reply: &str) {
    let stream = format!("{reply}+OK\r\n");
    let expected = vec![(kind, reply.len()), ('+', 5)];
    assert_eq!(feed([stream.as_bytes()]).replies, expected, "{reply:?}");
    assert_eq!(feed(stream.as_bytes().chunks(1)).replies, expected, "{reply:?}");
}

#[track_caller]
fn refused(reply: &str, error: ProtocolError) {
    assert_eq!(feed([reply.as_bytes()]).error, Some(error.clone()), "{reply:?}");
    assert_eq!(feed(reply.as_bytes().chunks(1)).error, Some(error), "{reply:?}");
}

#[test]
fn replies_of_resp2() {
    for (kind, reply) in [
        ('+', "+OK\r\n"),
        ('+', "+\r\n"),
        ('-', "-ERR no\r\n"),
        (':', ":-5\r\n"),
        ('$', "$5\r\na\r\nb+\r\n"),
        ('$', "$0\r\n\r\n"),
        ('$', "$-1\r\n"),
        ('*', "*0\r\n"),
        ('*', "*-1\r\n"),
        ('*', "*2\r\n$1\r\na\r\n*-1\r\n"),
        ('*', "*3\r\n*2\r\n:1\r\n$-1\r\n*0\r\n*1\r\n*1\r\n-ERR deep\r\n"),
    ] {
        one(kind, reply);
    }
}

#[test]
fn replies_of_resp3() {
    for (kind, reply) in [
        ('_', "_\r\n"),
        ('#', "#t\r\n"),
        (',', ",-inf\r\n"),
        ('(', "(3492890328409238509324850943850943825024385\r\n"),
        ('!', "!9\r\nSYNTAX\r\nx\r\n"),
        ('=', "=7\r\ntxt:a\r\n\r\n"),
        ('%', "%0\r\n"),
        ('%', "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n"),
        ('~', "~2\r\n+a\r\n#f\r\n"),
        ('>', ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"),
    ] {
        one(kind, reply);
    }
}

#[test]
fn attributes_belong_to_the_value_behind_them() {
    one(':', "|1\r\n+ttl\r\n:3600\r\n:5\r\n");
    one('*', "|1\r\n+a\r\n*2\r\n:1\r\n:2\r\n|0\r\n*1\r\n|2\r\n+a\r\n+b\r\n+c\r\n+d\r\n+e\r\n");
    one('*', "*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n");
    let mut scanner = ReplyScanner::new();
    scanner.scan(b"|1\r\n+ttl\r\n").unwrap();
    assert_eq!(scanner.kind(), b'|');
}

#[test]
fn a_line_ends_with_both_bytes_alone() {
    one('+', "+a\rb\nc\r\r\n");
    one('-', &format!("-ERR {}\r\n", "x".repeat(100_000)));
}

#[test]
fn what_is_no_reply_is_refused() {
    refused("PONG\r\n", ProtocolError::ReplyType(b'P'));
    refused("\r\n", ProtocolError::ReplyType(b'\r'));
    refused("*2\r\n:1\r\n?", ProtocolError::ReplyType(b'?'));
    for header in ["$", "$x", "$-2", "$01", "*-2", "%-1", "~-1", ">-1", "!-1", "=-1", "*?", "$?"] {
        refused(&format!("{header}\r\n"), ProtocolError::ReplyLength);
    }
    refused("$1\rx", ProtocolError::ReplyLength);
    refused("$99999999999999999999", ProtocolError::ReplyLength);
    refused("$1\r\nabc", ProtocolError::ReplyEnd);
    refused("$1\r\na\rc", ProtocolError::ReplyEnd);
    refused("$1\r\nab\n", ProtocolError::ReplyEnd);
    refused("$0\r\n\n\n", ProtocolError::ReplyEnd);
    refused("*9223372036854775807\r\n%9223372036854775807\r\n", ProtocolError::ReplyLength);
}

#[test]
fn claims_and_depth_cost_nothing() {
    assert_eq!(feed([&b"$9223372036854775807\r\nabc"[..]]).pending, 25);
    assert_eq!(feed([&b"*9223372036854775807\r\n:1\r\n"[..]]).pending, 26);
    let deep = "*1\r\n".repeat(100_000) + ":1\r\n";
    one('*', &deep);
    // No part of it owns memory.
    assert!(size_of::<ReplyScanner>() <= 64 && !std::mem::needs_drop::<ReplyScanner>());
}

/// A value in its encoded form.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let line = ("[+:,#(_-]", "[a-z0-9 ]{0,8}")
        .prop_map(|(kind, text)| format!("{kind}{text}\r\n").into_bytes());
    let bulk = ("[$!=]", prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, bytes)| {
        let header = format!("{kind}{}\r\n", bytes.len());
        [header.as_bytes(), &bytes, b"\r\n"].concat()
    });
    let null = prop::sample::select(vec![b"$-1\r\n".to_vec(), b"*-1\r\n".to_vec()]);
    prop_oneof![line, bulk, null].prop_recursive(5, 40, 4, |inner| {
        let values = prop::collection::vec(inner.clone(), 0..4).boxed();
        let list = ("[*~>]", values.clone()).prop_map(|(kind, values)| {
            [format!("{kind}{}\r\n", values.len()).into_bytes(), values.concat()].concat()
        });
        let pairs = prop::collection::vec((inner.clone(), inner.clone()), 0..3).boxed();
        let written = |kind: char, pairs: Vec<(Vec<u8>, Vec<u8>)>| {
            let mut out = format!("{kind}{}\r\n", pairs.len()).into_bytes();
            pairs.iter().for_each(|(key, value)| out.extend([&key[..], value].concat()));
            out
        };
        let map = pairs.clone().prop_map(move |pairs| written('%', pairs));
        let attribute =
            (pairs, inner).prop_map(move |(pairs, value)| [written('|', pairs), value].concat());
        prop_oneof![4 => list, 2 => map, 1 => attribute]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_reply_ends_where_it_ends_however_it_is_split(
        replies in prop::collection::vec(value(), 1..5),
        lengths in prop::collection::vec(1..30_usize, 1..8),
    ) {
        let stream = replies.concat();
        let found = feed([&stream[..]]);
        prop_assert_eq!(&found.error, &None);
        let lengths_found: Vec<_> = found.replies.iter().map(|&(_, len)| len).collect();
        prop_assert_eq!(lengths_found, replies.iter().map(Vec::len).collect::<Vec<_>>());
        prop_assert_eq!(&feed(stream.chunks(1)), &found);
        let mut rest = &stream[..];
        let pieces = lengths.iter().cycle().map_while(|&length| {
            let (piece, more) = rest.split_at(length.min(rest.len()));
            rest = more;
            (!piece.is_empty()).then_some(piece)
        });
        prop_assert_eq!(&feed(pieces), &found);
    }

    #[test]
    fn garbage_is_an_error_or_incomplete(
        stream in prop::collection::vec(
            prop_oneof![
                12 => prop::sample::select(b"+-:_#,($!=*~>%|0129\r\n\r\n\r\n".to_vec()),
                1 => any::<u8>(),
            ],
            0..60,
        ),
    ) {
        prop_assert_eq!(feed([&stream[..]]), feed(stream.chunks(1)));
    }

    #[test]
    fn what_the_guard_says_is_a_reply(
        text in any::<String>(),
        number in any::<i64>(),
        old in any::<bool>(),
    ) {
        let protocol = if old { Protocol::Resp2 } else { Protocol::Resp3 };
        let mut out = BytesMut::new();
        encode::map(&mut out, 3, protocol);
        encode::simple(&mut out, &text);
        encode::error(&mut out, &text);
        encode::bulk(&mut out, text.as_bytes());
        encode::integer(&mut out, number);
        encode::null(&mut out, protocol);
        encode::array(&mut out, 0);
        let kind = char::from(out[0]);
        let len = out.len();
        out.put_slice(b"+OK\r\n");
        prop_assert_eq!(feed([&out[..]]).replies, vec![(kind, len), ('+', 5)]);
    }
}
