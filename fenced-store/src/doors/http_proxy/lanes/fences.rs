//! Marks and seals of the lanes, for the API.

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::{LockName, Token};

use super::{Entry, Lanes};
use crate::doors::http_proxy::lane::Kind;
use crate::store::{Effect, FenceList, FenceOutcome, FenceQuery, Fences, StoreError, StoreReport};
use crate::verdict::{Fence, Mark};

#[async_trait]
impl Fences for Lanes {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Bounded
    }

    fn report(&self) -> StoreReport {
        let lifetime = self.lifetime_ms;
        let folder = self.journal.path().display();
        let mut gaps = vec![
            format!(
                "Effects of the datastore later than {lifetime} ms (--max-request-lifetime) after a \
                 connection broke are not fenced."
            ),
            "A second proxy with a state folder of its own is not noticed, and shares no marks."
                .to_owned(),
        ];
        let probe = match &self.conditions {
            None => format!(
                "marks and open lanes are durable in {folder}; the datastore itself cannot be probed"
            ),
            Some(conditions) if conditions.is_trusted() => {
                gaps[0].push_str(" A PUT that replies atomic is, for its resource.");
                let shown = &conditions.shown;
                format!("marks and open lanes are durable in {folder}; {shown}")
            }
            Some(_) => format!(
                "marks and open lanes are durable in {folder}; the datastore passed the probe at \
                 start and reused an ETag later"
            ),
        };
        let target = self.url.to_string();
        StoreReport { kind: "http", target, guarantee: Guarantee::Bounded, probe, gaps }
    }

    async fn record(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        self.journal.record(fence).await
    }

    async fn highest_mark(&self) -> Result<Option<Token>, StoreError> {
        self.journal.check()?;
        Ok(self.journal.highest())
    }

    async fn seal(&self, fence: Fence) -> Result<FenceOutcome, StoreError> {
        let token = fence.presented.token;
        match self.enter(&fence, Kind::Seal).await? {
            Entry::Admitted(ticket) => {
                ticket.ended();
                Ok(FenceOutcome::Applied { effect: Effect::Sealed, mark: Some(token) })
            }
            Entry::Refused(outcome) => Ok(outcome),
        }
    }

    async fn show(&self, lock: &LockName) -> Result<Option<Mark>, StoreError> {
        self.journal.mark(lock).await
    }

    async fn list(&self, query: FenceQuery) -> Result<FenceList, StoreError> {
        self.journal.list(query).await
    }
}
