//! The address of a guard.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// The value of `--guard`: `http://HOST:PORT`, perhaps with a path in front of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardUrl(String);

impl GuardUrl {
    /// The address without a slash at its end.
    pub(crate) fn base(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GuardUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for GuardUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |rule: &str| {
            let shown = service_kit::login::without_password(text);
            Err(format!("guard address \"{shown}\" {rule}, for example http://127.0.0.1:7421"))
        };
        let Ok(url) = Url::parse(text) else { return refuse("is not a URL") };
        if url.scheme() != "http" {
            return refuse("must begin with http://");
        }
        if url.host_str().is_none_or(str::is_empty) {
            return refuse("must name a host");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("must have no credentials");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("must have neither a query nor a fragment");
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_where_they_are_given() {
        let base = |text: &str| text.parse::<GuardUrl>().map(|url| url.to_string());
        assert_eq!(base("http://127.0.0.1:7421/").unwrap(), "http://127.0.0.1:7421");
        assert_eq!(base("http://proxy/fence/").unwrap(), "http://proxy/fence");
        for (bad, reason) in [
            ("", "is not a URL"),
            ("127.0.0.1:7421", "is not a URL"),
            ("https://a", "must begin with http://"),
            ("http://u:hunter2@a", "no credentials"),
            ("http://a?b=c", "neither a query"),
            ("http://a#b", "neither a query"),
        ] {
            let error = base(bad).unwrap_err();
            assert!(error.contains(reason), "{bad}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
