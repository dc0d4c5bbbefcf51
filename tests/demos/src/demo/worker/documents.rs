//! Documents of a worker: over HTTP, or over the protocol of Redis or PostgreSQL.

use fence_client::protocol::wire::lock::LeaseReply;

use super::answers::Objects;
use super::keys::Keys;
use super::rows::Rows;
use crate::demo::orders::Answer;
use fence_terminal::exit::Failure;

/// Documents by their keys. A lease, where there is one, gives the token that goes with the call.
#[derive(Debug)]
pub(in crate::demo) enum Documents {
    Http(Objects),
    Redis(Keys),
    Postgres(Rows),
}

impl Documents {
    /// Documents at `base`: what is put before the key of an object, or the URL of a
    /// Redis or a PostgreSQL.
    pub(in crate::demo) fn new(base: &str) -> Result<Self, Failure> {
        if base.starts_with("redis://") {
            return Ok(Self::Redis(Keys::new(base.to_owned())));
        }
        if base.starts_with("postgres://") {
            return Ok(Self::Postgres(Rows::new(base.to_owned())));
        }
        Ok(Self::Http(Objects::new(base.to_owned())?))
    }

    pub(in crate::demo) async fn get(
        &mut self,
        key: &str,
        lease: Option<&LeaseReply>,
    ) -> Result<Answer, String> {
        match self {
            Self::Http(objects) => objects.get(key, header(lease)).await,
            Self::Redis(keys) => keys.get(key, lease).await,
            Self::Postgres(rows) => rows.get(key, lease).await,
        }
    }

    pub(in crate::demo) async fn put(
        &mut self,
        key: &str,
        lease: Option<&LeaseReply>,
        body: String,
    ) -> Result<Answer, String> {
        match self {
            Self::Http(objects) => objects.put(key, header(lease), body).await,
            Self::Redis(keys) => keys.set(key, lease, &body).await,
            Self::Postgres(rows) => rows.put(key, lease, &body).await,
        }
    }

    /// The store for demos that use HTTP alone.
    pub(super) fn objects(&self) -> Result<&Objects, String> {
        match self {
            Self::Http(objects) => Ok(objects),
            Self::Redis(_) | Self::Postgres(_) => Err("this demo uses HTTP alone".to_owned()),
        }
    }
}

pub(super) fn header(lease: Option<&LeaseReply>) -> Option<&str> {
    lease.map(|lease| lease.fencing_token.as_str())
}
