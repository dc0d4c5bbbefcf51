//! Encoding of the guard's own replies and commands.

use bytes::{BufMut, BytesMut};

use super::Protocol;

/// Writes a status such as `OK`. A CR or LF in it becomes a space.
pub(crate) fn simple(out: &mut BytesMut, text: &str) {
    line(out, b'+', text);
}

/// Writes an error whose first word is its code: `ERR no such key`. A CR or LF in it becomes a
/// space.
pub(crate) fn error(out: &mut BytesMut, text: &str) {
    line(out, b'-', text);
}

/// Writes a string of any bytes.
pub(crate) fn bulk(out: &mut BytesMut, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.reserve(bytes.len() + 2);
    out.put_slice(bytes);
    out.put_slice(b"\r\n");
}

/// Writes a text with its format of three letters, in RESP3.
pub(crate) fn verbatim(out: &mut BytesMut, format: &str, text: &str) {
    out.put_slice(format!("={}\r\n{format}:{text}\r\n", text.len() + 4).as_bytes());
}

/// Writes an integer.
pub(crate) fn integer(out: &mut BytesMut, number: i64) {
    out.put_u8(b':');
    if number < 0 {
        out.put_u8(b'-');
    }
    number_line(out, number.unsigned_abs());
}

/// Begins an array: `len` values follow.
pub(crate) fn array(out: &mut BytesMut, len: usize) {
    header(out, b'*', len);
}

/// Begins a map: `pairs` keys, each with its value, follow. RESP2 has no maps, and gets an array of
/// twice as many values.
pub(crate) fn map(out: &mut BytesMut, pairs: usize, protocol: Protocol) {
    match protocol {
        Protocol::Resp2 => header(out, b'*', pairs * 2),
        Protocol::Resp3 => header(out, b'%', pairs),
    }
}

/// Writes a null.
pub(crate) fn null(out: &mut BytesMut, protocol: Protocol) {
    out.put_slice(match protocol {
        Protocol::Resp2 => b"$-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Writes a command: name and arguments, as an array of strings.
pub(crate) fn request<I>(out: &mut BytesMut, args: I)
where
    I: IntoIterator<IntoIter: ExactSizeIterator, Item: AsRef<[u8]>>,
{
    let args = args.into_iter();
    array(out, args.len());
    for arg in args {
        bulk(out, arg.as_ref());
    }
}

/// Writes a line, with spaces in place of line ends, which would end the reply early.
fn line(out: &mut BytesMut, kind: u8, text: &str) {
    out.reserve(text.len() + 3);
    out.put_u8(kind);
    for (index, piece) in text.as_bytes().split(|byte| matches!(byte, b'\r' | b'\n')).enumerate() {
        if index > 0 {
            out.put_u8(b' ');
        }
        out.put_slice(piece);
    }
    out.put_slice(b"\r\n");
}

fn header(out: &mut BytesMut, kind: u8, len: usize) {
    out.put_u8(kind);
    number_line(out, len as u64);
}

fn number_line(out: &mut BytesMut, mut number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.put_slice(&digits[first..]);
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn each_kind_is_written_as_the_protocol_says() {
        assert_eq!(written(|out| simple(out, "OK")), "+OK\r\n");
        assert_eq!(written(|out| error(out, "ERR no")), "-ERR no\r\n");
        assert_eq!(written(|out| bulk(out, b"a\r\nb")), "$4\r\na\r\nb\r\n");
        assert_eq!(written(|out| bulk(out, b"")), "$0\r\n\r\n");
        assert_eq!(written(|out| integer(out, i64::MIN)), ":-9223372036854775808\r\n");
        assert_eq!(written(|out| integer(out, 0)), ":0\r\n");
        assert_eq!(written(|out| array(out, 3)), "*3\r\n");
        assert_eq!(written(|out| map(out, 3, Protocol::Resp2)), "*6\r\n");
        assert_eq!(written(|out| map(out, 3, Protocol::Resp3)), "%3\r\n");
        assert_eq!(written(|out| null(out, Protocol::Resp2)), "$-1\r\n");
        assert_eq!(written(|out| null(out, Protocol::Resp3)), "_\r\n");
        assert_eq!(written(|out| verbatim(out, "txt", "hi")), "=6\r\ntxt:hi\r\n");
        let command = written(|out| request(out, [&b"GET"[..], b"key"]));
        assert_eq!(command, "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
    }

    #[test]
    fn a_text_cannot_end_its_line() {
        assert_eq!(written(|out| error(out, "ERR a\r\n+OK\n")), "-ERR a  +OK \r\n");
        assert_eq!(written(|out| simple(out, "\n")), "+ \r\n");
    }

    proptest! {
        #[test]
        fn integers_are_decimal(number in any::<i64>()) {
            prop_assert_eq!(written(|out| integer(out, number)), format!(":{number}\r\n"));
        }
    }
}
