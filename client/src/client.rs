//! The way in.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::{Invalid, LockName, Owner};

use crate::tasks::Background;
use crate::transport::{self, Endpoint};
use crate::{BearerToken, Error, Events, FencedStore, Locks, Sessions, config, ids};

/// The connection to one lock server and one guard. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    locks: Locks,
    sessions: Sessions,
    store: FencedStore,
    owner: Owner,
    is_owner_given: bool,
    incarnation: Owner,
    lock_server: String,
    fenced_store: String,
    background: Background,
}

impl Client {
    /// Begins with the default addresses and the default owner; reads no environment variable but
    /// the user's name.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A client as the environment says: `FENCE_SERVER` (`http://127.0.0.1:7420`), `FENCE_STORE`
    /// (`http://127.0.0.1:7421`), `FENCE_OWNER` (`user@host:pid`), `FENCE_INCARNATION` (a random
    /// id of this process) and `FENCE_AUTH_FILE`, the file with the bearer token (none).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a value that cannot be used.
    pub fn from_env() -> Result<Self, Error> {
        let mut builder = Self::builder();
        if let Some(url) = config::variable("FENCE_SERVER") {
            builder = builder.lock_server(url);
        }
        if let Some(url) = config::variable("FENCE_STORE") {
            builder = builder.fenced_store(url);
        }
        if let Some(owner) = config::variable("FENCE_OWNER") {
            builder = builder.owner(owner);
        }
        if let Some(incarnation) = config::variable("FENCE_INCARNATION") {
            builder = builder.incarnation(incarnation);
        }
        if let Some(file) = config::variable("FENCE_AUTH_FILE") {
            builder = builder.auth(BearerToken::from_file(file)?);
        }
        builder.build()
    }

    /// What happens to the locks whose names begin with `prefix`; with an empty one also to sessions.
    pub fn events(&self, prefix: impl AsRef<str>) -> Events {
        Events::under(self.inner.locks.endpoint().clone(), prefix.as_ref())
    }

    /// What happens to one lock.
    pub fn events_of(&self, lock: &LockName) -> Events {
        Events::of(self.inner.locks.endpoint().clone(), lock)
    }

    /// The guard's objects. Every operation takes a lease.
    pub fn objects(&self) -> &FencedStore {
        &self.inner.store
    }

    /// The calls of the lock server, one to one, for tools.
    pub fn locks(&self) -> &Locks {
        &self.inner.locks
    }

    /// The calls about sessions, one to one, for tools.
    pub fn sessions(&self) -> &Sessions {
        &self.inner.sessions
    }

    /// Who this client says it is.
    pub fn owner(&self) -> &Owner {
        &self.inner.owner
    }

    /// Whether somebody chose that: the default is another one in every process.
    pub(crate) fn is_owner_given(&self) -> bool {
        self.inner.is_owner_given
    }

    /// Which life of its owner this client is.
    pub fn incarnation(&self) -> &Owner {
        &self.inner.incarnation
    }

    /// The address of the lock server.
    pub fn lock_server(&self) -> &str {
        &self.inner.lock_server
    }

    /// The address of the guard.
    pub fn fenced_store(&self) -> &str {
        &self.inner.fenced_store
    }

    /// Waits until the releases of leases that were dropped have been sent; `false` when `deadline`
    /// passed first. Worth calling before a process ends: a lease whose release was not sent keeps
    /// its lock until it expires.
    pub async fn drained(&self, deadline: Duration) -> bool {
        self.inner.background.drained(deadline).await
    }

    pub(crate) fn background(&self) -> &Background {
        &self.inner.background
    }
}

/// Makes a [`Client`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    lock_server: String,
    fenced_store: String,
    owner: Option<String>,
    incarnation: Option<String>,
    auth: Option<BearerToken>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            lock_server: config::DEFAULT_LOCK_SERVER.to_owned(),
            fenced_store: config::DEFAULT_FENCED_STORE.to_owned(),
            owner: None,
            incarnation: None,
            auth: None,
        }
    }
}

impl ClientBuilder {
    /// The address of the lock server, for example `http://127.0.0.1:7420`.
    pub fn lock_server(mut self, url: impl Into<String>) -> Self {
        self.lock_server = url.into();
        self
    }

    /// The address of the guard, for example `http://127.0.0.1:7421`.
    pub fn fenced_store(mut self, url: impl Into<String>) -> Self {
        self.fenced_store = url.into();
        self
    }

    /// Who holds the leases, for people to read: 1 to 256 bytes; `user@host:pid` by default.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Which life of the owner this client is, for [takeovers](crate::LockRequest::takeover): a text of 1 to
    /// 256 bytes that every restart changes, as a boot id, the UID of a pod or the id of a container.
    /// By default a random id that is made once for the process, and is the same for all its clients.
    ///
    /// One that does *not* change lets two lives pass for one: the second then waits for the first.
    pub fn incarnation(mut self, incarnation: impl Into<String>) -> Self {
        self.incarnation = Some(incarnation.into());
        self
    }

    /// What tells both servers who asks, where they have an access file; none by default.
    pub fn auth(mut self, token: BearerToken) -> Self {
        self.auth = Some(token);
        self
    }

    /// The client. Connects to nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an address, an owner or an incarnation
    /// that cannot be used.
    pub fn build(self) -> Result<Client, Error> {
        let http = transport::http_client(self.auth.as_ref())?;
        let lock_server = Endpoint::new(http.clone(), &self.lock_server)?;
        let fenced_store = Endpoint::new(http, &self.fenced_store)?;
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
            inner: Arc::new(Inner {
                lock_server: lock_server.base().to_owned(),
                fenced_store: fenced_store.base().to_owned(),
                sessions: Sessions::new(lock_server.clone()),
                locks: Locks::new(lock_server),
                store: FencedStore::new(fenced_store, owner.clone()),
                owner,
                is_owner_given,
                incarnation,
                background: Background::default(),
            }),
        })
    }
}
