//! Durations as people write them: `500ms`, `15s`, `5m`, `2h`.

use std::time::Duration;

use crate::Invalid;

/// The longest duration that is read: a week.
pub const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

const UNITS_MS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a whole number and its unit; a plain `0` needs none.
///
/// # Errors
/// [`Invalid`] with the value: no unit, another unit, a fraction, a sign, or more than a week.
pub fn parse(text: &str) -> Result<Duration, Invalid> {
    let refuse = |rule: &str| Invalid::new("duration", text, rule);
    let wrong = || refuse("must be a whole number with its unit: ms, s, m or h, as in 30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let (_, unit_ms) = UNITS_MS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let ms = number.saturating_mul(*unit_ms);
    let duration = Duration::from_millis(ms);
    if duration > LONGEST { Err(refuse("must be at most 168h")) } else { Ok(duration) }
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

/// Writes whole milliseconds in the largest unit that leaves a whole number, as [`parse`] reads it.
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    let fits = |unit_ms: u64| ms >= u128::from(unit_ms) && ms.is_multiple_of(u128::from(unit_ms));
    let (unit, unit_ms) = UNITS_MS.iter().find(|(_, unit_ms)| fits(*unit_ms)).unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / u128::from(*unit_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in
            [("500ms", 500), ("15s", 15_000), ("5m", 300_000), ("2h", 7_200_000), ("0", 0)]
        {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        assert!(parse_positive("0s").is_err());
    }

    #[test]
    fn refuses_what_could_be_misread() {
        for bad in ["", "30", "s", "-1s", "+1s", "1.5s", "30 s", "1d", "1sec", "169h", "١s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("99999999999999999999s").is_err());
        assert!(parse("18446744073709551615h").is_err());
    }

    proptest! {
        #[test]
        fn round_trips(ms in 0..604_800_000_u64) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&show(duration)).unwrap(), duration);
        }
    }
}
