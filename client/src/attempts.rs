//! Overlapping attempts: one without a reply in time is retried, and its own late reply still
//! counts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::{ids, timing};

/// Logged reason of an attempt that has no reply yet.
pub(crate) const NO_REPLY_YET: &str = "no reply yet";

/// Most attempts in flight at a time; the next one drops the oldest.
const UNDER_WAY_MAX: usize = 4;

/// Starts attempts until one succeeds or fails with an error that `is_final` for all of them.
///
/// The next attempt starts `patience` after the previous one if that has no reply yet, and after a
/// pause if it failed. `report` receives the number of the attempt and its failure, or `None` if it
/// has no reply yet. Cancel-safe.
pub(crate) async fn until_success<F, E>(
    start: impl Fn() -> F,
    patience: impl Fn() -> Duration,
    is_final: impl Fn(&E) -> bool,
    report: impl Fn(u32, Option<&E>),
) -> Result<(), E>
where
    F: Future<Output = Result<(), E>>,
{
    let mut under_way: Vec<Pin<Box<F>>> = Vec::new();
    for attempt in 1.. {
        if under_way.len() == UNDER_WAY_MAX {
            drop(under_way.remove(0));
        }
        under_way.push(Box::pin(start()));
        let pause = timing::pause(attempt, ids::random());
        for (time, is_reply_due) in [(patience(), true), (pause, false)] {
            match tokio::time::timeout(time, first_of(&mut under_way)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if is_final(&error) => return Err(error),
                Ok(Err(error)) => report(attempt, Some(&error)),
                Err(_) if is_reply_due => report(attempt, None),
                Err(_) => {}
            }
        }
    }
    unreachable!("the loop has no end but its returns")
}

/// Resolves to the output of the first attempt that ends, and removes it. Never resolves if the
/// list is empty.
async fn first_of<F: Future>(under_way: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|context| {
        for at in 0..under_way.len() {
            if let Poll::Ready(output) = under_way[at].as_mut().poll(context) {
                drop(under_way.remove(at));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}
