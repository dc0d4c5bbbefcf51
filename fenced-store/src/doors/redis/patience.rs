//! How long the port waits for a client that is silent.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Limits on a client's silence.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// How long the rest of a command may take, beside what its size needs at `bytes_per_sec_min`.
    pub command: Duration,
    /// The rate that a sender of a large command must keep up.
    pub bytes_per_sec_min: u32,
    /// How long a client that presented no token may rest.
    pub stranger: Duration,
    /// How long any other client may rest; without end where there is none.
    pub idle: Option<Duration>,
}

/// What a client is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Nothing, or not by the client's fault.
    Nothing,
    /// The rest of a command, of which so many bytes have come.
    Rest(usize),
    /// The next command of a client that has presented no token.
    Introduction,
    /// The next command.
    Command,
}

impl SilenceLimits {
    /// The longest silence; none where the client owes nothing.
    fn of(&self, awaited: Awaited) -> Option<Duration> {
        match awaited {
            Awaited::Nothing => None,
            Awaited::Rest(_) => Some(self.command),
            Awaited::Introduction => Some(self.stranger),
            Awaited::Command => self.idle,
        }
    }

    /// Whether enough of a command came within the time for one.
    fn is_quick(&self, before: usize, now: usize) -> bool {
        let due = self.command.as_secs_f64() * f64::from(self.bytes_per_sec_min);
        now.saturating_sub(before) as f64 >= due
    }
}

/// The time that a client has left. Nothing is measured while it is served.
#[derive(Debug)]
pub(super) struct Patience {
    limits: SilenceLimits,
    timer: Option<(Awaited, Pin<Box<Sleep>>)>,
}

impl Patience {
    pub(super) fn new(limits: SilenceLimits) -> Self {
        Self { limits, timer: None }
    }

    /// The client has sent a whole command.
    pub(super) fn renew(&mut self) {
        self.timer = None;
    }

    /// Ends with the reason when the client was silent for too long.
    ///
    /// # Cancel safety
    /// The time goes on to count.
    pub(super) async fn ends(&mut self, awaited: Awaited) -> String {
        loop {
            let limit = self.limits.of(awaited);
            let Some(limit) = limit else {
                self.timer = None;
                return std::future::pending().await;
            };
            let same =
                |timer: &Awaited| std::mem::discriminant(timer) == std::mem::discriminant(&awaited);
            if !self.timer.as_ref().is_some_and(|(timer, _)| same(timer)) {
                self.timer = Some((awaited, Box::pin(sleep(limit))));
            }
            let Some((begun, timer)) = &mut self.timer else { continue };
            timer.as_mut().await;
            match (*begun, awaited) {
                (Awaited::Rest(before), Awaited::Rest(now))
                    if self.limits.is_quick(before, now) =>
                {
                    self.timer = None;
                }
                _ => return self.reason(awaited, limit),
            }
        }
    }

    fn reason(&self, awaited: Awaited, limit: Duration) -> String {
        let ms = limit.as_millis();
        match awaited {
            Awaited::Rest(_) => {
                format!(
                    "ERR the rest of a command did not come within {ms} ms; nothing of it was done"
                )
            }
            Awaited::Introduction => {
                format!("ERR no token was presented, and no command came for {ms} ms")
            }
            Awaited::Nothing | Awaited::Command => format!("ERR no command came for {ms} ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> SilenceLimits {
        SilenceLimits {
            command: Duration::from_secs(10),
            bytes_per_sec_min: 100,
            stranger: Duration::from_secs(20),
            idle: None,
        }
    }

    #[test]
    fn rest_is_limited_for_strangers_alone_unless_it_is_set() {
        let limits = limits();
        assert_eq!(limits.of(Awaited::Introduction), Some(limits.stranger));
        assert_eq!((limits.of(Awaited::Command), limits.of(Awaited::Nothing)), (None, None));
        let idle = Some(Duration::from_secs(5));
        assert_eq!(SilenceLimits { idle, ..limits }.of(Awaited::Command), idle);
    }

    #[test]
    fn a_large_command_has_more_time_while_enough_of_it_comes() {
        assert!(!limits().is_quick(1, 1000));
        assert!(limits().is_quick(1, 1001));
    }
}
