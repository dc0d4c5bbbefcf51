//! Taking a port, and saying clearly why that did not work.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use super::exposure::Exposure;
use crate::tls::ServerTls;

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
    /// The address can be reached from other machines, which these settings do not allow.
    #[error(
        "cannot listen on {0}: only a loopback address is allowed here; choose 127.0.0.1:{port}",
        port = .0.port()
    )]
    NotLoopback(SocketAddr),
    /// Something else.
    #[error("cannot listen on {0}: {1}")]
    Other(SocketAddr, #[source] io::Error),
}

/// A port that is taken, and what is spoken there.
#[derive(Debug)]
pub struct BoundListener {
    pub(super) tcp: TcpListener,
    pub(super) tls: Option<ServerTls>,
}

impl BoundListener {
    /// The address; port 0 has become the one that the system chose.
    ///
    /// # Errors
    /// If the system does not know it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The URL of an HTTP listener, by its address.
    pub fn url(&self) -> Option<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{}", self.local_addr().ok()?))
    }

    /// The socket and its TLS, for an accept loop of another protocol.
    pub fn into_parts(self) -> (TcpListener, Option<ServerTls>) {
        (self.tcp, self.tls)
    }
}

/// Listens on an address that the settings allow; port 0 lets the system choose one.
///
/// # Errors
/// [`BindError`] with the address and what to do.
///
/// # Panics
/// Outside of a tokio runtime.
pub async fn bind(addr: SocketAddr, exposure: &Exposure) -> Result<BoundListener, BindError> {
    if !exposure.allows(addr) {
        return Err(BindError::NotLoopback(addr));
    }
    let tcp = listen(addr).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(addr),
        io::ErrorKind::PermissionDenied => BindError::NotPermitted(addr),
        io::ErrorKind::AddrNotAvailable => BindError::NoSuchAddress(addr),
        _ => BindError::Other(addr, error),
    })?;
    Ok(BoundListener { tcp, tls: exposure.tls().cloned() })
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
        let first = bind("127.0.0.1:0".parse().unwrap(), &Exposure::default()).await.unwrap();
        let addr = first.local_addr().unwrap();
        let error = bind(addr, &Exposure::default()).await.unwrap_err();
        assert!(matches!(error, BindError::InUse(_)), "{error}");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }

    #[tokio::test]
    async fn without_a_check_only_loopback_is_bound() {
        for bad in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            let error = bind(bad.parse().unwrap(), &Exposure::default()).await.unwrap_err();
            assert!(matches!(error, BindError::NotLoopback(_)), "{error}");
        }
    }
}
