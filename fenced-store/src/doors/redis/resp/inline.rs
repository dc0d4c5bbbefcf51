//! Inline commands: a line of words, as typed into a terminal.

use std::ops::Range;

use super::ProtocolError;

/// Splits a line (without its end) into words and appends each, with its quotes resolved, to
/// `text`; `words` gets their ranges. The rules are those of Redis' `sdssplitargs`.
///
/// # Errors
/// [`ProtocolError::InlineQuotes`] and [`ProtocolError::InlineArguments`].
pub(super) fn split(
    line: &[u8],
    max_args: usize,
    text: &mut Vec<u8>,
    words: &mut Vec<Range<usize>>,
) -> Result<(), ProtocolError> {
    let mut rest = line;
    loop {
        rest = skip_spaces(rest);
        if rest.is_empty() {
            return Ok(());
        }
        if words.len() == max_args {
            return Err(ProtocolError::InlineArguments(max_args));
        }
        let start = text.len();
        rest = word(rest, text)?;
        words.push(start..text.len());
    }
}

/// Splits one word off a line that begins with one, and returns the rest.
fn word<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        rest = match *rest {
            [b'"', ref inside @ ..] => return double_quoted(inside, text),
            [b'\'', ref inside @ ..] => return single_quoted(inside, text),
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Ok(rest),
            [byte, ref more @ ..] => {
                text.push(byte);
                more
            }
        };
    }
}

fn double_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        let (byte, more) = match *rest {
            [b'\\', b'x', high, low, ref more @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex_digit(high) << 4 | hex_digit(low), more)
            }
            [b'\\', escaped, ref more @ ..] => (unescape(escaped), more),
            [b'"', ref more @ ..] => return after_quote(more),
            [byte, ref more @ ..] => (byte, more),
            [] => return Err(ProtocolError::InlineQuotes),
        };
        text.push(byte);
        rest = more;
    }
}

fn single_quoted<'l>(mut rest: &'l [u8], text: &mut Vec<u8>) -> Result<&'l [u8], ProtocolError> {
    loop {
        let (byte, more) = match *rest {
            [b'\\', b'\'', ref more @ ..] => (b'\'', more),
            [b'\'', ref more @ ..] => return after_quote(more),
            [byte, ref more @ ..] => (byte, more),
            [] => return Err(ProtocolError::InlineQuotes),
        };
        text.push(byte);
        rest = more;
    }
}

/// Ends a word at its closing quote: a space or the end of the line must follow.
fn after_quote(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(&byte) if !is_space(byte) => Err(ProtocolError::InlineQuotes),
        _ => Ok(rest),
    }
}

fn skip_spaces(line: &[u8]) -> &[u8] {
    let spaces = line.iter().take_while(|&&byte| is_space(byte)).count();
    &line[spaces..]
}

/// Returns `true` for the spaces of C's `isspace`. They separate words, but vertical tab and form
/// feed do not end a begun word.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit.to_ascii_lowercase() - b'a' + 10,
    }
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let mut text = Vec::new();
        let mut ranges = Vec::new();
        split(line, 8, &mut text, &mut ranges)?;
        Ok(ranges.into_iter().map(|range| text[range].to_vec()).collect())
    }

    #[track_caller]
    fn reads(line: &[u8], expected: &[&[u8]]) {
        assert_eq!(words(line).unwrap(), expected, "{}", line.escape_ascii());
    }

    // Each was sent to Redis 7.0.15, whose reply to ECHO shows how it was understood.
    #[test]
    fn words_are_those_that_redis_finds() {
        reads(b"", &[]);
        reads(b" \t\x0b\x0c ", &[]);
        reads(b"PING", &[b"PING"]);
        reads(b" SET  a\tb ", &[b"SET", b"a", b"b"]);
        reads(b"ECHO \"\"", &[b"ECHO", b""]);
        reads(b"ECHO ''", &[b"ECHO", b""]);
        reads(b"ECHO a\"b c\"", &[b"ECHO", b"ab c"]);
        reads(b"ECHO a'b c' d", &[b"ECHO", b"ab c", b"d"]);
        reads(b"ECHO \"a'b\" ", &[b"ECHO", b"a'b"]);
        reads(b"ECHO a\x0bb", &[b"ECHO", b"a\x0bb"]);
        reads(b"ECHO \"a\"\x0bb", &[b"ECHO", b"a", b"b"]);
        reads(b"ECHO a\rb", &[b"ECHO", b"a", b"b"]);
    }

    #[test]
    fn escapes_are_resolved_in_double_quotes_alone() {
        reads(br#"ECHO "a\x41\n\r\t\b\a\q\\\"""#, &[b"ECHO", b"aA\n\r\t\x08\x07q\\\""]);
        reads(br#""\xfF\x0d\xZZ\x4""#, &[b"\xff\x0dxZZx4"]);
        reads(br"ECHO 'it\'s \n'", &[b"ECHO", br"it's \n"]);
        reads(br"ECHO \x41\n", &[b"ECHO", br"\x41\n"]);
    }

    #[test]
    fn unbalanced_quotes_are_refused() {
        for line in [
            &b"\"PING"[..],
            b"'PING",
            b"PING \"a\"b",
            b"PING 'a'b",
            b"\"a\\",
            b"\"a\\\"",
            b"'a\\'",
            b"\"",
            b"'",
            b"\"a\"\"b\"",
        ] {
            assert_eq!(words(line), Err(ProtocolError::InlineQuotes), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn too_many_words_are_refused() {
        assert_eq!(words(b"1 2 3 4 5 6 7 8").unwrap().len(), 8);
        assert_eq!(words(b"1 2 3 4 5 6 7 8 9"), Err(ProtocolError::InlineArguments(8)));
    }

    proptest! {
        #[test]
        fn every_word_survives_its_quotes(
            expected in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..8),
        ) {
            let mut line = Vec::new();
            for word in &expected {
                line.push(b'"');
                line.extend(word.iter().flat_map(|byte| format!("\\x{byte:02x}").into_bytes()));
                line.extend(b"\" ");
            }
            prop_assert_eq!(words(&line).unwrap(), expected);
        }

        #[test]
        fn no_line_is_a_panic(line in prop::collection::vec(
            prop_oneof![any::<u8>(), Just(b'"'), Just(b'\''), Just(b'\\'), Just(b'x'), Just(b' ')],
            0..40,
        )) {
            if let Ok(words) = words(&line) {
                prop_assert!(words.iter().map(Vec::len).sum::<usize>() <= line.len());
            }
        }
    }
}
