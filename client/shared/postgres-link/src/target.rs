//! The address of a PostgreSQL, and connecting to it.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use service_kit::login::{Password, StoreLogin};
use service_kit::socket;
use service_kit::tls::{TlsClient, TlsOptions};
use tokio::net::TcpStream;

use crate::tls::{PostgresSocket, over_tls};
use crate::url::{self, PostgresUrl, TargetError, address_text};

/// The database and the user of a URL that names none.
const DEFAULT_NAME: &str = "postgres";
/// Protocol name in the negotiation of TLS.
const ALPN: &[u8] = b"postgresql";

/// A PostgreSQL URL that was understood: `postgres://[user[:password]@]host[:port][,…][/database]`,
/// with `?sslmode=verify-full` for TLS, and `sslrootcert`, `sslcert` and `sslkey` for its files. Of
/// several hosts the one is used that accepts writes.
///
/// Its text and its `Debug` hide the password.
#[derive(Clone)]
pub struct PostgresTarget {
    addresses: Vec<(String, u16)>,
    user: Option<String>,
    password: Option<Password>,
    database: Option<String>,
    application_name: Option<String>,
    tls: Option<TlsOptions>,
    /// TLS by these options, made once: reading the system's certificates takes time.
    tls_client: Arc<OnceLock<Result<TlsClient, String>>>,
    shown: String,
}

impl FromStr for PostgresTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let PostgresUrl { addresses, user, password, database, application_name, tls, shown } =
            url::parse(text)?;
        let password = password.as_deref().map(Password::from);
        let tls_client = Arc::default();
        Ok(Self { addresses, user, password, database, application_name, tls, tls_client, shown })
    }
}

impl PostgresTarget {
    /// With what is said beside the URL. What both say must not differ.
    ///
    /// # Errors
    /// A sentence that names the flag where they differ, or where certificates are named and the
    /// URL is a plain one.
    pub fn with_login(mut self, login: &StoreLogin) -> Result<Self, String> {
        if login.sentinel_password.is_some() {
            return Err("--sentinel-password-file is for Redis sentinels; leave it out".to_owned());
        }
        if let Some(user) = &login.user {
            if self.user.as_ref().is_some_and(|known| known != user) {
                return Err("--store names one user and --store-user another; name one".to_owned());
            }
            self.user = Some(user.clone());
        }
        if let Some(password) = &login.password {
            if self.password.is_some() {
                return Err("--store has a password, and there is --store-password-file; leave \
                            the password out of the URL"
                    .to_owned());
            }
            self.password = Some(password.clone());
        }
        match &mut self.tls {
            _ if login.tls.is_default() => {}
            Some(tls) if tls.is_default() => {
                *tls = login.tls.clone();
                self.tls_client = Arc::default();
            }
            Some(_) => {
                return Err("--store names certificates, and so do --store-ca, --store-cert or \
                            --store-key; name them once"
                    .to_owned());
            }
            None => {
                return Err("--store-ca, --store-cert and --store-key are for TLS; write \
                            ?sslmode=verify-full in --store, or leave them out"
                    .to_owned());
            }
        }
        Ok(self)
    }

    /// Host and port of each server, at least one, in the order of the URL.
    pub fn addresses(&self) -> &[(String, u16)] {
        &self.addresses
    }

    /// The user; `postgres` where none is named.
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(DEFAULT_NAME)
    }

    /// The password, where there is one.
    pub fn password(&self) -> Option<&Password> {
        self.password.as_ref()
    }

    /// The database; `postgres` where none is named.
    pub fn database(&self) -> &str {
        self.database.as_deref().unwrap_or(DEFAULT_NAME)
    }

    /// True if the URL names a user and a database.
    pub fn names_database(&self) -> bool {
        self.user.is_some() && self.database.is_some()
    }

    /// The name under which sessions are shown, where the URL has one.
    pub fn application_name(&self) -> Option<&str> {
        self.application_name.as_deref()
    }

    /// True for connections over TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The same servers with another user, password and database, for a caller that opens sessions
    /// for others.
    #[must_use]
    pub fn with_session(
        mut self,
        user: &str,
        password: Option<Password>,
        database: Option<&str>,
    ) -> Self {
        self.user = Some(user.to_owned());
        self.password = password;
        if let Some(database) = database {
            self.database = Some(database.to_owned());
        }
        self
    }

    /// Opens a byte stream to one of the [addresses](Self::addresses), over TLS where the URL says
    /// so, with the socket options of a store; nothing else is sent.
    ///
    /// # Errors
    /// A sentence with the address and the cause.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn open(&self, at: usize, timeout: Duration) -> Result<PostgresSocket, String> {
        let Some((host, port)) = self.addresses.get(at) else {
            return Err(format!("{self} has no address number {at}"));
        };
        let address = address_text(host, *port);
        let opened = tokio::time::timeout(timeout, self.open_at(host, *port));
        match opened.await {
            Ok(Ok(socket)) => Ok(socket),
            Ok(Err(why)) => Err(format!("cannot connect to PostgreSQL at {address}: {why}")),
            Err(_) => Err(format!(
                "cannot connect to PostgreSQL at {address}: no answer in {} ms",
                timeout.as_millis()
            )),
        }
    }

    async fn open_at(&self, host: &str, port: u16) -> Result<PostgresSocket, String> {
        let stream = TcpStream::connect((host, port)).await.map_err(|error| error.to_string())?;
        socket::tune_to_store(&stream);
        let Some(options) = &self.tls else { return Ok(PostgresSocket::Left(stream)) };
        let tls = self.tls_client.get_or_init(|| options.client(ALPN)).as_ref();
        over_tls(tls.map_err(Clone::clone)?, host, stream)
            .await
            .map_err(|error| options.explain(&error, host).unwrap_or_else(|| error.to_string()))
    }
}

impl fmt::Display for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresTarget({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: Option<&str>, password: Option<&str>) -> StoreLogin {
        let user = user.map(str::to_owned);
        StoreLogin { user, password: password.map(Password::from), ..StoreLogin::default() }
    }

    #[test]
    fn a_login_beside_the_url_completes_it() {
        let target: PostgresTarget = "postgres://localhost".parse().unwrap();
        assert_eq!((target.user(), target.database()), ("postgres", "postgres"));
        let target = target.with_login(&login(Some("locks"), Some("hunter2"))).unwrap();
        assert_eq!(target.user(), "locks");
        assert_eq!(target.password().unwrap().expose(), "hunter2");
        let target: PostgresTarget = "postgres://a:hunter2@localhost/x".parse().unwrap();
        assert!(!format!("{target} {target:?}").contains("hunter2"));
        assert!(target.clone().with_login(&login(Some("b"), None)).is_err());
        assert!(target.with_login(&login(None, Some("hunter2"))).is_err());
    }
}
