//! The gate: authenticates and authorises each request, and writes the audit log.

use std::sync::Arc;

use axum::http::request::Parts;
use fence_protocol::Code;
use service_kit::Kit;
use service_kit::problem::Reject;

use crate::audit::{AuditLog, Recorder};
use crate::caller::{Caller, KnownCaller};
use crate::file::AccessFile;
use crate::list::{Limits, Principal};
use crate::rights::{Grant, Scope, Verb};
use crate::secret::Credential;

/// Requirement of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// No bearer token.
    Public,
    /// A valid bearer token, and no right.
    Known,
    /// A right on one name.
    Name(Verb, Vec<u8>),
    /// A right on all names with this prefix; empty for the whole server.
    Under(Verb, Vec<u8>),
    /// A right on any name; the handler checks the names in the body with [`Caller::may`].
    Somewhere(Verb),
    /// A requirement that no route mapping states: the request is refused.
    Unmapped,
}

impl Need {
    /// The verb, if the requirement is a right.
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

/// Access file and audit log of a server; both are optional.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    file: Option<AccessFile>,
    pub(crate) recorder: Recorder,
}

impl Gate {
    /// Creates a gate, which admits every request until [`Gate::start`].
    pub fn new(file: Option<AccessFile>, audit: Option<AuditLog>) -> Self {
        Self { file, recorder: Recorder { audit, kit: None } }
    }

    /// Adds a principal with this bearer token and right, for a component of this process that
    /// sends requests to it. Its name must be one that no access file can contain.
    #[must_use]
    pub fn and(mut self, name: &str, secret: &str, right: Grant) -> Self {
        let principal =
            Principal { name: name.to_owned(), grants: vec![right], limits: Limits::default() };
        self.file = self.file.map(|file| file.and(secret, principal));
        self
    }

    /// Returns `true` if there is neither an access file nor an audit log.
    pub fn is_open(&self) -> bool {
        self.file.is_none() && self.recorder.audit.is_none()
    }

    /// Puts the gate in force, with the clock and readiness of `kit`, and watches the access file
    /// until `kit` shuts down.
    ///
    /// # Panics
    /// Outside of a tokio runtime, if there is an access file.
    #[must_use]
    pub fn start(mut self, kit: &Kit) -> Self {
        if let Some(file) = &self.file {
            kit.tasks.spawn(file.clone().watch(kit.clone(), self.recorder.audit.clone()));
        }
        self.recorder.kit = Some(Arc::new(kit.clone()));
        self
    }

    /// Authenticates and authorises a request; returns its caller.
    ///
    /// # Errors
    /// 401 without a valid bearer token or client certificate, 429 above the caller's rate, 403
    /// without the right.
    pub(crate) fn admit(&self, request: &Parts, need: &Need) -> Result<Caller, Refused> {
        let (Some(file), Some(kit)) = (&self.file, &self.recorder.kit) else {
            return Ok(Caller::unknown());
        };
        if *need == Need::Public {
            return Ok(Caller::unknown());
        }
        let credential = Credential::from_request(&request.headers, request.extensions.get());
        let known = credential.and_then(|credential| {
            let found = file.find(&credential)?;
            Ok((credential, found))
        });
        let (credential, (principal, ledger)) = known.map_err(|detail| Refused {
            reject: Reject::new(Code::Unauthorized, detail),
            caller: Caller::unknown(),
        })?;
        let caller = Caller::known(KnownCaller {
            principal,
            ledger,
            clock: Arc::clone(&kit.clock),
            file: file.clone(),
            credential,
        });
        let verdict = caller.request().and_then(|()| match (need.right(), need) {
            (Some((verb, scope)), _) => caller.check(verb, scope),
            (None, Need::Known) => Ok(()),
            (None, _) => Err(Reject::new(
                Code::Forbidden,
                "no right covers this request, so it is always refused",
            )),
        });
        match verdict {
            Ok(()) => Ok(caller),
            Err(reject) => Err(Refused { reject, caller }),
        }
    }
}

/// Refusal of a request, and its caller.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) reject: Reject,
    pub(crate) caller: Caller,
}
