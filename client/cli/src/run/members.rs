//! The members of a process group, as the system lists them.

use rustix::process::Pid;

/// Returns `true` if a member of the group can still run, or if the system does not report it.
pub(super) fn is_any_live(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return true;
    };
    let ids = processes.flatten().map(|entry| entry.path());
    ids.filter_map(|path| std::fs::read_to_string(path.join("stat")).ok())
        .any(|stat| is_live_member(&stat, group))
}

/// Parses the line of `/proc/PID/stat`: `PID (NAME) STATE PARENT GROUP …`, where the name may have
/// any character in it.
fn is_live_member(stat: &str, group: Pid) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    let of_group = fields.nth(1);
    let is_member = of_group.and_then(|id| id.parse().ok()) == Some(group.as_raw_pid());
    is_member && !matches!(state, Some("Z" | "X" | "x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_is_no_live_member_and_a_name_is_no_state() {
        let group = Pid::from_raw(12).unwrap();
        assert!(is_live_member("34 (a job) S 1 12 12 0 -1", group));
        assert!(is_live_member("34 (odd) Z 1 99) T 1 12 12 0 -1", group));
        assert!(!is_live_member("34 (sleep) Z 1 12 12 0 -1", group));
        assert!(!is_live_member("34 (sleep) S 12 13 12 0 -1", group));
        assert!(!is_live_member("", group));
    }

    #[test]
    fn this_process_is_a_live_member_of_its_group() {
        assert!(is_any_live(rustix::process::getpgrp()));
    }
}
