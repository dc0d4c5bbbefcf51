//! Clients, leases and sessions by the names that the requests give them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use fence_client::{BearerToken, Client, Session, TlsOptions, TlsSettingNames};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::arguments::Arguments;
use crate::failure::{DriverResult, Failure};
use crate::held::Held;

#[derive(Debug, Default)]
pub(crate) struct DriverState {
    clients: RefCell<HashMap<String, Client>>,
    pub(crate) leases: RefCell<HashMap<String, Rc<Held>>>,
    pub(crate) sessions: RefCell<HashMap<String, Rc<Session>>>,
    pub(crate) streams: RefCell<HashMap<String, AbortOnDropHandle<()>>>,
    /// Requests under way, by their ids.
    pub(crate) running: RefCell<HashMap<u64, CancellationToken>>,
}

impl DriverState {
    /// The op `client`.
    pub(crate) fn client(&self, request: &Arguments) -> DriverResult {
        let client = match request.0["env"].as_object() {
            Some(variables) => Client::from_variables(|name| {
                variables.get(name)?.as_str().filter(|text| !text.is_empty()).map(ToOwned::to_owned)
            })?,
            None => build(request)?,
        };
        self.clients.borrow_mut().insert(request.text("client")?, client);
        Ok(json!({}))
    }

    /// The client that a request names.
    pub(crate) fn client_of(&self, request: &Arguments) -> Result<Client, Failure> {
        let name = request.text("client")?;
        let client = self.clients.borrow().get(&name).cloned();
        client.ok_or_else(|| Failure::invalid(format!("there is no client {name}")))
    }

    /// The lease that a request names. One that was released does not compile in Rust.
    pub(crate) fn lease_of(&self, request: &Arguments) -> Result<Rc<Held>, Failure> {
        let name = request.text("lease")?;
        let lease = self.leases.borrow().get(&name).cloned();
        lease.ok_or_else(|| Failure::invalid(format!("there is no lease {name}, or no longer")))
    }

    /// The session that a request names.
    pub(crate) fn session_of(&self, name: &str) -> Result<Rc<Session>, Failure> {
        let session = self.sessions.borrow().get(name).cloned();
        session.ok_or_else(|| Failure::invalid(format!("there is no session {name}, or no longer")))
    }
}

fn build(request: &Arguments) -> Result<Client, Failure> {
    let mut builder = Client::builder().insecure_http(request.is_set("insecure_http"));
    if let Some(url) = request.text_or_none("server") {
        builder = builder.lock_server(url);
    }
    if let Some(url) = request.text_or_none("guard") {
        builder = builder.fenced_store(url);
    }
    if let Some(owner) = request.text_or_none("owner") {
        builder = builder.owner(owner);
    }
    if let Some(incarnation) = request.text_or_none("incarnation") {
        builder = builder.incarnation(incarnation);
    }
    if let Some(secret) = request.text_or_none("token") {
        builder = builder.auth(BearerToken::new(&secret)?);
    }
    if let Some(file) = request.text_or_none("token_file") {
        builder = builder.auth(BearerToken::from_file(file)?);
    }
    let names = TlsSettingNames { ca: "ca_file", certificate: "cert", key: "key" };
    let file = |name: &str| request.text_or_none(name).map(PathBuf::from);
    let [ca, certificate, key] = ["ca_file", "cert", "key"].map(file);
    let tls = TlsOptions::read(names, ca.as_deref(), certificate.as_deref(), key.as_deref());
    Ok(builder.tls(tls.map_err(Failure::invalid)?).build()?)
}
