//! A client of one Redis: reads its commands, checks their keys against its tokens, and forwards
//! them.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use tokio_util::sync::CancellationToken;

use super::authorize;
use super::backlog::REPLIES_FULL;
use super::budget::{Charge, FREE};
use super::commands::names::Listing;
use super::commands::{Handling, KeyUse, Touches};
use super::confine::{AclUser, Wanted};
use super::hub::Hub;
use super::out::Out;
use super::outbox::{End, Outbox};
use super::own_clients::OwnClientEntry;
use super::patience::Patience;
use super::profile::ConnectionProfile;
use super::refusal::Refusal;
use super::resp::request::{Command, Parsed, RequestLimits, RequestParser};
use super::resp::{Protocol, ProtocolError};
use super::script_denial::ScriptName;
use super::session::{Flow, Identity};
use super::token_group::TokenGroup;
use super::tokens::HeldTokens;
use super::upstream::{Instead, Raw, Upstream};
use crate::doors::tcp::client_socket::{ClientReader, ClientSocket};
use command::OwnedCommand;
use transaction::Transaction;

mod command;
mod ending;
mod forward;
mod limits;
mod look_up;
mod observe;
mod once;
mod script;
mod session;
mod transaction;
mod wait;

/// Least free space in the buffer before a read, in bytes.
const READ: usize = 16 * 1024;

/// A client's connection.
pub(super) struct Client {
    hub: Rc<Hub>,
    reader: ClientReader,
    outbox: Rc<Outbox>,
    buf: BytesMut,
    charge: Charge,
    parser: RequestParser,
    patience: Patience,
    identity: Identity,
    keys: Vec<KeyUse>,
    scratch: String,
    /// Profile of its connections to Redis. They are registered under the tokens of the identity,
    /// but in observe mode under none.
    profile: ConnectionProfile,
    upstream: Option<Rc<Upstream>>,
    /// State of an own connection; `None` on a shared one.
    own: Option<Own>,
    /// Refusal of the tokens that are held; no command can be sent with them.
    refused: Option<Refusal>,
    /// The connection is closed once the client has received every reply; the last one is FENCED,
    /// or says that the buffers are full.
    ends: bool,
    /// The client has closed its side, or its connection is broken.
    has_left: bool,
    /// Memory of the command that is being served, in bytes.
    in_hand: usize,
    /// Clients that hold the same tokens.
    group: Option<Rc<TokenGroup>>,
    transaction: Option<Transaction>,
    /// The client watched keys on a connection that was lost, so they may have changed unseen: the
    /// next EXEC fails, as it does in Redis after a change.
    lost_watch: bool,
}

/// State of an own connection.
#[derive(Debug, Default)]
struct Own {
    user: Option<AclUser>,
    run_id: Option<String>,
    /// The connection watches keys, so no other can replace it.
    watches: bool,
    /// The connection receives messages: of channels, or of tracking.
    subscribes: bool,
    /// The connection has subscribed to channels.
    has_channels: bool,
    /// The connection has a setting that another would not have.
    is_tuned: bool,
    /// Entry by which CLIENT UNBLOCK finds the connection.
    _entry: Option<OwnClientEntry>,
}

/// Keys of a command with its access to each.
fn keys_of<'k>(
    keys: &'k [KeyUse],
    command: Command<'k>,
) -> impl Iterator<Item = Wanted<'k>> + Clone {
    keys.iter().map(move |key| (command.arg(key.arg), key.access))
}

/// `true` if a command changes, or depends on, the state of an own connection in [`Own`].
fn is_special(command: Command<'_>) -> bool {
    command.begins(&["client"]) || wait::is_wait(command)
}

/// Runs `command`, and flushes the connection to Redis as soon as the command has to wait. Not
/// earlier: a pipeline that Redis receives in one piece is answered in one piece.
async fn kicked<T>(
    upstream: Option<Rc<Upstream>>,
    outbox: &Outbox,
    command: impl Future<Output = T>,
) -> T {
    let mut command = pin!(command);
    poll_fn(|cx| {
        let polled = command.as_mut().poll(cx);
        if polled.is_pending()
            && let Some(upstream) = &upstream
        {
            upstream.kick(outbox.is_alone());
        }
        polled
    })
    .await
}

impl Client {
    /// A client that just connected.
    pub(super) fn new(hub: Rc<Hub>, socket: ClientSocket) -> Self {
        let identity = Identity::new(&hub.port.context, socket.tcp());
        let (reader, writer) = socket.into_split();
        let outbox = Outbox::new(writer, &hub.budget, hub.in_flight.clone());
        let limits = RequestLimits {
            max_command_bytes: hub.port.context.settings.max_command_bytes,
            ..RequestLimits::default()
        };
        let profile = ConnectionProfile {
            tokens: HeldTokens::default(),
            db: hub.port.redis.link.target().db(),
            protocol: Protocol::Resp2,
        };
        Self {
            charge: Charge::new(&hub.budget, &outbox.wake),
            patience: Patience::new(hub.port.context.settings.silence),
            identity,
            hub,
            reader,
            outbox,
            buf: BytesMut::new(),
            parser: RequestParser::new(limits),
            keys: Vec::new(),
            scratch: String::new(),
            profile,
            upstream: None,
            own: None,
            refused: None,
            ends: false,
            has_left: false,
            in_hand: 0,
            group: None,
            transaction: None,
            lost_watch: false,
        }
    }

    /// Serves the client until it disconnects, or until `stop` and the replies to all commands
    /// sent.
    pub(super) async fn serve(mut self, stop: CancellationToken) {
        while self.serve_buffered().await == Flow::Continue
            && self.wait(&stop).await == Flow::Continue
        {}
        self.outbox.flush();
        if self.outbox.end() == Some(End::TooSlow) && !self.ends {
            self.record_cut(REPLIES_FULL);
        } else if self.has_left || self.outbox.end() == Some(End::Gone) {
            self.record_left();
        }
        if self.ends {
            self.deliver(&stop).await;
        } else {
            self.outbox.say_end();
        }
        self.drop_upstream();
    }

    /// Serves the commands that were read whole.
    async fn serve_buffered(&mut self) -> Flow {
        let next = loop {
            if !self.may_serve() || self.buf.is_empty() {
                break Flow::Continue;
            }
            match self.parser.parse(&self.buf) {
                Ok(Parsed::Incomplete { at_least }) => {
                    if let Err(error) = self.within_strangers_limits() {
                        break self.refuse_bytes(&error).await;
                    }
                    self.buf.reserve(at_least.saturating_sub(self.buf.len()).min(4 * READ));
                    break Flow::Continue;
                }
                Ok(Parsed::Blank { len }) => self.buf.advance(len),
                Ok(Parsed::Complete { len, inline }) => {
                    self.patience.renew();
                    if let Err(error) = self.within_strangers_limits() {
                        break self.refuse_bytes(&error).await;
                    }
                    if !inline && self.forward_at_once(len) {
                        continue;
                    }
                    let upstream = self.upstream.clone();
                    let outbox = Rc::clone(&self.outbox);
                    let served = self.serve_command(len, inline);
                    if kicked(upstream, &outbox, served).await == Flow::Close {
                        break Flow::Close;
                    }
                }
                Err(error) => break self.refuse_bytes(&error).await,
            }
        };
        self.kick();
        self.outbox.flush();
        self.release_memory();
        next
    }

    /// Replies to bytes that are no command. Bytes behind them cannot be parsed; earlier commands
    /// still receive their replies.
    async fn refuse_bytes(&mut self, error: &ProtocolError) -> Flow {
        self.outbox.error(&format!("ERR {error}"));
        self.settled().await;
        Flow::Close
    }

    /// Flushes the connection to Redis.
    fn kick(&self) {
        if let Some(upstream) = &self.upstream {
            upstream.kick(self.outbox.is_alone());
        }
    }

    /// `true` if the outbox has room for the replies of more commands.
    fn may_serve(&self) -> bool {
        !self.outbox.is_full(self.buf.len())
    }

    /// Fast path: forwards a command that needs nothing but the connection that exists. Returns
    /// `false` without an effect for any other command.
    fn forward_at_once(&mut self, len: usize) -> bool {
        let Some(upstream) = &self.upstream else { return false };
        if self.refused.is_some()
            || self.transaction.is_some()
            || upstream.is_broken()
            || upstream.is_subscribed()
            || upstream.is_full()
            || self.observes()
        {
            return false;
        }
        let command = self.parser.command(&self.buf[..len]);
        let Ok(plan) = self.hub.port.table.borrow().plan(command, &mut self.keys) else {
            return false;
        };
        let fits = match plan.handling {
            Handling::Shared => match plan.touches {
                Touches::Keys => true,
                Touches::Everything => false,
                _ => Listing::from_command(command).is_none(),
            },
            Handling::Own => upstream.is_own() && !is_special(command),
            Handling::Script => upstream.is_own() && self.is_confined_for(command),
            _ => false,
        };
        let guard = &self.identity.context.guard;
        let tokens = &self.identity.tokens;
        let scratch = &mut self.scratch;
        if !fits || authorize::check(guard, tokens, command, plan, &self.keys, scratch).is_err() {
            return false;
        }
        if let Some(user) = self.own.as_ref().and_then(|own| own.user.as_ref())
            && !user.covers(plan.in_scripts, keys_of(&self.keys, command))
        {
            return false;
        }
        let is_script = plan.handling == Handling::Script;
        let instead = is_script.then(|| Instead::Script(ScriptName::from_command(command)));
        if Out::is_large(len) {
            let raw = self.buf.split_to(len).freeze();
            upstream.send(&self.outbox, Raw::Give(raw), instead);
        } else {
            upstream.send(&self.outbox, Raw::Copy(&self.buf[..len]), instead);
            self.buf.advance(len);
        }
        self.hub.port.counters.forwarded.inc();
        true
    }

    /// Serves any command, and awaits what it needs.
    async fn serve_command(&mut self, len: usize, inline: bool) -> Flow {
        // Other clients have their turn: a long pipeline may need no reply of Redis.
        tokio::task::coop::consume_budget().await;
        let command = OwnedCommand::take(&mut self.buf, len, &self.parser, inline);
        self.in_hand = command.held_bytes();
        if !self.charge.set(self.held_bytes()) {
            return self.refuse_size();
        }
        let next = self.handle(&command).await;
        self.in_hand = 0;
        if self.outbox.end().is_some() { Flow::Close } else { next }
    }

    /// Waits for bytes, replies, room or a limit, whichever comes first.
    async fn wait(&mut self, stop: &CancellationToken) -> Flow {
        if self.outbox.end().is_some() {
            return Flow::Close;
        }
        if self.has_answered_all() {
            return self.rest_of_pipeline().await;
        }
        if self.is_superseded() {
            // Commands that the client has sent by now still receive the refusal.
            let next = self.rest_of_pipeline().await;
            self.ends |= next == Flow::Close;
            return next;
        }
        let may_read = self.may_serve();
        if !may_read {
            self.outbox.wait();
        }
        self.outbox.set_backlog(self.buf.len());
        if self.buf.capacity() - self.buf.len() < READ / 4 {
            self.buf.reserve(READ);
        }
        let has_unread = self.outbox.unread() > 0;
        let awaited = self.awaited();
        let reads = may_read || self.reads_ahead();
        tokio::select! {
            biased;
            () = self.outbox.wake.notified() => self.woken().await,
            () = self.outbox.writable(), if has_unread => {
                self.outbox.flush();
                Flow::Continue
            }
            // The next wait checks whether the client is idle.
            () = ending::refusal(self.group.as_deref()) => Flow::Continue,
            read = self.reader.read_buf(&mut self.buf), if reads => self.received(read),
            () = self.outbox.disconnected(), if !reads => self.received(Ok(0)),
            () = stop.cancelled() => {
                self.settled().await;
                Flow::Close
            }
            reason = self.patience.ends(awaited) => self.overdue(awaited, &reason),
        }
    }

    /// Charges the bytes of a read; without any, the client has left.
    fn received(&mut self, read: io::Result<usize>) -> Flow {
        match read {
            Ok(0) | Err(_) => {
                self.has_left = true;
                Flow::Close
            }
            Ok(bytes) => self.charged(bytes),
        }
    }

    /// `true` if messages may arrive on an own connection. In RESP3 the guard does not know when
    /// that ends.
    fn subscribes(&self, own: &Own, upstream: &Upstream) -> bool {
        own.subscribes && (self.profile.protocol == Protocol::Resp3 || upstream.is_subscribed())
    }

    /// `true` if the client has an own connection that no other can replace.
    fn is_bound(&self) -> bool {
        self.own.as_ref().zip(self.upstream.as_ref()).is_some_and(|(own, upstream)| {
            own.watches || own.is_tuned || self.subscribes(own, upstream)
        })
    }

    /// `true` if the client is read although nothing more is served now: it leaves replies unread,
    /// or waits for a blocking command, which may block for ever: only a read shows that it has
    /// closed its side.
    fn reads_ahead(&self) -> bool {
        let is_own = self.upstream.as_ref().is_some_and(|upstream| upstream.is_own());
        (is_own && self.buf.len() < FREE) || self.takes_backlog()
    }

    /// Handles a wake-up: a change of the outbox, the budget or the connection to Redis.
    async fn woken(&mut self) -> Flow {
        if self.outbox.end().is_some() {
            return Flow::Close;
        }
        if self.charge.is_evicted() {
            return self.refuse_size();
        }
        if self.upstream.as_ref().is_some_and(|upstream| upstream.is_broken()) {
            return self.lost().await;
        }
        Flow::Continue
    }

    /// Waits for the replies to all forwarded commands.
    async fn settled(&mut self) -> Flow {
        self.kick();
        while self.outbox.expected() > 0 && self.outbox.end().is_none() {
            self.outbox.wait();
            self.outbox.flush();
            self.outbox.set_backlog(self.buf.len());
            let unread = self.outbox.unread() > 0;
            let reads = self.reads_ahead();
            let awaited = self.receipt();
            tokio::select! {
                biased;
                () = self.outbox.wake.notified() => {
                    if self.woken().await == Flow::Close {
                        return Flow::Close;
                    }
                }
                () = self.outbox.writable(), if unread => self.outbox.flush(),
                read = self.reader.read_buf(&mut self.buf), if reads => {
                    if self.received(read) == Flow::Close {
                        return Flow::Close;
                    }
                }
                () = self.outbox.disconnected(), if !reads => return self.received(Ok(0)),
                reason = self.patience.ends(awaited) => return self.overdue(awaited, &reason),
            }
        }
        if self.outbox.end().is_some() { Flow::Close } else { Flow::Continue }
    }
}
