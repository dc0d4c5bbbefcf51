//! Taking a port, and saying clearly why that did not work.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 1024;

/// A listen address could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error(
        "cannot listen on {0}: the port is in use; stop the process that has it \
         (`ss -ltnp 'sport = :{port}'` names it) or choose another port", port = .0.port()
    )]
    InUse(SocketAddr),
    /// The port needs rights that the process does not have.
    #[error(
        "cannot listen on {0}: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE, so \
         choose a higher port or grant it"
    )]
    NotPermitted(SocketAddr),
    /// No interface of this machine has the address.
    #[error("cannot listen on {0}: this machine has no such address; choose 127.0.0.1 or ::1")]
    NoSuchAddress(SocketAddr),
    /// The address can be reached from other machines.
    #[error(
        "cannot listen on {0}: without TLS and tokens only a loopback address is allowed; choose \
         127.0.0.1:{port} and put a proxy that authenticates in front", port = .0.port()
    )]
    NotLoopback(SocketAddr),
    /// Something else.
    #[error("cannot listen on {0}: {1}")]
    Other(SocketAddr, #[source] io::Error),
}

/// Refuses addresses that other machines can reach: nothing here authenticates a client yet.
///
/// # Errors
/// [`BindError::NotLoopback`].
pub fn check_loopback(addr: SocketAddr) -> Result<(), BindError> {
    if addr.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(BindError::NotLoopback(addr))
}

/// Listens on a loopback address; port 0 lets the system choose one.
///
/// # Errors
/// [`BindError`] with the address and what to do.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, BindError> {
    check_loopback(addr)?;
    listen(addr).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(addr),
        io::ErrorKind::PermissionDenied => BindError::NotPermitted(addr),
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress(addr),
        _ => BindError::Other(addr, error),
    })
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // So that a restart need not wait for old connections to leave TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = first.local_addr().unwrap();
        let error = bind(addr).await.unwrap_err();
        assert!(matches!(error, BindError::InUse(_)), "{error}");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }

    #[tokio::test]
    async fn only_loopback_is_bound() {
        for bad in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80", "[::ffff:192.0.2.1]:80"] {
            let error = bind(bad.parse().unwrap()).await.unwrap_err();
            assert!(matches!(error, BindError::NotLoopback(_)), "{error}");
        }
        for good in ["127.0.0.1:0", "127.8.9.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            assert!(check_loopback(good.parse().unwrap()).is_ok(), "{good}");
        }
    }
}
