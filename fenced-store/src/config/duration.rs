//! Durations as people write them.

use std::time::Duration;

use fence_protocol::Invalid;

const RULE: &str = "must be a whole number with its unit: ms, s, m or h, as in 30s";
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reads `500ms`, `30s`, `5m` or `1h`; more than zero, at most a week.
///
/// # Errors
/// [`Invalid`] with the value.
pub(super) fn duration(text: &str) -> Result<Duration, Invalid> {
    let refuse = || Invalid::new("duration", text, RULE);
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(refuse)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(refuse()),
    };
    let duration = Duration::from_millis(number.checked_mul(unit_ms).ok_or_else(refuse)?);
    if duration.is_zero() || duration > LONGEST {
        return Err(Invalid::new("duration", text, "must be more than zero and at most 168h"));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_required() {
        assert_eq!(duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("2m").unwrap(), Duration::from_secs(120));
        for bad in
            ["", "30", "s", "0s", "-1s", "1.5s", "30 s", "1d", "99999999999999999999s", "169h"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
