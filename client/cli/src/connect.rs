//! Where the servers are.

use std::path::PathBuf;

use fence_client::config::{DEFAULT_FENCED_STORE, DEFAULT_LOCK_SERVER};
use fence_client::{Client, Error};

/// The options of every command that talks to the servers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Connect {
    /// The address of the lock server
    #[arg(long, default_value = DEFAULT_LOCK_SERVER, value_name = "URL")]
    pub(crate) server: String,

    /// The address of the guard
    #[arg(long, default_value = DEFAULT_FENCED_STORE, value_name = "URL")]
    pub(crate) store: String,

    /// Who asks, for people who look at the lock [default: user@host:pid]
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,

    /// A TOML file with settings, by the names of the flags
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Connect {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        let mut builder = Client::builder().lock_server(&self.server).fenced_store(&self.store);
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner);
        }
        builder.build()
    }
}
