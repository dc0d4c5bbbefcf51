//! Set-up of a connection to Redis: log in, have it registered under every token, and only then
//! allow commands.

use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use redis::{Cmd, Value};
use redis_link::info_field;
use service_kit::socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::doors::redis::confine::AclUser;
use crate::doors::redis::profile::ConnectionProfile;
use crate::doors::redis::refusal::Refusal;
use crate::doors::redis::resp::Protocol;
use crate::doors::redis::resp::reply::ReplyScanner;
use crate::stores::redis::Shared;
use crate::stores::redis::preempt::{Failed, Registration, Wire};

/// Time limit of the whole set-up.
const SETUP: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(2);
/// Time limit of Redis for one step.
const REPLY: Duration = Duration::from_secs(5);
/// Maximum size of a reply during the set-up; `INFO server` is the largest.
const REPLY_BYTES: usize = 1 << 20;

/// Makes the connection, which is logged in as `user` in the end, if not as the guard. `registered`
/// is set before the first registration is sent: from then on it has to be retired, whatever
/// happens to it.
///
/// # Errors
/// A stale or colliding token, or the reason why Redis cannot be used.
pub(crate) async fn connect(
    redis: &Shared,
    profile: &ConnectionProfile,
    user: Option<&AclUser>,
    registered: &mut Option<Registration>,
) -> Result<(TcpStream, Option<String>), Refusal> {
    let set_up = set_up(redis, profile, user, registered);
    tokio::time::timeout(SETUP, set_up).await.unwrap_or_else(|_| {
        Err(Refusal::Unavailable(format!(
            "a connection to Redis at {} was not ready within {} s",
            redis.link.target(),
            SETUP.as_secs()
        )))
    })
}

async fn set_up(
    redis: &Shared,
    profile: &ConnectionProfile,
    user: Option<&AclUser>,
    registered: &mut Option<Registration>,
) -> Result<(TcpStream, Option<String>), Refusal> {
    let fences = profile.tokens.fences();
    let home = redis.link.target().db();
    let (mut wire, mut client_id) = log_in(redis, profile.protocol).await?;
    let mut process = None;
    // A user is changed in the verified process, so its connection must be to the same one.
    if !fences.is_empty() || user.is_some() {
        let mut run_id = run_id(&mut wire).await.map_err(Refusal::Unavailable)?;
        if redis.state.run_id() != run_id {
            (wire, client_id, run_id) = log_in_verified(redis, profile.protocol).await?;
        }
        process = Some(run_id);
    }
    if let Some(run_id) = process.clone().filter(|_| !fences.is_empty()) {
        let locks = fences.iter().map(|fence| fence.lock.clone()).collect();
        *registered = Some(Registration { run_id, client_id, locks });
        for fence in fences {
            let outcome = redis.register(&mut wire, fence, client_id).await;
            let outcome = outcome.map_err(Refusal::Unavailable)?;
            Refusal::from_outcome(fence, &outcome).map_or(Ok(()), Err)?;
        }
    }
    if profile.db != home {
        select(&mut wire, profile.db).await?;
    }
    if let Some(user) = user {
        wire.call(&user.auth()).await.map_err(Refusal::Unavailable)?;
        user.redis_id.set(client_id);
    }
    Ok((wire.into_stream()?, process))
}

async fn log_in(redis: &Shared, protocol: Protocol) -> Result<(RawWire, u64), Refusal> {
    let mut wire = RawWire::open(redis).await.map_err(Refusal::Unavailable)?;
    let client_id = hello(&mut wire, redis, protocol).await?;
    let home = redis.link.target().db();
    if home != 0 {
        select(&mut wire, home).await?;
    }
    Ok((wire, client_id))
}

/// Logs in at a process that is not the one verified last: it may have lost marks that this guard
/// remembers and will raise when it verifies the process, even if another guard has opened its
/// state for scripts. Verification may end every existing connection, so this one is made after it.
async fn log_in_verified(
    redis: &Shared,
    protocol: Protocol,
) -> Result<(RawWire, u64, String), Refusal> {
    let generation = redis.link.generation();
    redis.verified_again(generation).await.map_err(Refusal::Unavailable)?;
    let (mut wire, client_id) = log_in(redis, protocol).await?;
    let run_id = run_id(&mut wire).await.map_err(Refusal::Unavailable)?;
    if redis.state.run_id() == run_id {
        return Ok((wire, client_id, run_id));
    }
    Err(Refusal::Unavailable(format!(
        "the Redis process at {} is not the verified one",
        redis.link.target()
    )))
}

/// Logs in as the guard, under the client name of every guard's port.
async fn hello(wire: &mut RawWire, redis: &Shared, protocol: Protocol) -> Result<u64, Refusal> {
    let mut hello = redis::cmd("HELLO");
    hello.arg(match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    });
    let (user, password) = redis.link.target().credentials();
    if let Some(password) = password {
        hello.arg("AUTH").arg(user.unwrap_or("default")).arg(password);
    }
    hello.arg("SETNAME").arg(redis.state.client_name());
    let reply = wire.call(&hello).await.map_err(Refusal::Unavailable)?;
    client_id(reply)
        .ok_or_else(|| Refusal::Unavailable("Redis' reply to HELLO has no client id".to_owned()))
}

fn client_id(reply: Value) -> Option<u64> {
    let is_id = |key: &Value| matches!(key, Value::BulkString(text) if text == b"id");
    let id = match reply {
        Value::Map(pairs) => pairs.into_iter().find(|(key, _)| is_id(key))?.1,
        Value::Array(items) => {
            let at = items.iter().position(is_id)?;
            items.into_iter().nth(at + 1)?
        }
        _ => return None,
    };
    match id {
        Value::Int(id) => u64::try_from(id).ok(),
        _ => None,
    }
}

async fn run_id(wire: &mut RawWire) -> Result<String, Failed> {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let text: String =
        redis::from_redis_value(wire.call(&info).await?).map_err(|error| error.to_string())?;
    info_field(&text, "run_id").map(str::to_owned).ok_or("INFO has no run_id".to_owned())
}

async fn select(wire: &mut RawWire, db: i64) -> Result<(), Refusal> {
    let mut select = redis::cmd("SELECT");
    select.arg(db);
    let answered = wire.call(&select).await.map(drop);
    answered.map_err(|error| match error.contains("access database") {
        true => Refusal::Line(format!(
            "DENIED database {db} is closed to the guard's own user; choose another one"
        )),
        false => Refusal::Line("ERR DB index is out of range".to_owned()),
    })
}

/// A connection with one command at a time.
pub(crate) struct RawWire {
    stream: TcpStream,
    buf: BytesMut,
    shown: String,
}

impl RawWire {
    /// Returns a connection that is logged in as the guard, with its client id.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) async fn logged_in(redis: &Shared) -> Result<(Self, u64), Failed> {
        let mut wire = Self::open(redis).await?;
        let client_id = hello(&mut wire, redis, Protocol::Resp2).await;
        let client_id = client_id.map_err(|refusal| refusal.not_applied())?;
        let home = redis.link.target().db();
        if home != 0 {
            select(&mut wire, home).await.map_err(|refusal| refusal.not_applied())?;
        }
        Ok((wire, client_id))
    }

    async fn open(redis: &Shared) -> Result<Self, Failed> {
        let target = redis.link.target();
        let address = target.tcp_address(CONNECT).await?;
        let unreachable = |why: String| format!("Redis at {target} cannot be reached: {why}");
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(&address))
            .await
            .map_err(|_| unreachable(format!("no reply in {} s", CONNECT.as_secs())))?
            .map_err(|error| unreachable(error.to_string()))?;
        socket::tune_to_store(&stream);
        Ok(Self { stream, buf: BytesMut::new(), shown: target.to_string() })
    }

    fn into_stream(self) -> Result<TcpStream, Refusal> {
        if self.buf.is_empty() {
            return Ok(self.stream);
        }
        Err(Refusal::Unavailable("Redis sent more replies than expected".to_owned()))
    }

    /// Sends commands and reads their replies; the first error ends it.
    async fn exchange(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
        let written = self.stream.write_all(&packed).await;
        written.map_err(|error| self.broken(&error.to_string()))?;
        let mut replies = Vec::with_capacity(commands.len());
        for _ in commands {
            let reply = self.reply().await?;
            replies.push(reply.extract_error().map_err(|error| error.to_string())?);
        }
        Ok(replies)
    }

    async fn reply(&mut self) -> Result<Value, Failed> {
        let mut scanner = ReplyScanner::new();
        let mut scanned = 0;
        loop {
            let scan = scanner.scan(&self.buf[scanned..]);
            let scan = scan.map_err(|error| self.broken(&error.to_string()))?;
            scanned += scan.consumed;
            if scan.done {
                break;
            }
            if self.buf.len() > REPLY_BYTES {
                return Err(self.broken("a reply is too long"));
            }
            let read = self.stream.read_buf(&mut self.buf).await;
            if read.map_err(|error| self.broken(&error.to_string()))? == 0 {
                return Err(self.broken("Redis closed it"));
            }
        }
        let frame = self.buf.split_to(scanned);
        redis::parse_redis_value(&frame).map_err(|error| error.to_string())
    }

    fn broken(&self, why: &str) -> Failed {
        format!("the connection to Redis at {} broke: {why}", self.shown)
    }
}

#[async_trait]
impl Wire for RawWire {
    async fn call(&mut self, command: &Cmd) -> Result<Value, Failed> {
        let mut replies = self.call_all(std::slice::from_ref(command)).await?;
        replies.pop().ok_or_else(|| self.broken("there was no reply"))
    }

    async fn call_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Failed> {
        let late = format!("Redis at {} did not reply within {} s", self.shown, REPLY.as_secs());
        tokio::time::timeout(REPLY, self.exchange(commands)).await.unwrap_or(Err(late))
    }
}
