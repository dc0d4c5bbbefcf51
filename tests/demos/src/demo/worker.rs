//! A worker: a process that takes a lock, reads a document, computes, and writes it back.
//!
//! It is naive on purpose. It takes for granted that it still holds the lock when it writes, and
//! does not check the clock: a check before the write would only make the gap smaller, because
//! the process can be stopped right after it.

mod answers;
mod count;
mod documents;
mod keys;
mod rows;
mod slow;

use std::time::Duration;

use fence_client::clock;
use fence_client::protocol::wire::lock::LeaseReply;
use fence_client::{Client, Error, Lease};
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub(in crate::demo) use self::answers::Objects;
pub(in crate::demo) use self::documents::Documents;
use self::documents::header;
use self::slow::SlowWrite;
use super::orders::{Line, Order, Report};
use fence_terminal::exit::Failure;
use fence_terminal::output::emit;

/// Arguments of a worker.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    name: String,
    #[arg(long)]
    lock_server: String,
    /// Prefix of the URL of an object, or the URL of a Redis or a PostgreSQL, which may hold a
    /// password.
    #[arg(long, env = BASE, hide_env_values = true)]
    base: String,
}

/// Variable with the base of a worker's documents.
pub(super) const BASE: &str = "FENCE_DEMO_BASE";

/// The arguments that make this program a worker.
pub(super) fn role(name: &str, lock_server: &str) -> Vec<String> {
    vec!["demo-worker".to_owned(), format!("--name={name}"), format!("--lock-server={lock_server}")]
}

#[derive(Debug)]
struct Worker {
    client: Client,
    documents: Documents,
    held: Option<Held>,
    document: Value,
    slow: Option<SlowWrite>,
}

/// The lease, renewed by the SDK or left alone.
#[derive(Debug)]
enum Held {
    Renewed(Box<Lease>),
    Unattended(Box<LeaseReply>),
}

impl Held {
    fn grant(&self) -> &LeaseReply {
        match self {
            Self::Renewed(lease) => lease.grant(),
            Self::Unattended(grant) => grant,
        }
    }
}

/// Carries out orders until there are no more.
pub(crate) async fn work(args: Args, mut orders: mpsc::Receiver<String>) -> Result<(), Failure> {
    let client = Client::builder().lock_server(&args.lock_server).owner(&args.name).build()?;
    let documents = Documents::new(&args.base)?;
    let mut worker = Worker { client, documents, held: None, document: Value::Null, slow: None };
    while let Some(line) = orders.recv().await {
        let order = serde_json::from_str(&line)
            .map_err(|error| Failure::internal(format!("{line:?} is no order: {error}")))?;
        let from_ms = clock::now().ms();
        let done = worker.carry_out(order).await;
        if let Some(report) = done.unwrap_or_else(|message| Some(Report::Failed { message })) {
            report_line(from_ms, report)?;
        }
    }
    Ok(())
}

/// Reports to the director.
fn report_line(from_ms: u64, report: Report) -> Result<(), Failure> {
    let line = Line { from_ms, at_ms: clock::now().ms(), report };
    let mut line = serde_json::to_vec(&line)
        .map_err(|error| Failure::internal(format!("no JSON: {error}")))?;
    line.push(b'\n');
    emit(&line)
}

impl Worker {
    async fn carry_out(&mut self, order: Order) -> Result<Option<Report>, String> {
        let report = match order {
            Order::Acquire { lock, ttl_ms, wait_ms, renewed } => {
                self.acquire(&lock, ttl_ms, wait_ms, renewed).await.map_err(text_of)?
            }
            Order::Read { key, fenced } => {
                let lease = lease(&self.held, fenced)?;
                let answer = self.documents.get(&key, lease).await?;
                self.document = answer.document.clone().unwrap_or_default();
                Report::Answered(answer)
            }
            Order::Add { amount, by } => {
                add(&mut self.document, amount, &by);
                Report::Added { document: self.document.clone() }
            }
            Order::Write { key, fenced } => {
                let lease = lease(&self.held, fenced)?;
                let body = self.document.to_string();
                Report::Answered(self.documents.put(&key, lease, body).await?)
            }
            Order::WriteHalf { key, fenced } => {
                let url = self.documents.objects()?.url(&key);
                let lease = lease(&self.held, fenced)?;
                let body = self.document.to_string();
                let write = SlowWrite::begin(&url, header(lease), body).await;
                let write = self.slow.insert(write.map_err(|error| error.to_string())?);
                Report::Half { sent_bytes: write.sent(), body_bytes: write.len() }
            }
            Order::WriteRest => {
                let write = self.slow.take().ok_or("no write was begun")?;
                Report::Answered(write.finish().await.map_err(|error| error.to_string())?)
            }
            Order::Check => Report::Checked { lost: self.check()? },
            Order::Release => Report::Released { lost: self.release().await? },
            Order::CountDown { tasks, key, lock } => {
                let objects = self.documents.objects()?;
                count::down(&self.client, objects, tasks, &key, lock.as_deref()).await?;
                return Ok(None);
            }
        };
        Ok(Some(report))
    }

    async fn acquire(
        &mut self,
        lock: &str,
        ttl_ms: u64,
        wait_ms: u64,
        renewed: bool,
    ) -> Result<Report, Error> {
        let request = self.client.lock(lock).ttl(Duration::from_millis(ttl_ms));
        let request = request.wait(Duration::from_millis(wait_ms));
        let held = if renewed {
            Held::Renewed(Box::new(request.acquire().await?))
        } else {
            Held::Unattended(Box::new(request.acquire_detached().await?))
        };
        let grant = self.held.insert(held).grant();
        Ok(Report::Acquired {
            token: grant.token.get(),
            lease_id: grant.lease_id.to_string(),
            ttl_ms: grant.ttl_ms,
            waited_ms: grant.waited_ms,
        })
    }

    /// Reason why the SDK no longer trusts the lease: the check before every fenced call of its
    /// own.
    fn check(&self) -> Result<Option<String>, String> {
        match &self.held {
            Some(Held::Renewed(lease)) => Ok(lease.check().err().map(text_of)),
            _ => Err("the SDK renews no lease here".to_owned()),
        }
    }

    async fn release(&mut self) -> Result<Option<String>, String> {
        let released = match self.held.take() {
            Some(Held::Renewed(lease)) => lease.release().await,
            Some(Held::Unattended(grant)) => {
                self.client.locks().release(&grant.lock, grant.lease_id).await
            }
            None => return Err("nothing is held".to_owned()),
        };
        Ok(released.err().map(text_of))
    }
}

/// The lease whose token goes with a call.
fn lease(held: &Option<Held>, fenced: bool) -> Result<Option<&LeaseReply>, String> {
    match (fenced, held) {
        (false, _) => Ok(None),
        (true, Some(held)) => Ok(Some(held.grant())),
        (true, None) => Err("there is no token without a lease".to_owned()),
    }
}

fn text_of(error: Error) -> String {
    error.to_string()
}

/// The next version of an account: what was there, and one more deposit.
fn add(document: &mut Value, amount: i64, by: &str) {
    let balance = document["balance"].as_i64().unwrap_or(0) + amount;
    let mut log = document["log"].as_array().cloned().unwrap_or_default();
    log.push(json!(format!("{by} +{amount}")));
    *document = json!({ "balance": balance, "log": log });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deposit_keeps_what_was_there() {
        let mut document = json!({ "balance": 100, "log": ["opened"] });
        add(&mut document, 30, "A");
        assert_eq!(document, json!({ "balance": 130, "log": ["opened", "A +30"] }));
    }
}
