//! Flags for the services that a server calls.

use std::path::PathBuf;

use clap::Args;

use crate::tls::{ServerUrl, TlsOptions, TlsSettingNames};

/// Flags for HTTPS to the other service: of a lock server to guards, and of a guard to lock
/// servers.
#[derive(Clone, Debug, Default, Args)]
pub struct PeerFlags {
    /// CA (PEM) that signs the certificates of guards or lock servers that this server calls
    /// [default: the system's].
    #[arg(long, value_name = "FILE", global = true)]
    pub peer_ca: Option<PathBuf>,
    /// Certificate (PEM) to present to them.
    #[arg(long, value_name = "FILE", global = true)]
    pub peer_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", global = true)]
    pub peer_key: Option<PathBuf>,
    /// Plain HTTP to other machines: guards, lock servers, --upstream. For networks that encrypt:
    /// tokens can be read on the way.
    #[arg(long, global = true)]
    pub insecure_http: bool,
}

impl PeerFlags {
    /// Reads the certificates for the servers that `flag` names, at `urls`.
    ///
    /// # Errors
    /// A sentence where tokens would be readable on the way, a file cannot be used, or certificates
    /// are named without a server over TLS.
    pub fn tls(&self, flag: &str, urls: &[ServerUrl]) -> Result<TlsOptions, String> {
        urls.iter().try_for_each(|url| self.refuse_plain(flag, url))?;
        let names =
            TlsSettingNames { ca: "--peer-ca", certificate: "--peer-cert", key: "--peer-key" };
        let Self { peer_ca, peer_cert, peer_key, .. } = self;
        let tls =
            TlsOptions::read(names, peer_ca.as_deref(), peer_cert.as_deref(), peer_key.as_deref())?;
        if tls.is_default() || urls.iter().any(ServerUrl::is_https) {
            return Ok(tls);
        }
        Err(format!(
            "--peer-ca, --peer-cert and --peer-key are for TLS, and no {flag} begins with \
             https://; write https://, or leave them out"
        ))
    }

    /// Refuses plain HTTP to another machine at `url`, the value of `flag`, unless
    /// `--insecure-http` accepts it.
    ///
    /// # Errors
    /// A sentence that names the flag, the address and the way out.
    pub fn refuse_plain(&self, flag: &str, url: &ServerUrl) -> Result<(), String> {
        if self.insecure_http {
            return Ok(());
        }
        url.refuse_plain("--insecure-http").map_err(|error| format!("{flag}: {error}"))
    }
}
