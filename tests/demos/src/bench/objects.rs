//! `fence bench guard --objects`: fenced writes of objects, beside the least that their stores
//! could do: raw Redis with the very script calls that the guard sends, a connection for each
//! client, and a bare redb file whose writers share commits.

use std::path::Path;

use redb::{Database, TableDefinition};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

use super::Load;
use super::guard::{NAMESPACE, VALUE, Writer};
use super::load::{self, Client, Counted, Side};
use super::report::{Report, Row};
use super::resp;
use super::server::Server;
use crate::own_redis::OwnRedis;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::{Output, say};

/// Numbers of clients without `--clients`.
const CLIENTS: [u16; 3] = [1, 16, 64];
const TABLE: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
/// Writes that share a commit at most.
const BATCH: usize = 1_024;

/// Measures; the exit code.
pub(super) async fn bench(load: Load, output: Output) -> Result<u8, Failure> {
    let redis = OwnRedis::start("install redis-server").await?;
    let locks = Server::start("lock-server", "embedded:", &NAMESPACE).await?;
    let on_redis = Server::start("fenced-store", redis.url(), &NAMESPACE).await?;
    let on_redb = Server::start("fenced-store", "embedded:", &NAMESPACE).await?;
    let failed = |error| Failure::new(code::UNAVAILABLE, error);
    let folder = TempDir::new().map_err(|error| failed(error.to_string()))?;
    let group = Group::start(folder.path()).map_err(failed)?;
    let redis_alone = [("redis", redis.pid())];
    let with_redis = [("redis", redis.pid()), ("fenced-store", on_redis.pid())];
    let with_redb = [("fenced-store", on_redb.pid())];
    let mut report = Report::new(load.rounds, load.time());
    let mut number = 0;
    for clients in load.clients.map_or(CLIENTS.to_vec(), |clients| vec![clients]) {
        let mut raw = Vec::new();
        let mut fenced = Vec::new();
        for _ in 0..clients {
            number += 1;
            let writer = Writer::open(&locks.url, &on_redis.url, None, number).await;
            let mut writer = writer.map_err(failed)?;
            let call = script_call(redis.url(), &mut writer).await.map_err(failed)?;
            let connection = resp::Connection::open(redis.url()).await.map_err(failed)?;
            raw.push(Writes::Raw { connection, call });
            fenced.push(Writes::Guard(writer));
        }
        let sides = [
            ("raw Redis, the same script", &mut raw[..], &redis_alone[..]),
            ("objects, redis", &mut fenced[..], &with_redis[..]),
        ];
        report.rows.push(compare("PUT 100 B, redis", load, sides).await?);
        let mut bare = Vec::new();
        let mut fenced = Vec::new();
        for _ in 0..clients {
            number += 1;
            let writer = Writer::open(&locks.url, &on_redb.url, None, number).await;
            fenced.push(Writes::Guard(writer.map_err(failed)?));
            bare.push(Writes::Bare { group: group.clone(), key: format!("bench/{number}") });
        }
        let sides = [
            ("bare redb, shared commits", &mut bare[..], &[][..]),
            ("objects, embedded", &mut fenced[..], &with_redb[..]),
        ];
        report.rows.push(compare("PUT 100 B, embedded", load, sides).await?);
    }
    for server in [locks, on_redis, on_redb] {
        server.end().await;
    }
    output.print(&report, Report::table)?;
    Ok(code::OK)
}

async fn compare(what: &str, load: Load, sides: [Compared<'_>; 2]) -> Result<Row, Failure> {
    let clients = u16::try_from(sides[0].1.len()).unwrap_or(u16::MAX);
    let sides = sides.into_iter().map(|(name, clients, counted)| {
        let name = name.to_owned();
        Side { name, clients, counted }
    });
    let measured = load::compare(load.rounds, load.time(), sides.collect()).await?;
    let row = Row::new(what, clients, &measured);
    say(row.text().trim_end());
    Ok(row)
}

/// A name, its clients, and the processes whose CPU time counts.
type Compared<'a> = (&'static str, &'a mut [Writes], &'a [Counted]);

/// A client of any side.
enum Writes {
    /// Through the guard.
    Guard(Writer),
    /// The call of the guard's script, by itself.
    Raw { connection: resp::Connection, call: Vec<Vec<u8>> },
    /// A write in this process.
    Bare { group: Group, key: String },
}

impl Client for Writes {
    async fn begin(&mut self) -> Result<(), String> {
        match self {
            Self::Guard(writer) => writer.begin().await,
            Self::Raw { .. } | Self::Bare { .. } => Ok(()),
        }
    }

    async fn once(&mut self, _number: u64) -> Result<(), String> {
        match self {
            Self::Guard(writer) => writer.send("PUT", &VALUE).await,
            Self::Raw { connection, call } => {
                let args: Vec<&[u8]> = call.iter().map(Vec::as_slice).collect();
                connection.call(&args).await.map(|_| ())
            }
            Self::Bare { group, key } => group.put(key).await,
        }
    }
}

/// The script call that one PUT becomes, as Redis reports it.
async fn script_call(url: &str, writer: &mut Writer) -> Result<Vec<Vec<u8>>, String> {
    let mut monitor = resp::Connection::open(url).await?;
    monitor.call(&[b"MONITOR"]).await?;
    writer.send("PUT", &VALUE).await?;
    loop {
        let lines = String::from_utf8_lossy(monitor.reply().await?).into_owned();
        // Commands of the script itself are reported too.
        let is_call = |words: &Vec<Vec<u8>>| {
            words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"evalsha"))
        };
        if let Some(words) = lines.lines().map(quoted).find(is_call) {
            return Ok(words);
        }
    }
}

/// The arguments in a line of MONITOR: each in quotes, with escapes.
fn quoted(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = line.bytes();
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => word.extend(escaped(&mut bytes)),
                byte => word.push(byte),
            }
        }
        words.push(word);
    }
    words
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> Option<u8> {
    Some(match bytes.next()? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'x' => {
            let digits = [bytes.next()?, bytes.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        }
        byte => byte,
    })
}

/// A redb file, and a thread that commits together what waits.
#[derive(Clone)]
struct Group {
    writes: mpsc::Sender<(String, oneshot::Sender<Result<(), String>>)>,
}

impl Group {
    fn start(folder: &Path) -> Result<Self, String> {
        let file = Database::create(folder.join("bare.redb")).map_err(|error| error.to_string())?;
        let (writes, mut waiting) = mpsc::channel(BATCH);
        tokio::task::spawn_blocking(move || {
            let mut batch: Vec<(String, oneshot::Sender<_>)> = Vec::new();
            while let Some(first) = waiting.blocking_recv() {
                batch.push(first);
                while batch.len() < BATCH
                    && let Ok(next) = waiting.try_recv()
                {
                    batch.push(next);
                }
                let done = commit(&file, &batch);
                for (_, reply) in batch.drain(..) {
                    let _ = reply.send(done.clone());
                }
            }
        });
        Ok(Self { writes })
    }

    async fn put(&self, key: &str) -> Result<(), String> {
        let (reply, done) = oneshot::channel();
        let sent = self.writes.send((key.to_owned(), reply)).await;
        sent.map_err(|error| error.to_string())?;
        done.await.map_err(|error| error.to_string())?
    }
}

fn commit(
    file: &Database,
    batch: &[(String, oneshot::Sender<Result<(), String>>)],
) -> Result<(), String> {
    let all = || -> Result<(), redb::Error> {
        let transaction = file.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, _) in batch {
                table.insert(key.as_str(), VALUE.as_slice())?;
            }
        }
        transaction.commit()?;
        Ok(())
    };
    all().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_command_are_read_from_its_line() {
        let line = r#"+1339518083.107412 [0 127.0.0.1:60866] "evalsha" "a\"b" "\x00\\\n" "" "#;
        let expected: [&[u8]; 4] = [b"evalsha", b"a\"b", b"\x00\\\n", b""];
        assert_eq!(quoted(line), expected);
    }
}
