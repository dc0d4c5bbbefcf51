//! The journal oracle in PostgreSQL: each write appends its token in its own transaction, and an
//! entry's place is the order in which the transactions committed.

use std::time::Duration;

use crate::journal::{Answer, Entry, Journal, Seal, WriteReport};
use crate::postgres_client::{PostgresClient, frame};

/// Tables of the journal.
pub const TABLES: &str = "create table journal_length (length int not null); \
                          insert into journal_length values (0); \
                          create table writes (place int primary key, token bigint, op text)";

/// Statement that appends. The length's row is locked until the transaction ends, so that places
/// are in the order of the commits.
pub fn append(token: u64, op: &str) -> String {
    format!(
        "with next as (update journal_length set length = length + 1 returning length) \
         insert into writes select length, {token}, '{op}' from next"
    )
}

/// Commits that race the seals of their successors.
#[derive(Debug, Default)]
pub struct CommitRace {
    journal: Journal,
}

impl CommitRace {
    /// Sends COMMIT for the old holder's transaction, which has written `token`, during its
    /// successor's seal. `next` seals `token + 1` and returns the new holder's session.
    /// Returns the new holder's session. The old one's may be ended though its commit is before the
    /// seal: the seal had seen it open.
    ///
    /// # Panics
    /// If the seal fails.
    pub async fn run(
        &mut self,
        token: u64,
        old: &mut PostgresClient,
        next: impl Future<Output = PostgresClient>,
    ) -> PostgresClient {
        let commit = async {
            // Spreads the commit over the time of a hand-over.
            tokio::time::sleep(Duration::from_micros(token * 97 % 6000)).await;
            old.send(&frame(b'Q', b"COMMIT\0")).await;
        };
        let (mut new, ()) = tokio::join!(next, commit);
        let length = new.query("select length from journal_length").await.expect("the length");
        let length = length[0].parse().expect("a number");
        self.journal.seals.push(Seal { token: token + 1, length });
        let report = match old.rows().await {
            Ok(_) => WriteReport::Applied,
            Err(_) => WriteReport::Unknown,
        };
        self.answer(token, report);
        // The new holder's write: a later one of the old holder's would follow it.
        new.query(&append(token + 1, &(token + 1).to_string())).await.expect("a write");
        self.answer(token + 1, WriteReport::Applied);
        new
    }

    fn answer(&mut self, token: u64, report: WriteReport) {
        self.journal.answers.push(Answer { token, op: token.to_string(), report });
    }

    /// Reads the journal and judges it. Prints the figures.
    ///
    /// # Panics
    /// If an invariant is broken.
    #[expect(clippy::print_stdout, reason = "figures of the test run")]
    pub async fn finish(mut self, client: &mut PostgresClient) {
        let read = client.query("select token || ' ' || op from writes order by place").await;
        let read = read.expect("the journal");
        self.journal.entries = read.iter().map(|entry| entry.parse::<Entry>().unwrap()).collect();
        self.journal.check().expect("the journal");
        let rounds = self.journal.seals.len();
        let landed = self.journal.entries.len() - rounds;
        println!(
            "{rounds} commits raced a seal: {landed} were before it, {} rolled back, none after",
            rounds - landed
        );
    }
}
