//! Flags of the PostgreSQL port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fence_protocol::wire::fence::Mode;
use service_kit::listener::{Exposure, ListenOptions};
use service_kit::login::Password;

use crate::doors::postgres::{PortSettings, ServerLogin, UpstreamUrl};
use crate::fail_points::FailPoints;

/// Time that a client may take to log in, a hand-over included.
const LOGIN_WITHIN: Duration = Duration::from_secs(60);

/// PostgreSQL port before one database.
#[derive(Clone, Debug, Args)]
pub struct PostgresPortFlags {
    /// Address of the PostgreSQL port, before the database of --postgres-upstream. Clients keep
    /// their driver and give the token as the password.
    #[arg(long, value_name = "ADDR")]
    pub postgres_listen: Option<SocketAddr>,
    /// Database behind the port, with the guard's own role, which owns schema fence:
    /// postgres://guard@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    pub postgres_upstream: Option<UpstreamUrl>,
    /// Password of the guard's role, in one line [default: the URL's].
    #[arg(long, value_name = "FILE")]
    pub postgres_password_file: Option<PathBuf>,
    /// Role of all clients with a token. It has no right on schema fence.
    #[arg(long, value_name = "NAME")]
    pub postgres_writer: Option<String>,
    /// Password of that role, in one line.
    #[arg(long, value_name = "FILE")]
    pub postgres_writer_password_file: Option<PathBuf>,
    /// Role of clients without a token, which should only read. Clients log in as this user with
    /// its password. Without this setting they are refused.
    #[arg(long, value_name = "NAME")]
    pub postgres_reader: Option<String>,
    /// Threads of the PostgreSQL port, 1 to 64.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub postgres_threads: usize,
}

impl PostgresPortFlags {
    /// Returns `true` if the port is asked for.
    pub(super) fn is_given(&self) -> bool {
        self.postgres_listen.is_some()
    }

    /// Checks the flags beside those of the whole guard; `exposure` is `None` if that is wrong.
    pub(super) fn settings(
        &self,
        exposure: Option<Exposure>,
        listener: ListenOptions,
        mode: Mode,
        fail_points: FailPoints,
    ) -> Result<Option<PortSettings>, String> {
        let Some(listen) = self.postgres_listen else { return self.no_port().map(|()| None) };
        let upstream = self.postgres_upstream.clone().ok_or_else(|| {
            "--postgres-listen needs the database behind it: set --postgres-upstream \
             postgres://guard@HOST:PORT/DATABASE"
                .to_owned()
        })?;
        let user =
            self.postgres_writer.clone().filter(|name| !name.is_empty()).ok_or_else(|| {
                "--postgres-listen needs --postgres-writer, the role of clients with a token"
                    .to_owned()
            })?;
        if user == upstream.login.user || self.postgres_reader.as_ref() == Some(&user) {
            let text = "--postgres-writer must be a role of its own: neither the guard's nor that \
                        of --postgres-reader";
            return Err(text.to_owned());
        }
        if !upstream.is_loopback() {
            let text = "--postgres-upstream is not on this machine, and the port speaks no TLS to \
                        it; run the guard beside PostgreSQL, or name the end of a tunnel";
            return Err(text.to_owned());
        }
        if mode == Mode::Observe {
            let text = "--mode observe is not offered at the PostgreSQL port: a session is \
                        registered, or it is not";
            return Err(text.to_owned());
        }
        let threads = self.postgres_threads;
        if threads == 0 || threads > 64 {
            return Err(format!("--postgres-threads {threads} is not in 1 to 64"));
        }
        let read = |flag: &str, file: &Option<PathBuf>| {
            let password = file.as_deref().map(Password::read).transpose();
            password.map_err(|error| format!("{flag}: {error}"))
        };
        let mut upstream = upstream;
        let of_guard = read("--postgres-password-file", &self.postgres_password_file)?;
        upstream.login.password = of_guard.or(upstream.login.password);
        let file = &self.postgres_writer_password_file;
        let password = read("--postgres-writer-password-file", file)?;
        let exposure = exposure.unwrap_or_default();
        let tls = exposure.tls().cloned();
        Ok(Some(PortSettings {
            listen,
            tls: tls.map(|tls| tls.for_listener(listener.header_timeout, Vec::new)),
            exposure,
            upstream,
            writer: ServerLogin { user, password },
            reader: self.postgres_reader.clone(),
            threads,
            max_connections: listener.max_connections,
            login_within: LOGIN_WITHIN,
            fail_points,
        }))
    }

    /// Refuses flags that have no effect without `--postgres-listen`.
    fn no_port(&self) -> Result<(), String> {
        let given = [
            ("--postgres-upstream", self.postgres_upstream.is_some()),
            ("--postgres-password-file", self.postgres_password_file.is_some()),
            ("--postgres-writer", self.postgres_writer.is_some()),
            ("--postgres-writer-password-file", self.postgres_writer_password_file.is_some()),
            ("--postgres-reader", self.postgres_reader.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) => Err(format!(
                "{flag} is for the PostgreSQL port; set --postgres-listen, or leave it out"
            )),
            None => Ok(()),
        }
    }
}
