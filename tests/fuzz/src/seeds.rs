//! The seeds of a target: a text file with an input a line.
//!
//! A line is the input itself but for `\r`, `\n`, `\t`, `\\` and `\xNN`, so that bytes of any
//! protocol can be read and written by hand.

use std::path::Path;

/// The seeds of the target `name`, from `tests/fuzz/seeds/<name>.txt`.
///
/// # Panics
/// If the file cannot be read, or a line has an escape that is not one of the above.
pub fn seeds(name: &str) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", file.display()));
    text.lines()
        .map(|line| {
            unescaped(line.as_bytes())
                .unwrap_or_else(|| panic!("{}: an escape of {line:?} is unknown", file.display()))
        })
        .collect()
}

/// The line of a file of seeds for an input.
pub(crate) fn escaped(input: &[u8]) -> String {
    let mut line = String::new();
    for byte in input {
        match byte {
            b'\r' => line.push_str("\\r"),
            b'\n' => line.push_str("\\n"),
            b'\t' => line.push_str("\\t"),
            b'\\' => line.push_str("\\\\"),
            b' '..=b'~' => line.push(char::from(*byte)),
            _ => line.push_str(&format!("\\x{byte:02x}")),
        }
    }
    line
}

/// The input of a line; `None` where an escape is unknown.
fn unescaped(line: &[u8]) -> Option<Vec<u8>> {
    let mut input = Vec::new();
    let mut rest = line;
    while let [byte, more @ ..] = rest {
        rest = more;
        if *byte != b'\\' {
            input.push(*byte);
            continue;
        }
        let (byte, more) = match rest {
            [b'r', more @ ..] => (b'\r', more),
            [b'n', more @ ..] => (b'\n', more),
            [b't', more @ ..] => (b'\t', more),
            [b'\\', more @ ..] => (b'\\', more),
            [b'x', high, low, more @ ..] => {
                let digit = |digit: u8| char::from(digit).to_digit(16);
                (u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?, more)
            }
            _ => return None,
        };
        input.push(byte);
        rest = more;
    }
    Some(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_its_line() {
        let input: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(escaped(&input).as_bytes()), Some(input));
        assert_eq!(unescaped(b"\\q"), None);
        assert_eq!(unescaped(b"\\x4"), None);
    }
}
