//! Waiting for locks: the options, and a line on stderr that shows what is waited for.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fence_client::{Client, WaitObserver};
use fence_protocol::wire::lock::LockReply;
use fence_protocol::{Code, LeaseId, LockName, duration};

use fence_terminal::exit::{Failure, code};
use fence_terminal::output::say;
use fence_terminal::readable::readable;
use fence_terminal::status::StatusLine;

/// Age of a wait at which it is shown; most are shorter.
const BEFORE_SHOWN: Duration = Duration::from_millis(500);
/// The same where it stays in a log.
const BEFORE_LOGGED: Duration = Duration::from_secs(2);
/// Pause between two looks at the queue, on a terminal.
const REFRESH: Duration = Duration::from_secs(1);
/// Most locks whose queues are read for one line.
const LOCKS_READ: usize = 4;

/// The options of every command that waits for a lock.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Longest wait for the lock, or for a server that is unreachable
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Duration,

    /// Exit code if the lock is not acquired
    #[arg(long, default_value_t = code::NOT_ACQUIRED, value_name = "N")]
    conflict_exit_code: u8,
}

impl WaitArgs {
    /// The failure with the exit code that the caller wants for a lock that was not acquired.
    pub(crate) fn failed(self, failure: Failure) -> Failure {
        match failure.code() {
            code::NOT_ACQUIRED => failure.with_code(self.conflict_exit_code),
            _ => failure,
        }
    }
}

/// The wait of this process, as a person sees it on stderr.
#[derive(Debug, Default)]
pub(crate) struct WaitView {
    /// An unreachable server is retried for ever.
    is_endless: bool,
    /// The entry in the queue.
    lease_id: Mutex<Option<LeaseId>>,
    has_reported: AtomicBool,
    status: StatusLine,
}

impl WaitObserver for WaitView {
    fn acquiring(&self, lease_id: LeaseId) {
        *self.lease_id.lock().unwrap_or_else(PoisonError::into_inner) = Some(lease_id);
    }

    fn retrying(&self, reason: &str, left: Duration) {
        if self.has_reported.swap(true, Ordering::Relaxed) {
            return;
        }
        self.status.clear();
        let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let is_unstated = self.is_endless || left.is_zero();
        let time = if is_unstated { String::new() } else { format!(" for {}", readable(left_ms)) };
        say(&format!("fence: {reason}; trying again{time}"));
    }
}

impl WaitView {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// The view of a wait without end.
    pub(crate) fn endless() -> Arc<Self> {
        Arc::new(Self { is_endless: true, ..Self::default() })
    }

    /// Resolves to the result of `acquired`. Meanwhile shows what it waits for: on a terminal a
    /// line that is kept up to date, elsewhere one line.
    pub(crate) async fn show<T>(
        &self,
        client: &Client,
        locks: &[String],
        acquired: impl Future<Output = T>,
    ) -> T {
        let result = tokio::select! {
            biased;
            result = acquired => result,
            never = self.paint(client, locks) => match never {},
        };
        self.status.clear();
        result
    }

    async fn paint(&self, client: &Client, locks: &[String]) -> Infallible {
        let is_terminal = self.status.is_terminal();
        tokio::time::sleep(if is_terminal { BEFORE_SHOWN } else { BEFORE_LOGGED }).await;
        loop {
            match self.line(client, locks).await {
                Some(line) if self.status.is_terminal() => {
                    self.status.show(&format!("fence: {line}"))
                }
                Some(line) => {
                    say(&format!("fence: {line}"));
                    std::future::pending::<()>().await;
                }
                None => self.status.clear(),
            }
            tokio::time::sleep(REFRESH).await;
        }
    }

    /// The line about the first lock that another lease holds.
    async fn line(&self, client: &Client, locks: &[String]) -> Option<String> {
        for name in locks.iter().take(LOCKS_READ) {
            let lock = LockName::new(name).ok()?;
            match client.locks().show(&lock).await {
                Ok(reply) => {
                    let own = *self.lease_id.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(line) = wait_line(&reply, own) {
                        return Some(line);
                    }
                }
                Err(error) => {
                    let problem = error.problem()?;
                    // The right to acquire is not the right to read.
                    return (problem.code == Code::Forbidden)
                        .then(|| format!("waiting for {lock}"));
                }
            }
        }
        None
    }
}

/// The line about a wait for the lock; `None` if no other lease holds it.
fn wait_line(lock: &LockReply, own: Option<LeaseId>) -> Option<String> {
    let position = lock.queue.iter().position(|waiter| Some(waiter.lease_id) == own);
    let position = position.map_or_else(String::new, |index| {
        format!(", position {} of {}", index + 1, lock.queue_length)
    });
    let name = &lock.lock;
    match (&lock.holder, lock.delayed_ms) {
        (Some(holder), _) if Some(holder.lease_id) != own => {
            let others = match lock.lease_count {
                0 | 1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let owner = &holder.info.owner;
            let expires = readable(holder.info.expires_in_ms);
            Some(format!(
                "waiting for {name} behind {owner}{others}{position}, lease ends in {expires} unless \
                 renewed"
            ))
        }
        (None, Some(delayed_ms)) => {
            let delayed = readable(delayed_ms);
            Some(format!("waiting for {name}{position}, its lock-delay ends in {delayed}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_names_holder_position_and_end() {
        let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let own: LeaseId = id.parse().unwrap();
        let holder = json!({"owner": "a@b:1", "token": 7, "held_ms": 100, "expires_in_ms": 12_000,
            "lease_id": "8a6bd64e-2a5f-4b44-9f80-1c1e3a6fd1f1", "renewals": 0});
        let waiter = json!({"owner": "me", "lease_id": id, "waiting_ms": 10});
        let reply = |holder: &serde_json::Value, lease_count: usize| -> LockReply {
            serde_json::from_value(json!({"lock": "jobs", "state": "held", "holder": holder,
                "lease_count": lease_count, "queue": [waiter], "queue_length": 3, "history": []}))
            .unwrap()
        };
        assert_eq!(
            wait_line(&reply(&holder, 1), Some(own)).unwrap(),
            "waiting for jobs behind a@b:1, position 1 of 3, lease ends in 12.0 s unless renewed"
        );
        let several = wait_line(&reply(&holder, 3), None).unwrap();
        assert!(
            several.starts_with("waiting for jobs behind a@b:1 and 2 more, lease"),
            "{several}"
        );
        let holder_id = "8a6bd64e-2a5f-4b44-9f80-1c1e3a6fd1f1".parse().unwrap();
        assert_eq!(wait_line(&reply(&holder, 1), Some(holder_id)), None, "it was granted");
    }
}
