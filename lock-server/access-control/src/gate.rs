//! The decision over one request: who asks, whether they may, and the account of it.

use std::sync::Arc;

use axum::http::HeaderMap;
use fence_protocol::Code;
use service_kit::Kit;
use service_kit::problem::Reject;

use crate::audit::{AuditLog, Line};
use crate::caller::{Caller, Known};
use crate::file::AccessFile;
use crate::list::{Limits, Principal};
use crate::rights::{Grant, Scope, Verb};
use crate::secret;

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: anybody may ask.
    Public,
    /// A valid bearer token, and no right.
    Known,
    /// A right on one name.
    Name(Verb, Vec<u8>),
    /// A right on everything that begins so; empty for the whole server.
    Under(Verb, Vec<u8>),
    /// A right on any name; the handler checks the names in the body with [`Caller::may`].
    Somewhere(Verb),
    /// Nobody has said what it needs, so nobody may.
    Unmapped,
}

impl Need {
    /// The verb, where it is a right.
    pub fn verb(&self) -> Option<Verb> {
        match self {
            Self::Name(verb, _) | Self::Under(verb, _) | Self::Somewhere(verb) => Some(*verb),
            Self::Public | Self::Known | Self::Unmapped => None,
        }
    }

    fn right(&self) -> Option<(Verb, Scope<'_>)> {
        match self {
            Self::Name(verb, name) => Some((*verb, Scope::Name(name))),
            Self::Under(verb, prefix) => Some((*verb, Scope::Under(prefix))),
            Self::Somewhere(verb) => Some((*verb, Scope::Somewhere)),
            Self::Public | Self::Known | Self::Unmapped => None,
        }
    }
}

/// What a server was told of access: both parts are optional.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    file: Option<AccessFile>,
    audit: Option<AuditLog>,
    kit: Option<Arc<Kit>>,
}

impl Gate {
    /// A gate that is not in force yet: see [`Gate::start`].
    pub fn new(file: Option<AccessFile>, audit: Option<AuditLog>) -> Self {
        Self { file, audit, kit: None }
    }

    /// The same gate, which also knows this bearer token, with this one right: for a part of this
    /// process that asks as everybody else does. Give it a name that no access file can have.
    #[must_use]
    pub fn and(mut self, name: &str, secret: &str, right: Grant) -> Self {
        let (name, limits) = (name.to_owned(), Limits::default());
        let principal = Principal { name, grants: vec![right], limits };
        self.file = self.file.map(|file| file.and(secret, principal));
        self
    }

    /// Whether there is neither an access file nor an audit log.
    pub fn is_open(&self) -> bool {
        self.file.is_none() && self.audit.is_none()
    }

    /// Takes the clock and readiness of `kit`, and looks for changes of the file until it shuts
    /// down.
    ///
    /// # Panics
    /// Outside of a tokio runtime, where there is a file.
    #[must_use]
    pub fn start(mut self, kit: &Kit) -> Self {
        if let Some(file) = &self.file {
            kit.tasks.spawn(file.clone().watch(kit.clone(), self.audit.clone()));
        }
        self.kit = Some(Arc::new(kit.clone()));
        self
    }

    /// Who asks, and whether they may.
    ///
    /// # Errors
    /// 401 without a valid bearer token, 429 beyond the caller's rate, 403 without the right.
    pub(crate) fn admit(&self, headers: &HeaderMap, need: &Need) -> Result<Caller, Refused> {
        let (Some(file), Some(kit)) = (&self.file, &self.kit) else { return Ok(Caller::unknown()) };
        if *need == Need::Public {
            return Ok(Caller::unknown());
        }
        let known = secret::presented(headers).and_then(|hash| {
            let found = file.find(&hash).ok_or("the bearer token is none of the access file's")?;
            Ok((hash, found))
        });
        let (hash, (principal, ledger)) = known.map_err(|detail| Refused {
            reject: Reject::new(Code::Unauthorized, detail),
            caller: Caller::unknown(),
        })?;
        let caller = Caller::known(Known {
            principal,
            ledger,
            clock: Arc::clone(&kit.clock),
            file: file.clone(),
            hash,
        });
        let verdict = caller.request().and_then(|()| match (need.right(), need) {
            (Some((verb, scope)), _) => caller.check(verb, scope),
            (None, Need::Known) => Ok(()),
            (None, _) => Err(Reject::new(
                Code::Forbidden,
                "this request belongs to no right, so nobody may make it",
            )),
        });
        match verdict {
            Ok(()) => Ok(caller),
            Err(reject) => Err(Refused { reject, caller }),
        }
    }

    /// Writes a line, where there is an audit log.
    ///
    /// # Errors
    /// 503 where it cannot be written.
    pub(crate) fn record(&self, line: Line) -> Result<(), Reject> {
        let (Some(audit), Some(kit)) = (&self.audit, &self.kit) else { return Ok(()) };
        audit.write(kit, line).map_err(|error| {
            let detail = format!("the audit log cannot be written: {error}; nothing was done");
            Reject::new(Code::StoreUnavailable, detail)
                .hint("An operator must mend --audit-log; /readyz?verbose names it.")
                .retry_after(1)
        })
    }
}

/// A request that does not pass, and whose it was.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) reject: Reject,
    pub(crate) caller: Caller,
}
