//! Points at which a test stops or kills the guard between two steps of a hand-over.
//!
//! They exist in builds with debug assertions only; elsewhere `FailPoints::reached` has no effect.

use std::str::FromStr;

/// A point between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailPoint {
    /// A connection is about to be registered.
    BeforeRegister,
    /// A connection was registered, and none has to be ended.
    AfterRegister,
    /// The mark is raised, lower connections are known, and none was killed.
    AfterRaise,
    /// The first of them was killed.
    MidAbort,
    /// All of them are gone, and their end is not recorded.
    AfterAbort,
    /// Their end is recorded, and the new token not yet admitted.
    AfterSealed,
    /// A connection ended, and its registration is about to be removed.
    BeforeRetire,
}

const NAMES: [(&str, FailPoint); 7] = [
    ("before-register", FailPoint::BeforeRegister),
    ("after-register", FailPoint::AfterRegister),
    ("after-raise", FailPoint::AfterRaise),
    ("mid-abort", FailPoint::MidAbort),
    ("after-abort", FailPoint::AfterAbort),
    ("after-sealed", FailPoint::AfterSealed),
    ("before-retire", FailPoint::BeforeRetire),
];

/// Point and action: `after-raise=stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailAt {
    point: FailPoint,
    kills: bool,
}

impl FromStr for FailAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, action) = text.split_once('=').ok_or("write POINT=stop or POINT=kill")?;
        let point = NAMES.iter().find_map(|(known, point)| (*known == name).then_some(*point));
        let point = point.ok_or_else(|| format!("no point is named \"{name}\""))?;
        match action {
            "stop" => Ok(Self { point, kills: false }),
            "kill" => Ok(Self { point, kills: true }),
            other => Err(format!("\"{other}\" is neither stop nor kill")),
        }
    }
}

/// Set once a point was reached, so that a guard that resumes passes it.
static FIRED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Points at which this process fails; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailPoints(Option<FailAt>);

impl FailPoints {
    /// Sets one point, or none.
    pub fn new(fail_at: Option<FailAt>) -> Self {
        Self(fail_at)
    }

    /// Stops or kills this process at the chosen point.
    pub(crate) fn reached(&self, point: FailPoint) {
        if cfg!(debug_assertions)
            && let Some(fail_at) = self.0
            && fail_at.point == point
            && !FIRED.swap(true, std::sync::atomic::Ordering::SeqCst)
        {
            use rustix::process::{Signal, getpid, kill_process};
            let signal = if fail_at.kills { Signal::KILL } else { Signal::STOP };
            // A process can always signal itself.
            let _ = kill_process(getpid(), signal);
            // The kernel may give the signal to another thread first; this one waits for it.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_name() {
        for (name, point) in NAMES {
            let expected = FailAt { point, kills: true };
            assert_eq!(format!("{name}=kill").parse::<FailAt>(), Ok(expected));
        }
        for bad in ["", "after-raise", "after-raise=pause", "nowhere=stop"] {
            assert!(bad.parse::<FailAt>().is_err(), "{bad}");
        }
    }
}
