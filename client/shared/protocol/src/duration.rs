//! Durations in flags and messages: `500ms`, `15s`, `1h30m`.

use std::time::Duration;

use crate::Invalid;

/// The longest duration that is read: a week.
pub const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Longest text that is read. A sum that no `Duration` holds makes humantime panic, and takes 26
/// bytes.
const TEXT_BYTES_MAX: usize = 24;

/// Reads one or more numbers with their units, in whole milliseconds; a plain `0` needs no unit.
///
/// # Errors
/// [`Invalid`] with the value: no unit, an unknown unit, a sign, parts of a millisecond, or more
/// than a week.
pub fn parse(text: &str) -> Result<Duration, Invalid> {
    let refuse = |rule: &str| Err(Invalid::new("duration", text, rule));
    // humantime reads "1 5s" as 15 s.
    let is_readable =
        |text: &&str| text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_whitespace);
    match Some(text).filter(is_readable).map(humantime::parse_duration) {
        Some(Ok(duration)) if duration > LONGEST => refuse("must be at most 168h"),
        Some(Ok(duration)) if duration.subsec_nanos().is_multiple_of(1_000_000) => Ok(duration),
        _ => refuse("must be whole milliseconds, each number with its unit, as in 30s or 1h30m"),
    }
}

/// Like [`parse`], and more than zero.
///
/// # Errors
/// [`Invalid`] with the value.
pub fn parse_positive(text: &str) -> Result<Duration, Invalid> {
    match parse(text)? {
        Duration::ZERO => Err(Invalid::new("duration", text, "must be more than zero")),
        duration => Ok(duration),
    }
}

/// Writes a duration as [`parse`] reads it.
pub fn show(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in
            [("500ms", 500), ("15s", 15_000), ("5m", 300_000), ("1h30m", 5_400_000), ("0", 0)]
        {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        assert!(parse_positive("0s").is_err());
    }

    #[test]
    fn refuses_what_could_be_misread() {
        for bad in [
            "",
            "30",
            "s",
            "-1s",
            "+1s",
            "1.5ms",
            "1us",
            "1M",
            "169h",
            "١s",
            "1 5s",
            "1\u{a0}5s",
            "1h 30m",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for huge in ["99999999999999999999s", "5124095576030431h15s1000ms"] {
            assert!(parse(huge).is_err(), "{huge}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(ms in 0..604_800_000_u64) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&show(duration)).unwrap(), duration);
        }
    }
}
