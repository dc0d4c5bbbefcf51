//! Ports that stay ours while a server restarts.

use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range that Linux takes the ports of outgoing connections from: a port from there
/// could be taken while its server is down, even by a client that then meets itself.
const FIRST: u32 = 11_000;
const COUNT: u32 = 21_000;
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Port of 127.0.0.1 that no process has, and that no other test of this process gets.
///
/// It is never bound here: a process that another thread starts at that moment would have the
/// socket too, until it runs its program.
///
/// # Panics
/// If all are taken.
pub fn unused() -> u16 {
    let start = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(port).expect("below 65536");
        if !is_taken(port) {
            return port;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT);
}

/// Returns `true` if a process listens on the port, at any address.
fn is_taken(port: u16) -> bool {
    let local = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let sockets = std::fs::read_to_string(table).unwrap_or_default();
        sockets.lines().any(|socket| {
            let mut fields = socket.split_whitespace();
            let is_local = fields.nth(1).is_some_and(|address| address.ends_with(&local));
            is_local && fields.nth(1) == Some(LISTENS)
        })
    })
}

/// State of a listening socket in these tables.
const LISTENS: &str = "0A";

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_that_a_process_listens_on_is_taken() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            assert!(is_taken(listener.local_addr().unwrap().port()), "{address}");
        }
        assert!(!is_taken(unused()));
    }
}
