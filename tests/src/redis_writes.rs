//! Writes that note themselves in the journal of their lock, in every way a driver can write.

use std::io;
use std::time::Duration;

use crate::journal::WriteReport;
use crate::key_file::{lease_id, unsigned};
use crate::resp_client::{Resp, RespClient, request};

/// Time that a client waits for a reply before it closes the connection.
const HEARING: Duration = Duration::from_secs(3);

/// The rules under which the keys of `orders/{id}` belong to that lock.
pub const RULES: [&str; 4] =
    ["--rule", "orders:{id}:**=orders/{id}", "--rule", "journal:orders:{id}=orders/{id}"];

/// A token of `orders/{id}`, as a lock server would have granted it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The number.
    pub token: u64,
    /// The `id` of the lock `orders/{id}`.
    pub id: String,
    /// The header value; the port takes it as a password.
    pub credential: String,
}

impl Grant {
    /// A new lease of `orders/{id}`.
    pub fn new(token: u64, id: &str) -> Self {
        let credential = unsigned(token, &format!("orders/{id}"), lease_id());
        Self { token, id: id.to_owned(), credential }
    }

    /// The key of the journal.
    pub fn journal(&self) -> String {
        journal(&self.id)
    }

    /// A key of data.
    pub fn key(&self, name: &str) -> String {
        format!("orders:{}:{name}", self.id)
    }
}

/// The key of the journal of `orders/{id}`.
pub fn journal(id: &str) -> String {
    format!("journal:orders:{id}")
}

/// Commands by which the writes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// RPUSH to the journal, all in one piece: the write is its own note.
    Plain,
    /// MULTI, INCR, RPUSH, EXEC for each.
    Multi,
    /// EVAL of a script with INCR and RPUSH for each.
    Script,
    /// `FENCE credential RPUSH …` for each, on a connection without a token.
    OneShot,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Multi, Self::Script, Self::OneShot];

    /// `true` if the connection presents its token before.
    pub fn logs_in(self) -> bool {
        self != Self::OneShot
    }

    fn replies_a_write(self) -> usize {
        if self == Self::Multi { 4 } else { 1 }
    }

    fn bytes(self, grant: &Grant, op: &str) -> Vec<u8> {
        let journal = grant.journal();
        let count = grant.key("count");
        let entry = format!("{} {op}", grant.token);
        match self {
            Self::Plain => request(&["RPUSH", &journal, &entry]),
            Self::Multi => [
                request(&["MULTI"]),
                request(&["INCR", &count]),
                request(&["RPUSH", &journal, &entry]),
                request(&["EXEC"]),
            ]
            .concat(),
            Self::Script => request(&["EVAL", SCRIPT, "2", &count, &journal, &entry]),
            Self::OneShot => request(&["FENCE", &grant.credential, "RPUSH", &journal, &entry]),
        }
    }
}

const SCRIPT: &str = "redis.call('INCR', KEYS[1]) return redis.call('RPUSH', KEYS[2], ARGV[1])";

/// Makes these writes in one piece, and returns the report of each. An error of the connection
/// leaves the rest unknown.
///
/// # Panics
/// If a reply is one that no write may get.
pub async fn write(
    client: &mut RespClient,
    way: Way,
    grant: &Grant,
    ops: &[String],
) -> (Vec<WriteReport>, io::Result<()>) {
    let bytes: Vec<u8> = ops.iter().flat_map(|op| way.bytes(grant, op)).collect();
    let mut reports = vec![WriteReport::Unknown; ops.len()];
    if let Err(error) = patient(client.try_send_raw(&bytes)).await {
        return (reports, Err(error));
    }
    for one in &mut reports {
        let mut replies = Vec::new();
        for _ in 0..way.replies_a_write() {
            match patient(client.next()).await {
                Ok(reply) => replies.push(reply),
                Err(error) => return (reports, Err(error)),
            }
        }
        *one = judge(way, &replies);
    }
    (reports, Ok(()))
}

/// The result, or a time-out: a client that receives nothing stops.
///
/// # Errors
/// The inner one, or `TimedOut`.
pub async fn patient<T>(call: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(HEARING, call).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}

/// Report that the replies to one write make.
fn judge(way: Way, replies: &[Resp]) -> WriteReport {
    match (way, replies) {
        (Way::Multi, [begin, _, _, done]) => {
            let executed = replies.iter().filter(|reply| matches!(reply, Resp::Integer(_)));
            assert_eq!(executed.count(), 0, "a piece of a transaction was executed: {replies:?}");
            match done {
                Resp::Array(_) => WriteReport::Applied,
                _ if replies.iter().any(is_unknown) => WriteReport::Unknown,
                _ if begin.error().is_some() => refusal(begin),
                _ if done.is_error("EXECABORT") => WriteReport::Refused,
                _ => refusal(done),
            }
        }
        (_, [Resp::Integer(_)]) => WriteReport::Applied,
        (_, [other]) => refusal(other),
        _ => panic!("{way:?}: {replies:?}"),
    }
}

fn is_unknown(reply: &Resp) -> bool {
    reply.error().is_some_and(|text| text.contains("unknown outcome"))
}

/// Report that an error makes of its command.
///
/// # Panics
/// If it is no error, or not one of the port's.
pub fn refusal(reply: &Resp) -> WriteReport {
    let text = reply.error().unwrap_or_else(|| panic!("no error: {reply:?}"));
    match text.split(' ').next().unwrap_or_default() {
        "UNKNOWN" => WriteReport::Unknown,
        // What was on its way when the hand-over ended the connection.
        "FENCED" if text.contains("unknown outcome") => WriteReport::Unknown,
        "FENCED" | "NOTOKEN" | "UNAVAILABLE" => WriteReport::Refused,
        _ => panic!("no write may get this: {text}"),
    }
}
