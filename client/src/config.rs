//! Defaults and the environment; no other module of this crate reads it.

use std::path::Path;

use fence_protocol::Owner;
use https_client::{TlsOptions, TlsSettingNames};

use crate::Error;

/// Default address of the lock server; `FENCE_SERVER` overrides it.
pub const DEFAULT_LOCK_SERVER: &str = "http://127.0.0.1:7420";
/// Default address of the guard; `FENCE_GUARD` overrides it.
pub const DEFAULT_FENCED_STORE: &str = "http://127.0.0.1:7421";

/// Checks the address of a server, and removes its trailing slash.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), as of
/// [`ClientBuilder::build`](crate::ClientBuilder::build).
pub fn address(url: &str) -> Result<String, Error> {
    let url: https_client::ServerUrl = url.parse().map_err(Error::invalid)?;
    Ok(url.base().to_owned())
}

/// Reads an environment variable; `None` if it is unset, empty or not Unicode.
#[expect(clippy::disallowed_methods, reason = "this module is the replacement that clippy names")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Certificates that the variables name.
pub(crate) fn tls(variable: impl Fn(&str) -> Option<String>) -> Result<TlsOptions, Error> {
    let names = TlsSettingNames {
        ca: "FENCE_CA_FILE",
        certificate: "FENCE_CLIENT_CERT",
        key: "FENCE_CLIENT_KEY",
    };
    let [ca, certificate, key] = [names.ca, names.certificate, names.key].map(variable);
    let [ca, certificate, key] = [&ca, &certificate, &key].map(|file| file.as_ref().map(Path::new));
    TlsOptions::read(names, ca, certificate, key).map_err(Error::invalid)
}

/// Owner of this process, for people to read: `user@host:pid`.
pub fn default_owner() -> Owner {
    owner(&format!("{}:{}", account(), std::process::id()))
}

/// Owner shared by all processes of this user on this machine: `user@host`. A restart does not
/// change it, so it suits [takeovers](crate::LockRequest::takeover).
pub fn stable_owner() -> Owner {
    owner(&account())
}

fn owner(text: &str) -> Owner {
    Owner::new(text).unwrap_or_else(|_| unreachable!("60 printable characters are an owner"))
}

fn account() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let user = variable("USER").or_else(|| variable("LOGNAME")).or_else(|| user_named(&uid));
    let user = user.unwrap_or_else(|| format!("uid{uid}"));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // A long host name must not displace the process id.
    let short =
        |text: String| text.chars().filter(|c| !c.is_control()).take(24).collect::<String>();
    format!("{}@{}", short(user), short(host))
}

/// User of this number in `/etc/passwd`.
fn user_named(uid: &str) -> Option<String> {
    let entries = std::fs::read_to_string("/etc/passwd").ok()?;
    entries.lines().find_map(|entry| {
        let mut fields = entry.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_owner_names_user_host_and_process() {
        let owner = default_owner();
        assert!(owner.as_str().contains('@'), "{owner}");
        assert!(owner.as_str().ends_with(&format!(":{}", std::process::id())), "{owner}");
        let stable = stable_owner();
        assert_eq!(format!("{stable}:{}", std::process::id()), owner.as_str());
    }
}
