//! Addresses of the servers, and the credentials for them.

use std::path::PathBuf;

use fence_client::config::{self, DEFAULT_FENCED_STORE, DEFAULT_LOCK_SERVER};
use fence_client::{BearerToken, Client, ClientBuilder, Error, ids};
use fence_protocol::{TRACEPARENT, TraceContext};

/// The options of every command that talks to the servers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Connect {
    /// The address of the lock server
    #[arg(long, default_value = DEFAULT_LOCK_SERVER, value_name = "URL", value_parser = config::address)]
    pub(crate) server: String,

    /// The address of the guard
    #[arg(
        long,
        alias = "store",
        default_value = DEFAULT_FENCED_STORE,
        value_name = "URL",
        value_parser = config::address,
    )]
    pub(crate) guard: String,

    #[arg(
        long,
        value_name = "NAME",
        // No doc comment: rustdoc would take the brackets for a link.
        help = "Name of the caller, for people who look at the lock [default: user@host:pid]"
    )]
    pub(crate) owner: Option<String>,

    /// The file with the bearer token, for servers with an access file
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,

    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Connect {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        self.builder()?.build()
    }

    pub(crate) fn builder(&self) -> Result<ClientBuilder, Error> {
        let mut builder = Client::builder().lock_server(&self.server).fenced_store(&self.guard);
        builder = builder.trace(trace());
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner);
        }
        if let Some(file) = &self.auth_file {
            builder = builder.auth(BearerToken::from_file(file)?);
        }
        Ok(builder)
    }
}

/// The trace of this command: that of its environment, or a new one.
fn trace() -> TraceContext {
    let given = config::variable(&TRACEPARENT.to_ascii_uppercase());
    given.and_then(|text| text.parse().ok()).unwrap_or_else(ids::trace)
}
