//! Address and logins of the PostgreSQL behind the port.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use service_kit::login::{Password, without_password};

use super::server::ServerLogin;

/// One PostgreSQL and one of its databases: `postgres://guard@host:port/database`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    /// `host:port`.
    pub address: String,
    /// Role of the guard itself.
    pub login: ServerLogin,
    /// The one database that the port serves.
    pub database: String,
}

impl UpstreamUrl {
    /// Returns `true` if the address is this machine.
    pub fn is_loopback(&self) -> bool {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}@{}/{}", self.login.user, self.address, self.database)
    }
}

impl FromStr for UpstreamUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| {
            let shown = without_password(text);
            format!("\"{shown}\" {why}; write postgres://guard@host:port/database")
        };
        let rest = text
            .strip_prefix("postgres://")
            .or_else(|| text.strip_prefix("postgresql://"))
            .ok_or_else(|| refuse("does not begin with postgres://"))?;
        let (login, rest) = rest.rsplit_once('@').ok_or_else(|| refuse("names no user"))?;
        let (host, database) = rest.split_once('/').ok_or_else(|| refuse("names no database"))?;
        if database.contains(['?', '/', '#']) {
            return Err(refuse("has options, and takes none"));
        }
        let decode = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8();
            decoded.map(|text| text.into_owned()).map_err(|_| refuse("is not UTF-8"))
        };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (decode(user)?, Some(decode(password)?)),
            None => (decode(login)?, None),
        };
        let database = decode(database)?;
        if user.is_empty() || database.is_empty() || host.is_empty() || host.contains(',') {
            return Err(refuse("names no user, database or single host"));
        }
        let behind_brackets = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
        let address = match behind_brackets.contains(':') {
            true => host.to_owned(),
            false => format!("{host}:5432"),
        };
        let password = password.as_deref().map(Password::from);
        Ok(Self { address, login: ServerLogin { user, password }, database })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown_without_their_password() {
        let url: UpstreamUrl = "postgres://guard:se%40cret@db/orders".parse().unwrap();
        assert_eq!(url.to_string(), "postgres://guard@db:5432/orders");
        assert_eq!(url.login.password.as_ref().map(Password::expose), Some("se@cret"));
        assert!(!url.is_loopback());
        assert!("postgresql://g@[::1]:1/o".parse::<UpstreamUrl>().unwrap().is_loopback());
        for bad in [
            "redis://a@b/c",
            "postgres://b/c",
            "postgres://a@b",
            "postgres://a:pw@b/",
            "postgres://a@b,c/d",
            "postgres://a@b/c?x=y",
        ] {
            let error = bad.parse::<UpstreamUrl>().unwrap_err();
            assert!(!error.contains("pw"), "{error}");
        }
    }
}
