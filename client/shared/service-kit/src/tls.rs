//! TLS: cryptography, certificate files, and both sides of a connection.

mod expiry;
mod figures;
mod handshakes;
mod server;
mod server_files;
mod watch;

use std::error::Error;

pub use https_client::{
    ServerUrl, TlsClient, TlsOptions, TlsSettingNames, TlsStream, install_crypto,
};
pub use server::{ClientNames, ServerTls, ServerTlsStream};
pub(crate) use server_files::wide_mode;
pub use server_files::{ClientAuth, ServerTlsFiles};

/// Reason of a failed call of the server at `host`: the explanation of a TLS error, otherwise the
/// innermost cause, which says most.
pub fn reason(tls: &TlsOptions, error: &(dyn Error + 'static), host: &str) -> String {
    let innermost = || std::iter::successors(Some(error), |error| (*error).source()).last();
    let explained = tls.explain(error, host);
    explained.unwrap_or_else(|| innermost().unwrap_or(error).to_string())
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Outer(io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a request was sent")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_reason_is_the_innermost_cause_or_the_explanation_of_tls() {
        let tls = TlsOptions::default();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(reason(&tls, &Outer(refused()), "a"), refused().to_string());
        assert_eq!(reason(&tls, &refused(), "a"), refused().to_string());
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        let why = reason(&tls, &Outer(io::Error::other(expired)), "a");
        assert!(why.starts_with("its certificate has expired"), "{why}");
    }
}
