//! A TCP proxy that hurts what passes through it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Treatment of bytes, on connections that exist and on new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every piece, in both directions, comes so much later.
    Delay(Duration),
    /// Nothing passes and nothing is closed: both ends believe in the connection.
    Blackhole,
    /// Requests pass; replies are held, in order, until the fault is over.
    HoldReplies,
    /// Requests pass; replies are swallowed, and so are all later ones of a connection that lost
    /// one. Both ends believe in the connection.
    DropReplies,
    /// The same from the moment on that a request with these words in it passes, on every
    /// connection: what was asked before it is answered, and it is carried out.
    DropRepliesAfter(&'static str),
    /// New connections are closed at once; connections that exist are cut.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

/// Faults by the address that connects.
#[derive(Clone, Debug)]
struct Faults {
    everyone: Fault,
    /// In place of it, for connections from these addresses.
    from: BTreeMap<IpAddr, Fault>,
}

impl Faults {
    fn fault_for(&self, source: IpAddr) -> Fault {
        self.from.get(&source).copied().unwrap_or(self.everyone)
    }
}

#[derive(Clone, Debug)]
struct Control {
    source: IpAddr,
    faults: watch::Receiver<Faults>,
    cut: CancellationToken,
    /// `true` if the connections of this time are stranded.
    strand: CancellationToken,
    held: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    /// `true` if the request of [`Fault::DropRepliesAfter`] has passed.
    has_passed: Arc<AtomicBool>,
}

/// A proxy before one address, for as long as it lives.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    cut: watch::Sender<CancellationToken>,
    strand: watch::Sender<CancellationToken>,
    held: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    has_passed: Arc<AtomicBool>,
    upstream: watch::Sender<String>,
    _accepting: AbortOnDropHandle<()>,
}

impl FaultProxy {
    /// Stands before `upstream` (`127.0.0.1:PORT`).
    ///
    /// # Panics
    /// If no port is free.
    pub async fn before(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let none = Faults { everyone: Fault::None, from: BTreeMap::new() };
        let (faults, faults_seen) = watch::channel(none);
        let (cut, cut_seen) = watch::channel(CancellationToken::new());
        let (strand, strand_seen) = watch::channel(CancellationToken::new());
        let held = Arc::new(AtomicU64::new(0));
        let dropped = Arc::new(AtomicU64::new(0));
        let has_passed = Arc::new(AtomicBool::new(false));
        let control = Control {
            source: IpAddr::from([127, 0, 0, 1]),
            faults: faults_seen,
            cut: cut_seen.borrow().clone(),
            strand: strand_seen.borrow().clone(),
            held: held.clone(),
            dropped: dropped.clone(),
            has_passed: has_passed.clone(),
        };
        let (upstream, upstream_seen) = watch::channel(upstream.to_owned());
        let accepting = accept(listener, upstream_seen, (cut_seen, strand_seen), control);
        let accepting = AbortOnDropHandle::new(tokio::spawn(accepting));
        Self {
            address,
            faults,
            cut,
            strand,
            held,
            dropped,
            has_passed,
            upstream,
            _accepting: accepting,
        }
    }

    /// From now on it stands before another address, as a name or an address that is moved by hand
    /// does. Connections that exist are cut.
    pub fn move_to(&self, upstream: &str) {
        self.redirect(upstream);
        self.cut();
    }

    /// From now on new connections go to another address; those that exist stay.
    pub fn redirect(&self, upstream: &str) {
        self.upstream.send_replace(upstream.to_owned());
    }

    /// Its own address, `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on.
    pub fn set(&self, fault: Fault) {
        self.has_passed.store(false, Ordering::SeqCst);
        self.faults.send_modify(|faults| faults.everyone = fault);
        if fault == Fault::Refuse {
            self.cut();
        }
    }

    /// Sets the fault from now on for connections from `source` alone: `127.0.0.2`, say, which a
    /// process of this machine may call itself. `Refuse` leaves the connections that exist.
    pub fn set_from(&self, source: IpAddr, fault: Fault) {
        self.faults.send_modify(|faults| {
            faults.from.insert(source, fault);
        });
    }

    /// Ends every fault, of everyone.
    pub fn heal(&self) {
        self.faults.send_modify(|faults| {
            *faults = Faults { everyone: Fault::None, from: BTreeMap::new() };
        });
    }

    /// Closes every connection that exists.
    pub fn cut(&self) {
        self.cut.send_replace(CancellationToken::new()).cancel();
    }

    /// The connections that exist swallow every byte in both directions from now on, and are never
    /// closed, whatever their ends do; new ones work.
    pub fn strand(&self) {
        self.strand.send_replace(CancellationToken::new()).cancel();
    }

    /// Number of pieces that were held back so far, whether they passed later or not.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }

    /// Number of pieces of replies that were swallowed so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: watch::Receiver<String>,
    (cut, strand): (watch::Receiver<CancellationToken>, watch::Receiver<CancellationToken>),
    control: Control,
) {
    while let Ok((client, peer)) = listener.accept().await {
        let cut = cut.borrow().clone();
        let strand = strand.borrow().clone();
        let control = Control { source: peer.ip(), cut, strand, ..control.clone() };
        let source = control.source;
        if control.faults.borrow().fault_for(source) == Fault::Refuse {
            continue;
        }
        let upstream = upstream.borrow().clone();
        tokio::spawn(async move {
            let cut = control.cut.clone();
            cut.run_until_cancelled(carry(client, upstream, control)).await;
        });
    }
}

async fn carry(client: TcpStream, upstream: String, control: Control) {
    let Ok(server) = TcpStream::connect(&upstream).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        pump(from_client, to_server, Direction::Request, control.clone()),
        pump(from_server, to_client, Direction::Reply, control),
    );
}

/// Carries one direction until it is closed, then closes the other side's half.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut control: Control,
) {
    let mut piece = vec![0_u8; 16 * 1024];
    let mut has_hole = false;
    loop {
        let read = from.read(&mut piece).await;
        let is_stranded = control.strand.is_cancelled();
        let Some(count) = read.ok().or(is_stranded.then_some(0)) else {
            return;
        };
        if is_stranded {
            if count == 0 {
                // Its end has gone, and the other one is not to know.
                std::future::pending::<()>().await;
            }
            continue;
        }
        let source = control.source;
        let fault = control.faults.borrow_and_update().fault_for(source);
        match (fault, direction) {
            (Fault::Blackhole, _) | (Fault::HoldReplies, Direction::Reply) => {
                control.held.fetch_add(u64::from(count > 0), Ordering::SeqCst);
                // What was read is held, in order, until the fault is over; so is a close.
                let over = control.faults.wait_for(|all| all.fault_for(source) != fault);
                if over.await.is_err() {
                    return;
                }
            }
            (Fault::Delay(time), _) => tokio::time::sleep(time).await,
            (Fault::DropRepliesAfter(words), Direction::Request) => {
                let mut windows = piece[..count].windows(words.len());
                if windows.any(|window| window == words.as_bytes()) {
                    control.has_passed.store(true, Ordering::SeqCst);
                }
            }
            (Fault::DropReplies | Fault::DropRepliesAfter(_), Direction::Reply)
                if count > 0
                    && (fault == Fault::DropReplies
                        || control.has_passed.load(Ordering::SeqCst)) =>
            {
                control.dropped.fetch_add(1, Ordering::SeqCst);
                has_hole = true;
                continue;
            }
            _ => {}
        }
        // A stream of TCP lacks nothing in between.
        if has_hole && count > 0 {
            continue;
        }
        if count == 0 || to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}
