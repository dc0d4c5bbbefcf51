//! The Date header (RFC 9110, IMF-fixdate): `Sun, 06 Nov 1994 08:49:37 GMT`.

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Milliseconds since 1970; `None` for anything that is no such date.
pub(super) fn unix_ms(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.strip_suffix(" GMT")?.split(' ');
    let day: u64 = parts.next()?.parse().ok()?;
    let month = parts.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = parts.next()?.parse().ok()?;
    let mut time = parts.next()?.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(seconds * 1000)
}

/// The days before a date of the Gregorian calendar, counted in years that begin in March, so that
/// a leap day is the last of its year.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year;
    // The days before 1 January 1970 in the same count.
    days - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(unix_ms("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(unix_ms("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777_000));
        assert_eq!(unix_ms("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199_000));
        assert_eq!(unix_ms("Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200_000));
    }

    #[test]
    fn nonsense_is_no_date() {
        for bad in [
            "",
            "now",
            "Thu, 01 Foo 1970 00:00:00 GMT",
            "Thu, 01 Jan 1970 00:00 GMT",
            "Thu, 01 Jan 1970 00:00:00 CET",
            "Thu, 01 Jan 0001 00:00:00 GMT",
            "Thu, 99 Jan 1970 25:00:00 GMT",
        ] {
            assert_eq!(unix_ms(bad), None, "{bad}");
        }
    }
}
