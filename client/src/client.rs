//! The client: addresses, identity and the entry points of the SDK.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{Invalid, LockName, Owner, TraceContext};

use crate::tasks::Background;
use crate::transport::Connections;
use crate::wait_observer::{Unobserved, WaitObserver};
use crate::{
    BearerToken, Error, Events, FencedStore, Locks, Sessions, TlsOptions, config, ids,
    settings_file,
};

/// The connection to one lock server and one guard. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    parts: Arc<ClientParts>,
}

#[derive(Debug)]
struct ClientParts {
    locks: Locks,
    sessions: Sessions,
    store: FencedStore,
    owner: Owner,
    is_owner_given: bool,
    incarnation: Owner,
    trace: Option<TraceContext>,
    background: Background,
    observer: Arc<dyn WaitObserver>,
}

impl Client {
    /// Returns a builder with the default addresses and owner. Reads no environment variable except
    /// `USER` and `LOGNAME`, for the default owner; without them, `/etc/passwd` names the user.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Builds a client from the environment. The variables, with their defaults: `FENCE_SERVER`
    /// (`http://127.0.0.1:7420`), `FENCE_GUARD` (`http://127.0.0.1:7421`), `FENCE_OWNER`
    /// (`user@host:pid`), `FENCE_INCARNATION` (a random id of this process), `FENCE_AUTH_FILE`,
    /// the file with the bearer token (none), `FENCE_CA_FILE` (the system's), `FENCE_CLIENT_CERT`
    /// and `FENCE_CLIENT_KEY` (none), `FENCE_INSECURE_HTTP` (`false`), and `FENCE_CONFIG`, a TOML
    /// file for what no variable sets, with the keys that all commands of `fence` have: `server`,
    /// `auth-file` and so on. Connects to nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a value that is not valid or a file
    /// that cannot be read.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(config::variable)
    }

    /// As [`from_env`](Self::from_env), with the value of a variable, or `None`, by its name from
    /// `variable`.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let file = settings_file::named_by(variable("FENCE_CONFIG"))?;
        let variable = |name: &str| variable(name).or_else(|| file.get(name).cloned());
        let mut builder = Self::builder();
        builder.lock_server = variable("FENCE_SERVER").unwrap_or(builder.lock_server);
        let guard = variable("FENCE_GUARD").or_else(|| variable("FENCE_STORE"));
        builder.fenced_store = guard.unwrap_or(builder.fenced_store);
        builder.owner = variable("FENCE_OWNER");
        builder.incarnation = variable("FENCE_INCARNATION");
        if let Some(file) = variable("FENCE_AUTH_FILE") {
            builder = builder.auth(BearerToken::from_file(file)?);
        }
        builder = builder.tls(config::tls(variable)?);
        match variable("FENCE_INSECURE_HTTP").as_deref() {
            None | Some("false") => builder.build(),
            Some("true") => builder.insecure_http(true).build(),
            Some(other) => {
                Err(Invalid::new("FENCE_INSECURE_HTTP", other, "must be true or false").into())
            }
        }
    }

    /// Events of the locks whose names begin with `prefix`; an empty prefix includes session
    /// events.
    pub fn events(&self, prefix: impl AsRef<str>) -> Events {
        Events::for_prefix(self.parts.locks.endpoint().clone(), prefix.as_ref())
    }

    /// Events of one lock.
    pub fn events_of(&self, lock: &LockName) -> Events {
        Events::for_lock(self.parts.locks.endpoint().clone(), lock)
    }

    /// The objects behind the guard. Every fenced operation takes a lease.
    pub fn objects(&self) -> &FencedStore {
        &self.parts.store
    }

    /// The lock server's API, one method a call, for tools.
    pub fn locks(&self) -> &Locks {
        &self.parts.locks
    }

    /// The lock server's session API, one method a call, for tools.
    pub fn sessions(&self) -> &Sessions {
        &self.parts.sessions
    }

    /// The owner that this client sends with its requests.
    pub fn owner(&self) -> &Owner {
        &self.parts.owner
    }

    /// `true` if the owner was configured. The default owner differs in every process, so it is no
    /// use for takeovers.
    pub(crate) fn is_owner_given(&self) -> bool {
        self.parts.is_owner_given
    }

    /// The incarnation that this client sends: it distinguishes the restarts of one owner.
    pub fn incarnation(&self) -> &Owner {
        &self.parts.incarnation
    }

    /// The trace that was configured.
    pub fn trace(&self) -> Option<TraceContext> {
        self.parts.trace
    }

    /// The address of the lock server.
    pub fn lock_server(&self) -> &str {
        self.parts.locks.endpoint().base()
    }

    /// The address of the guard.
    pub fn fenced_store(&self) -> &str {
        self.parts.store.endpoint.base()
    }

    /// Waits until the background releases of dropped leases and sessions have ended; `false` if
    /// `deadline` passed first. Call it before the process ends: a lease whose release was not sent
    /// keeps its lock until it expires. Cancel-safe.
    pub async fn drained(&self, deadline: Duration) -> bool {
        self.parts.background.drained(deadline).await
    }

    pub(crate) fn observer(&self) -> &dyn WaitObserver {
        &*self.parts.observer
    }

    pub(crate) fn background(&self) -> &Background {
        &self.parts.background
    }
}

/// Builder of a [`Client`]; see [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    lock_server: String,
    fenced_store: String,
    owner: Option<String>,
    incarnation: Option<String>,
    connections: Connections,
    observer: Arc<dyn WaitObserver>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            lock_server: config::DEFAULT_LOCK_SERVER.to_owned(),
            fenced_store: config::DEFAULT_FENCED_STORE.to_owned(),
            owner: None,
            incarnation: None,
            connections: Connections::default(),
            observer: Arc::new(Unobserved),
        }
    }
}

impl ClientBuilder {
    /// The address of the lock server, for example `https://locks.example:7420`.
    pub fn lock_server(mut self, url: impl Into<String>) -> Self {
        self.lock_server = url.into();
        self
    }

    /// The address of the guard, for example `https://guard.example:7421`.
    pub fn fenced_store(mut self, url: impl Into<String>) -> Self {
        self.fenced_store = url.into();
        self
    }

    /// The owner of the leases, for people to read: 1 to 256 bytes, `user@host:pid` by default.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The incarnation of the owner, for [takeovers](crate::LockRequest::takeover): a text of 1 to
    /// 256 bytes that every restart changes, such as a boot id, the UID of a pod or the id of a
    /// container. By default a random id, generated once a process and shared by all its clients.
    ///
    /// If a restart does *not* change it, the new process counts as the old one and waits for its
    /// lease to end instead of taking it over.
    pub fn incarnation(mut self, incarnation: impl Into<String>) -> Self {
        self.incarnation = Some(incarnation.into());
        self
    }

    /// The bearer token that authenticates this client at both servers, if they have an access
    /// file; none by default.
    pub fn auth(mut self, token: BearerToken) -> Self {
        self.connections.auth = Some(token);
        self
    }

    /// The certificates for servers at `https://` addresses: whom to trust, by default the CAs of
    /// the system, and what to present, by default nothing. The servers' names are always verified.
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.connections.tls = tls;
        self
    }

    /// Accepts `http://` addresses of other machines, which are refused by default, because bearer
    /// and fencing tokens can be read on the way. For networks that encrypt.
    pub fn insecure_http(mut self, is_accepted: bool) -> Self {
        self.connections.insecure_http = is_accepted;
        self
    }

    /// The observer of calls that wait or retry; none by default.
    pub fn wait_observer(mut self, observer: Arc<dyn WaitObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// The trace that this client's requests belong to, unless they are sent
    /// [in another](crate::in_trace); none by default.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.connections.trace = Some(trace);
        self
    }

    /// Builds the client. Connects to nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an address, an owner or an incarnation
    /// that is not valid.
    pub fn build(self) -> Result<Client, Error> {
        let addresses = [self.lock_server.as_str(), self.fenced_store.as_str()];
        let [lock_server, fenced_store] = self.connections.endpoints(addresses)?;
        let is_owner_given = self.owner.is_some();
        let owner = self.owner.map_or_else(|| Ok(config::default_owner()), Owner::new)?;
        let incarnation = match self.incarnation {
            Some(text) => Owner::new(&text).map_err(|_| {
                let rule = "must be 1 to 256 bytes without control characters";
                Invalid::new("incarnation", text, rule)
            })?,
            None => ids::incarnation(),
        };
        Ok(Client {
            parts: Arc::new(ClientParts {
                sessions: Sessions::new(lock_server.clone()),
                locks: Locks::new(lock_server),
                store: FencedStore::new(fenced_store, owner.clone()),
                owner,
                is_owner_given,
                incarnation,
                trace: self.connections.trace,
                background: Background::default(),
                observer: self.observer,
            }),
        })
    }
}
