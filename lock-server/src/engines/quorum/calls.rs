//! The calls of this server to one node: what waits for it goes there in one call.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::Value;
use redis_link::{LinkError, RedisLink};
use service_kit::tasks::Tasks;

use super::current::Current;
use super::replies::read_batch;
use super::rules::Operation;
use super::scripts::Scripts;
use super::silence::Silence;

/// Most operations of one call: a node that takes 30 ms a call must keep up with the others, and
/// its Redis serves no other client during the script, some 2 ms.
const OPERATIONS_MAX: usize = 256;
/// Most operations that wait for a node. One that stays slower than the others does not vote on
/// later ones, as if it were unreachable.
const WAITING_MAX: usize = 8_192;

/// Receives the reply to one operation.
pub(super) type OnReply = Box<dyn FnOnce(Result<Value, Silence>) + Send>;

/// Calls to one node, one at a time, in the order in which their operations were submitted.
pub(super) struct Calls {
    index: usize,
    link: RedisLink,
    scripts: Arc<Scripts>,
    tasks: Tasks,
    queue: Mutex<CallQueue>,
}

/// The operations of one call, under one view, and the receivers of their replies.
type Batch = (Arc<Current>, Vec<(Arc<Operation>, OnReply)>);

#[derive(Default)]
struct CallQueue {
    waiting: VecDeque<Submitted>,
    /// A task is sending the waiting operations.
    is_sending: bool,
}

struct Submitted {
    current: Arc<Current>,
    operation: Arc<Operation>,
    on_reply: OnReply,
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

    /// Submits an operation under a view in which the node votes. It is sent behind every one that
    /// was submitted before: with the next call, which begins when the one under way has returned.
    /// Where too many wait, it is not done.
    pub(super) fn submit(
        self: &Arc<Self>,
        current: &Arc<Current>,
        operation: &Arc<Operation>,
        on_reply: OnReply,
    ) {
        let current = current.clone();
        let operation = operation.clone();
        let mut queue = self.queue();
        if queue.waiting.len() >= WAITING_MAX {
            drop(queue);
            let text = format!("{WAITING_MAX} operations wait for this node already");
            return on_reply(Err(Silence::NotDone(text)));
        }
        queue.waiting.push_back(Submitted { current, operation, on_reply });
        if !std::mem::replace(&mut queue.is_sending, true) {
            drop(queue);
            self.tasks.spawn(self.clone().send_all());
        }
    }

    /// Sends what waits until nothing does.
    async fn send_all(self: Arc<Self>) {
        while let Some((current, submitted)) = self.next() {
            let (operations, receivers): (Vec<_>, Vec<_>) = submitted.into_iter().unzip();
            let reply = match current.addressee(self.index) {
                Some(to) => self.link.call_in_turn(&self.scripts.batch(to, &operations)).await,
                None => Err(LinkError::Down("the node does not vote".to_owned())),
            };
            pass_on(reply, receivers);
        }
    }

    /// Takes what waits under one view; `None` where nothing waits, and nothing is sent from then
    /// on.
    fn next(&self) -> Option<Batch> {
        let mut queue = self.queue();
        let Some(first) = queue.waiting.front() else {
            queue.is_sending = false;
            return None;
        };
        let current = first.current.clone();
        let same = |next: &&Submitted| Arc::ptr_eq(&next.current, &current);
        let count = queue.waiting.iter().take(OPERATIONS_MAX).take_while(same).count();
        let taken = queue.waiting.drain(..count).map(|next| (next.operation, next.on_reply));
        Some((current, taken.collect()))
    }
}

/// Gives each operation its reply; without one all of them share what is known of the call.
fn pass_on(reply: Result<Value, LinkError>, receivers: Vec<OnReply>) {
    let count = receivers.len();
    let replies = reply.map_err(Silence::from_link_error).and_then(|value| {
        read_batch(value, count).map_err(|error| Silence::Unknown(error.to_string()))
    });
    match replies {
        Ok(replies) => {
            for (on_reply, reply) in receivers.into_iter().zip(replies) {
                on_reply(reply.map_err(Silence::from_link_error));
            }
        }
        Err(silence) => {
            receivers.into_iter().for_each(|on_reply| on_reply(Err(silence.clone())));
        }
    }
}
