//! A link for each runtime: a command and its reply do not change threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use service_kit::tasks::Tasks;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use super::{LinkError, LinkState, RedisLink};

/// Links to one Redis: one that was made first, and one on each current-thread runtime that sends
/// commands. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalLinks {
    inner: Arc<ThreadLinks>,
}

#[derive(Debug)]
struct ThreadLinks {
    first: RedisLink,
    /// The runtime of the first.
    home: Option<Id>,
    tasks: Tasks,
    others: RwLock<Vec<Local>>,
}

#[derive(Debug)]
struct Local {
    runtime: Id,
    link: RedisLink,
    /// The generation of the first link that this one was used beside.
    beside: AtomicU64,
}

impl LocalLinks {
    /// `first` was made on the current runtime.
    pub fn new(first: RedisLink, tasks: &Tasks) -> Self {
        let home = Handle::try_current().ok().map(|runtime| runtime.id());
        let tasks = tasks.clone();
        let others = RwLock::default();
        Self { inner: Arc::new(ThreadLinks { first, home, tasks, others }) }
    }

    /// The link that was made first.
    pub fn first(&self) -> &RedisLink {
        &self.inner.first
    }

    /// The link of the current runtime. It is made at the first call, in the background; the first
    /// link serves for as long as there is none, or it is down.
    ///
    /// The first link is always in use, so it notices at once that Redis is gone. A link that was
    /// idle meanwhile would only notice when it loses a command: where the first one is down, or
    /// was verified anew, the others are replaced before they are used again.
    pub fn here(&self) -> RedisLink {
        let inner = &*self.inner;
        let runtime = Handle::try_current().ok();
        let local = runtime.filter(|runtime| {
            runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
                && Some(runtime.id()) != inner.home
        });
        let generation = inner.first.generation();
        let Some(runtime) = local.map(|runtime| runtime.id()).filter(|_| generation > 0) else {
            return inner.first.clone();
        };
        let others = inner.others.read().unwrap_or_else(PoisonError::into_inner);
        let Some(local) = others.iter().find(|local| local.runtime == runtime) else {
            drop(others);
            let link = inner.first.another_here(&inner.tasks);
            let local = Local { runtime, link, beside: AtomicU64::new(generation) };
            inner.others.write().unwrap_or_else(PoisonError::into_inner).push(local);
            return inner.first.clone();
        };
        if local.beside.swap(generation, Ordering::Relaxed) != generation {
            local.link.take_down("the first link to this Redis was verified again");
        }
        match local.link.state() {
            LinkState::Up(_) => local.link.clone(),
            LinkState::Down(_) => inner.first.clone(),
        }
    }

    /// Verifies the first link again after `link` found another Redis than it had left, unless it
    /// was verified since `generation` was current there. Any other link is replaced: it may lead
    /// to a process that the first one has left.
    ///
    /// # Errors
    /// As [`RedisLink::verify_again`].
    pub async fn verify_again(&self, link: &RedisLink, generation: u64) -> Result<(), LinkError> {
        let first = &self.inner.first;
        if Arc::ptr_eq(&link.inner, &first.inner) {
            return first.verify_again(generation).await;
        }
        link.take_down("Redis behind it is not as it was left");
        first.verify_again(first.generation()).await
    }
}
