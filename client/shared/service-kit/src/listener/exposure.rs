//! Addresses that a process may listen on, and the TLS that it speaks there.

use std::net::SocketAddr;

use crate::Kit;
use crate::health::Status;
use crate::tls::ServerTls;

/// Name of the readiness check that shows what `--insecure-listen` allowed.
const CHECK: &str = "insecure-listen";
/// Name of the readiness check that shows ports without the TLS of the others.
const PLAIN_CHECK: &str = "plain-listen";

/// TLS of the listeners of a process, and its permission to listen beyond loopback. The default is
/// neither.
#[derive(Clone, Debug, Default)]
pub struct Exposure {
    tls: Option<ServerTls>,
    reach: Reach,
    /// Ports without that TLS, as sentences.
    plain: Vec<String>,
}

/// Addresses that may be bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Reach {
    #[default]
    Loopback,
    Network,
    /// Every address, with the warning about the protection that some lack.
    Insecure(String),
}

/// An address to listen on, as the flags name it.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddr {
    /// The flag with its dashes.
    pub flag: &'static str,
    /// The flag's value.
    pub addr: SocketAddr,
    /// Clients are known by the access file there. Elsewhere they are by fencing tokens.
    pub uses_access_file: bool,
    /// The flag by which the TLS of the process is not spoken there.
    pub plain_by: Option<&'static str>,
}

/// Protection that the settings of a process give.
#[derive(Clone, Copy, Debug)]
pub struct Safeguards {
    /// There is an access file.
    pub access_file: bool,
    /// Tokens are signed.
    pub signed_tokens: bool,
}

/// Reads `ADDRESS:PORT`. `localhost` is 127.0.0.1, and a port alone is that of every IPv4 address.
///
/// # Errors
/// A sentence with the spellings that are read.
pub fn listen_addr(text: &str) -> Result<SocketAddr, &'static str> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let ip = match host {
        "" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        ip => ip,
    };
    format!("{ip}:{port}").parse().map_err(|_| {
        "write ADDRESS:PORT, as in 127.0.0.1:7420 or localhost:7420; :7420 is that port of every \
         IPv4 address"
    })
}

impl Exposure {
    /// Decides whether the addresses may be listened on. TLS files that are unusable count as TLS,
    /// so that they are one error.
    ///
    /// # Errors
    /// Sentences about unusable files, and about each address that other machines can reach and
    /// that lacks protection, unless `--insecure-listen` allows that.
    pub fn check(
        tls: Result<Option<ServerTls>, String>,
        insecure_listen: bool,
        addresses: &[ListenAddr],
        safeguards: Safeguards,
    ) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let has_tls = !matches!(tls, Ok(None));
        let tls = tls.map_err(|error| errors.push(error)).unwrap_or_default();
        let lacking = lacking(addresses, has_tls, safeguards);
        let reach = match lacking.is_empty() {
            true => Reach::Network,
            false if insecure_listen => Reach::Insecure(warning(&lacking)),
            false => {
                errors.extend(lacking.iter().map(refusal));
                Reach::Loopback
            }
        };
        let plain = addresses.iter().filter_map(plain_port).collect();
        if errors.is_empty() { Ok(Self { tls, reach, plain }) } else { Err(errors) }
    }

    /// Sets the readiness checks of what `--insecure-listen` allowed and of plain ports, and starts
    /// reloading the certificate files until `kit` shuts down.
    ///
    /// # Panics
    /// Outside of a tokio runtime, with TLS.
    pub fn start(&self, kit: &Kit) {
        if let Reach::Insecure(warning) = &self.reach {
            kit.health.set(CHECK, Status::Warn(warning.clone()));
        }
        if !self.plain.is_empty() {
            kit.health.set(PLAIN_CHECK, Status::Info(self.plain.join("; ")));
        }
        if let Some(tls) = &self.tls {
            tls.start_reload(kit);
        }
    }

    /// TLS of every listener of the process.
    pub fn tls(&self) -> Option<&ServerTls> {
        self.tls.as_ref()
    }

    pub(super) fn allows(&self, addr: SocketAddr) -> bool {
        self.reach != Reach::Loopback || is_loopback(addr)
    }
}

fn is_loopback(addr: SocketAddr) -> bool {
    addr.ip().to_canonical().is_loopback()
}

/// An address beyond loopback and the protection that it lacks.
type Lacking = (ListenAddr, Vec<&'static str>);

fn lacking(addresses: &[ListenAddr], has_tls: bool, safeguards: Safeguards) -> Vec<Lacking> {
    let lacks = |address: &ListenAddr| {
        let needs_file = address.uses_access_file;
        [
            (!has_tls, "TLS (--tls-cert, --tls-key)"),
            (has_tls && address.plain_by.is_some(), "TLS at this port"),
            (needs_file && !safeguards.access_file, "an access file (--access-file)"),
            (!safeguards.signed_tokens, "signed tokens (--token-key-file)"),
        ]
        .into_iter()
        .filter_map(|(is_missing, what)| is_missing.then_some(what))
        .collect::<Vec<_>>()
    };
    let beyond = addresses.iter().filter(|address| !is_loopback(address.addr));
    let lacking = beyond.map(|address| (*address, lacks(address)));
    lacking.filter(|(_, lacks)| !lacks.is_empty()).collect()
}

fn plain_port(address: &ListenAddr) -> Option<String> {
    let ListenAddr { flag, addr, plain_by, .. } = address;
    plain_by.map(|by| format!("{flag} {addr} speaks no TLS ({by})"))
}

fn refusal((address, lacks): &Lacking) -> String {
    let ListenAddr { flag, addr, .. } = address;
    let lacks = list(lacks);
    let port = addr.port();
    format!(
        "{flag} {addr} can be reached from other machines, and lacks {lacks}: add what is missing, \
         listen on 127.0.0.1:{port}, or state --insecure-listen if a mesh, a TLS proxy or a \
         private network protects this port"
    )
}

fn warning(lacking: &[Lacking]) -> String {
    let one = |(address, lacks): &Lacking| {
        format!("{} {} is reachable without {}", address.flag, address.addr, list(lacks))
    };
    lacking.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The words with commas, and "and" before the last.
fn list(words: &[&str]) -> String {
    match words {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Safeguards = Safeguards { access_file: false, signed_tokens: false };
    const ALL: Safeguards = Safeguards { access_file: true, signed_tokens: true };

    fn address(addr: &str, uses_access_file: bool) -> ListenAddr {
        let addr = addr.parse().unwrap();
        ListenAddr { flag: "--listen", addr, uses_access_file, plain_by: None }
    }

    #[test]
    fn a_host_may_be_left_out_or_be_localhost() {
        for (text, addr) in [
            ("localhost:7420", "127.0.0.1:7420"),
            (":7420", "0.0.0.0:7420"),
            ("7420", "0.0.0.0:7420"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(listen_addr(text), Ok(addr.parse().unwrap()), "{text}");
        }
        for text in ["", ":", "localhost", "example.org:7420", "::1:7420", ":65536", ":+1", "1.2:3"]
        {
            assert!(listen_addr(text).is_err(), "{text}");
        }
    }

    #[test]
    fn everything_that_is_missing_is_named_at_once() {
        let refused = |address, safeguards| {
            Exposure::check(Ok(None), false, &[address], safeguards).unwrap_err().concat()
        };
        for addr in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
            let error = refused(address(addr, true), NONE);
            let lacks = "lacks TLS (--tls-cert, --tls-key), an access file (--access-file) and \
                         signed tokens (--token-key-file): add";
            assert!(error.contains(lacks) && error.contains(addr), "{error}");
        }
        let fenced = refused(address("0.0.0.0:80", false), NONE);
        assert!(fenced.contains("lacks TLS (--tls-cert, --tls-key) and signed tokens"), "{fenced}");
        let tls_alone = refused(address("0.0.0.0:80", true), ALL);
        assert!(tls_alone.contains("lacks TLS (--tls-cert, --tls-key): add"), "{tls_alone}");
    }

    #[test]
    fn loopback_needs_nothing_and_may_not_become_more() {
        for addr in ["127.0.0.1:0", "127.8.9.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            assert!(
                Exposure::check(Ok(None), false, &[address(addr, true)], NONE).is_ok(),
                "{addr}"
            );
        }
        let unset = Exposure::default();
        assert!(unset.allows("127.0.0.1:0".parse().unwrap()));
        assert!(!unset.allows("0.0.0.0:0".parse().unwrap()));
    }

    #[test]
    fn an_insecure_listener_is_a_warning() {
        let addresses = [address("0.0.0.0:80", true)];
        let exposure = Exposure::check(Ok(None), true, &addresses, NONE).unwrap();
        let kit = Kit::new("test");
        exposure.start(&kit);
        let text = kit.health.report(false).text();
        assert!(text.contains("[!]insecure-listen warning: --listen 0.0.0.0:80 is"), "{text}");
    }
}
