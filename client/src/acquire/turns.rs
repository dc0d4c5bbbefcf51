//! A wait that is longer than one request may wait: the next request takes over its queue entry.

use std::time::Duration;

use fence_protocol::wire::lock::MAX_WAIT_MS;

use crate::transport::Failure;

/// Age of a request at which the next one is sent. It must arrive before the first one times out,
/// because the server then removes the queue entry.
const NEXT_AFTER: Duration = Duration::from_millis(MAX_WAIT_MS - 20_000);
/// Time for the next request to arrive, after which the first one is dropped.
const OVERLAP: Duration = Duration::from_secs(10);

/// Pause before the next request is sent again, after one that failed.
const PAUSE: Duration = Duration::from_secs(3);

/// Sends requests with one lease id in turns until one has its result; `send` gets its wait.
///
/// The server lets a request with the lease id of a waiting one wait at the same queue entry, and
/// replies to both. A next request that fails, because of a limit or the network, ends nothing: the
/// one before it still has the entry. Cancel-safe as `send` is.
pub(super) async fn until_result<T, F: Future<Output = Result<T, Failure>>>(
    wait_ms: impl Fn() -> u64,
    send: impl Fn(u64) -> F,
) -> Result<T, Failure> {
    let mut current = Box::pin(send(wait_ms().min(MAX_WAIT_MS)));
    while wait_ms() > MAX_WAIT_MS {
        tokio::select! {
            biased;
            result = &mut current => return result,
            () = tokio::time::sleep(NEXT_AFTER) => {}
        }
        let next = loop {
            let mut next = Box::pin(send(wait_ms().min(MAX_WAIT_MS)));
            tokio::select! {
                biased;
                result = &mut current => return result,
                result = &mut next => if result.is_ok() { return result },
                () = tokio::time::sleep(OVERLAP) => break next,
            }
            tokio::select! {
                biased;
                result = &mut current => return result,
                () = tokio::time::sleep(PAUSE) => {}
            }
        };
        current = next;
    }
    current.await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "the runtime's paused clock is what is tested")]
    async fn the_next_request_is_sent_before_the_first_times_out() {
        let left_ms = Cell::new(700_000);
        let sent = RefCell::new(Vec::new());
        let begin = tokio::time::Instant::now();
        let now = || begin.elapsed().as_secs();
        let result = until_result(
            || left_ms.get() - u64::try_from(begin.elapsed().as_millis()).unwrap(),
            |wait_ms| {
                sent.borrow_mut().push((now(), wait_ms));
                let is_last = sent.borrow().len() == 3;
                async move {
                    let reply_after = if is_last { 1 } else { wait_ms / 1_000 };
                    tokio::time::sleep(Duration::from_secs(reply_after)).await;
                    if is_last { Ok(()) } else { Err(Failure::NoReply("timed out".to_owned())) }
                }
            },
        );
        result.await.unwrap();
        let sent = sent.into_inner();
        assert_eq!(sent[0], (0, 300_000));
        assert_eq!(sent[1], (280, 300_000));
        assert_eq!(sent.len(), 3);
        assert_eq!(sent[2].0, 570, "behind the overlap of the second");
        assert_eq!(sent[2].1, 130_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_next_request_that_fails_ends_nothing() {
        let sent = Cell::new(0);
        let result = until_result(
            || 700_000,
            |_| {
                sent.set(sent.get() + 1);
                let is_first = sent.get() == 1;
                async move {
                    if is_first {
                        tokio::time::sleep(Duration::from_secs(290)).await;
                        return Ok(7);
                    }
                    Err(Failure::NotSent("connection refused".to_owned()))
                }
            },
        );
        assert_eq!(result.await.unwrap(), 7);
        assert!(sent.get() > 2, "the next one is sent again: {}", sent.get());
    }
}
