//! An HTTP datastore that knows nothing of tokens, misbehaves in every way that one can, and
//! records the order in which its writes took effect.
//!
//! It runs on a thread of its own, so that a busy test does not delay it, and it keeps its word: a
//! write that it could not apply within [`EFFECT_MAX`] of its arrival never takes effect.

mod request;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use self::request::OriginRequest;
use crate::journal::Entry;
use crate::seed::Seed;

/// Longest time from the arrival of a write to its effect. A guard that states twice of it has as
/// much left to notice a broken connection.
pub const EFFECT_MAX: Duration = Duration::from_millis(500);

/// Between two marks of the time at which the thread looks for what has arrived.
const LOOK: Duration = Duration::from_millis(5);
/// Anything found was there after as many marks at the latest.
const LOOKS: usize = 3;

/// Longest pause before an effect.
const PAUSE_MAX_MS: u64 = 350;

/// Treatment of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fate {
    /// Takes effect and is answered.
    Prompt,
    /// The same after a pause.
    Slow,
    /// The connection is reset, and nothing takes effect.
    ResetBefore,
    /// It takes effect, and then the connection is reset.
    ResetAfter,
    /// The connection is reset, and the write takes effect after a pause.
    LateAfterReset,
    /// It takes effect after a pause, and no reply is ever sent.
    Silent,
    /// 202, and it takes effect after a pause.
    Accepted,
    /// 502, and it takes effect after a pause.
    BadGateway,
    /// A reply that two readers take differently; it took effect.
    BadFraming,
    /// Two replies.
    Twice,
    /// Interim replies before the final one.
    Interim,
    /// The connection is closed after the reply, without announcement.
    CloseAtRest,
    /// The connection is reset once the first byte of the next request arrives.
    CloseAtReuse,
}

impl Fate {
    /// Those that are not [`Fate::Prompt`].
    pub const BAD: [Self; 12] = [
        Self::Slow,
        Self::ResetBefore,
        Self::ResetAfter,
        Self::LateAfterReset,
        Self::Silent,
        Self::Accepted,
        Self::BadGateway,
        Self::BadFraming,
        Self::Twice,
        Self::Interim,
        Self::CloseAtRest,
        Self::CloseAtReuse,
    ];

    /// Fate and pause of the write `op`: the same for the same seed. One in six is not prompt.
    fn from_seed(seed: u64, op: &str) -> (Self, Duration) {
        let number = op.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte));
        let mut seed = Seed::new(number);
        let pause = seed.time_ms(1, PAUSE_MAX_MS);
        if seed.below(6) > 0 {
            return (Self::Prompt, pause);
        }
        let at = usize::try_from(seed.below(Self::BAD.len() as u64)).expect("small");
        (Self::BAD[at], pause)
    }
}

/// The origin, for as long as it lives.
#[derive(Debug)]
pub struct Origin {
    base: String,
    records: Arc<Records>,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct Records {
    seed: u64,
    /// Applied writes by path.
    journals: Mutex<HashMap<String, Vec<Entry>>>,
    /// Number of writes by fate.
    fates: Mutex<HashMap<Fate, usize>>,
    /// The last times at which the thread looked for what has arrived.
    looks: Mutex<VecDeque<Instant>>,
}

/// Treatment of a connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Keep,
    Close,
    Reset,
    ResetAtReuse,
}

impl Origin {
    /// Starts one whose writes have the fates that `seed` gives.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(seed: &mut Seed) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let records = Arc::new(Records { seed: seed.next_u64(), ..Records::default() });
        let stop = CancellationToken::new();
        let serving = serve(listener, Arc::clone(&records), stop.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(serving);
        });
        Self { base, records, stop }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Applied writes of a path, in their order.
    pub fn entries(&self, path: &str) -> Vec<Entry> {
        self.records.journals().get(path).cloned().unwrap_or_default()
    }

    /// Number of writes that each fate has met.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn fates(&self) -> HashMap<Fate, usize> {
        self.records.fates.lock().unwrap().clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(listener: std::net::TcpListener, records: Arc<Records>, stop: CancellationToken) {
    tokio::spawn(Arc::clone(&records).mark_time());
    listener.set_nonblocking(true).expect("a socket");
    let listener = TcpListener::from_std(listener).expect("a socket");
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                tokio::spawn(Arc::clone(&records).talk(stream));
            }
        }
    }
}

impl Records {
    fn journals(&self) -> MutexGuard<'_, HashMap<String, Vec<Entry>>> {
        self.journals.lock().unwrap()
    }

    async fn mark_time(self: Arc<Self>) {
        loop {
            self.note_look();
            tokio::time::sleep(LOOK).await;
        }
    }

    fn note_look(&self) {
        let mut looks = self.looks.lock().unwrap();
        looks.push_back(Instant::now());
        let surplus = looks.len().saturating_sub(LOOKS);
        looks.drain(..surplus);
    }

    /// A request that is read now was not there before. On a busy machine the thread may stand
    /// still between its arrival and that.
    fn earliest_arrival(&self) -> Instant {
        self.looks.lock().unwrap().front().copied().unwrap_or_else(Instant::now)
    }

    async fn talk(self: Arc<Self>, mut stream: TcpStream) {
        let mut buffer = Vec::new();
        while let Some(mut request) = OriginRequest::read(&mut stream, &mut buffer).await {
            request.arrived = request.arrived.min(self.earliest_arrival());
            let (reply, after) = Arc::clone(&self).carry_out(request).await;
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
            match after {
                After::Keep => continue,
                After::Close => return,
                After::Reset => {}
                After::ResetAtReuse => drop(stream.readable().await),
            }
            let _ = stream.set_zero_linger();
            return;
        }
    }

    async fn carry_out(self: Arc<Self>, request: OriginRequest) -> (String, After) {
        if request.method == "GET" {
            let length = self.journals().get(&request.path).map_or(0, Vec::len);
            return (reply("200 OK", &request.op, &length.to_string()), After::Keep);
        }
        let (fate, pause) = Fate::from_seed(self.seed, &request.op);
        *self.fates.lock().unwrap().entry(fate).or_default() += 1;
        let op = request.op.clone();
        match fate {
            Fate::ResetBefore => return (String::new(), After::Reset),
            Fate::LateAfterReset => {
                self.apply_later(request, pause);
                return (String::new(), After::Reset);
            }
            Fate::Accepted => {
                self.apply_later(request, pause);
                return (reply("202 Accepted", &op, ""), After::Keep);
            }
            Fate::BadGateway => {
                self.apply_later(request, pause);
                return (reply("502 Bad Gateway", &op, ""), After::Keep);
            }
            Fate::Slow | Fate::Silent => tokio::time::sleep(pause).await,
            _ => {}
        }
        if !self.apply(&request) {
            return (String::new(), After::Reset);
        }
        let done = reply("200 OK", &op, "ok");
        match fate {
            Fate::ResetAfter => (String::new(), After::Reset),
            // The guard closes the connection.
            Fate::Silent => (String::new(), After::Keep),
            Fate::BadFraming => {
                (done.replace("\r\n\r\n", "\r\ncontent-length: 3\r\n\r\n"), After::Keep)
            }
            Fate::Twice => (done.repeat(2), After::Keep),
            Fate::Interim => {
                let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(3);
                (format!("HTTP/1.1 100 Continue\r\n\r\n{interim}{done}"), After::Keep)
            }
            Fate::CloseAtRest => (done, After::Close),
            Fate::CloseAtReuse => (done, After::ResetAtReuse),
            _ => (done, After::Keep),
        }
    }

    /// Applies a write whose connection says nothing of it any more.
    fn apply_later(self: Arc<Self>, request: OriginRequest, pause: Duration) {
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            self.apply(&request);
        });
    }

    /// Returns `false` where the time for it is over: then it never takes effect.
    fn apply(&self, request: &OriginRequest) -> bool {
        let mut journals = self.journals();
        let is_in_time = request.arrived.elapsed() <= EFFECT_MAX;
        if is_in_time {
            let entry = Entry { token: request.token, op: request.op.clone() };
            journals.entry(request.path.clone()).or_default().push(entry);
        }
        is_in_time
    }
}

/// A reply that names the operation that it is for.
fn reply(status: &str, op: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nx-op: {op}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}
