//! Places where a test stops or kills the guard between two steps of a hand-over.
//!
//! They exist in builds with debug assertions only; elsewhere `FailPoints::reached` is nothing.

use std::str::FromStr;

/// A place between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailPoint {
    /// A connection is about to be registered.
    BeforeRegister,
    /// It was registered without anybody to be ended.
    AfterRegister,
    /// The mark is raised, lower connections are known, and none was killed.
    AfterRaise,
    /// The first of them was killed.
    MidAbort,
    /// All of them are gone, and that is not recorded.
    AfterAbort,
    /// It is recorded, and the new token not yet admitted.
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

/// Which place, and what happens there: `after-raise=stop`.
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
        let point = point.ok_or_else(|| format!("there is no point \"{name}\""))?;
        match action {
            "stop" => Ok(Self { point, kills: false }),
            "kill" => Ok(Self { point, kills: true }),
            other => Err(format!("\"{other}\" is neither stop nor kill")),
        }
    }
}

/// A place fails once, so that a guard which goes on after its stop gets further.
#[cfg(debug_assertions)]
static FIRED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// The places where this process fails; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailPoints(Option<FailAt>);

impl FailPoints {
    /// With one place, or none.
    pub fn new(fail_at: Option<FailAt>) -> Self {
        Self(fail_at)
    }

    /// Stops or kills this process if this is the place.
    pub(crate) fn reached(&self, point: FailPoint) {
        #[cfg(debug_assertions)]
        if let Some(fail_at) = self.0
            && fail_at.point == point
            && !FIRED.swap(true, std::sync::atomic::Ordering::SeqCst)
        {
            use rustix::process::{Signal, getpid, kill_process};
            let signal = if fail_at.kills { Signal::KILL } else { Signal::STOP };
            // Nothing can be done about a signal that cannot be sent to oneself.
            let _ = kill_process(getpid(), signal);
            // The kernel may give the signal to another thread first; this one waits for it.
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        #[cfg(not(debug_assertions))]
        let _ = point;
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
