//! Time limits of silent clients.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Sleep, sleep};

/// Time limits of silent clients.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// Time for the rest of a command, beside the time for its size at `bytes_per_sec_min`.
    pub command: Duration,
    /// Minimum rate of a sender of a large command.
    pub bytes_per_sec_min: u32,
    /// Time that a client without a token may be idle.
    pub stranger: Duration,
    /// Time that any other client may be idle; `None` for no limit.
    pub idle: Option<Duration>,
}

/// Input that the port waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Nothing, or nothing that the client owes.
    Nothing,
    /// The rest of a command, with the number of bytes received.
    Rest(usize),
    /// The next command of a client that has presented no token.
    Introduction,
    /// The next command.
    Command,
    /// Nothing more is received before the client has read replies; with the number of bytes that
    /// its socket has taken.
    Receipt(u64),
}

impl SilenceLimits {
    /// Returns the longest silence; `None` if the client owes nothing.
    fn limit_for(&self, awaited: Awaited) -> Option<Duration> {
        match awaited {
            Awaited::Nothing => None,
            Awaited::Rest(_) | Awaited::Receipt(_) => Some(self.command),
            Awaited::Introduction => Some(self.stranger),
            Awaited::Command => self.idle,
        }
    }

    /// Returns `true` if enough of a command arrived within the time limit.
    fn is_quick(&self, before: usize, now: usize) -> bool {
        let due = self.command.as_secs_f64() * f64::from(self.bytes_per_sec_min);
        now.saturating_sub(before) as f64 >= due
    }
}

/// Timer of one client. It does not run while the client is served.
#[derive(Debug)]
pub(super) struct Patience {
    limits: SilenceLimits,
    timer: Option<(Awaited, Pin<Box<Sleep>>)>,
}

impl Patience {
    pub(super) fn new(limits: SilenceLimits) -> Self {
        Self { limits, timer: None }
    }

    /// Resets the timer: the client has sent a whole command.
    pub(super) fn renew(&mut self) {
        self.timer = None;
    }

    /// Waits until the client was silent for too long, and returns the reason.
    ///
    /// # Cancel safety
    /// The time continues to count.
    pub(super) async fn ends(&mut self, awaited: Awaited) -> String {
        loop {
            let limit = self.limits.limit_for(awaited);
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
                (Awaited::Receipt(before), Awaited::Receipt(now)) if now > before => {
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
                    "ERR the rest of a command did not arrive within {ms} ms; it was not executed"
                )
            }
            Awaited::Introduction => {
                format!("ERR no token was presented, and no command was sent for {ms} ms")
            }
            Awaited::Receipt(_) => format!("no reply was read for {ms} ms"),
            Awaited::Nothing | Awaited::Command => format!("ERR no command was sent for {ms} ms"),
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
        assert_eq!(limits.limit_for(Awaited::Introduction), Some(limits.stranger));
        assert_eq!(
            (limits.limit_for(Awaited::Command), limits.limit_for(Awaited::Nothing)),
            (None, None)
        );
        let idle = Some(Duration::from_secs(5));
        assert_eq!(SilenceLimits { idle, ..limits }.limit_for(Awaited::Command), idle);
    }

    #[test]
    fn a_large_command_has_more_time_while_enough_of_it_comes() {
        assert!(!limits().is_quick(1, 1000));
        assert!(limits().is_quick(1, 1001));
    }
}
