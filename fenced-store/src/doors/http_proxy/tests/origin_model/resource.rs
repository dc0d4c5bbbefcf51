//! A resource of the model's upstream.

use std::cell::{Cell, RefCell};

use http::{Method, StatusCode};
use tokio::sync::oneshot;

use crate::doors::http_proxy::conditions::attempt::{Precondition, Version};
use crate::doors::http_proxy::conditions::probe::{Origin, Reply};
use crate::etag::ETag;

/// One resource of an upstream.
#[derive(Debug, Default)]
pub(super) struct Resource {
    current: RefCell<Option<(ETag, String)>>,
    changes: Cell<u64>,
    /// Equal content has an equal tag.
    pub(super) is_hashed: bool,
}

impl Resource {
    pub(super) fn new(is_hashed: bool) -> Self {
        Self { is_hashed, ..Self::default() }
    }

    pub(super) fn version(&self) -> Version {
        let current = self.current.borrow();
        current.as_ref().map_or(Version::Absent, |(tag, _)| Version::Tag(tag.clone()))
    }

    pub(super) fn holds(&self, precondition: Option<&Precondition>) -> bool {
        match (precondition, self.version()) {
            (None, _) | (Some(Precondition::Absent), Version::Absent) => true,
            (Some(Precondition::Match(wanted)), Version::Tag(tag)) => *wanted == tag,
            _ => false,
        }
    }

    /// Writes, or deletes without a body; returns the new tag.
    pub(super) fn set(&self, body: Option<&str>) -> Option<ETag> {
        self.changes.set(self.changes.get() + 1);
        let number = self.changes.get().to_string();
        let tag = body.map(|body| if self.is_hashed { body } else { number.as_str() });
        let tag = tag.map(ETag::from_stored);
        *self.current.borrow_mut() = tag.clone().zip(body.map(ToOwned::to_owned));
        tag
    }
}

impl Origin for Resource {
    async fn send(
        &self,
        method: Method,
        precondition: Option<&Precondition>,
        body: &str,
    ) -> Result<Reply, String> {
        let is_read = method == Method::HEAD || method == Method::GET;
        let is_missing = self.version() == Version::Absent;
        let status = if !self.holds(precondition) {
            StatusCode::PRECONDITION_FAILED
        } else if is_missing && method != Method::PUT {
            StatusCode::NOT_FOUND
        } else {
            if !is_read {
                self.set((method == Method::PUT).then_some(body));
            }
            StatusCode::OK
        };
        let current = self.current.borrow();
        let (tag, body) = current.clone().map_or((None, String::new()), |(t, b)| (Some(t), b));
        Ok(Reply { status, tag, body: body.into_bytes() })
    }

    /// It checks and stores in one step, once the body is whole.
    async fn put_in_halves(
        &self,
        precondition: &Precondition,
        first_is_out: oneshot::Sender<()>,
        second: oneshot::Receiver<()>,
    ) -> Result<Reply, String> {
        let _ = first_is_out.send(());
        let _ = second.await;
        self.send(Method::PUT, Some(precondition), "in halves").await
    }
}
