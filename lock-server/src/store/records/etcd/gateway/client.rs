//! The HTTP client, and who it is.

use std::time::Duration;

use super::causes;
use super::login::User;
use crate::store::records::etcd::url::EtcdTarget;
use service_kit::login::StoreLogin;

/// How long a connection that is not used stays open.
const POOL_IDLE: Duration = Duration::from_secs(45);
/// How soon a peer is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The user that the URL or the flags name.
pub(super) fn user(target: &EtcdTarget, login: &StoreLogin) -> Result<Option<User>, String> {
    let named = match (target.user(), login.user.as_deref()) {
        (Some(one), Some(other)) if one != other => {
            return Err(format!(
                "--store names the user {one}, and --store-user names {other}; name one of them"
            ));
        }
        (one, other) => one.or(other),
    };
    match (named, &login.password) {
        (Some(name), Some(password)) => {
            Ok(Some(User { name: name.to_owned(), password: password.expose().to_owned() }))
        }
        (Some(name), None) => Err(format!(
            "etcd's user {name} has a password: name its file by --store-password-file"
        )),
        (None, Some(_)) => Err("--store-password-file is there, and no user: name it by \
                                --store-user"
            .to_owned()),
        (None, None) => Ok(None),
    }
}

/// A client that trusts whom it is told to trust.
pub(super) fn http(
    target: &EtcdTarget,
    login: &StoreLogin,
    connect_timeout: Duration,
) -> Result<reqwest::Client, String> {
    service_kit::tls::install_crypto();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("lock-server/", env!("CARGO_PKG_VERSION")))
        .no_proxy()
        .http1_only()
        .tcp_nodelay(true)
        .tcp_keepalive(KEEPALIVE)
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(POOL_IDLE)
        .redirect(reqwest::redirect::Policy::none());
    let tls = &login.tls;
    if !target.is_tls() && !tls.is_default() {
        return Err("--store-ca, --store-cert and --store-key are for TLS, and --store begins \
                    with etcd://; write etcds://"
            .to_owned());
    }
    if let Some(pem) = tls.ca_pem() {
        let roots = reqwest::Certificate::from_pem_bundle(pem)
            .map_err(|error| format!("--store-ca holds no certificate: {}", causes(error)))?;
        builder = builder.tls_certs_only(roots);
    }
    if let Some((certificate, key)) = tls.client_pem() {
        let pem = [certificate, b"\n", key].concat();
        let identity = reqwest::Identity::from_pem(&pem).map_err(|error| {
            format!("--store-cert and --store-key cannot be used: {}", causes(error))
        })?;
        builder = builder.identity(identity);
    }
    builder.build().map_err(|error| format!("no TLS client can be made: {}", causes(error)))
}
