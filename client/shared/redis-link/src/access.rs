//! Connection to one address: plain or over TLS, and with which login.

use std::time::Duration;

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates, Value, cmd,
};
use service_kit::login::{Password, StoreLogin};
use service_kit::socket;
use service_kit::tls::{self, TlsOptions};

/// Limit for each reply while the cause of a broken connection is probed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Login, TLS and socket options of every connection to a Redis, a sentinel or a node.
#[derive(Clone)]
pub(crate) struct Access {
    /// User, password and database.
    pub(crate) login: RedisConnectionInfo,
    /// Of sentinels, where it is not the one of `login`.
    sentinel_password: Option<Password>,
    /// TLS; plain where there is none.
    tls: Option<TlsOptions>,
}

impl Access {
    /// By what a URL says.
    pub(crate) fn new(login: RedisConnectionInfo, is_tls: bool) -> Self {
        let login = login.set_skip_set_lib_name();
        Self { login, sentinel_password: None, tls: is_tls.then(TlsOptions::default) }
    }

    /// With another database.
    pub(crate) fn db(mut self, db: i64) -> Self {
        self.login = self.login.set_db(db);
        self
    }

    /// True for a connection over TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// With what is said beside the URL. What stands in both must not differ.
    ///
    /// # Errors
    /// A sentence that names the flag.
    pub(crate) fn with(mut self, more: &StoreLogin) -> Result<Self, String> {
        if let Some(user) = &more.user {
            if self.login.username().is_some_and(|known| known != user) {
                return Err("--store names one user and --store-user another; name one".to_owned());
            }
            self.login = self.login.set_username(user);
        }
        if let Some(password) = &more.password {
            if self.login.password().is_some() {
                return Err("--store has a password, and there is --store-password-file; leave \
                            the password out of the URL"
                    .to_owned());
            }
            self.login = self.login.set_password(password.expose());
        }
        if self.login.username().is_some() && self.login.password().is_none() {
            return Err("there is a user and no password; name its file with \
                        --store-password-file"
                .to_owned());
        }
        match &mut self.tls {
            Some(tls) => *tls = more.tls.clone(),
            None if more.tls.is_default() => {}
            None => {
                return Err(
                    "--store-ca, --store-cert and --store-key are for TLS; write rediss:// \
                            in --store, or leave them out"
                        .to_owned(),
                );
            }
        }
        self.sentinel_password.clone_from(&more.sentinel_password);
        Ok(self)
    }

    /// For a sentinel that requires a login.
    pub(crate) fn of_sentinels(&self) -> Self {
        let mut access = self.clone().db(0);
        if let Some(password) = &self.sentinel_password {
            let login = RedisConnectionInfo::default().set_password(password.expose());
            access.login = login.set_skip_set_lib_name();
        }
        access
    }

    /// This access without user and password, for a sentinel that may need none.
    pub(crate) fn without_login(&self) -> Self {
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        Self { login, sentinel_password: None, tls: self.tls.clone() }
    }

    /// A client for one address, with this login.
    pub(crate) fn client(&self, host: &str, port: u16) -> Result<Client, RedisError> {
        let tcp = redis::io::tcp::TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(socket::keepalive());
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(socket::STORE_UNACKNOWLEDGED);
        let info = (host, port).into_connection_info()?;
        let info = info.set_redis_settings(self.login.clone()).set_tcp_settings(tcp);
        match &self.tls {
            Some(tls) => over_tls(info, host, port, tls),
            None => Client::open(info),
        }
    }

    /// Why a connection to `host` failed, as the rest of a sentence, and what to do where that is
    /// known.
    pub(crate) async fn explain(&self, error: &RedisError, host: &str, port: u16) -> Explained {
        let seen = match self.is_tls() && error.code().is_none() && is_garbled(error) {
            true => self.look_again(host, port).await,
            false => None,
        };
        self.read(seen.as_ref().unwrap_or(error), host)
    }

    /// A server that does not want us says so once our side of the handshake is done, and the
    /// driver's shared connections keep nothing of that but that they broke: one that is asked by
    /// hand says it.
    async fn look_again(&self, host: &str, port: u16) -> Option<RedisError> {
        let client = self.client(host, port).ok()?;
        let ask = move || {
            let mut connection = client.get_connection_with_timeout(PROBE_TIMEOUT)?;
            connection.set_read_timeout(Some(PROBE_TIMEOUT))?;
            cmd("PING").query::<Value>(&mut connection)
        };
        let asked = tokio::task::spawn_blocking(ask).await.ok()?;
        asked.err().filter(|error| error.code().is_none())
    }

    fn read(&self, error: &RedisError, host: &str) -> Explained {
        let tls = self.tls.as_ref().and_then(|tls| tls.explain(error, host));
        if let Some(why) = tls {
            return Explained::Clear(why);
        }
        if error.kind() == ErrorKind::AuthenticationFailed {
            let user = self.login.username().unwrap_or("default");
            return Explained::Clear(format!(
                "it refuses the user \"{user}\" with this password (WRONGPASS); correct \
                 --store-user and --store-password-file, or the URL"
            ));
        }
        match (error.is_timeout(), error.is_connection_refusal(), self.is_tls()) {
            (_, true, _) => Explained::Open(error.to_string()),
            (true, _, true) => Explained::Open(
                "no answer (a plain port does not answer to TLS: write redis:// if it is one)"
                    .to_owned(),
            ),
            (false, _, false) if is_garbled(error) => Explained::Open(format!(
                "{error} (a TLS port does not answer to plain text: write rediss:// if it is one)"
            )),
            _ => Explained::Open(error.to_string()),
        }
    }
}

/// Why a connection failed.
pub(crate) enum Explained {
    /// The cause, and what to do.
    Clear(String),
    /// Something else; the text says what was seen.
    Open(String),
}

impl Explained {
    /// As it is.
    pub(crate) fn text(self) -> String {
        let (Self::Clear(text) | Self::Open(text)) = self;
        text
    }
}

/// True for the error that a plain client gets from a port that speaks another protocol.
fn is_garbled(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Parse || error.is_connection_dropped() || error.is_io_error()
}

fn over_tls(
    info: ConnectionInfo,
    host: &str,
    port: u16,
    options: &TlsOptions,
) -> Result<Client, RedisError> {
    tls::install_crypto();
    let host = host.to_owned();
    let addr = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    let client_tls = options.client_pem().map(|(certificate, key)| ClientTlsConfig {
        client_cert: certificate.to_vec(),
        client_key: key.to_vec(),
    });
    let root_cert = options.ca_pem().map(<[u8]>::to_vec);
    Client::build_with_tls(info.set_addr(addr), TlsCertificates { client_tls, root_cert })
}
