//! Removal of rows of records that are over: to every reader they are absent before.

use std::time::Duration;

use postgres_link::LinkError;
use tokio_postgres::Row;

use super::codec::signed;
use super::{PostgresRecords, column, one, session};

/// Rows that one step looks at.
const PAGE: i32 = 1_000;
/// Time between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// Steps of one round while there is something to remove.
const PAGES_MAX: u32 = 50;

impl PostgresRecords {
    /// Goes through all records in rounds, for ever.
    pub(super) async fn sweep_on(self) {
        let mut after = String::new();
        loop {
            tokio::time::sleep(PAUSE).await;
            for _ in 0..PAGES_MAX {
                match self.sweep_once(&after).await {
                    Ok((next, removed)) => {
                        let is_end = next.is_none();
                        after = next.unwrap_or_default();
                        if is_end || removed == 0 {
                            break;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "rows of records that are over stay for now");
                        break;
                    }
                }
            }
        }
    }

    /// The key to go on after, and the number of rows that were removed.
    async fn sweep_once(&self, after: &str) -> Result<(Option<String>, i64), LinkError> {
        let latest_ms = signed(self.inner.time.latest_ms());
        let earliest_ms = signed(self.inner.time.earliest_ms());
        let rows = self.query(session::SWEEP, &[&latest_ms, &earliest_ms, &after, &PAGE]).await?;
        let read = |row: &Row| Ok((column(row, 0)?, column(row, 1)?));
        one(&rows, read).map_err(LinkError::Unknown)
    }
}
