//! Session of a client: who it is, and the commands that the guard answers by itself (AUTH, HELLO,
//! FENCE, SELECT, RESET, QUIT and what a client asks about itself).
//!
//! The rules stand here once, for every upstream. What depends on the upstream is behind the trait
//! [`Session`]: a client of one Redis has connections that follow its tokens, protocol and
//! database; a client of a cluster has none, for each of its commands brings its tokens along.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;

use super::commands::{Local, Plan};
use super::refusal::Refusal;
use super::resp::request::{Command, RequestParser};
use super::resp::{Protocol, ProtocolError, encode};
use super::server_facts::ServerFacts;
use super::tokens::HeldTokens;
use super::{PortSettings, password, stranger};
use crate::guard::Guard;

mod fence;
mod hello;
mod login;
mod look_up;

pub(super) use look_up::{LookUp, look_up};

/// `true` if the connection of a client is served further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Close,
}

/// Properties of the port that are the same whatever the upstream.
#[derive(Debug)]
pub(crate) struct PortContext {
    pub(crate) guard: Arc<Guard>,
    pub(crate) settings: PortSettings,
    /// `true` if a client without a token can do nothing but present one.
    pub(crate) limits_strangers: bool,
    next_client_id: AtomicU64,
}

impl PortContext {
    /// Properties of a port without clients.
    pub(super) fn new(guard: Arc<Guard>, settings: PortSettings) -> Arc<Self> {
        let limits_strangers = stranger::are_limited(&guard);
        Arc::new(Self { guard, settings, limits_strangers, next_client_id: AtomicU64::new(1) })
    }
}

/// Properties of a client that are the same whatever the upstream.
#[derive(Debug)]
pub(super) struct Identity {
    /// Id in the replies to HELLO and CLIENT ID.
    pub(super) id: u64,
    /// Name that the client gave itself; empty without one.
    pub(super) name: Bytes,
    /// Addresses of the client and of the guard.
    addresses: [Option<SocketAddr>; 2],
    /// Tokens that the client holds.
    pub(super) tokens: HeldTokens,
    /// The client has presented a genuine token.
    pub(super) is_known: bool,
    /// The client has presented the password of the port or a credential, or the port has no
    /// password.
    pub(super) is_admitted: bool,
    pub(super) context: Arc<PortContext>,
}

impl Identity {
    /// Identity of a client that just connected to a port.
    pub(super) fn new(context: &Arc<PortContext>, stream: &TcpStream) -> Self {
        Self {
            id: context.next_client_id.fetch_add(1, Ordering::Relaxed),
            name: Bytes::new(),
            addresses: [stream.peer_addr().ok(), stream.local_addr().ok()],
            tokens: HeldTokens::default(),
            is_known: false,
            is_admitted: context.settings.password.is_none(),
            context: Arc::clone(context),
        }
    }

    /// Address of the client.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.addresses[0]
    }

    /// Forgets name, tokens and login.
    fn reset(&mut self) {
        self.name = Bytes::new();
        self.tokens = HeldTokens::default();
        self.is_known = false;
        self.is_admitted = self.context.settings.password.is_none();
    }

    /// `true` if the limits of clients that have not logged in apply.
    pub(super) fn is_stranger(&self) -> bool {
        !self.is_admitted || (!self.is_known && self.context.limits_strangers)
    }

    /// Holds the beginning of a command against the limits of a client that has not logged in.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub(super) fn check_limits(
        &self,
        parser: &RequestParser,
        buf: &[u8],
    ) -> Result<(), ProtocolError> {
        if !self.is_stranger() {
            return Ok(());
        }
        let policy = &self.context.guard.fencing;
        stranger::check(parser.begun(buf), |credential| policy.credential(credential).is_ok())
    }
}

/// A client's session, as far as the commands that the guard answers by itself depend on the
/// upstream.
pub(super) trait Session {
    fn identity(&self) -> &Identity;
    fn identity_mut(&mut self) -> &mut Identity;
    /// Facts of the server for HELLO and MODULE LIST.
    fn server_facts(&self) -> Arc<ServerFacts>;
    fn protocol(&self) -> Protocol;
    fn db(&self) -> i64;

    /// Writes a reply behind those of earlier commands.
    fn reply(&mut self, encode: impl FnOnce(&mut BytesMut));

    /// Replies with a refusal and counts it.
    fn refuse(&mut self, refusal: &Refusal) -> Flow;

    /// Finds keys and handling of a command.
    ///
    /// # Errors
    /// The refusal of a command that is not passed on.
    fn plan(&mut self, command: Command<'_>) -> Result<Plan, Refusal>;

    /// Holds these tokens in place of all others, and speaks this protocol.
    ///
    /// # Errors
    /// The refusal; tokens and protocol are then as they were.
    async fn hold(&mut self, tokens: HeldTokens, protocol: Protocol) -> Result<(), Refusal>;

    /// Speaks this protocol.
    ///
    /// # Errors
    /// The refusal; the protocol is then as it was.
    async fn speak(&mut self, protocol: Protocol) -> Result<(), Refusal>;

    /// Uses this database.
    ///
    /// # Errors
    /// The refusal; the database is then as it was.
    async fn select(&mut self, db: i64) -> Result<(), Refusal>;

    /// Waits for the replies to earlier commands.
    async fn settle(&mut self) -> Flow;

    /// Waits for the replies to earlier commands, then drops connections, transaction and protocol.
    async fn disconnect(&mut self) -> Flow;

    /// Unblocks the client `id` and returns whether it was blocked. `reason` is TIMEOUT or ERROR.
    ///
    /// # Errors
    /// The refusal of a client with other tokens, or why Redis did not reply.
    async fn unblock(&mut self, id: u64, reason: &'static str) -> Result<bool, Refusal>;

    /// Reads the settings of Redis that a CONFIG GET names.
    ///
    /// # Errors
    /// The refusal of a setting that is not offered, or why Redis did not reply.
    async fn config_get(&mut self, command: Command<'_>) -> Result<redis::Value, Refusal>;

    /// Runs one command under `tokens`, those of the session and others, and replies.
    ///
    /// # Errors
    /// The refusal; nothing was replied.
    async fn run_once(
        &mut self,
        command: Command<'_>,
        plan: Plan,
        tokens: HeldTokens,
    ) -> Result<(), Refusal>;
}

/// Plans a command of a client that has logged in where it must.
///
/// # Errors
/// The refusal of a client that has not logged in, or of a command that is not passed on.
pub(super) fn plan<S: Session>(session: &mut S, command: Command<'_>) -> Result<Plan, Refusal> {
    if !session.identity().is_admitted
        && let Some(error) = password::before_login(command)
    {
        return Err(line(error));
    }
    session.plan(command)
}

/// Replies to a command that Redis does not receive.
pub(super) async fn answer<S: Session>(
    session: &mut S,
    local: Local,
    command: Command<'_>,
) -> Flow {
    let answered = match local {
        Local::Auth => login::auth(session, command).await,
        Local::Hello => hello::hello(session, command).await,
        Local::Fence => fence::fence(session, command).await,
        Local::Select => select(session, command).await,
        Local::Quit => {
            session.settle().await;
            ok(session);
            return Flow::Close;
        }
        Local::Reset => {
            if session.disconnect().await == Flow::Close {
                return Flow::Close;
            }
            session.identity_mut().reset();
            session.reply(|out| encode::simple(out, "RESET"));
            Ok(())
        }
        Local::ClientSetName => hello::set_name(session, command.arg(2)),
        Local::ClientSetInfo => {
            ok(session);
            Ok(())
        }
        Local::ClientGetName
        | Local::ClientId
        | Local::ClientInfo
        | Local::ClientList
        | Local::AclWhoAmI
        | Local::ModuleList => look_up::reply(session, local, command),
        Local::ClientUnblock => look_up::unblock(session, command).await,
        Local::ConfigGet => look_up::config_get(session, command).await,
    };
    match answered {
        Ok(()) => Flow::Continue,
        Err(refusal) => session.refuse(&refusal),
    }
}

fn ok(session: &mut impl Session) {
    session.reply(|out| encode::simple(out, "OK"));
}

/// `SELECT db`.
async fn select<S: Session>(session: &mut S, command: Command<'_>) -> Result<(), Refusal> {
    let text = std::str::from_utf8(command.arg(1)).ok();
    let db: Option<i64> = text.and_then(|text| text.parse().ok());
    let db = db.ok_or_else(|| line("ERR value is not an integer or out of range"))?;
    if db != session.db() {
        session.select(db).await?;
    }
    ok(session);
    Ok(())
}

fn line(text: &str) -> Refusal {
    Refusal::Line(text.to_owned())
}
