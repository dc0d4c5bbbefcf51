//! A connection that is verified, shared, and replaced when it breaks.

mod local;
mod pinned;
mod supervisor;

use std::future::Future;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use service_kit::tasks::Tasks;
use tokio::sync::{Mutex, Notify, watch};
use tokio_util::sync::CancellationToken;

pub use local::LocalLinks;
pub use pinned::Pinned;

use crate::target::{Reached, RedisTarget};

/// Checks the process behind a new connection before it is used.
#[async_trait]
pub trait Verifier: Send + Sync + 'static {
    /// Judges the process, adopts or refuses it, and loads the scripts.
    ///
    /// # Errors
    /// A sentence that says why this Redis cannot be used. The link stays down and tries again.
    async fn verify(&self, connection: &mut MultiplexedConnection) -> Result<(), String>;

    /// As [`Verifier::verify`], with the configuration epoch under which sentinels chose this
    /// process. Epochs only rise. A Redis that is chosen a second time may lack writes of another
    /// that was chosen in between.
    ///
    /// # Errors
    /// As [`Verifier::verify`].
    async fn verify_chosen(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
    ) -> Result<(), String> {
        let _ = choice;
        self.verify(connection).await
    }

    /// Time that a verification may take in addition to the replies of Redis, because it also asks
    /// other servers.
    fn others_take(&self) -> Duration {
        Duration::ZERO
    }
}

/// Time limits of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkOptions {
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for a reply. After that the outcome is unknown and the connection is closed,
    /// because a Redis that stalls must be verified again.
    pub reply_timeout: Duration,
    /// Time between two probes of an idle connection.
    pub ping_interval: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            reply_timeout: Duration::from_secs(2),
            ping_interval: Duration::from_secs(1),
        }
    }
}

/// Why a command has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// It was not sent: there is no verified connection.
    #[error("{0}")]
    Down(String),
    /// It was sent, and no reply came: it may or may not have been run.
    #[error("{0}")]
    Unknown(String),
    /// Redis answered with an error.
    #[error("Redis answered {code} {message}")]
    Server {
        /// The first word of the reply: `ERR`, `OOM`, `READONLY`, or a script's own.
        code: String,
        /// The rest of the reply.
        message: String,
    },
}

/// Most questions that a verification may ask, one after the other.
const QUESTIONS_MAX: u32 = 32;

/// The state before the first connection.
const NOT_TRIED: &str = "not connected yet";

/// Readiness of a link for commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// A verified connection exists; the number grows with every verification.
    Up(u64),
    /// There is none, and why.
    Down(String),
}

/// A shared, self-healing connection to one Redis. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisLink {
    inner: Arc<LinkParts>,
}

struct LinkParts {
    target: RedisTarget,
    options: LinkOptions,
    verifier: Arc<dyn Verifier>,
    live: RwLock<Option<Live>>,
    state: watch::Sender<LinkState>,
    /// One verification at a time.
    verifying: Mutex<()>,
    broken: Notify,
    /// Cancelled by [`RedisLink::close`].
    closed: CancellationToken,
}

#[derive(Clone, Debug)]
struct Live {
    connection: MultiplexedConnection,
    generation: u64,
    /// The generation in which this connection was made: it distinguishes two physical connections,
    /// while verifying one again only raises its generation.
    connected_in: u64,
    /// Address that the connection leads to.
    at: Reached,
}

impl std::fmt::Debug for LinkParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisLink").field("target", &self.target).finish_non_exhaustive()
    }
}

impl RedisLink {
    /// Connects, verifies, and keeps doing so in the background until `tasks` shut down.
    ///
    /// # Errors
    /// A sentence where the first connection cannot be made or verified; nothing keeps running.
    pub async fn start(
        target: RedisTarget,
        options: LinkOptions,
        verifier: Arc<dyn Verifier>,
        tasks: &Tasks,
    ) -> Result<Self, String> {
        let link = Self::new(target, options, verifier);
        link.connect_once(1).await?;
        tasks.spawn(supervisor::run(link.clone(), tasks.shutdown_token()));
        Ok(link)
    }

    /// As [`RedisLink::start`], and returns at once: the first connection is made in the background
    /// as every later one is, for a Redis that may be down for now.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_lazily(
        target: RedisTarget,
        options: LinkOptions,
        verifier: Arc<dyn Verifier>,
        tasks: &Tasks,
    ) -> Self {
        let link = Self::new(target, options, verifier);
        tasks.spawn(link.clone().connect_and_run(tasks.shutdown_token()));
        link
    }

    /// Another link to the same Redis on the current runtime, made in the background.
    fn another_here(&self, tasks: &Tasks) -> Self {
        let LinkParts { target, options, verifier, .. } = &*self.inner;
        let link = Self::new(target.clone(), *options, verifier.clone());
        tasks.spawn_here(link.clone().connect_and_run(tasks.shutdown_token()));
        link
    }

    async fn connect_and_run(self, stop: CancellationToken) {
        if let Some(Err(reason)) = stop.run_until_cancelled(self.connect_once(1)).await {
            self.take_down(&reason);
        }
        supervisor::run(self, stop).await;
    }

    fn new(target: RedisTarget, options: LinkOptions, verifier: Arc<dyn Verifier>) -> Self {
        let (state, _) = watch::channel(LinkState::Down(NOT_TRIED.to_owned()));
        Self {
            inner: Arc::new(LinkParts {
                target,
                options,
                verifier,
                live: RwLock::new(None),
                state,
                verifying: Mutex::new(()),
                broken: Notify::new(),
                closed: CancellationToken::new(),
            }),
        }
    }

    /// Sends one command and awaits its reply.
    ///
    /// # Errors
    /// [`LinkError`]; only [`LinkError::Unknown`] leaves open whether the command was run.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the command back.
    pub async fn call(&self, command: &Cmd) -> Result<Value, LinkError> {
        let live = self.live()?;
        match self.send(&live, command).await {
            Err(LinkError::Server { code, .. }) if code == "NOSCRIPT" => {
                self.verify_again(live.generation).await?;
                let live = self.live()?;
                self.send(&live, command).await
            }
            other => other,
        }
    }

    /// As [`call`](Self::call), for a command that must not be run after one that is sent later:
    /// where Redis has forgotten the scripts, the connection is verified again, and the command is
    /// not sent once more.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Down`] also where it was not run because of that.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the command back.
    pub async fn call_in_turn(&self, command: &Cmd) -> Result<Value, LinkError> {
        let live = self.live()?;
        match self.send(&live, command).await {
            Err(LinkError::Server { code, .. }) if code == "NOSCRIPT" => {
                self.verify_again(live.generation).await?;
                let target = &self.inner.target;
                Err(LinkError::Down(format!("Redis at {target} had forgotten the scripts")))
            }
            other => other,
        }
    }

    /// Verifies the connection again, unless another task did since `generation` was current.
    ///
    /// # Errors
    /// [`LinkError::Down`] where the Redis behind the connection cannot be used.
    pub async fn verify_again(&self, generation: u64) -> Result<(), LinkError> {
        let _one_at_a_time = self.inner.verifying.lock().await;
        let mut live = self.live()?;
        if live.generation != generation {
            return Ok(());
        }
        match self.verify(&mut live.connection, live.at.epoch).await {
            Ok(()) => {
                self.publish(Live { generation: generation + 1, ..live });
                Ok(())
            }
            Err(reason) => {
                self.take_down(&reason);
                Err(LinkError::Down(reason))
            }
        }
    }

    /// A handle on the physical connection that is in use now.
    ///
    /// # Errors
    /// [`LinkError::Down`] where there is none.
    pub fn pinned(&self) -> Result<Pinned, LinkError> {
        Ok(Pinned::new(self.clone(), self.live()?))
    }

    /// Gives the connection up and makes no other: for a Redis that is not wanted any more.
    pub fn close(&self) {
        self.inner.closed.cancel();
        self.take_down(&format!("the link to Redis at {} was closed", self.inner.target));
    }

    /// The number of the verification that is in force; 0 while the link is down.
    pub fn generation(&self) -> u64 {
        self.live().map_or(0, |live| live.generation)
    }

    /// Follows the state.
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.inner.state.subscribe()
    }

    /// The state now.
    pub fn state(&self) -> LinkState {
        self.inner.state.borrow().clone()
    }

    /// True once the first connection has been made, or has failed.
    pub fn was_tried(&self) -> bool {
        !matches!(&*self.inner.state.borrow(), LinkState::Down(reason) if reason == NOT_TRIED)
    }

    /// Address and login of the link; its text hides the password.
    pub fn target(&self) -> &RedisTarget {
        &self.inner.target
    }

    fn live(&self) -> Result<Live, LinkError> {
        let live = match self.inner.live.read() {
            Ok(live) => live.clone(),
            Err(poisoned) => poisoned.into_inner().clone(),
        };
        live.ok_or_else(|| match self.state() {
            LinkState::Down(reason) => LinkError::Down(reason),
            LinkState::Up(_) => LinkError::Down("the connection is being replaced".to_owned()),
        })
    }

    async fn send(&self, live: &Live, command: &Cmd) -> Result<Value, LinkError> {
        let mut connection = live.connection.clone();
        match self.awaited(live, connection.send_packed_command(command)).await? {
            Value::ServerError(error) => Err(self.refused(live, &error.into())),
            value => Ok(value),
        }
    }

    /// Awaits a reply that is not an error, for as long as a reply may take.
    async fn awaited<T>(
        &self,
        live: &Live,
        reply: impl Future<Output = redis::RedisResult<T>>,
    ) -> Result<T, LinkError> {
        match tokio::time::timeout(self.inner.options.reply_timeout, reply).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if error.code().is_some() => Err(self.refused(live, &error)),
            Ok(Err(error)) => Err(self.lost(live, &error.to_string())),
            Err(_) => Err(self.lost(
                live,
                &format!("no reply within {} ms", self.inner.options.reply_timeout.as_millis()),
            )),
        }
    }

    /// An error of the server. Where the target is chosen by others (sentinels, a cluster), one
    /// that says "not me" gives the connection up, so that the next one is looked for again.
    fn refused(&self, live: &Live, error: &RedisError) -> LinkError {
        let error = server_error(error);
        if let LinkError::Server { code, message } = &error
            && self.inner.target.is_wrong_place(code)
        {
            let reason = format!("Redis at {} answered {code} {message}", self.inner.target);
            self.give_up(live, &reason);
        }
        error
    }

    /// Gives the connection up, unless it was replaced already.
    fn lost(&self, live: &Live, why: &str) -> LinkError {
        let reason = format!("the connection to Redis at {} broke: {why}", self.inner.target);
        self.give_up(live, &reason);
        LinkError::Unknown(reason)
    }

    fn give_up(&self, live: &Live, reason: &str) {
        if self.is_current(live) {
            self.take_down(reason);
        }
    }

    /// True if `live` is the physical connection that is in use.
    fn is_current(&self, live: &Live) -> bool {
        self.live().is_ok_and(|now| now.connected_in == live.connected_in)
    }

    async fn connect_once(&self, generation: u64) -> Result<(), String> {
        let timeout = self.inner.options.connect_timeout;
        let (mut connection, at) = self.inner.target.connect_somewhere(timeout).await?;
        self.verify(&mut connection, at.epoch).await?;
        if self.inner.closed.is_cancelled() {
            return Err(format!("the link to Redis at {} was closed", self.inner.target));
        }
        self.publish(Live { connection, generation, connected_in: generation, at });
        Ok(())
    }

    async fn verify(
        &self,
        connection: &mut MultiplexedConnection,
        choice: Option<u64>,
    ) -> Result<(), String> {
        // Each question has its own time, and the error of the one that takes longer says which it
        // was.
        let reply_timeout = self.inner.options.reply_timeout;
        let mut connection = connection.clone();
        connection.set_response_timeout(reply_timeout);
        let limit = reply_timeout * QUESTIONS_MAX + self.inner.verifier.others_take();
        let verified = self.inner.verifier.verify_chosen(&mut connection, choice);
        let began = service_kit::clock::now();
        let target = &self.inner.target;
        match tokio::time::timeout(limit, verified).await {
            Ok(Ok(())) => Ok(()),
            // The error of a question that was not answered does not name the Redis.
            Ok(Err(reason)) if began.elapsed() >= reply_timeout => {
                Err(format!("{reason} (Redis at {target})"))
            }
            Ok(Err(reason)) => Err(reason),
            Err(_) => {
                let limit_ms = limit.as_millis();
                Err(format!("Redis at {target} was not verified within {limit_ms} ms"))
            }
        }
    }

    fn publish(&self, live: Live) {
        let generation = live.generation;
        self.replace(Some(live));
        self.inner.state.send_replace(LinkState::Up(generation));
    }

    fn take_down(&self, reason: &str) {
        self.replace(None);
        self.inner.state.send_replace(LinkState::Down(reason.to_owned()));
        self.inner.broken.notify_one();
    }

    fn replace(&self, live: Option<Live>) {
        match self.inner.live.write() {
            Ok(mut slot) => *slot = live,
            Err(poisoned) => *poisoned.into_inner() = live,
        }
    }
}

fn server_error(error: &RedisError) -> LinkError {
    LinkError::Server {
        code: error.code().unwrap_or("ERR").to_owned(),
        message: error.detail().unwrap_or_default().to_owned(),
    }
}
