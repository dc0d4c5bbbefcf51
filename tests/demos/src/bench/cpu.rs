//! CPU time and memory of processes, from `/proc`; `None` where there is none.

use std::time::Duration;

/// CPU time that all threads of a process have used, in steps of the kernel's clock tick.
pub(super) fn used(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks(&stat)?;
    let nanos = ticks.checked_mul(1_000_000_000)? / rustix::param::clock_ticks_per_second();
    Some(Duration::from_nanos(nanos))
}

/// Memory of a process that is in RAM, in bytes.
pub(super) fn resident_bytes(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// Clock ticks in user and kernel mode: the 14th and the 15th field. The name, which is the second,
/// may have blanks and parentheses of its own.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    user.checked_add(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_user_and_kernel() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 12 0 0 0 151 49 3 2 20 0 1 0 99 5 6";
        assert_eq!(ticks(stat), Some(200));
        for bad in ["", "7 (a) S 1", "7 (a) S 1 7 7 0 -1 4 12 0 0 0 x 49 3"] {
            assert_eq!(ticks(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_has_memory() {
        assert!(used(std::process::id()).is_some());
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 4096));
    }
}
