//! Flags that both services have; flatten them into a service's own.

mod peers;

use std::path::{Path, PathBuf};

use clap::Args;
use fence_protocol::Keyring;
use https_client::read_text;

use crate::Kit;
use crate::health::Status;
use crate::http::{HostName, HostNames};
use crate::listener::{Exposure, ListenAddr, ListenOptions, Safeguards};
use crate::login::{Password, StoreLogin};
use crate::otlp::CollectorUrl;
use crate::telemetry::LogFormat;
use crate::tls::{ClientAuth, ServerTls, ServerTlsFiles, TlsOptions, TlsSettingNames, wide_mode};

pub use peers::PeerFlags;

/// The largest file of token keys, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 * 1024;

/// The last flags of both services: listeners, names, log and spans.
#[derive(Clone, Debug, Args)]
pub struct ServiceFlags {
    /// Limits of the listeners.
    #[command(flatten)]
    pub listener: ListenOptions,
    /// TLS of the listeners.
    #[command(flatten)]
    pub tls: TlsFlags,
    /// Name in URLs of clients and front proxies, without a port; repeatable. Addresses and
    /// localhost need none. Requests for other hosts are refused, because a web page could have
    /// sent them.
    #[arg(long, value_name = "NAME")]
    pub host_name: Vec<HostName>,
    /// Format of log lines: text or json.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Filter of log lines, as in "info,lock_server=debug".
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_filter: String,
    /// Collector of spans, http://HOST:PORT. The requests of sampled traces are sent to it as
    /// OTLP/HTTP (JSON).
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<CollectorUrl>,
    /// TOML file with any of these settings.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

impl ServiceFlags {
    /// The names of the server as the router takes them.
    pub fn host_names(&self) -> HostNames {
        self.host_name.iter().cloned().collect()
    }
}

/// The keys that tokens are signed and verified with.
#[derive(Clone, Debug, Default, Args)]
pub struct KeyFlags {
    /// Key file that signs and verifies tokens. It has a line a key: kid:hex, 32 bytes or more. The
    /// lock server signs with the first one; lock server and guards have the same file.
    #[arg(long, value_name = "FILE")]
    pub token_key_file: Option<PathBuf>,
    /// No signatures; loopback only, without --insecure-listen. Any client that reaches a guard can
    /// then make a token.
    #[arg(long)]
    pub unsigned: bool,
}

impl KeyFlags {
    /// Reads the key file; `None` is the choice of unsigned tokens.
    ///
    /// # Errors
    /// A sentence where neither or both were chosen, or the file cannot be used.
    pub fn keys(&self) -> Result<Option<Keyring>, String> {
        match (&self.token_key_file, self.unsigned) {
            (Some(_), true) => Err("--token-key-file and --unsigned exclude each other".to_owned()),
            (None, false) => Err("--token-key-file is missing: name a file of keys (kid:hex, 32 \
                 bytes or more), or leave tokens unsigned with --unsigned (loopback only)"
                .to_owned()),
            (None, true) => Ok(None),
            (Some(file), false) => read_keys(file).map(Some),
        }
    }

    /// Sets a warning of readiness if other users may read the key file.
    pub fn warn_of_readers(&self, kit: &Kit) {
        let Some(file) = &self.token_key_file else { return };
        if let Some(mode) = wide_mode(file) {
            let file = file.display();
            let text = format!(
                "other users may read the keys {file} (mode {mode:03o}), and so make tokens; run \
                 chmod 600 on it as the user of this server"
            );
            kit.health.set("token-key-file", Status::Warn(text));
        }
    }
}

/// TLS of the listeners, and their reach.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsFlags {
    /// Certificate of the listeners (PEM), with those that lead to its CA behind it. All listeners
    /// speak TLS 1.2 or 1.3 then. The files are read again when they change.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// CAs of clients' certificates (PEM), for mutual TLS.
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Clients' certificates: required or optional [default: required with --tls-client-ca].
    #[arg(long, value_name = "WORD", value_enum)]
    pub tls_client_auth: Option<ClientAuth>,
    /// Listening beyond loopback without TLS, an access file or signed tokens. For a mesh, a TLS
    /// proxy on another machine or a private network: whatever reaches a port may use it.
    #[arg(long)]
    pub insecure_listen: bool,
}

impl TlsFlags {
    /// Reads the files, and decides whether the addresses may be listened on.
    ///
    /// # Errors
    /// As [`Exposure::check`], a line each.
    pub fn exposure(
        &self,
        addresses: &[ListenAddr],
        safeguards: Safeguards,
    ) -> Result<Exposure, String> {
        Exposure::check(self.read(), self.insecure_listen, addresses, safeguards)
            .map_err(|problems| problems.join("\n"))
    }

    /// Reads the files; `None` without a certificate.
    fn read(&self) -> Result<Option<ServerTls>, String> {
        let missing = |text: &str| Err(text.to_owned());
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => missing("--tls-cert wants its private key; name it with --tls-key"),
            (None, Some(_)) => {
                missing("--tls-key is the key of a certificate; name its file with --tls-cert")
            }
            (None, None) if self.tls_client_ca.is_some() => {
                missing("--tls-client-ca needs TLS: name the server's own --tls-cert and --tls-key")
            }
            _ if self.tls_client_auth.is_some() && self.tls_client_ca.is_none() => missing(
                "--tls-client-auth needs the CA of clients' certificates: name --tls-client-ca",
            ),
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => ServerTls::read(&ServerTlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
                client_auth: self.tls_client_auth.unwrap_or_default(),
            })
            .map(Some),
        }
    }
}

/// Flags for the server's login at its store.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreLoginFlags {
    /// CA (PEM) that signs the store's certificates [default: the system's]. For a store that is
    /// reached over TLS.
    #[arg(long, value_name = "FILE", global = true)]
    pub store_ca: Option<PathBuf>,
    /// Certificate (PEM) for a store that requires one.
    #[arg(long, value_name = "FILE", global = true)]
    pub store_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", global = true)]
    pub store_key: Option<PathBuf>,
    /// User at the store [default: the URL's].
    #[arg(long, value_name = "NAME", global = true)]
    pub store_user: Option<String>,
    /// The user's password, in one line [default: the URL's].
    #[arg(long, value_name = "FILE", global = true)]
    pub store_password_file: Option<PathBuf>,
    /// The sentinels' password, if they have their own.
    #[arg(long, value_name = "FILE", global = true)]
    pub sentinel_password_file: Option<PathBuf>,
}

impl StoreLoginFlags {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence that names the flag and the file, where one cannot be used, and where a
    /// certificate is named without its key.
    pub fn login(&self) -> Result<StoreLogin, String> {
        let password = |flag: &str, file: &Option<PathBuf>| {
            let read = file.as_deref().map(Password::read).transpose();
            read.map_err(|error| format!("{flag}: {error}"))
        };
        if self.store_user.as_deref() == Some("") {
            return Err("--store-user is empty; name the user, or leave it out".to_owned());
        }
        Ok(StoreLogin {
            user: self.store_user.clone(),
            password: password("--store-password-file", &self.store_password_file)?,
            sentinel_password: password("--sentinel-password-file", &self.sentinel_password_file)?,
            tls: self.tls()?,
        })
    }

    fn tls(&self) -> Result<TlsOptions, String> {
        let names =
            TlsSettingNames { ca: "--store-ca", certificate: "--store-cert", key: "--store-key" };
        let Self { store_ca, store_cert, store_key, .. } = self;
        TlsOptions::read(names, store_ca.as_deref(), store_cert.as_deref(), store_key.as_deref())
    }
}

fn read_keys(file: &Path) -> Result<Keyring, String> {
    let text =
        read_text(file, KEY_FILE_BYTES_MAX).map_err(|error| format!("--token-key-file {error}"))?;
    Keyring::parse(&text).map_err(|error| format!("--token-key-file {}: {error}", file.display()))
}
