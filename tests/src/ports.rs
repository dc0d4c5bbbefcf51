//! Ports that stay ours while a server restarts.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range that Linux takes the ports of outgoing connections from: a port from there
/// could be taken while its server is down, even by a client that then meets itself.
const FIRST: u32 = 11_000;
const COUNT: u32 = 21_000;
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Port of 127.0.0.1 on which no process listens, and that no other test of this process gets.
///
/// # Panics
/// If all are taken.
pub fn unused() -> u16 {
    let start = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(port).expect("below 65536");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT);
}
