//! The requests that are needed, by name.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::channel::Path;
use super::verdict::Verdict;
use super::{CallError, Effect, EtcdClient};
use crate::engines::etcd::txn;
use crate::engines::etcd::txn::Range;
use crate::engines::etcd::wire::{
    LeaseGrant, LeaseKeepAlive, LeaseReply, Operation, OperationReply, RangeReply, RangeRequest,
    Status, StatusRequest, StepReply, Txn, TxnReply, TxnStep,
};

const TXN: Path = "/etcdserverpb.KV/Txn";
const RANGE: Path = "/etcdserverpb.KV/Range";
const GRANT: Path = "/etcdserverpb.Lease/LeaseGrant";
const KEEPALIVE: Path = "/etcdserverpb.Lease/LeaseKeepAlive";
const STATUS: Path = "/etcdserverpb.Maintenance/Status";

impl EtcdClient {
    /// Runs a transaction that compares everything that it writes.
    ///
    /// # Errors
    /// [`CallError::Unknown`] where it may have been done.
    pub(crate) async fn commit(&self, txn: &Txn) -> Result<TxnReply, CallError> {
        self.call(TXN, txn, Effect::Compared).await
    }

    /// Runs a transaction that may be done twice; linearizable.
    ///
    /// # Errors
    /// [`CallError`], never [`CallError::Unknown`] where it only reads.
    pub(crate) async fn run(&self, txn: &Txn) -> Result<TxnReply, CallError> {
        if !is_plain_read(txn) {
            return self.call(TXN, txn, Effect::Harmless).await;
        }
        match self.call(TXN, txn, Effect::Reads).await {
            Err(CallError::Full(_)) => self.read_in_steps(txn).await,
            reply => reply,
        }
    }

    /// Reads what a transaction would, one range after the other at one revision: an etcd 3.5 that
    /// is full refuses every transaction.
    async fn read_in_steps(&self, txn: &Txn) -> Result<TxnReply, CallError> {
        let mut read = TxnReply { succeeded: true, ..TxnReply::default() };
        for step in &txn.success {
            let Some(range) = range_at(step, read.header.revision) else { continue };
            let reply: RangeReply = self.call(RANGE, &range, Effect::Harmless).await?;
            if read.responses.is_empty() {
                read.header = reply.header.clone();
            }
            read.responses.push(StepReply { reply: Some(OperationReply::Range(reply)) });
        }
        Ok(read)
    }

    /// The first keys of a range in the order of their names; linearizable.
    ///
    /// # Errors
    /// [`CallError`], never [`CallError::Unknown`].
    pub(crate) async fn page(
        &self,
        range: &Range,
        limit: usize,
        keys_only: bool,
    ) -> Result<RangeReply, CallError> {
        self.call(RANGE, &txn::page(range, limit, keys_only), Effect::Harmless).await
    }

    /// Makes an etcd lease under an id of our own choice, and gives what it lives, in seconds.
    ///
    /// # Errors
    /// [`CallError`], never [`CallError::Unknown`].
    pub(crate) async fn lease_grant(&self, id: u64, ttl_s: u64) -> Result<u64, CallError> {
        let granted: Result<LeaseReply, _> =
            self.call(GRANT, &LeaseGrant { ttl_s, id }, Effect::Harmless).await;
        match granted {
            Ok(reply) => Ok(u64::try_from(reply.ttl_s).unwrap_or(0)),
            // The id is random and ours: an earlier attempt whose reply was lost has created it.
            Err(error) if error.is_lease_there() => Ok(ttl_s),
            Err(error) => Err(error),
        }
    }

    /// Gives an etcd lease its time again by every member at once, so that no other one waits for
    /// one that hangs; whether it is there.
    ///
    /// # Errors
    /// [`CallError`], never [`CallError::Unknown`]: no member says so.
    pub(crate) async fn lease_keepalive_at_all(&self, id: u64) -> Result<bool, CallError> {
        let request = LeaseKeepAlive { id };
        let mut asked: FuturesUnordered<_> = (0..self.endpoint_count())
            .map(|endpoint| self.call_at(endpoint, KEEPALIVE, &request))
            .collect();
        let mut is_gone = false;
        let mut reasons = Vec::new();
        while let Some(answer) = asked.next().await {
            match answer.map(|reply: LeaseReply| reply.ttl_s > 0) {
                Ok(true) => return Ok(true),
                Ok(false) => is_gone = true,
                Err(verdict) => reasons.push(format!("{verdict:?}")),
            }
        }
        if is_gone { Ok(false) } else { Err(CallError::Down(reasons.join("; "))) }
    }

    /// The state of the member that answers.
    ///
    /// # Errors
    /// [`CallError`], never [`CallError::Unknown`].
    pub(crate) async fn status(&self) -> Result<Status, CallError> {
        self.call(STATUS, &StatusRequest {}, Effect::Harmless).await
    }

    /// Returns a sentence if the member of one endpoint does not reply, or sees no leader.
    pub(crate) async fn trouble_at(&self, endpoint: usize) -> Option<String> {
        let url = self.members[endpoint].url();
        let why = match self.call_at::<Status>(endpoint, STATUS, &StatusRequest {}).await {
            Ok(member) if member.leader != 0 => return None,
            Ok(_) => "it sees no leader".to_owned(),
            Err(Verdict::Refused { message, .. }) => message,
            Err(Verdict::LoginAgain) => "it takes no token of a login".to_owned(),
            Err(
                Verdict::Closed(why)
                | Verdict::Full(why)
                | Verdict::NotDone(why)
                | Verdict::Unclear(why),
            ) => why,
        };
        Some(format!("{url}: {why}"))
    }
}

/// Returns `true` if a transaction compares and changes nothing.
fn is_plain_read(txn: &Txn) -> bool {
    let reads = |step: &TxnStep| matches!(step.operation, Some(Operation::Range(_)));
    txn.compare.is_empty() && txn.failure.is_empty() && txn.success.iter().all(reads)
}

/// Returns the range that a step reads, of the state after `revision` if the step names none.
fn range_at(step: &TxnStep, revision: u64) -> Option<RangeRequest> {
    let Some(Operation::Range(range)) = &step.operation else { return None };
    let revision = if range.revision == 0 { revision } else { range.revision };
    Some(RangeRequest { revision, ..range.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_one_revision() {
        let newest = txn::get("a");
        assert_eq!(range_at(&newest, 0).unwrap().revision, 0);
        assert_eq!(range_at(&newest, 7).unwrap().revision, 7);
        assert_eq!(range_at(&txn::as_of(newest, 5), 7).unwrap().revision, 5);
        assert_eq!(range_at(&txn::put("a", b""), 7), None);
    }

    /// Read range by range, the others would not be one transaction any more.
    #[test]
    fn only_a_transaction_without_comparisons_is_read_range_by_range() {
        let read = Txn { success: vec![txn::get("a"), txn::get("b")], ..Txn::default() };
        assert!(is_plain_read(&read));
        for other in [
            Txn { compare: vec![txn::absent("c")], ..read.clone() },
            Txn { failure: vec![txn::get("c")], ..read.clone() },
            Txn { success: vec![txn::get("a"), txn::put("b", b"")], ..Txn::default() },
        ] {
            assert!(!is_plain_read(&other));
        }
    }
}
