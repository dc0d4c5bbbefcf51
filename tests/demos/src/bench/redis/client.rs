//! A client that sends commands made beforehand and counts replies: it costs the machine little,
//! and the same for every side.

use std::fmt;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::bench::load::Client;
use crate::bench::resp;
use fence_terminal::exit::{Failure, code};

/// Number of keys below each prefix.
const KEYS: u32 = 10_000;
/// Batches with random keys of each client; it sends them in turn.
const BATCHES: usize = 32;
/// Keys in one write before anything is measured.
const FILL_AT_ONCE: usize = 100;

/// Operation that is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) verb: &'static str,
    pub(super) value_bytes: usize,
    pub(super) pipeline: u8,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.value_bytes {
            bytes if bytes >= 1024 && bytes % 1024 == 0 => format!("{} KiB", bytes / 1024),
            bytes => format!("{bytes} B"),
        };
        write!(f, "{} {size}, P{}", self.verb, self.pipeline)
    }
}

/// A connection with its batches.
pub(super) struct Pipe {
    stream: TcpStream,
    batches: Vec<Vec<u8>>,
    /// Replies to a batch.
    replies: u32,
    received: Vec<u8>,
    random: u64,
    keys: Keys,
}

/// The keys of a client.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Prefix of the keys; of one length on each side.
    pub(super) prefix: String,
    /// By how many clients the keys of a side are divided: each has as many, below its own prefix.
    pub(super) shares: u32,
}

impl Keys {
    fn count(&self) -> u32 {
        KEYS / self.shares
    }
}

impl Pipe {
    /// Connects to `HOST:PORT`, and logs in with a token.
    pub(super) async fn open(
        at: &str,
        credential: Option<&str>,
        keys: Keys,
        number: u16,
    ) -> Result<Self, Failure> {
        let failed = |error: String| Failure::new(code::UNAVAILABLE, format!("{at}: {error}"));
        let stream = TcpStream::connect(at).await.map_err(|error| failed(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        let random = (u64::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut pipe =
            Self { stream, batches: Vec::new(), replies: 1, received: Vec::new(), random, keys };
        if let Some(credential) = credential {
            pipe.batches = vec![request(&[b"AUTH", b"fence", credential.as_bytes()])];
            pipe.once(0).await.map_err(failed)?;
        }
        Ok(pipe)
    }

    async fn fill(&mut self, value_bytes: usize) -> Result<(), Failure> {
        let value = vec![b'x'; value_bytes];
        let numbers: Vec<u32> = (0..self.keys.count()).collect();
        for numbers in numbers.chunks(FILL_AT_ONCE) {
            let keys = numbers.iter().map(|number| key(&self.keys.prefix, *number));
            self.batches = vec![keys.flat_map(|key| command("SET", &key, &value)).collect()];
            self.replies = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            self.once(0).await.map_err(|error| Failure::new(code::UNAVAILABLE, error))?;
        }
        Ok(())
    }

    /// Makes the batches that are sent from now on.
    fn prepare(&mut self, work: Work) {
        self.replies = u32::from(work.pipeline);
        self.received = Vec::with_capacity(usize::from(work.pipeline) * (work.value_bytes + 32));
        let value = vec![b'x'; work.value_bytes];
        let batches = (0..BATCHES).map(|_| {
            let numbers: Vec<u32> = (0..work.pipeline).map(|_| self.next_random()).collect();
            let keys = numbers.into_iter().map(|number| key(&self.keys.prefix, number));
            keys.flat_map(|key| command(work.verb, &key, &value)).collect()
        });
        self.batches = batches.collect();
    }

    /// xorshift: which keys are taken, the same in each run.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random % u64::from(self.keys.count())).unwrap_or(0)
    }
}

impl Client for Pipe {
    fn weight(&self) -> u64 {
        u64::from(self.replies)
    }

    async fn once(&mut self, number: u64) -> Result<(), String> {
        let count = self.batches.len().max(1) as u64;
        let at = usize::try_from(number % count).unwrap_or(0);
        let batch = self.batches.get(at).ok_or("nothing to send")?;
        self.stream.write_all(batch).await.map_err(|error| error.to_string())?;
        self.received.clear();
        let mut seen = 0;
        let mut from = 0;
        while seen < self.replies {
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err("the connection was closed".to_owned()),
                Ok(_) => seen += count_replies(&self.received, &mut from)?,
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

/// Prepares all clients of a side, and writes every key with a value of the right size.
pub(super) async fn fill(pipes: &mut [Pipe], work: Work) -> Result<(), Failure> {
    for (index, pipe) in pipes.iter_mut().enumerate() {
        // Keys that are not divided are those of each.
        if index == 0 || pipe.keys.shares > 1 {
            pipe.fill(work.value_bytes).await?;
        }
        pipe.prepare(work);
    }
    Ok(())
}

fn key(prefix: &str, number: u32) -> String {
    format!("{prefix}{number:06}")
}

fn command(verb: &str, key: &str, value: &[u8]) -> Vec<u8> {
    match verb {
        "GET" => request(&[b"GET", key.as_bytes()]),
        _ => request(&[verb.as_bytes(), key.as_bytes(), value]),
    }
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    resp::encode(&mut out, args);
    out
}

/// Counts the whole replies from `from`, which moves behind them. An error and a missing key end
/// the benchmark: it would measure something else.
fn count_replies(bytes: &[u8], from: &mut usize) -> Result<u32, String> {
    let mut count = 0;
    while let Some(line) = bytes[*from..].windows(2).position(|end| end == b"\r\n") {
        let head = &bytes[*from..*from + line];
        let after = *from + line + 2;
        let end = match head.first() {
            Some(b'+') => after,
            Some(b'$') if head != b"$-1" => {
                let length = std::str::from_utf8(&head[1..]).ok().and_then(|n| n.parse().ok());
                let length: usize = length.ok_or("a strange length")?;
                after + length + 2
            }
            _ => return Err(format!("it replied {}", String::from_utf8_lossy(head))),
        };
        if end > bytes.len() {
            break;
        }
        *from = end;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_counted_once_however_they_come() {
        let replies = b"+OK\r\n$3\r\nabc\r\n$0\r\n\r\n+OK\r\n";
        for cut in 0..replies.len() {
            let mut from = 0;
            let first = count_replies(&replies[..cut], &mut from).unwrap();
            assert!(from <= cut);
            assert_eq!(first + count_replies(replies, &mut from).unwrap(), 4, "{cut}");
            assert_eq!(from, replies.len());
        }
    }

    #[test]
    fn refusals_and_missing_keys_end_it() {
        for bad in ["-FENCED token 1 …\r\n", "$-1\r\n", "*1\r\n", "$x\r\n"] {
            assert!(count_replies(bad.as_bytes(), &mut 0).is_err(), "{bad}");
        }
    }
}
