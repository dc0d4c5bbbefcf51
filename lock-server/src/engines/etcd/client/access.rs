//! Login of the server at etcd, and the certificates that it trusts.

use std::sync::Arc;

use super::login::User;
use crate::engines::etcd::url::EtcdTarget;
use service_kit::login::StoreLogin;
use service_kit::tls::TlsClient;

/// Name of HTTP/2 in the negotiation of TLS.
const HTTP_2: &[u8] = b"h2";

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

/// TLS for `etcds://`, with the authority that it trusts and the certificate that it shows.
///
/// # Errors
/// A sentence where certificates are named for `etcd://`, or cannot be used.
pub(super) fn tls(
    target: &EtcdTarget,
    login: &StoreLogin,
) -> Result<Option<Arc<TlsClient>>, String> {
    if target.is_tls() {
        return login.tls.client(HTTP_2).map(|tls| Some(Arc::new(tls)));
    }
    if login.tls.is_default() {
        return Ok(None);
    }
    Err("--store-ca, --store-cert and --store-key are for TLS, and --store begins with etcd://; \
         write etcds://"
        .to_owned())
}
