//! The requests that are needed, by name.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::{Effect, Gateway, GatewayError};
use crate::store::etcd::txn::{self, Range, Txn};
use crate::store::etcd::wire::{LeaseReply, Line, Members, RangeReply, Status, TxnReply};

const KEEPALIVE: &str = "/v3/lease/keepalive";
const STATUS: &str = "/v3/maintenance/status";

/// What etcd says of a lease that was to get its time again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::etcd) struct Alive {
    /// Whether it is there.
    pub(in crate::store::etcd) is_there: bool,
    /// The term of the member that answered: a leader that is none any more is of an earlier one.
    pub(in crate::store::etcd) term: u64,
}

impl Gateway {
    /// Runs a transaction that writes.
    ///
    /// # Errors
    /// [`GatewayError::Unknown`] where it may have been done: it is never sent twice.
    pub(in crate::store::etcd) async fn write(&self, txn: &Txn) -> Result<TxnReply, GatewayError> {
        self.call("/v3/kv/txn", &txn.body(), Effect::Once).await
    }

    /// Runs a transaction that compares the revisions of everything that it writes.
    ///
    /// # Errors
    /// [`GatewayError::Unknown`] where it may have been done.
    pub(in crate::store::etcd) async fn write_compared(
        &self,
        txn: &Txn,
    ) -> Result<TxnReply, GatewayError> {
        self.call("/v3/kv/txn", &txn.body(), Effect::Compared).await
    }

    /// Reads at one moment; linearizable.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn read(&self, txn: &Txn) -> Result<TxnReply, GatewayError> {
        self.call("/v3/kv/txn", &txn.body(), Effect::Harmless).await
    }

    /// The first keys of a range in the order of their names; linearizable.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn page(
        &self,
        range: &Range,
        limit: usize,
    ) -> Result<RangeReply, GatewayError> {
        self.call("/v3/kv/range", &txn::page(range, limit), Effect::Harmless).await
    }

    /// Makes an etcd lease under an id of our own choice, and gives what it lives, in seconds.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn lease_grant(
        &self,
        id: u64,
        ttl_s: u64,
    ) -> Result<u64, GatewayError> {
        let body = json!({ "ID": id.to_string(), "TTL": ttl_s.to_string() });
        match self.call::<LeaseReply>("/v3/lease/grant", &body, Effect::Harmless).await {
            Ok(reply) => Ok(u64::try_from(reply.ttl_s).unwrap_or(0)),
            // The id is random and ours, so it is an earlier try that was not heard of.
            Err(error) if error.is_lease_there() => Ok(ttl_s),
            Err(error) => Err(error),
        }
    }

    /// Ends an etcd lease and deletes what hangs on it. One that is not there is as good.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn lease_revoke(&self, id: u64) -> Result<(), GatewayError> {
        let body = json!({ "ID": id.to_string() });
        match self.call::<Value>("/v3/lease/revoke", &body, Effect::Harmless).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_no_lease() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives an etcd lease its time again.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn lease_keepalive(
        &self,
        id: u64,
    ) -> Result<Alive, GatewayError> {
        let body = json!({ "ID": id.to_string() });
        alive(self.call(KEEPALIVE, &body, Effect::Harmless).await?)
    }

    /// Gives an etcd lease its time again by every member at once, so that no other one waits for one
    /// that hangs; whether it is there.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`]: no member says so.
    pub(in crate::store::etcd) async fn lease_keepalive_at_all(
        &self,
        id: u64,
    ) -> Result<bool, GatewayError> {
        let body = json!({ "ID": id.to_string() });
        let mut asked = FuturesUnordered::new();
        for endpoint in 0..self.endpoint_count() {
            asked.push(self.call_at::<Line<LeaseReply>>(endpoint, KEEPALIVE, &body));
        }
        let (mut is_gone, mut reasons) = (false, Vec::new());
        while let Some(answer) = asked.next().await {
            match answer.map(alive) {
                Ok(Ok(Alive { is_there: true, .. })) => return Ok(true),
                Ok(Ok(_)) => is_gone = true,
                Ok(Err(error)) => reasons.push(error.to_string()),
                Err(verdict) => reasons.push(format!("{verdict:?}")),
            }
        }
        if is_gone { Ok(false) } else { Err(GatewayError::Down(reasons.join("; "))) }
    }

    /// What remains of an etcd lease, in seconds; `None` where it is gone.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn lease_remaining(
        &self,
        id: u64,
    ) -> Result<Option<u64>, GatewayError> {
        let body = json!({ "ID": id.to_string() });
        let reply: LeaseReply = self.call("/v3/lease/timetolive", &body, Effect::Harmless).await?;
        Ok(u64::try_from(reply.ttl_s).ok())
    }

    /// The first keys of a range in the order of their names, without their values.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn names(
        &self,
        range: &Range,
        limit: usize,
    ) -> Result<RangeReply, GatewayError> {
        let mut body = txn::page(range, limit);
        body["keys_only"] = json!(true);
        self.call("/v3/kv/range", &body, Effect::Harmless).await
    }

    /// The state of the member that answers.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn status(&self) -> Result<Status, GatewayError> {
        self.call(STATUS, &json!({}), Effect::Harmless).await
    }

    /// The versions of the members that answer.
    pub(in crate::store::etcd) async fn versions(&self) -> Vec<String> {
        let body = json!({});
        let ask = |endpoint| self.call_at::<Status>(endpoint, STATUS, &body);
        let asked = futures_util::future::join_all((0..self.endpoint_count()).map(ask)).await;
        asked.into_iter().flatten().map(|member| member.version).collect()
    }

    /// How many members the cluster has, whoever is named to us; `None` where it does not say.
    pub(in crate::store::etcd) async fn member_count(&self) -> Option<usize> {
        let (path, body) = ("/v3/cluster/member/list", json!({}));
        let list = self.call::<Members>(path, &body, Effect::Harmless).await;
        list.ok().map(|list| list.members.len())
    }
}

fn alive(line: Line<LeaseReply>) -> Result<Alive, GatewayError> {
    match (line.result, line.error) {
        (Some(reply), None) => {
            Ok(Alive { is_there: reply.ttl_s > 0, term: reply.header.raft_term })
        }
        (_, error) => {
            let message = error.map(|error| error.message).unwrap_or_default();
            Err(GatewayError::Down(format!("etcd does not keep a lease alive: {message}")))
        }
    }
}
