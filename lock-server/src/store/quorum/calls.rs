//! The calls of this server to one node: what waits for it goes there in one call.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::Value;
use futures_util::FutureExt as _;
use futures_util::future::{MaybeDone, maybe_done};
use service_kit::redis_link::{LinkError, RedisLink};
use service_kit::tasks::Tasks;

use super::membership::Current;
use super::nodes::Silence;
use super::replies::read_batch;
use super::scripts::Scripts;
use crate::store::quorum::rules::Operation;

/// How many operations one call has at most.
const OPERATIONS_MAX: usize = 64;
/// How many calls of a node are under way at most: what comes meanwhile waits for the next one.
const CALLS_MAX: usize = 1;

/// Receives the reply to one operation.
pub(super) type OnReply = Box<dyn FnOnce(Result<Value, Silence>) + Send>;

/// Calls to one node, in the order in which their operations were submitted.
pub(super) struct Calls {
    index: usize,
    link: RedisLink,
    scripts: Arc<Scripts>,
    tasks: Tasks,
    queue: Mutex<CallQueue>,
}

#[derive(Default)]
struct CallQueue {
    waiting: VecDeque<Submitted>,
    calls: usize,
}

struct Submitted {
    current: Arc<Current>,
    operation: Arc<Operation>,
    on_reply: OnReply,
}

type Reply = Pin<Box<dyn Future<Output = Result<Value, LinkError>> + Send>>;

/// A call that was sent.
struct Call {
    reply: Pin<Box<MaybeDone<Reply>>>,
    receivers: Vec<OnReply>,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Calls {
    pub(super) fn new(index: usize, link: RedisLink, scripts: Arc<Scripts>, tasks: Tasks) -> Self {
        Self { index, link, scripts, tasks, queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, CallQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an operation under a view in which the node votes, behind every one that was submitted
    /// before. It is sent at once, or with others when a call returns.
    pub(super) fn submit(
        self: &Arc<Self>,
        current: &Arc<Current>,
        operation: &Arc<Operation>,
        on_reply: OnReply,
    ) {
        let mut queue = self.queue();
        let (current, operation) = (current.clone(), operation.clone());
        queue.waiting.push_back(Submitted { current, operation, on_reply });
        if queue.calls >= CALLS_MAX {
            return;
        }
        let Some(call) = self.next(&mut queue) else { return };
        queue.calls += 1;
        drop(queue);
        self.tasks.spawn(self.clone().run(call));
    }

    /// Passes replies on, and sends what came meanwhile, until nothing waits.
    async fn run(self: Arc<Self>, mut call: Call) {
        loop {
            call.reply.as_mut().await;
            let reply = call.reply.as_mut().take_output();
            let reply = reply.unwrap_or_else(|| Err(LinkError::Unknown("no reply".to_owned())));
            // Sent first: whoever gets a reply may submit what is to go behind all that waits.
            let next = {
                let mut queue = self.queue();
                let next = self.next(&mut queue);
                queue.calls -= usize::from(next.is_none());
                next
            };
            pass_on(reply, call.receivers);
            match next {
                Some(next) => call = next,
                None => return,
            }
        }
    }

    /// Sends what waits under one view. The lock on the queue is held meanwhile, so that no call
    /// overtakes another one.
    fn next(&self, queue: &mut CallQueue) -> Option<Call> {
        let first = queue.waiting.front()?;
        let current = first.current.clone();
        let same = |next: &&Submitted| Arc::ptr_eq(&next.current, &current);
        let count = queue.waiting.iter().take(OPERATIONS_MAX).take_while(same).count();
        let mut operations = Vec::with_capacity(count);
        let mut receivers = Vec::with_capacity(count);
        for submitted in queue.waiting.drain(..count) {
            operations.push(submitted.operation);
            receivers.push(submitted.on_reply);
        }
        let command = current.addressee(self.index).map(|to| self.scripts.batch(to, &operations));
        let link = self.link.clone();
        let reply: Reply = Box::pin(async move {
            match command {
                Some(command) => link.call_in_turn(&command).await,
                None => Err(LinkError::Down("the node does not vote".to_owned())),
            }
        });
        let mut reply = Box::pin(maybe_done(reply));
        // The first poll sends it.
        let _ = (&mut reply).now_or_never();
        Some(Call { reply, receivers })
    }
}

/// Gives each operation its reply; without one all of them share what is known of the call.
fn pass_on(reply: Result<Value, LinkError>, receivers: Vec<OnReply>) {
    let count = receivers.len();
    let replies = reply.map_err(Silence::of).and_then(|value| {
        read_batch(value, count).map_err(|error| Silence::Unknown(error.to_string()))
    });
    match replies {
        Ok(replies) => {
            for (on_reply, reply) in receivers.into_iter().zip(replies) {
                on_reply(reply.map_err(Silence::of));
            }
        }
        Err(silence) => {
            receivers.into_iter().for_each(|on_reply| on_reply(Err(silence.clone())));
        }
    }
}
