//! Addresses of the servers, the credentials for them, and the output of their replies.

use std::path::PathBuf;

use fence_client::config::{self, DEFAULT_FENCED_STORE, DEFAULT_LOCK_SERVER};
use fence_client::{BearerToken, Client, ClientBuilder, Error, TlsOptions, TlsSettingNames, ids};
use fence_protocol::{TRACEPARENT, TraceContext};
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::Output;
use serde::Serialize;
use service_kit::tls::ServerUrl;

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

    #[command(flatten)]
    https: HttpsFlags,

    /// The TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Connect {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        self.builder()?.build()
    }

    /// Variables by which a command connects in the same way and as the same owner, beside those of
    /// the addresses.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let mut all = self.https.environment();
        if let Some(owner) = &self.owner {
            all.push(("FENCE_OWNER", owner.clone()));
            // Unless it is empty, it would contradict.
            let file = config::variable("FENCE_OWNER_FILE");
            all.extend(file.map(|_| ("FENCE_OWNER_FILE", String::new())));
        }
        all
    }

    pub(crate) fn builder(&self) -> Result<ClientBuilder, Error> {
        let builder = Client::builder().lock_server(&self.server).fenced_store(&self.guard);
        let builder = self.https.apply(builder, [&self.server, &self.guard])?;
        let mut builder = builder.trace(trace());
        if let Some(owner) = &self.owner {
            builder = builder.owner(owner);
        }
        if let Some(file) = &self.auth_file {
            builder = builder.auth(BearerToken::from_file(file)?);
        }
        Ok(builder)
    }
}

/// The options of every command that prints a reply of a server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CallOptions {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

impl CallOptions {
    pub(crate) fn client(&self) -> Result<Client, Error> {
        self.connect.client()
    }

    /// Prints a reply as JSON, or as `table` renders it; returns the exit code.
    pub(crate) fn print<T: Serialize>(
        &self,
        reply: &T,
        table: impl FnOnce(&T) -> String,
    ) -> Result<u8, Failure> {
        self.output.print(reply, table).map(|()| code::OK)
    }
}

/// The trace of this command: that of its environment, or a new one.
fn trace() -> TraceContext {
    let given = config::variable(&TRACEPARENT.to_ascii_uppercase());
    given.and_then(|text| text.parse().ok()).unwrap_or_else(ids::trace)
}

/// HTTPS to the servers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HttpsFlags {
    /// The CA (PEM) that signs the servers' certificates [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,

    /// The certificate (PEM) for servers that require one
    #[arg(long, value_name = "FILE")]
    client_cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE")]
    client_key: Option<PathBuf>,

    /// Accept http:// to other machines, where tokens can be read on the way
    #[arg(long)]
    insecure_http: bool,
}

impl HttpsFlags {
    /// Sets up TLS; refuses addresses at which tokens could be read on the way.
    pub(crate) fn apply(
        &self,
        builder: ClientBuilder,
        addresses: [&str; 2],
    ) -> Result<ClientBuilder, Error> {
        // Here, and not by the builder, so that the error names the flag.
        for address in addresses.into_iter().filter(|_| !self.insecure_http) {
            let url: ServerUrl = address.parse().map_err(Error::invalid)?;
            url.refuse_plain("--insecure-http").map_err(Error::invalid)?;
        }
        Ok(builder.insecure_http(true).tls(self.options()?))
    }

    /// The certificates.
    pub(crate) fn options(&self) -> Result<TlsOptions, Error> {
        let names =
            TlsSettingNames { ca: "--ca-file", certificate: "--client-cert", key: "--client-key" };
        let Self { ca_file, client_cert, client_key, .. } = self;
        TlsOptions::read(names, ca_file.as_deref(), client_cert.as_deref(), client_key.as_deref())
            .map_err(Error::invalid)
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let Self { ca_file, client_cert, client_key, insecure_http } = self;
        let files = [
            ("FENCE_CA_FILE", ca_file),
            ("FENCE_CLIENT_CERT", client_cert),
            ("FENCE_CLIENT_KEY", client_key),
        ];
        let files = files.into_iter().filter_map(|(name, file)| {
            file.as_ref().map(|file| (name, file.to_string_lossy().into_owned()))
        });
        let plain = insecure_http.then(|| ("FENCE_INSECURE_HTTP", "true".to_owned()));
        files.chain(plain).collect()
    }
}
