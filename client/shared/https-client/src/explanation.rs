//! Error texts of TLS: what is wrong, and what to do.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError};

use crate::TlsOptions;

impl TlsOptions {
    /// Explains a TLS error and what to do, as the rest of a sentence about the server at `host`;
    /// `None` if `error` is no TLS error.
    pub fn explain(&self, error: &(dyn Error + 'static), host: &str) -> Option<String> {
        Some(match tls_error(error)? {
            rustls::Error::InvalidCertificate(why) => self.explain_certificate(why, host),
            rustls::Error::AlertReceived(alert) => self.explain_alert(*alert),
            rustls::Error::InvalidMessage(_) => {
                "it does not answer in TLS; if its port is a plain one, leave the s out of the \
                 URL's scheme"
                    .to_owned()
            }
            other => format!("TLS failed: {other}"),
        })
    }

    /// `true` if `error` is the server's refusal of this client's certificate, or of having none.
    /// In TLS 1.3 that arrives after a connection's first request was sent; the server has not read
    /// it. On a connection that was used before it says nothing of the request: the server may have
    /// read it.
    pub fn is_client_refused(error: &(dyn Error + 'static)) -> bool {
        matches!(tls_error(error), Some(rustls::Error::AlertReceived(alert)) if is_refusal(*alert))
    }

    fn explain_certificate(&self, why: &CertificateError, host: &str) -> String {
        let ca = self.names.ca;
        match why {
            // Of two CAs with one name, the other one's key has signed it.
            CertificateError::UnknownIssuer | CertificateError::BadSignature
                if self.ca_pem().is_some() =>
            {
                format!(
                    "its certificate is not signed by the CA of {ca}; name the file of the CA \
                     that signed it"
                )
            }
            CertificateError::UnknownIssuer => format!(
                "its certificate is signed by a CA that this system does not know; name the file \
                 of that CA with {ca}"
            ),
            CertificateError::NotValidForNameContext { presented, .. } => format!(
                "its certificate is for {}, not for {host}; use a name in the URL that the \
                 certificate has, or give the server one that has this name",
                listed(presented)
            ),
            CertificateError::NotValidForName => format!(
                "its certificate is for other names than {host}; use a name in the URL that \
                 the certificate has, or give the server one that has this name"
            ),
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired; give the server a new one, or look at this machine's \
                 clock"
                    .to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet; look at this machine's clock".to_owned()
            }
            other => format!("its certificate cannot be used: {other}"),
        }
    }

    fn explain_alert(&self, alert: AlertDescription) -> String {
        let certificate = self.names.certificate;
        match self.client_pem() {
            _ if !is_refusal(alert) => format!("it ended the TLS handshake ({alert:?})"),
            None => format!(
                "it refused the TLS handshake ({alert:?}), probably for want of a client \
                 certificate; name one with {certificate}{}",
                match self.names.key {
                    key if key == certificate => String::new(),
                    key => format!(" and {key}"),
                }
            ),
            Some(_) => format!(
                "it does not accept the certificate of {certificate} ({alert:?}); name one that \
                 is signed by the CA that the server trusts"
            ),
        }
    }
}

/// `true` for alerts of a server that refuses the client's certificate, or requires one.
/// `DecryptError` is that of one from another CA with the same name.
fn is_refusal(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::HandshakeFailure
            | AlertDescription::NoCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
    )
}

/// Names of a certificate as rustls shows them, `DnsName("a")` and `IpAddress(::1)`, without that.
fn listed(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    match presented {
        [] => "no name".to_owned(),
        names => names.iter().map(bare).collect::<Vec<_>>().join(", "),
    }
}

/// The error of rustls, among the causes of an error.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The source of an error that wraps another is the source of what it wraps, and not that
        // itself.
        next = if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(&**shared)
        } else if let Some(wrapped) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref)
        {
            Some(wrapped)
        } else {
            error.source()
        };
    }
    None
}
