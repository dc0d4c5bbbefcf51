//! Times for people.

/// Milliseconds for people: about two places, rounded to the nearest.
pub fn readable(ms: u64) -> String {
    let tenths = ms.saturating_add(50) / 100;
    let seconds = ms.saturating_add(500) / 1000;
    let minutes = ms.saturating_add(30_000) / 60_000;
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..59_950 => format!("{}.{} s", tenths / 10, tenths % 10),
        59_950..3_599_500 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} m", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_times() {
        assert_eq!(readable(999), "999 ms");
        assert_eq!(readable(12_340), "12.3 s");
        assert_eq!(readable(14_998), "15.0 s");
        assert_eq!(readable(59_998), "1 m 0 s");
        assert_eq!(readable(3_599_998), "1 h 0 m");
        assert_eq!(readable(61_000), "1 m 1 s");
        assert_eq!(readable(3_660_000), "1 h 1 m");
    }
}
