//! Bytes that the kernel holds between two processes: sent by one, not read by the other.

/// `true` if no TCP connection of this machine with `port` at either end, IPv4, has bytes that are
/// not acknowledged or not read.
///
/// # Panics
/// If the kernel does not list its connections.
pub fn are_empty(port: u16) -> bool {
    const LISTENS: &str = "0A";
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's connections");
    let end = format!(":{port:04X}");
    // Columns: number, local address, remote address, state, "unacknowledged:unread" in hexadecimal.
    table.lines().skip(1).all(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_its = columns[1].ends_with(&end) || columns[2].ends_with(&end);
        !is_its || columns[3] == LISTENS || columns[4] == "00000000:00000000"
    })
}
