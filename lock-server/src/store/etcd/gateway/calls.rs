//! The requests that are needed, by name.

use serde_json::{Value, json};

use super::{Effect, Gateway, GatewayError};
use crate::store::etcd::txn::{self, Range, Txn};
use crate::store::etcd::wire::{LeaseReply, Line, RangeReply, Status, TxnReply, decoded};

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

    /// Gives an etcd lease its time again, and gives that, in seconds; `None` where it is gone.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn lease_keepalive(
        &self,
        id: u64,
    ) -> Result<Option<u64>, GatewayError> {
        let body = json!({ "ID": id.to_string() });
        let line: Line<LeaseReply> =
            self.call("/v3/lease/keepalive", &body, Effect::Harmless).await?;
        match (line.result, line.error) {
            (Some(reply), None) => Ok(u64::try_from(reply.ttl_s).ok().filter(|ttl_s| *ttl_s > 0)),
            (_, error) => {
                let message = error.map(|error| error.message).unwrap_or_default();
                Err(GatewayError::Down(format!("etcd does not keep a lease alive: {message}")))
            }
        }
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

    /// The keys that hang on an etcd lease; none where it is gone.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn lease_keys(
        &self,
        id: u64,
    ) -> Result<Vec<String>, GatewayError> {
        let body = json!({ "ID": id.to_string(), "keys": true });
        let reply: LeaseReply = self.call("/v3/lease/timetolive", &body, Effect::Harmless).await?;
        Ok(reply.keys.iter().filter_map(|key| decoded(key)).collect())
    }

    /// The state of the member that answers.
    ///
    /// # Errors
    /// [`GatewayError`], never [`GatewayError::Unknown`].
    pub(in crate::store::etcd) async fn status(&self) -> Result<Status, GatewayError> {
        self.call("/v3/maintenance/status", &json!({}), Effect::Harmless).await
    }
}
