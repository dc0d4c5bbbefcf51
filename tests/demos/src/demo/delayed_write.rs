//! delayed-write: before a datastore that knows nothing of tokens, the older write is held up on its
//! way while the newer one arrives. A proxy that checks and forwards loses; the lane does not.

use super::account::{
    Account, DEPOSIT_A, DEPOSIT_B, DIRECTOR, LOCK_SERVER, TTL_B_MS, TTL_MS, WAIT_MS, WORKER_A,
    WORKER_B,
};
use super::actor::{Actor, shown};
use super::record::{Kind, SpanKind};
use super::stage::{Guarding, Stage, address};
use super::teller::{Known, Teller};
use super::upstream::{Entry, Order, What};
use crate::backing::Backing;
use crate::process::{Process, awaited};
use fence_terminal::exit::{Failure, code};

pub(super) const TITLE: &str = "An old write is on the wire while the new one arrives";
pub(super) const EXPLANATION: &str = "\
A datastore that knows nothing of tokens, a plain HTTP server, holds up worker A's write, and meanwhile \
the lease passes to B. A proxy that compares the token and then forwards (a naive one, written for this \
comparison) lets A's write land on top of B's; the guard's lane waits for A's answer before it lets \
anything of B through.";

const LANES: [&str; 5] = [LOCK_SERVER, WORKER_A, WORKER_B, DATASTORE, DIRECTOR];
const DATASTORE: &str = "datastore";

/// Tells it with the naive proxy and with the guard's.
pub(super) async fn tell(teller: &mut Teller, backing: &Backing) -> Result<(), Failure> {
    let dir = tempfile::Builder::new().prefix("fence-demo-").tempdir().map_err(|error| {
        Failure::new(code::UNAVAILABLE, format!("a temporary folder cannot be made: {error}"))
    })?;
    let mut upstream = Upstream(Process::start("demo-upstream", &["demo-upstream"], dir.path())?);
    let url = address(&mut upstream.0).await?;
    let role = ["demo-naive-proxy".to_owned(), format!("--upstream={url}")];
    let mut naive = Process::start("demo-naive-proxy", &role, dir.path())?;
    let naive_base = format!("{}/", address(&mut naive).await?);
    let stage = Stage::set(backing, &Guarding::Proxy { upstream: url.clone() }).await?;
    teller.note(&stage.described())?;
    teller.note(&format!("the datastore is {url}, the naive proxy before it {naive_base}\n"))?;

    teller.begin("unguarded", "a naive proxy: check the token, then forward", &LANES)?;
    Telling { stage: &stage, base: naive_base, laned: false }.tell(teller, &mut upstream).await?;
    teller.begin("guarded", "the guard's reverse proxy, with its lane", &LANES)?;
    Telling { stage: &stage, base: stage.proxied(), laned: true }
        .tell(teller, &mut upstream)
        .await?;
    naive.end().await;
    stage.strike().await;
    upstream.0.end().await;
    Ok(())
}

#[derive(Debug)]
struct Upstream(Process);

impl Upstream {
    async fn ask(&mut self, order: Order) -> Result<Vec<Entry>, Failure> {
        self.0.tell(&order).await?;
        self.0.hear().await
    }

    /// What happened to an account so far.
    async fn log_of(&mut self, order: Order, key: &str) -> Result<Vec<Entry>, Failure> {
        let log = self.ask(order).await?;
        Ok(log.into_iter().filter(|entry| entry.key == key).collect())
    }
}

struct Telling<'a> {
    stage: &'a Stage,
    base: String,
    laned: bool,
}

impl Telling<'_> {
    async fn tell(&self, teller: &mut Teller, upstream: &mut Upstream) -> Result<(), Failure> {
        let key = if self.laned { "laned/account" } else { "naive/account" };
        let account = Account { key: key.to_owned(), fenced: true, lane: DATASTORE };
        account.open(self.stage, teller, &self.base).await?;
        let (mut a, mut b) = account.workers(self.stage, &self.base)?;
        a.take(teller, TTL_MS, false).await?;
        a.read(teller).await?;
        a.add(teller, DEPOSIT_A, "A").await?;

        upstream.ask(Order::Hold).await?;
        a.begin(&a.write_order()).await?;
        let arrived = self.arrived(upstream, key).await?;
        let text = format!("has A's write ({}), and holds it up", shown(Some(&arrived.document)));
        teller.event_at(arrived.at_ms, DATASTORE, Kind::Delay, &text, Known::default())?;

        b.begin(&b.acquire(TTL_B_MS, WAIT_MS, true)).await?;
        let granted = b.hear().await?;
        account.expired(self.stage, teller, &a).await?;
        b.granted(teller, &granted)?;
        if self.laned {
            self.in_the_lane(teller, upstream, &account, (&mut a, &mut b), arrived.at_ms).await
        } else {
            self.naively(teller, upstream, &account, (&mut a, &mut b), arrived.at_ms).await
        }
    }

    /// Waits until the older write is at the datastore.
    async fn arrived(&self, upstream: &mut Upstream, key: &str) -> Result<Entry, Failure> {
        awaited("A's write at the datastore", async || {
            let log = upstream.log_of(Order::Tell, key).await?;
            // The first write opened the account.
            Ok(log.into_iter().filter(|entry| entry.what == What::Arrived).nth(1))
        })
        .await
    }

    async fn naively(
        &self,
        teller: &mut Teller,
        upstream: &mut Upstream,
        account: &Account,
        (a, b): (&mut Actor, &mut Actor),
        arrived_ms: u64,
    ) -> Result<(), Failure> {
        let new = account.b_updates(teller, b).await?;
        teller.event(DIRECTOR, Kind::Step, "lets the datastore go on with A's write")?;
        upstream.ask(Order::LetGo).await?;
        let (late, line) = a.has_written(teller, "has its answer: its write").await?;
        teller.span(DATASTORE, SpanKind::Flight, (arrived_ms, line.at_ms), "A's write");
        let facts = account.read_back(teller, (a, b), (&late, &new)).await?;
        b.release(teller).await?;
        teller.end(&facts, facts.lost())
    }

    async fn in_the_lane(
        &self,
        teller: &mut Teller,
        upstream: &mut Upstream,
        account: &Account,
        (a, b): (&mut Actor, &mut Actor),
        arrived_ms: u64,
    ) -> Result<(), Failure> {
        b.begin(&b.read_order()).await?;
        let client = self.stage.client()?;
        let lock = account.lock()?;
        let token = b.grant.token;
        // The mark is durable before B's request waits: from here on it is in the lane.
        awaited("B's request in the lane", async || {
            let fence = client.objects().fence(&lock).await?;
            Ok(fence.mark.filter(|mark| mark.get() == token))
        })
        .await?;
        let waiting_ms = teller.now();
        let known = Known { token: Some(token), status: None };
        let text =
            format!("asks to read; the guard's mark is {token}, and the request waits in the lane");
        teller.event_at(waiting_ms, WORKER_B, Kind::Delay, &text, known)?;
        // Everything that the datastore has seen since A's write came in.
        let seen = upstream.log_of(Order::Tell, &account.key).await?;
        let since = seen.iter().rev().take_while(|entry| entry.what != What::Arrived).count();
        let held_back = since == 0;
        let text = match since {
            0 => "has seen nothing of B yet".to_owned(),
            since => format!("has seen {since} requests since A's write"),
        };
        teller.event(DATASTORE, if held_back { Kind::Step } else { Kind::Lost }, &text)?;

        teller.event(DIRECTOR, Kind::Step, "lets the datastore go on with A's write")?;
        upstream.ask(Order::LetGo).await?;
        let (late, line) = a.has_written(teller, "has its answer: its write").await?;
        teller.span(DATASTORE, SpanKind::Flight, (arrived_ms, line.at_ms), "A's write");
        b.has_read(teller).await?;
        teller.span(WORKER_B, SpanKind::Wait, (waiting_ms, teller.now()), "in the lane");
        b.add(teller, DEPOSIT_B, "B").await?;
        let new = b.write(teller).await?;
        let facts = account.read_back(teller, (a, b), (&late, &new)).await?;
        b.release(teller).await?;
        let fence = client.objects().fence(&lock).await?;
        teller.note(&format!(
            "the guard's guarantee here is \"{}\": it trusts the stated --max-request-lifetime",
            fence.guarantee.as_str()
        ))?;
        teller.end(&facts, facts.in_order(held_back))
    }
}
