//! The subcommand `health` asks the service with the same settings if it is ready. It is for
//! containers, which have no other program to check it with.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is the interface")]

mod pinned;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time for the reply. Container engines start the check every few seconds.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that are read of the reply.
const REPLY_BYTES_MAX: u64 = 64 * 1024;

/// Asks the service at `listen` for `/readyz`, over TLS where it has a `certificate` (PEM), and
/// prints the result. Exit code 0 means ready, and 1 not ready or unreachable. Readiness is not
/// known, and the code 0, where the service requires certificates of its clients.
pub fn run(listen: SocketAddr, certificate: Option<&Path>) -> ExitCode {
    match check(listen, certificate) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{listen}: {}", error.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn check(listen: SocketAddr, certificate: Option<&Path>) -> Result<&'static str, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the runtime cannot start: {error}"))?;
    runtime.block_on(async {
        let checked = tokio::time::timeout(TIMEOUT, readiness(reachable(listen), certificate));
        checked.await.unwrap_or_else(|_| Err(format!("no reply within {TIMEOUT:?}")))
    })
}

/// The loopback address of a listener on all addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

async fn readiness(addr: SocketAddr, certificate: Option<&Path>) -> Result<&'static str, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    let exchanged = match certificate {
        None => exchange(stream).await,
        Some(file) => {
            let connector = pinned::connector(file)?;
            match connector.connect(addr.ip().into(), stream).await {
                Ok(stream) => exchange(stream).await,
                Err(error) => Err(error),
            }
        }
    };
    match exchanged {
        Ok(reply) => judge(&reply).map(|()| "ready"),
        Err(error) if pinned::wants_certificate(&error) => {
            Ok("serving; readiness is unknown, because clients must show a certificate")
        }
        Err(error) => Err(error.to_string()),
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut reply = Vec::new();
    stream.take(REPLY_BYTES_MAX).read_to_end(&mut reply).await?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// The failing checks are the body of a reply that is not 200.
fn judge(reply: &str) -> Result<(), String> {
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((reply, ""));
    match head.lines().next() {
        Some(line) if line.starts_with("HTTP/1.1 200 ") => Ok(()),
        Some(line) => Err(format!("{line}: {body}")),
        None => Err("the connection was closed without a reply".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_status_200_is_ready() {
        assert_eq!(judge("HTTP/1.1 200 OK\r\n\r\nok\n"), Ok(()));
        let failing = judge("HTTP/1.1 503 Service Unavailable\r\na: b\r\n\r\n[-]store failed\n");
        assert_eq!(failing.unwrap_err(), "HTTP/1.1 503 Service Unavailable: [-]store failed\n");
        assert!(judge("").unwrap_err().contains("without a reply"));
        assert!(judge("-ERR this port speaks TLS\r\n").is_err());
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_loopback() {
        let reachable = |addr: &str| reachable(addr.parse().unwrap()).to_string();
        assert_eq!(reachable("0.0.0.0:7420"), "127.0.0.1:7420");
        assert_eq!(reachable("[::]:7420"), "[::1]:7420");
        assert_eq!(reachable("127.0.0.2:7420"), "127.0.0.2:7420");
    }
}
