//! Times for people.

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

    #[test]
    fn readable_times() {
        assert_eq!(readable(999), "999 ms");
        assert_eq!(readable(12_340), "12.3 s");
        assert_eq!(readable(61_000), "1 m 1 s");
        assert_eq!(readable(3_660_000), "1 h 1 m");
    }
}
