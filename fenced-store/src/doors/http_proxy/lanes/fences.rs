//! Marks and seals of the lanes, for the API.

use async_trait::async_trait;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::wire::lane::{LanePage, QuarantineRequest};
use fence_protocol::{LockName, Token};

use super::{Entry, Lanes};
use crate::doors::http_proxy::lane::Kind;
use crate::store::{
    Effect, FenceList, FenceOutcome, FenceQuery, Fences, QuarantineChange, StoreError, StoreReport,
};
use crate::verdict::{Fence, Mark};

#[async_trait]
impl Fences for Lanes {
    fn guarantee(&self) -> Guarantee {
        Guarantee::Bounded
    }

    fn report(&self) -> StoreReport {
        let lifetime = self.lifetime_ms;
        StoreReport {
            kind: "http",
            target: self.url.to_string(),
            guarantee: Guarantee::Bounded,
            probe: format!(
                "marks and open lanes are durable in {}; the datastore itself cannot be probed",
                self.journal.path().display()
            ),
            gaps: vec![
                format!(
                    "Effects of the datastore later than {lifetime} ms (--max-request-lifetime) \
                     after a connection broke are not fenced."
                ),
                "A second proxy with a state folder of its own is not noticed, and shares no marks."
                    .to_owned(),
            ],
        }
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

    fn lanes(&self, query: &FenceQuery) -> Option<LanePage> {
        Some(self.page(query))
    }

    fn change_quarantine(
        &self,
        lock: &LockName,
        request: &QuarantineRequest,
    ) -> Option<QuarantineChange> {
        Some(self.change(lock, request))
    }
}
