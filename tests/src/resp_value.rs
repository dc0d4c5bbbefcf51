//! One reply as a value.

use std::io;

/// Reply of Redis.
#[derive(Clone, Debug, PartialEq)]
pub enum Resp {
    /// `+OK`.
    Simple(String),
    /// `-ERR …`, without the dash.
    Error(String),
    /// `:7`.
    Integer(i64),
    /// `$3`, also verbatim (`=`), double (`,`), big number (`(`) and boolean (`#`) as their bytes.
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` or `_`.
    Null,
    /// `*` or `~`.
    Array(Vec<Resp>),
    /// `%`.
    Map(Vec<(Resp, Resp)>),
    /// `>`.
    Push(Vec<Resp>),
}

impl Resp {
    /// `+text`.
    pub fn simple(text: &str) -> Self {
        Self::Simple(text.to_owned())
    }

    /// A bulk string.
    pub fn bulk(text: impl AsRef<[u8]>) -> Self {
        Self::Bulk(text.as_ref().to_vec())
    }

    /// The text of an error.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// `true` if it is an error that begins with this word.
    pub fn is_error(&self, code: &str) -> bool {
        self.error().is_some_and(|text| text.split(' ').next() == Some(code))
    }

    /// The text of the error, which must begin with this word.
    ///
    /// # Panics
    /// If it is something else.
    #[track_caller]
    pub fn expect_error(&self, code: &str) -> &str {
        assert!(self.is_error(code), "wanted -{code}, got {self:?}");
        self.error().unwrap_or_default()
    }

    /// The number of an integer reply.
    ///
    /// # Panics
    /// If it is something else.
    #[track_caller]
    pub fn integer(&self) -> i64 {
        match self {
            Self::Integer(number) => *number,
            other => panic!("wanted a number, got {other:?}"),
        }
    }

    /// A string, simple or bulk, as text.
    ///
    /// # Panics
    /// If it is something else.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("wanted a string, got {other:?}"),
        }
    }

    /// The elements of an array or push.
    ///
    /// # Panics
    /// If it is something else.
    #[track_caller]
    pub fn items(&self) -> &[Resp] {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            other => panic!("wanted an array, got {other:?}"),
        }
    }
}

/// The bytes of a command.
pub fn request<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// The first reply in `bytes` and its length; `None` while it is incomplete.
///
/// # Errors
/// `InvalidData` where the bytes are no reply.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<Option<(Resp, usize)>> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.value()?.map(|value| (value, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> io::Result<Option<Resp>> {
        let Some(line) = self.line() else { return Ok(None) };
        let Some((kind, rest)) = line.split_first() else { return Err(bad("an empty line")) };
        let text = String::from_utf8_lossy(rest).into_owned();
        let number = || text.parse::<i64>().map_err(|_| bad(&text));
        Ok(match kind {
            b'+' => Some(Resp::Simple(text)),
            b'-' => Some(Resp::Error(text)),
            b':' => Some(Resp::Integer(number()?)),
            b'_' => Some(Resp::Null),
            b',' | b'(' | b'#' => Some(Resp::bulk(text)),
            b'$' | b'=' | b'!' if number()? < 0 => Some(Resp::Null),
            b'$' | b'=' => self.bulk(number()?)?.map(Resp::Bulk),
            b'!' => {
                let bytes = self.bulk(number()?)?;
                bytes.map(|bytes| Resp::Error(String::from_utf8_lossy(&bytes).into_owned()))
            }
            b'*' if number()? < 0 => Some(Resp::Null),
            b'*' | b'~' => self.items(number()?)?.map(Resp::Array),
            b'>' => self.items(number()?)?.map(Resp::Push),
            b'%' => self.items(2 * number()?)?.map(pairs),
            other => return Err(bad(&format!("{}{text}", char::from(*other)))),
        })
    }

    fn line(&mut self) -> Option<&[u8]> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        self.at += end + 2;
        Some(&rest[..end])
    }

    fn bulk(&mut self, len: i64) -> io::Result<Option<Vec<u8>>> {
        let len = usize::try_from(len).map_err(|_| bad("a negative length"))?;
        let rest = &self.bytes[self.at..];
        if rest.len() < len + 2 {
            return Ok(None);
        }
        if &rest[len..len + 2] != b"\r\n" {
            return Err(bad("a bulk string that does not end in CRLF"));
        }
        self.at += len + 2;
        Ok(Some(rest[..len].to_vec()))
    }

    fn items(&mut self, count: i64) -> io::Result<Option<Vec<Resp>>> {
        let mut items = Vec::new();
        for _ in 0..count {
            let Some(item) = self.value()? else { return Ok(None) };
            items.push(item);
        }
        Ok(Some(items))
    }
}

fn pairs(items: Vec<Resp>) -> Resp {
    let mut pairs = Vec::new();
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    Resp::Map(pairs)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP reply: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_at_any_cut() {
        let bytes = b"*3\r\n:1\r\n$2\r\na\n\r\n%1\r\n+k\r\n_\r\n>1\r\n-ERR x\r\n";
        let end = bytes.iter().position(|byte| *byte == b'>').unwrap();
        for cut in 0..bytes.len() {
            let found = parse(&bytes[..cut]).unwrap();
            assert_eq!(found.is_some(), cut >= end, "{cut}: {found:?}");
        }
        let (first, len) = parse(bytes).unwrap().unwrap();
        assert_eq!(
            first,
            Resp::Array(vec![
                Resp::Integer(1),
                Resp::bulk("a\n"),
                Resp::Map(vec![(Resp::simple("k"), Resp::Null)]),
            ])
        );
        let (second, rest) = parse(&bytes[len..]).unwrap().unwrap();
        assert_eq!(second, Resp::Push(vec![Resp::Error("ERR x".to_owned())]));
        assert_eq!(len + rest, bytes.len());
    }

    #[test]
    fn what_is_no_reply_is_reported() {
        for bytes in ["hello\r\n", "$1\r\nabc\r\n", ":x\r\n", "\r\n"] {
            assert!(parse(bytes.as_bytes()).is_err(), "{bytes}");
        }
    }
}
