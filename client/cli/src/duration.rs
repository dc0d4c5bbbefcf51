//! Durations as people write them: `500ms`, `15s`, `5m`, `2h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration that was typed: a whole number and a unit of `ms`, `s`, `m` or `h`. A plain `0` needs
/// no unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

const RULE: &str = "write a whole number and a unit: 500ms, 15s, 5m or 2h";

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: u64 = number.parse().map_err(|_| RULE.to_owned())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "" if number == 0 => 1,
            _ => return Err(RULE.to_owned()),
        };
        let ms = number.checked_mul(unit_ms).ok_or("is too long")?;
        Ok(Self(Duration::from_millis(ms)))
    }
}

impl fmt::Display for Span {
    /// In the largest unit that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let (unit_ms, unit) = [(3_600_000, "h"), (60_000, "m"), (1000, "s")]
            .into_iter()
            .find(|(unit_ms, _)| ms >= *unit_ms && ms.is_multiple_of(*unit_ms))
            .unwrap_or((1, "ms"));
        write!(f, "{}{unit}", ms / unit_ms)
    }
}

/// Milliseconds for people: about two places.
pub(crate) fn readable(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} m {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} m", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> Option<u128> {
        text.parse::<Span>().ok().map(|span| span.0.as_millis())
    }

    #[test]
    fn reads_what_people_write() {
        assert_eq!(ms("500ms"), Some(500));
        assert_eq!(ms("15s"), Some(15_000));
        assert_eq!(ms("5m"), Some(300_000));
        assert_eq!(ms("2h"), Some(7_200_000));
        assert_eq!(ms("0"), Some(0));
        assert_eq!(ms("0s"), Some(0));
    }

    #[test]
    fn refuses_what_could_be_misread() {
        for bad in ["", "5", "s", "-1s", "+1s", "1.5s", "1 s", "1S", "1d", "1sec", "1s ", "١s"] {
            assert_eq!(ms(bad), None, "{bad:?}");
        }
        assert_eq!(ms("99999999999999999999s"), None);
        assert_eq!(ms("18446744073709551615h"), None);
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["1ms", "1500ms", "15s", "90s", "5m", "2h"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("120s".parse::<Span>().unwrap().to_string(), "2m");
    }

    #[test]
    fn readable_times() {
        assert_eq!(readable(999), "999 ms");
        assert_eq!(readable(12_340), "12.3 s");
        assert_eq!(readable(61_000), "1 m 1 s");
        assert_eq!(readable(3_660_000), "1 h 1 m");
    }
}
