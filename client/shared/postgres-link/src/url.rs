//! PostgreSQL URLs: one host, or several.

use std::path::Path;

use percent_encoding::percent_decode_str;
use service_kit::login::without_password;
use service_kit::tls::{TlsOptions, TlsSettingNames};

/// The port of an address that names none.
const DEFAULT_PORT: u16 = 5432;
/// More addresses than this are a mistake.
const ADDRESSES_MAX: usize = 16;
/// Options of the URL that name files, as libpq has them.
const FILES: TlsSettingNames =
    TlsSettingNames { ca: "sslrootcert", certificate: "sslcert", key: "sslkey" };

/// A URL that is no PostgreSQL URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{shown}\" is no PostgreSQL URL ({why}); write postgres://user@host:port/database or \
     postgres://user@host,host/database, and ?sslmode=verify-full behind it for TLS"
)]
pub struct TargetError {
    shown: String,
    why: String,
}

/// The parts of a URL.
#[derive(Debug)]
pub(crate) struct PostgresUrl {
    /// Host and port of each address, at least one.
    pub(crate) addresses: Vec<(String, u16)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<String>,
    /// Certificates with `sslmode=verify-full`.
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) application_name: Option<String>,
    /// The URL without user and password.
    pub(crate) shown: String,
}

/// Takes a URL apart.
pub(crate) fn parse(text: &str) -> Result<PostgresUrl, TargetError> {
    let shown = without_password(text);
    take_apart(text, &shown).map_err(|why| TargetError { shown, why })
}

fn take_apart(text: &str, shown: &str) -> Result<PostgresUrl, String> {
    let rest = text
        .strip_prefix("postgres://")
        .or_else(|| text.strip_prefix("postgresql://"))
        .ok_or("it does not begin with postgres://")?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (Some(login), rest),
        None => (None, rest),
    };
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
    let addresses = hosts.split(',').map(address).collect::<Result<Vec<_>, _>>()?;
    if addresses.len() > ADDRESSES_MAX {
        return Err(format!("it names {} hosts; at most {ADDRESSES_MAX}", addresses.len()));
    }
    if database.contains('/') {
        return Err("its path has too many parts".to_owned());
    }
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some(("", _)) => return Err("the user before @ is empty".to_owned()),
        Some((user, password)) => (Some(decoded(user)?), not_empty(decoded(password)?)),
        None => (None, None),
    };
    let is_here = addresses.iter().all(|(host, _)| is_loopback(host));
    let UrlOptions { application_name, tls } = UrlOptions::read(query, is_here)?;
    Ok(PostgresUrl {
        addresses,
        user,
        password,
        database: not_empty(decoded(database)?),
        tls,
        application_name,
        shown: shown.to_owned(),
    })
}

/// Options behind the question mark.
struct UrlOptions {
    application_name: Option<String>,
    tls: Option<TlsOptions>,
}

impl UrlOptions {
    fn read(query: &str, is_here: bool) -> Result<Self, String> {
        let mut is_tls = None;
        let mut application_name = None;
        let [mut ca, mut certificate, mut key] = [None, None, None];
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", "disable")) => is_tls = Some(false),
                Some(("sslmode", "verify-full")) => is_tls = Some(true),
                Some(("sslmode", _)) => {
                    return Err("its sslmode is none of disable and verify-full: with any other \
                                one, another server could take the place of this one"
                        .to_owned());
                }
                Some(("target_session_attrs", "read-write" | "primary")) => {}
                Some(("application_name", name)) => application_name = not_empty(decoded(name)?),
                Some(("sslrootcert", "system")) => ca = None,
                Some(("sslrootcert", file)) => ca = not_empty(decoded(file)?),
                Some(("sslcert", file)) => certificate = not_empty(decoded(file)?),
                Some(("sslkey", file)) => key = not_empty(decoded(file)?),
                Some((name, _)) => return Err(format!("its option {name:?} is not known")),
                None => return Err("its query is no list of name=value".to_owned()),
            }
        }
        if is_tls.is_none() && !is_here {
            return Err("it leads beyond this machine: add ?sslmode=verify-full, or \
                        ?sslmode=disable in a network that is trusted"
                .to_owned());
        }
        let [ca, certificate, key] =
            [&ca, &certificate, &key].map(|file| file.as_deref().map(Path::new));
        if is_tls != Some(true) && [ca, certificate, key].iter().any(Option::is_some) {
            let text = "its sslrootcert, sslcert or sslkey is for sslmode=verify-full; add that";
            return Err(text.to_owned());
        }
        let tls = is_tls.unwrap_or(false).then(|| TlsOptions::read(FILES, ca, certificate, key));
        Ok(Self { application_name, tls: tls.transpose()? })
    }
}

fn address(text: &str) -> Result<(String, u16), String> {
    let malformed = || format!("{text:?} is no host:port");
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an address in brackets are not followed by a port.
        Some((_, end)) if end.ends_with(']') => (text, DEFAULT_PORT),
        Some((host, port)) => (host, port.parse().map_err(|_| malformed())?),
        None => (text, DEFAULT_PORT),
    };
    let brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if let Some(bare) = brackets {
        let is_address = bare.parse::<std::net::Ipv6Addr>().is_ok();
        return if is_address && port != 0 {
            Ok((bare.to_owned(), port))
        } else {
            Err(malformed())
        };
    }
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_fine = !host.is_empty() && host.chars().all(letter) && port != 0;
    if is_fine { Ok((host.to_owned(), port)) } else { Err(malformed()) }
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| "a part of it is no UTF-8".to_owned())?;
    match decoded.contains('\0') {
        true => Err("a part of it has a zero byte".to_owned()),
        false => Ok(decoded.into_owned()),
    }
}

fn not_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// `host:port`, an IPv6 address in brackets.
pub(crate) fn address_text(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let url = parse("postgres://locks:a%40b@127.0.0.1:7,[::1]/db?application_name=x").unwrap();
        assert_eq!(url.addresses, [("127.0.0.1".to_owned(), 7), ("::1".to_owned(), 5432)]);
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("locks"), Some("a@b")));
        assert_eq!((url.database.as_deref(), url.tls.is_some()), (Some("db"), false));
        assert_eq!(url.application_name.as_deref(), Some("x"));
        assert!(!url.shown.contains("a%40b"), "{}", url.shown);
        let url = parse("postgresql://a,b/?sslmode=verify-full&target_session_attrs=read-write");
        let url = url.unwrap();
        assert!(url.tls.is_some() && url.user.is_none() && url.database.is_none());
        assert!(parse("postgres://db.example/x?sslmode=disable").unwrap().tls.is_none());
    }

    #[test]
    fn what_is_no_url_is_refused_with_the_reason() {
        for (url, reason) in [
            ("redis://a", "does not begin"),
            ("postgres://", "no host:port"),
            ("postgres://localhost:0/x", "no host:port"),
            ("postgres://localhost:port/x", "no host:port"),
            ("postgres://a b/x", "no host:port"),
            ("postgres://@localhost/x", "is empty"),
            ("postgres://localhost/x/y", "too many parts"),
            ("postgres://localhost/x?sslmode=require", "disable and verify-full"),
            ("postgres://localhost/x?sslmode", "name=value"),
            ("postgres://localhost/x?sslrootcert=/a", "is for sslmode=verify-full"),
            ("postgres://localhost/x?sslmode=verify-full&sslrootcert=/no", "sslrootcert: /no"),
            ("postgres://localhost/x?sslmode=verify-full&sslcert=/no", "needs its private key"),
            ("postgres://localhost/x?password=hunter2", "not known"),
            ("postgres://localhost/%ff", "UTF-8"),
            ("postgres://localhost/%00", "zero byte"),
            ("postgres://u:hunter2@db.example/x", "beyond this machine"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("hunter2"), "{url}: {error}");
        }
    }
}
