//! The address of a lock server.

use std::fmt;
use std::str::FromStr;

use fence_protocol::Invalid;
use http::Uri;

/// The value of `--report-to`: `http://HOST:PORT`, perhaps with a path in front of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportUrl(String);

impl ReportUrl {
    /// The address without a slash at its end.
    pub(super) fn base(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ReportUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ReportUrl {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let shown = service_kit::login::without_password(text);
        let refuse = |rule: &'static str| {
            Invalid::new("lock server", &shown, format!("{rule}, as in http://127.0.0.1:7420"))
        };
        let uri: Uri = text.parse().map_err(|_| refuse("must be a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(refuse("must begin with http://"));
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| refuse("must name a host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() || text.contains('#') {
            return Err(refuse("must have neither credentials nor a query"));
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_where_they_are_given() {
        let base = |text: &str| text.parse::<ReportUrl>().map(|url| url.to_string());
        assert_eq!(base("http://127.0.0.1:7420/").unwrap(), "http://127.0.0.1:7420");
        assert_eq!(base("http://proxy/locks/").unwrap(), "http://proxy/locks");
        for (bad, reason) in [
            ("", "must be a URL"),
            ("127.0.0.1:7420", "http://"),
            ("https://a", "must begin with http://"),
            ("http://u:hunter2@a", "neither credentials"),
            ("http://a?b=c", "nor a query"),
            ("http://a#b", "nor a query"),
        ] {
            let error = base(bad).unwrap_err().to_string();
            assert!(error.contains(reason), "{bad}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
