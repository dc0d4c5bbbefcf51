//! Attempts that overlap: one that is not answered in time is repeated, and its own reply still counts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::{ids, timing};

/// What is logged of an attempt that has no reply yet.
pub(crate) const NO_REPLY_YET: &str = "no reply yet";

/// How many attempts are under way at a time; beyond that the oldest is dropped.
const UNDER_WAY_MAX: usize = 4;

/// Starts attempts until one succeeds, or fails in a way that `is_final` for all of them.
///
/// The next attempt starts `patience` after the one before where that has no reply yet, and after a
/// pause where it failed. `report` gets the number of the attempt and its failure, or `None` where it
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

/// The output of the first attempt that ends, which is then removed. Never resolves without one.
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
