//! Flags of the PostgreSQL port.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use fence_protocol::Token;
use fence_protocol::wire::fence::Mode;
use postgres_link::PostgresTarget;
use service_kit::listener::{Exposure, ListenOptions, listen_addr};
use service_kit::login::Password;

use crate::doors::postgres::{PortSettings, ServerLogin, Upstream};
use crate::doors::tcp::front::FrontSettings;
use crate::fail_points::FailPoints;

/// Time that a client may take to log in, a hand-over included.
const LOGIN_WITHIN: Duration = Duration::from_secs(60);

/// PostgreSQL port before one database.
#[derive(Clone, Debug, Args)]
pub struct PostgresPortFlags {
    /// Address of the PostgreSQL port, before the database of --postgres-upstream. Clients keep
    /// their driver and give the token as the password.
    #[arg(long, value_name = "ADDR", value_parser = listen_addr)]
    pub postgres_listen: Option<SocketAddr>,
    /// Database behind the port, with the guard's own role, which owns schema fence:
    /// postgres://guard@HOST:PORT/DATABASE. For TLS add ?sslmode=verify-full, and sslrootcert,
    /// sslcert and sslkey for files. Of several hosts the one is used that accepts writes.
    #[arg(long, value_name = "URL")]
    pub postgres_upstream: Option<PostgresTarget>,
    /// Password of the guard's role, in one line [default: the URL's].
    #[arg(long, value_name = "FILE")]
    pub postgres_password_file: Option<PathBuf>,
    /// Role of all clients with a token, without a right on schema fence. Repeatable: then a client
    /// names one as its user, and rules are for DATABASE/ROLE.
    #[arg(long, value_name = "NAME")]
    pub postgres_writer: Vec<String>,
    /// Password of that role, in one line; one for each --postgres-writer, in their order.
    #[arg(long, value_name = "FILE")]
    pub postgres_writer_password_file: Vec<PathBuf>,
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
        floor: Option<Token>,
        exposure: Option<Exposure>,
        listener: ListenOptions,
        mode: Mode,
        fail_points: FailPoints,
    ) -> Result<Option<PortSettings>, String> {
        let Some(listen) = self.postgres_listen else { return self.no_port().map(|()| None) };
        let upstream = self.upstream()?;
        let writers = self.writers(&upstream)?;
        if mode == Mode::Observe {
            let text = "--mode observe is not offered at the PostgreSQL port: a session is \
                        registered, or it is not";
            return Err(text.to_owned());
        }
        let threads = self.postgres_threads;
        if threads == 0 || threads > 64 {
            return Err(format!("--postgres-threads {threads} is not in 1 to 64"));
        }
        let exposure = exposure.unwrap_or_default();
        let ListenOptions { header_timeout, max_connections, .. } = listener;
        let tls = exposure.tls().cloned();
        let tls = tls.map(|tls| tls.for_listener(header_timeout, Vec::new).for_postgresql());
        Ok(Some(PortSettings {
            front: FrontSettings { listen, exposure, tls, threads, max_connections },
            upstream,
            floor,
            writers,
            reader: self.postgres_reader.clone(),
            login_within: LOGIN_WITHIN,
            fail_points,
        }))
    }

    /// The database, with the guard's login.
    fn upstream(&self) -> Result<Upstream, String> {
        let target = self.postgres_upstream.clone().filter(PostgresTarget::names_database);
        let target = target.ok_or_else(|| {
            "--postgres-listen needs the database behind it, with the guard's role: set \
             --postgres-upstream postgres://guard@HOST:PORT/DATABASE"
                .to_owned()
        })?;
        let password = match &self.postgres_password_file {
            Some(file) => Some(password("--postgres-password-file", file)?),
            None => target.password().cloned(),
        };
        let login = ServerLogin { user: target.user().to_owned(), password };
        Ok(Upstream::new(target, login))
    }

    fn writers(&self, upstream: &Upstream) -> Result<Vec<ServerLogin>, String> {
        let names = &self.postgres_writer;
        let files = &self.postgres_writer_password_file;
        if names.is_empty() || names.iter().any(String::is_empty) {
            let text =
                "--postgres-listen needs --postgres-writer, the role of clients with a token";
            return Err(text.to_owned());
        }
        let is_taken = |name: &String| {
            *name == upstream.login().user
                || self.postgres_reader.as_ref() == Some(name)
                || names.iter().filter(|other| *other == name).count() > 1
        };
        if names.iter().any(is_taken) {
            let text = "--postgres-writer must be a role of its own: neither the guard's nor that \
                        of --postgres-reader, and each named once";
            return Err(text.to_owned());
        }
        if !files.is_empty() && files.len() != names.len() {
            return Err(
                "--postgres-writer-password-file is needed for each --postgres-writer, in \
                        their order, or for none"
                    .to_owned(),
            );
        }
        let passwords = files
            .iter()
            .map(|file| password("--postgres-writer-password-file", file).map(Some))
            .collect::<Result<Vec<_>, _>>()?;
        let passwords = passwords.into_iter().chain(std::iter::repeat(None));
        let logins = names.iter().cloned().zip(passwords);
        Ok(logins.map(|(user, password)| ServerLogin { user, password }).collect())
    }

    /// Refuses flags that have no effect without `--postgres-listen`.
    fn no_port(&self) -> Result<(), String> {
        let given = [
            ("--postgres-upstream", self.postgres_upstream.is_some()),
            ("--postgres-password-file", self.postgres_password_file.is_some()),
            ("--postgres-writer", !self.postgres_writer.is_empty()),
            ("--postgres-writer-password-file", !self.postgres_writer_password_file.is_empty()),
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

fn password(flag: &str, file: &Path) -> Result<Password, String> {
    Password::read(file).map_err(|error| format!("{flag}: {error}"))
}
