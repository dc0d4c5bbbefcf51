//! A worker from the director's side: each order is narrated when its report arrives.

use serde_json::Value;

use super::narrator::{EventFigures, Narrator};
use super::orders::{Answer, Line, Order, Report};
use super::record::{Kind, SpanKind};
use crate::process::Process;
use fence_terminal::exit::Failure;
use fence_terminal::readable::readable;

/// A worker with the document and the lock that it works on.
#[derive(Debug)]
pub(super) struct Actor {
    name: &'static str,
    process: Process,
    /// Key of the document, and name of its lock.
    key: String,
    fenced: bool,
    /// The lease that it got.
    pub(super) grant: Grant,
}

/// Grant of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Grant {
    pub(super) token: u64,
    pub(super) lease_id: String,
    /// When the grant came in, on the machine's clock.
    pub(super) at_ms: u64,
}

impl Actor {
    pub(super) fn new(name: &'static str, process: Process, key: &str, fenced: bool) -> Self {
        let key = key.to_owned();
        Self { name, process, key, fenced, grant: Grant::default() }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Sends an order, whose report is received later.
    pub(super) async fn begin(&mut self, order: &Order) -> Result<(), Failure> {
        self.process.send_order(order).await
    }

    pub(super) async fn next_report(&mut self) -> Result<Line, Failure> {
        let line: Line = self.process.receive_report().await?;
        match line.report {
            Report::Failed { message } => Err(self.process.failed(&message)),
            _ => Ok(line),
        }
    }

    async fn request(&mut self, order: &Order) -> Result<Line, Failure> {
        self.begin(order).await?;
        self.next_report().await
    }

    fn unexpected(&self, line: &Line) -> Failure {
        self.process.failed(&format!("it reported {:?}", line.report))
    }

    /// The order to take the lock.
    pub(super) fn acquire(&self, ttl_ms: u64, wait_ms: u64, renewed: bool) -> Order {
        Order::Acquire { lock: self.key.clone(), ttl_ms, wait_ms, renewed }
    }

    /// Takes the lock at once.
    pub(super) async fn take(
        &mut self,
        narrator: &mut Narrator,
        ttl_ms: u64,
        renewed: bool,
    ) -> Result<(), Failure> {
        let line = self.request(&self.acquire(ttl_ms, 0, renewed)).await?;
        self.granted(narrator, &line)
    }

    /// Narrates a grant.
    pub(super) fn granted(&mut self, narrator: &mut Narrator, line: &Line) -> Result<(), Failure> {
        let Report::Acquired { token, lease_id, ttl_ms, waited_ms, .. } = &line.report else {
            return Err(self.unexpected(line));
        };
        self.grant = Grant { token: *token, lease_id: lease_id.clone(), at_ms: line.at_ms };
        let waited = match *waited_ms {
            0 => String::new(),
            ms => format!(", after {} in the queue", readable(ms)),
        };
        if *waited_ms > 0 {
            narrator.span(self.name, SpanKind::Wait, (line.from_ms, line.at_ms), "waits");
        }
        let text = format!(
            "is granted {}: token {token}, a lease of {}{waited}",
            self.key,
            readable(*ttl_ms)
        );
        let figures = EventFigures { token: Some(*token), status: None };
        narrator.event_at(line.at_ms, self.name, Kind::Granted, &text, figures)
    }

    /// Draws the lease from its grant to its end.
    pub(super) fn lease_until(&self, narrator: &mut Narrator, ended_ms: u64) {
        let ms = (self.grant.at_ms, ended_ms);
        narrator.span(self.name, SpanKind::Lease, ms, &format!("token {}", self.grant.token));
    }

    /// Reads the document.
    pub(super) async fn read(&mut self, narrator: &mut Narrator) -> Result<Answer, Failure> {
        self.begin(&self.read_order()).await?;
        self.has_read(narrator).await
    }

    /// The order to read the document.
    pub(super) fn read_order(&self) -> Order {
        Order::Read { key: self.key.clone(), fenced: self.fenced }
    }

    /// Receives and narrates the reply to a read.
    pub(super) async fn has_read(&mut self, narrator: &mut Narrator) -> Result<Answer, Failure> {
        let line = self.next_report().await?;
        let answer = self.answer(&line)?;
        if !answer.is_success() {
            return Err(self
                .process
                .failed(&format!("its read was answered {}", described(&answer))));
        }
        let text = format!("reads {}", shown(answer.document.as_ref()));
        let figures = EventFigures { token: None, status: answer.status };
        narrator.event_at(line.at_ms, self.name, Kind::Step, &text, figures)?;
        Ok(answer)
    }

    /// Computes the next version of the document.
    pub(super) async fn add(
        &mut self,
        narrator: &mut Narrator,
        amount: i64,
        by: &str,
    ) -> Result<(), Failure> {
        let line = self.request(&Order::Add { amount, by: by.to_owned() }).await?;
        let Report::Added { document } = &line.report else { return Err(self.unexpected(&line)) };
        let text = format!("computes {}", shown(Some(document)));
        narrator.event_at(line.at_ms, self.name, Kind::Step, &text, EventFigures::default())
    }

    /// The order to write what was computed.
    pub(super) fn write_order(&self) -> Order {
        Order::Write { key: self.key.clone(), fenced: self.fenced }
    }

    /// The order to send half of it.
    pub(super) fn half_order(&self) -> Order {
        Order::WriteHalf { key: self.key.clone(), fenced: self.fenced }
    }

    /// Writes it and narrates the reply.
    pub(super) async fn write(&mut self, narrator: &mut Narrator) -> Result<Answer, Failure> {
        self.begin(&self.write_order()).await?;
        self.has_written(narrator, "writes").await.map(|(answer, _)| answer)
    }

    /// Receives and narrates the reply to a write.
    pub(super) async fn has_written(
        &mut self,
        narrator: &mut Narrator,
        verb: &str,
    ) -> Result<(Answer, Line), Failure> {
        let line = self.next_report().await?;
        let answer = self.answer(&line)?;
        let kind = if answer.is_success() { Kind::Applied } else { Kind::Refused };
        let token = self.fenced.then_some(self.grant.token);
        let with = token
            .map_or_else(|| "without a token".to_owned(), |token| format!("with token {token}"));
        let text = format!("{verb} {with}: {}", described(&answer));
        let figures = EventFigures { token, status: answer.status };
        narrator.event_at(line.at_ms, self.name, kind, &text, figures)?;
        Ok((answer, line))
    }

    /// Reason why the SDK no longer trusts the lease; `None` if it does.
    pub(super) async fn check(&mut self) -> Result<Option<String>, Failure> {
        let line = self.request(&Order::Check).await?;
        let Report::Checked { lost } = line.report else { return Err(self.unexpected(&line)) };
        Ok(lost)
    }

    /// Releases the lock.
    pub(super) async fn release(&mut self, narrator: &mut Narrator) -> Result<(), Failure> {
        let line = self.request(&Order::Release).await?;
        let Report::Released { lost } = &line.report else { return Err(self.unexpected(&line)) };
        let (kind, text) = match lost {
            None => (Kind::Step, "releases the lock".to_owned()),
            Some(lost) => (Kind::Delay, format!("cannot release the lock: {lost}")),
        };
        if lost.is_none() {
            self.lease_until(narrator, line.at_ms);
        }
        narrator.event_at(line.at_ms, self.name, kind, &text, EventFigures::default())
    }

    pub(super) fn answer(&self, line: &Line) -> Result<Answer, Failure> {
        match &line.report {
            Report::Answered(answer) => Ok(answer.clone()),
            _ => Err(self.unexpected(line)),
        }
    }
}

/// A reply in one line.
pub(super) fn described(answer: &Answer) -> String {
    let Answer { status, problem, error, done, .. } = answer;
    match (status, problem, error) {
        (Some(status), Some(problem), _) => {
            format!("{status} {}: {}", problem.code, problem.detail)
        }
        (Some(status), None, _) => status.to_string(),
        // A SQLSTATE of the PostgreSQL port.
        (None, _, Some(error)) if error.code.starts_with("FE4") => {
            format!("ERROR {}: {}", error.code, error.text)
        }
        (None, _, Some(error)) => format!("-{} {}", error.code, error.text),
        (None, _, None) => done.clone().unwrap_or_else(|| "+OK".to_owned()),
    }
}

/// An account in one line.
pub(super) fn shown(document: Option<&Value>) -> String {
    let Some(document) = document else { return "nothing".to_owned() };
    let balance = &document["balance"];
    format!("balance {balance} ({})", log_of(document).join(", "))
}

/// Bookings of an account.
pub(super) fn log_of(document: &Value) -> Vec<String> {
    let entries = document["log"].as_array().into_iter().flatten();
    entries.filter_map(|entry| entry.as_str().map(ToOwned::to_owned)).collect()
}
