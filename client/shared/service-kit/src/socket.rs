//! Options of TCP sockets, so that a peer that is gone without a word is noticed.
//!
//! A cable that is pulled, or a firewall that forgets a connection, resets nothing. By itself the
//! kernel notices after two hours on an idle connection, and after a quarter of an hour where
//! something was sent.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Silence after which an idle peer is probed.
const PROBE_AFTER: Duration = Duration::from_secs(15);
/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered probes after which the peer is gone: 30 s of silence in all.
const PROBES: u32 = 3;
/// Longest time that a store may leave sent bytes unacknowledged.
pub const STORE_UNACKNOWLEDGED: Duration = Duration::from_secs(30);
/// Longest time that a client may do so. It is also how long a client may take nothing while bytes
/// wait for it.
const CLIENT_UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// A connection that this server closes is read on until its client has been quiet for this long.
/// Closing with unread bytes resets it, and the client could lose the reply that says why.
const LINGER_QUIET: Duration = Duration::from_secs(1);
/// The longest time, and the most bytes, for which it is read on.
const LINGER_MAX: Duration = Duration::from_secs(10);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
const LINGER_READ_BYTES: usize = 16 * 1024;

/// Probes of an idle connection.
pub fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL).with_retries(PROBES)
}

/// Sets the options of a connection that a client made: `TCP_NODELAY` and limits on silence.
pub fn tune_accepted(stream: &TcpStream) {
    tune(stream, CLIENT_UNACKNOWLEDGED);
}

/// Sets the options of a connection that was made to a store: `TCP_NODELAY` and limits on silence.
pub fn tune_to_store(stream: &TcpStream) {
    tune(stream, STORE_UNACKNOWLEDGED);
}

/// Ends a connection whose peer leaves sent bytes unacknowledged for this long. The kernel does it,
/// even while the process is stopped.
///
/// # Errors
/// If the kernel does not take the option.
pub fn limit_unacknowledged(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    SockRef::from(stream).set_tcp_user_timeout(Some(unacknowledged))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, unacknowledged);
    Ok(())
}

/// Ends the sending direction of a connection: the peer reads what was sent, then the end of it.
pub fn finish_sending(stream: &TcpStream) {
    // A connection that is gone has nothing to finish.
    let _ = SockRef::from(stream).shutdown(Shutdown::Write);
}

/// Closes a connection gently: ends the sending direction, and reads on until the client closes or
/// has been quiet, within limits.
pub(crate) async fn linger(mut stream: TcpStream) {
    let read_on = async {
        stream.shutdown().await?;
        let mut scrap = vec![0; LINGER_READ_BYTES];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match tokio::time::timeout(LINGER_QUIET, stream.read(&mut scrap)).await {
                Err(_) | Ok(Ok(0)) => break,
                Ok(bytes) => left = left.saturating_sub(bytes?),
            }
        }
        io::Result::Ok(())
    };
    // Whatever comes of it, the connection is closed now.
    let _ = tokio::time::timeout(LINGER_MAX, read_on).await;
}

fn tune(stream: &TcpStream, unacknowledged: Duration) {
    if let Err(error) = try_tune(stream, unacknowledged) {
        // The connection works without them.
        tracing::debug!(%error, "the options of a socket could not be set");
    }
}

fn try_tune(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive())?;
    limit_unacknowledged(stream, unacknowledged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn both_kinds_of_silence_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let made = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        tune_accepted(&accepted);
        tune_to_store(&made);
        for stream in [&accepted, &made] {
            assert!(SockRef::from(stream).keepalive().unwrap() && stream.nodelay().unwrap());
        }
        #[cfg(target_os = "linux")]
        {
            let limit = |stream| SockRef::from(stream).tcp_user_timeout().unwrap();
            assert_eq!(limit(&accepted), Some(CLIENT_UNACKNOWLEDGED));
            assert_eq!(limit(&made), Some(STORE_UNACKNOWLEDGED));
        }
    }
}
