//! The requests that are needed, by name.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::json;

use super::{Effect, Gateway, GatewayError};
use crate::store::records::etcd::txn::{self, Range, Txn};
use crate::store::records::etcd::wire::{LeaseReply, Line, RangeReply, Status, TxnReply};

const TXN: &str = "/v3/kv/txn";
const KEEPALIVE: &str = "/v3/lease/keepalive";
const STATUS: &str = "/v3/maintenance/status";

impl Gateway {
    /// Runs a transaction that compares everything that it writes.
    ///
    /// # Errors
    /// [`GatewayError::Unknown`] where it may have been done.
    pub(in crate::store::records::etcd) async fn commit(
        &self,
        txn: &Txn,
    ) -> Result<TxnReply, GatewayError> {
        self.call(TXN, &txn.body(), Effect::Compared).await
    }

    /// Runs a transaction that may be done twice; linearizable.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`] where it only reads.
    pub(in crate::store::records::etcd) async fn run(
        &self,
        txn: &Txn,
    ) -> Result<TxnReply, GatewayError> {
        self.call(TXN, &txn.body(), Effect::Harmless).await
    }

    /// The first keys of a range in the order of their names; linearizable.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::records::etcd) async fn page(
        &self,
        range: &Range,
        limit: usize,
        keys_only: bool,
    ) -> Result<RangeReply, GatewayError> {
        self.call("/v3/kv/range", &txn::page(range, limit, keys_only), Effect::Harmless).await
    }

    /// Makes an etcd lease under an id of our own choice, and gives what it lives, in seconds.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::records::etcd) async fn lease_grant(
        &self,
        id: u64,
        ttl_s: u64,
    ) -> Result<u64, GatewayError> {
        let body = json!({ "ID": id.to_string(), "TTL": ttl_s.to_string() }).to_string();
        match self.call::<LeaseReply>("/v3/lease/grant", &body, Effect::Harmless).await {
            Ok(reply) => Ok(u64::try_from(reply.ttl_s).unwrap_or(0)),
            // The id is random and ours, so it is an earlier try that was not heard of.
            Err(error) if error.is_lease_there() => Ok(ttl_s),
            Err(error) => Err(error),
        }
    }

    /// Gives an etcd lease its time again by every member at once, so that no other one waits for one
    /// that hangs; whether it is there.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`]: no member says so.
    pub(in crate::store::records::etcd) async fn lease_keepalive_at_all(
        &self,
        id: u64,
    ) -> Result<bool, GatewayError> {
        let body = json!({ "ID": id.to_string() }).to_string();
        let mut asked = FuturesUnordered::new();
        for endpoint in 0..self.endpoint_count() {
            asked.push(self.call_at::<Line<LeaseReply>>(endpoint, KEEPALIVE, &body));
        }
        let (mut is_gone, mut reasons) = (false, Vec::new());
        while let Some(answer) = asked.next().await {
            match answer.map(alive) {
                Ok(Ok(true)) => return Ok(true),
                Ok(Ok(false)) => is_gone = true,
                Ok(Err(error)) => reasons.push(error.to_string()),
                Err(verdict) => reasons.push(format!("{verdict:?}")),
            }
        }
        if is_gone { Ok(false) } else { Err(GatewayError::Down(reasons.join("; "))) }
    }

    /// The state of the member that answers.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::records::etcd) async fn status(&self) -> Result<Status, GatewayError> {
        self.call(STATUS, "{}", Effect::Harmless).await
    }
}

/// Whether the etcd lease is there.
fn alive(line: Line<LeaseReply>) -> Result<bool, GatewayError> {
    match (line.result, line.error) {
        (Some(reply), None) => Ok(reply.ttl_s > 0),
        (_, error) => {
            let message = error.map(|error| error.message).unwrap_or_default();
            Err(GatewayError::Down(format!("etcd does not keep a lease alive: {message}")))
        }
    }
}
