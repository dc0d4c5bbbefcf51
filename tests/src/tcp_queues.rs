//! TCP connections as the kernel has them: what one process sent or closed may not have reached the
//! other's socket.

/// `true` if no TCP connection of this machine with `port` at either end, IPv4, has bytes that are
/// not acknowledged or not read.
///
/// # Panics
/// If the kernel does not list its connections.
pub fn are_empty(port: u16) -> bool {
    const LISTENS: &str = "0A";
    let end = format!(":{port:04X}");
    connections().iter().all(|[local, remote, state, queues]| {
        let is_its = local.ends_with(&end) || remote.ends_with(&end);
        !is_its || state == LISTENS || queues == "00000000:00000000"
    })
}

/// `true` if every client of `port` on this machine has received the end of its connection, IPv4.
///
/// # Panics
/// If the kernel does not list its connections.
pub fn have_ended(port: u16) -> bool {
    const ESTABLISHED: &str = "01";
    let end = format!(":{port:04X}");
    connections()
        .iter()
        .all(|[_, remote, state, _]| !remote.ends_with(&end) || state != ESTABLISHED)
}

/// Local address, remote address, state and "unacknowledged:unread" of each, in hexadecimal.
fn connections() -> Vec<[String; 4]> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's connections");
    let row = |line: &str| {
        let mut columns = line.split_ascii_whitespace().skip(1).map(str::to_owned);
        [(); 4].map(|()| columns.next().unwrap_or_default())
    };
    table.lines().skip(1).map(row).collect()
}
