//! Number in a header line such as `$1024`.

/// Number that is parsed digit by digit, and refused whenever Redis refuses it: no plus sign, no
/// leading zero, no `-0`, nothing beyond 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Length {
    value: i64,
    digits: u8,
    negative: bool,
}

/// The bytes are no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoNumber;

impl Length {
    /// Adds the next byte of the number.
    #[inline]
    pub(super) fn push(&mut self, byte: u8) -> Result<(), NoNumber> {
        match byte {
            b'0' if self.digits == 0 && self.negative => return Err(NoNumber),
            b'0'..=b'9' if self.digits == 0 || self.value != 0 => {
                let digit = i64::from(byte - b'0');
                let tens = self.value.checked_mul(10).ok_or(NoNumber)?;
                self.value = tens.checked_add(digit).ok_or(NoNumber)?;
                // At most 19 digits fit, so this cannot wrap.
                self.digits += 1;
            }
            b'-' if self.digits == 0 && !self.negative => self.negative = true,
            _ => return Err(NoNumber),
        }
        Ok(())
    }

    /// Returns the number, once its line has ended.
    #[inline]
    pub(super) fn finish(self) -> Result<i64, NoNumber> {
        match (self.digits, self.negative) {
            (0, _) => Err(NoNumber),
            (_, false) => Ok(self.value),
            (_, true) => Ok(-self.value),
        }
    }
}

/// Returns the number at the start of `bytes` and the length of its line with the CRLF; `None` if
/// more bytes are needed. Never reads beyond the maximum length of a number.
#[inline]
pub(super) fn line(bytes: &[u8]) -> Result<Option<(i64, usize)>, NoNumber> {
    let mut length = Length::default();
    for (at, &byte) in bytes.iter().enumerate() {
        if byte != b'\r' {
            length.push(byte)?;
            continue;
        }
        let number = length.finish()?;
        return match bytes.get(at + 1) {
            Some(b'\n') => Ok(Some((number, at + 2))),
            Some(_) => Err(NoNumber),
            None => Ok(None),
        };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        for (text, number) in [
            ("0", 0),
            ("1", 1),
            ("10", 10),
            ("-1", -1),
            ("-20", -20),
            ("9223372036854775807", i64::MAX),
        ] {
            let bytes = format!("{text}\r\nrest");
            assert_eq!(line(bytes.as_bytes()), Ok(Some((number, text.len() + 2))));
        }
    }

    #[test]
    fn what_redis_refuses_is_refused() {
        for text in [
            "",
            "-",
            "+1",
            "01",
            "00",
            "-0",
            "-01",
            "--1",
            "1-",
            "1 ",
            " 1",
            "x",
            "1x",
            "0x1",
            "9223372036854775808",
            "99999999999999999999",
            "1\n",
        ] {
            let bytes = format!("{text}\r\n");
            assert_eq!(line(bytes.as_bytes()), Err(NoNumber), "{text:?}");
        }
        assert_eq!(line(b"1\r1"), Err(NoNumber));
    }

    #[test]
    fn an_endless_number_is_refused_without_an_end_of_line() {
        assert_eq!(line(&[b'1'; 20]), Err(NoNumber));
        assert_eq!(line(&[b'0'; 2]), Err(NoNumber));
        assert_eq!(line(&[b'-'; 2]), Err(NoNumber));
    }

    proptest! {
        #[test]
        fn every_number_survives(number in (i64::MIN + 1)..=i64::MAX) {
            let text = format!("{number}\r\n");
            prop_assert_eq!(line(text.as_bytes()), Ok(Some((number, text.len()))));
            for cut in 0..text.len() {
                prop_assert_eq!(line(&text.as_bytes()[..cut]), Ok(None));
            }
        }
    }
}
