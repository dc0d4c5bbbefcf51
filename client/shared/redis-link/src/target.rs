//! The address of a Redis, and connecting to it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError};
use service_kit::login::StoreLogin;

use crate::access::{Access, Explained};
use crate::sentinel::{Choice, Sentinels};
use crate::slots::SlotOwner;
use crate::url::{self, RedisUrl, TargetError, address_text};

/// Commands that may wait for the connection before their callers do.
const PIPELINE_BUFFER: usize = 4096;

/// A Redis URL that was understood: `redis://[user[:password]@]host[:port][/db]`, or
/// `redis-sentinel://[user[:password]@]host[:port][,host[:port]…]/master[/db]` for whatever Redis
/// the sentinels call the master of that name at the moment of each connection; `rediss://` and
/// `rediss-sentinel://` for the same over TLS.
///
/// Its text and its `Debug` hide the password.
#[derive(Clone)]
pub struct RedisTarget {
    place: Place,
    access: Access,
    shown: String,
}

/// Address that a connection leads to.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    /// Name or IP address.
    pub(crate) host: String,
    /// TCP port.
    pub(crate) port: u16,
    /// The epoch of the sentinels' choice, where they chose it.
    pub(crate) epoch: Option<u64>,
}

impl Reached {
    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        address_text(&self.host, self.port)
    }

    fn choice(&self) -> Option<Choice> {
        let host = self.host.clone();
        let port = self.port;
        self.epoch.map(|epoch| Choice { host, port, epoch })
    }
}

/// Source of a connection's address.
#[derive(Clone, Debug)]
enum Place {
    /// It is this one.
    One { host: String, port: u16 },
    /// Sentinels say it.
    Sentinels(Sentinels),
    /// The nodes of a cluster say it.
    Slot(SlotOwner),
}

impl FromStr for RedisTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let RedisUrl { scheme, is_tls, addresses, mut path, login, shown } =
            url::parse(text, &["redis", "redis-sentinel"])?;
        let refuse = |why: &str| TargetError::new(shown.clone(), why);
        let place = if scheme == "redis-sentinel" {
            if path.is_empty() || path[0].is_empty() {
                return Err(refuse("it names no master: the path is /master-name"));
            }
            Place::Sentinels(Sentinels::new(addresses, path.remove(0)))
        } else {
            let Ok([(host, port)]) = <[_; 1]>::try_from(addresses) else {
                return Err(refuse("it names several hosts"));
            };
            Place::One { host, port }
        };
        let db = match &path[..] {
            [] => 0,
            [db] => db.parse().map_err(|_| refuse("its database is no number"))?,
            _ => return Err(refuse("its path has too many parts")),
        };
        Ok(Self { place, access: Access::new(login, is_tls).db(db), shown })
    }
}

impl RedisTarget {
    /// One Redis at a known address.
    pub(crate) fn at(host: String, port: u16, access: Access) -> Self {
        let scheme = if access.is_tls() { "rediss" } else { "redis" };
        let shown = format!("{scheme}://{}", address_text(&host, port));
        Self { place: Place::One { host, port }, access, shown }
    }

    /// With what is said beside the URL. What both say must not differ.
    ///
    /// # Errors
    /// A sentence that names the flag where they differ, where a user has no password, or where
    /// certificates are named and the URL is a plain one.
    pub fn with_login(mut self, login: &StoreLogin) -> Result<Self, String> {
        if login.sentinel_password.is_some() && !self.is_sentinel() {
            return Err(
                "--sentinel-password-file is for sentinels, and --store names none; leave \
                        it out"
                    .to_owned(),
            );
        }
        self.access = self.access.with(login)?;
        Ok(self)
    }

    /// True for a connection over TLS.
    pub fn is_tls(&self) -> bool {
        self.access.is_tls()
    }

    /// Whatever node of a cluster owns a slot.
    pub(crate) fn owner(owner: SlotOwner, access: Access, shown: String) -> Self {
        Self { place: Place::Slot(owner), access, shown }
    }

    /// The same cluster's owner of the slot of `key`; any other target is the same for every key.
    pub fn in_slot_of(&self, key: &[u8]) -> Self {
        match &self.place {
            Place::Slot(owner) => Self { place: Place::Slot(owner.with_key(key)), ..self.clone() },
            Place::One { .. } | Place::Sentinels(_) => self.clone(),
        }
    }

    /// A new connection that pipelines deeply, with `TCP_NODELAY` on.
    ///
    /// Replies are timed by the caller, so that a late one is "unknown" and not a failure.
    ///
    /// # Errors
    /// A sentence with the address and the cause.
    pub async fn connect(&self, timeout: Duration) -> Result<MultiplexedConnection, String> {
        self.connect_somewhere(timeout).await.map(|(connection, _)| connection)
    }

    /// As [`RedisTarget::connect`], and with the number of the choice that led there, as
    /// [`Verifier::verify_chosen`](super::Verifier::verify_chosen) gets it.
    ///
    /// # Errors
    /// As [`RedisTarget::connect`].
    pub async fn connect_chosen(
        &self,
        timeout: Duration,
    ) -> Result<(MultiplexedConnection, Option<u64>), String> {
        let (connection, at) = self.connect_somewhere(timeout).await?;
        Ok((connection, at.epoch))
    }

    /// As [`RedisTarget::connect`], and says where it leads.
    pub(crate) async fn connect_somewhere(
        &self,
        timeout: Duration,
    ) -> Result<(MultiplexedConnection, Reached), String> {
        let reached = self.resolve(timeout).await?;
        let host = reached.host.clone();
        let port = reached.port;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let client = self.client(&host, port).await?;
        let mut connection =
            match client.get_multiplexed_async_connection_with_config(&config).await {
                Ok(connection) => connection,
                Err(error) => return Err(self.failed(&error, &host, port).await),
            };
        // What does not speak as we do breaks off at the first words; silence is the caller's to
        // time.
        let ping = redis::cmd("PING");
        let answer =
            tokio::time::timeout(timeout, ping.query_async::<redis::Value>(&mut connection));
        if let Ok(Err(error)) = answer.await
            && error.code().is_none()
        {
            return Err(self.failed(&error, &host, port).await);
        }
        let address = address_text(&host, port);
        if let Place::Sentinels(sentinels) = &self.place {
            let role = tokio::time::timeout(timeout, role(&mut connection)).await;
            let role = role.unwrap_or_else(|_| Err("it does not answer ROLE".to_owned()))?;
            if role != "master" {
                return Err(format!(
                    "the sentinels say that {address} is the master of \"{}\", and it answers that \
                     its role is {role}: a failover is probably under way",
                    sentinels.master
                ));
            }
        }
        Ok((connection, reached))
    }

    /// A new connection that only listens to channels.
    ///
    /// # Errors
    /// A sentence with the address and the cause.
    pub async fn subscribe(&self, timeout: Duration) -> Result<PubSub, String> {
        let Reached { host, port, .. } = self.resolve(timeout).await?;
        let client = self.client(&host, port).await?;
        match tokio::time::timeout(timeout, client.get_async_pubsub()).await {
            Ok(Ok(pubsub)) => Ok(pubsub),
            Ok(Err(error)) => Err(self.failed(&error, &host, port).await),
            Err(_) => {
                let why = format!("no answer in {} ms", timeout.as_millis());
                Err(self.unreachable(&host, port, Explained::Open(why)))
            }
        }
    }

    /// `host:port` of the Redis that a connection made now would lead to, for a caller that speaks
    /// RESP over TCP itself. With sentinels they are asked, and the role is not verified.
    ///
    /// # Errors
    /// A sentence where the sentinels or nodes do not reply with the address within `timeout` each.
    pub async fn tcp_address(&self, timeout: Duration) -> Result<String, String> {
        Ok(self.resolve(timeout).await?.address())
    }

    /// User and password, where the URL has them.
    pub fn credentials(&self) -> (Option<&str>, Option<&str>) {
        (self.access.login.username(), self.access.login.password())
    }

    /// The Redis that a connection made now would lead to, without user and password. Its role is
    /// not verified, which takes a right.
    ///
    /// # Errors
    /// As [`RedisTarget::tcp_address`].
    pub async fn without_login(&self, timeout: Duration) -> Result<Self, String> {
        let Reached { host, port, .. } = self.resolve(timeout).await?;
        Ok(Self::at(host, port, self.access.without_login().db(self.db())))
    }

    /// The number of the database.
    pub fn db(&self) -> i64 {
        self.access.login.db()
    }

    /// True where sentinels choose the Redis. A failover may then lose what the old master had not
    /// yet replicated: data and marks together.
    pub fn is_sentinel(&self) -> bool {
        matches!(self.place, Place::Sentinels(_))
    }

    /// Returns a sentence for each sentinel and each replica that is missing, while the others
    /// suffice; nothing without sentinels. Takes up to `timeout` twice.
    pub async fn troubles(&self, timeout: Duration) -> Vec<String> {
        match &self.place {
            Place::Sentinels(sentinels) => sentinels.troubles(&self.access, timeout).await,
            Place::One { .. } | Place::Slot(_) => Vec::new(),
        }
    }

    /// True where the target is the owner of a slot of a cluster, on any node.
    pub fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Slot(_))
    }

    /// True for an error reply which says that this Redis is not the right one (any more), if
    /// another one can be looked for.
    pub(crate) fn is_wrong_place(&self, code: &str) -> bool {
        match &self.place {
            Place::One { .. } => false,
            Place::Sentinels(_) => code == "READONLY",
            // A master that lost sight of the others says CLUSTERDOWN for as long as that lasts,
            // and another may serve its slots by then. ASK is not one of them: it leaves the slot
            // where it is until the move ends, with MOVED.
            Place::Slot(_) => matches!(code, "MOVED" | "CLUSTERDOWN" | "READONLY"),
        }
    }

    /// Command that tries an idle connection. PING is answered by every node of a cluster; a read
    /// of a key of the slot is refused with MOVED by a node that does not own the slot any more.
    pub(crate) fn probe(&self) -> Cmd {
        match &self.place {
            Place::Slot(SlotOwner { key: Some(key), .. }) => {
                redis::cmd("GET").arg(&key[..]).to_owned()
            }
            _ => redis::cmd("PING"),
        }
    }

    /// The sentinels' current choice, if it is another one than led to `at`.
    pub(crate) async fn moved_to(&self, at: &Reached) -> Option<String> {
        let Place::Sentinels(sentinels) = &self.place else { return None };
        let now = sentinels.choice(&self.access, FOLLOW_TIMEOUT).await.ok()?;
        (Some(&now) != at.choice().as_ref()).then(|| now.to_string())
    }

    /// Succeeds if the choice that led to `at` is still in force, by replies to questions that are
    /// sent after this call. Without sentinels it always is.
    ///
    /// # Errors
    /// A sentence with the replies.
    pub(crate) async fn confirm(&self, at: &Reached, timeout: Duration) -> Result<(), String> {
        match (&self.place, at.choice()) {
            (Place::Sentinels(sentinels), Some(choice)) => {
                sentinels.confirm(&choice, &self.access, timeout).await
            }
            _ => Ok(()),
        }
    }

    async fn resolve(&self, timeout: Duration) -> Result<Reached, String> {
        let (host, port) = match &self.place {
            Place::One { host, port } => (host.clone(), *port),
            Place::Slot(owner) => owner.resolve(&self.access, timeout).await?,
            Place::Sentinels(sentinels) => {
                let Choice { host, port, epoch } = sentinels.choice(&self.access, timeout).await?;
                return Ok(Reached { host, port, epoch: Some(epoch) });
            }
        };
        Ok(Reached { host, port, epoch: None })
    }

    async fn client(&self, host: &str, port: u16) -> Result<Client, String> {
        match self.access.client(host, port) {
            Ok(client) => Ok(client),
            Err(error) => Err(self.failed(&error, host, port).await),
        }
    }

    async fn failed(&self, error: &RedisError, host: &str, port: u16) -> String {
        let why = self.access.explain(error, host, port).await;
        self.unreachable(host, port, why)
    }

    fn unreachable(&self, host: &str, port: u16, why: Explained) -> String {
        let shown = &self.shown;
        match (&self.place, why) {
            (Place::One { .. }, Explained::Clear(why)) => {
                format!("Redis at {shown} cannot be used: {why}")
            }
            (Place::One { .. }, Explained::Open(why)) => {
                format!("Redis at {shown} cannot be reached: {why}. Start it, or correct the URL")
            }
            (_, Explained::Clear(why) | Explained::Open(why)) => format!(
                "Redis at {}, to which {shown} leads, cannot be reached: {why}",
                address_text(host, port)
            ),
        }
    }
}

/// Longest wait for a sentinel's reply in a check between two connections.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(1);

async fn role(connection: &mut MultiplexedConnection) -> Result<String, String> {
    let reply: redis::Value = redis::cmd("ROLE")
        .query_async(connection)
        .await
        .map_err(|error| format!("it does not answer ROLE: {error}"))?;
    match reply {
        redis::Value::Array(fields) => match fields.into_iter().next() {
            Some(redis::Value::BulkString(role)) => Ok(String::from_utf8_lossy(&role).into_owned()),
            _ => Err("its answer to ROLE cannot be read".to_owned()),
        },
        _ => Err("its answer to ROLE cannot be read".to_owned()),
    }
}

impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
