//! Ports that stay ours while a server restarts.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Below the range that Linux takes the ports of outgoing connections from: a port from there
/// could be taken while its server is down, even by a client that then meets itself.
const FIRST: u32 = 11_000;
/// Ports of a block, more than a run of all tests takes. A process of tests has a block to itself,
/// because a port of one whose server has not started yet looks free to the other.
const COUNT: u32 = 3_500;
const BLOCKS: u32 = 6;
/// Longest wait for a process to take or refuse a connection.
const REPLY: Duration = Duration::from_secs(1);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Port of 127.0.0.1 that no process has, and that no other test gets.
///
/// It is never bound here: a process that another thread starts at that moment would have the
/// socket too, until it runs its program.
///
/// # Panics
/// If all are taken.
pub fn unused() -> u16 {
    let first = FIRST + block() * COUNT;
    let start = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = first + start.wrapping_add(step) % COUNT;
        let port = u16::try_from(port).expect("below 65536");
        if !is_taken(port) {
            return port;
        }
    }
    panic!("no free port from {first} to {}", first + COUNT);
}

/// The block of this process, from its first use to its end.
fn block() -> u32 {
    static OWN: OnceLock<(u32, File)> = OnceLock::new();
    let (number, _) = OWN.get_or_init(|| {
        (0..BLOCKS)
            .find_map(|number| claim(number).map(|file| (number, file)))
            .unwrap_or_else(|| panic!("{BLOCKS} other processes of tests have all ports"))
    });
    *number
}

/// Takes the lock of a block, which ends with this process.
fn claim(number: u32) -> Option<File> {
    let path = std::env::temp_dir().join(format!("fence-tests-ports-{number}"));
    // Another user's file can be locked, not written to.
    let file = File::create_new(&path).or_else(|_| File::open(&path)).ok()?;
    file.try_lock().ok().map(|()| file)
}

/// Returns `true` if a process listens on the port.
fn is_taken(port: u16) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    match TcpStream::connect_timeout(&address, REPLY) {
        Ok(_) => true,
        // A stopped process may let a connection wait.
        Err(error) => error.kind() != ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_port_that_a_process_listens_on_is_taken() {
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).unwrap();
            assert!(is_taken(listener.local_addr().unwrap().port()), "{address}");
        }
        assert!(!is_taken(unused()));
    }

    #[test]
    fn a_block_has_one_process() {
        assert!(claim(block()).is_none());
    }
}
