//! Checks the process behind a new connection to a node before it is used.

use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use async_trait::async_trait;
use redis_link::{Verifier, info_field, load_scripts, text_fields};

use super::membership::Membership;
use super::nodes::Notes;
use super::plan::copies;
use super::replies::{read_member, read_probe};
use super::rules::NodeId;
use super::rules::view::{FORMAT, MemberReply, Meta, NodeProbe, NodeState};
use super::run_ids::{Runs, Verifying};
use super::scripts::Scripts;
use crate::engines::redis::identity::{check_master, field};

/// Verifies one node.
#[derive(Debug)]
pub(super) struct NodeVerifier {
    pub(super) index: usize,
    pub(super) scripts: Arc<Scripts>,
    pub(super) notes: Arc<Notes>,
    pub(super) runs: Arc<Runs>,
    pub(super) membership: Arc<Membership>,
}

#[async_trait]
impl Verifier for NodeVerifier {
    async fn verify(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let (run_id, verifying) = self.identity(connection).await?;
        let keeps = keeps_its_memory(connection).await;
        let before = self.notes.all();
        load_scripts(connection, &self.scripts.all()).await?;
        let probe = self.probe(connection).await?;
        if let Some(meta) = &probe.meta {
            if let Some(other) = self.membership.is_copy(self.index, &meta.node) {
                return Err(copies::text(&[self.index, other]));
            }
            self.verify_memory(connection, &probe, meta, &run_id, keeps, &before).await?;
        }
        self.notes.verified(run_id, keeps);
        verifying.keep();
        self.membership.probe_soon();
        Ok(())
    }
}

impl NodeVerifier {
    async fn identity(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(String, Verifying<'_>), String> {
        let info: String = ::redis::cmd("INFO")
            .query_async(connection)
            .await
            .map_err(|error| format!("Redis cannot be verified: {error}"))?;
        let run_id = identity(&info)?;
        let noted = self.runs.record(self.index, &run_id).map_err(|other| {
            // In the order of the list, whichever was met first.
            let first = other.min(self.index) + 1;
            let second = other.max(self.index) + 1;
            format!(
                "nodes {first} and {second} of the quorum are the same Redis (run id {run_id}): \
                 each node has one vote; name another one"
            )
        });
        self.membership.record_duplicate(self.index, noted.as_ref().err().cloned());
        Ok((run_id, noted?))
    }

    async fn probe(&self, connection: &mut MultiplexedConnection) -> Result<NodeProbe, String> {
        let value = connection
            .send_packed_command(&self.scripts.probe())
            .await
            .map_err(|error| format!("the node does not say what it is: {error}"))?;
        read_probe(refuse_errors(value)?).map_err(|error| error.to_string())
    }

    /// True if the process continues with what the node knew; where that is unknown, the node does
    /// not vote before it has rejoined.
    async fn verify_memory(
        &self,
        connection: &mut MultiplexedConnection,
        probe: &NodeProbe,
        meta: &Meta,
        run_id: &str,
        keeps: bool,
        before: &[u64],
    ) -> Result<(), String> {
        if meta.format != FORMAT {
            return Err(format!(
                "the node stores in format {}, and this lock-server in format {FORMAT}: run the \
                 version that wrote it, or replace the node",
                meta.format
            ));
        }
        if matches!(meta.state, NodeState::Doubt) && meta.run_id == run_id {
            return Ok(());
        }
        let reason = if fell(probe, meta, before) {
            "it has accepted less than this server saw it accept"
        } else if self.was_taken_over(meta, run_id) {
            "it was restarted, and did not keep every vote before, which the lock server that took \
             it over cannot know"
        } else if meta.run_id == run_id {
            return Ok(());
        } else if !keeps || self.notes.was_lax() {
            "it was restarted, and its settings do not make it keep every vote"
        } else {
            let command = self.scripts.adopt(&meta.run_id, run_id);
            return match self.member(connection, &command).await? {
                MemberReply::Done => Ok(()),
                other => {
                    Err(format!("the node was not taken over from {}: {other:?}", meta.run_id))
                }
            };
        };
        self.doubt(connection, run_id, &meta.node).await?;
        self.membership.amnesia(self.index, reason);
        Ok(())
    }

    /// True if another server has taken over a process that comes after one which was seen here to
    /// lose votes, and only here: settings that were corrected in between notify no other server.
    /// Where the node has another id since, it was suspect for that already.
    fn was_taken_over(&self, meta: &Meta, run_id: &str) -> bool {
        let is_another = self.notes.run_id().is_some_and(|known| known != run_id);
        let last_id = self.membership.last_id(self.index);
        is_another && self.notes.was_lax() && last_id.is_none_or(|id| id == meta.node)
    }

    async fn doubt(
        &self,
        connection: &mut MultiplexedConnection,
        run_id: &str,
        seen: &NodeId,
    ) -> Result<(), String> {
        let command = self.scripts.doubt(run_id, Some(seen), &new_id());
        match self.member(connection, &command).await? {
            MemberReply::Doubted(_) => {
                self.notes.forget();
                Ok(())
            }
            other => Err(format!("the node could not be kept from voting: {other:?}")),
        }
    }

    async fn member(
        &self,
        connection: &mut MultiplexedConnection,
        command: &::redis::Cmd,
    ) -> Result<MemberReply, String> {
        let value = connection
            .send_packed_command(command)
            .await
            .map_err(|error| format!("the node does not answer: {error}"))?;
        read_member(refuse_errors(value)?).map_err(|error| error.to_string())
    }
}

/// True if a node has forgotten tokens that this server saw it accept.
pub(super) fn fell(probe: &NodeProbe, meta: &Meta, before: &[u64]) -> bool {
    before.iter().enumerate().any(|(bucket, seen)| {
        let bucket = u8::try_from(bucket).unwrap_or(u8::MAX);
        let p = probe.p.get(&super::rules::Bucket::new(bucket)).copied().unwrap_or(0);
        p.max(meta.floor) < *seen
    })
}

/// An id for one life of a node's memory.
pub(super) fn new_id() -> NodeId {
    loop {
        // Hexadecimal digits always are an id.
        if let Ok(id) = service_kit::ids::random_hex(12).parse() {
            return id;
        }
    }
}

fn refuse_errors(value: ::redis::Value) -> Result<::redis::Value, String> {
    match value {
        ::redis::Value::ServerError(error) => {
            let error = ::redis::RedisError::from(error);
            Err(format!("Redis refuses to work: {error}"))
        }
        value => Ok(value),
    }
}

/// Run id of a process that may be a node of a quorum.
fn identity(info: &str) -> Result<String, String> {
    check_master(
        info,
        "this Redis is a replica, and a node of a quorum is a Redis of its own: what it votes must \
         come from nowhere else",
    )?;
    if info_field(info, "cluster_enabled") == Some("1") {
        return Err("this Redis is a node of a cluster, and a node of a quorum is a Redis of its \
                    own; start one without cluster-enabled"
            .to_owned());
    }
    field(info, "run_id").map(str::to_owned)
}

/// True if every vote is on disk before it is answered. Settings that may not be read keep nothing.
async fn keeps_its_memory(connection: &mut MultiplexedConnection) -> bool {
    for (name, wanted) in
        [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")]
    {
        let mut command = ::redis::cmd("CONFIG");
        command.arg("GET").arg(name);
        let value = connection.send_packed_command(&command).await.ok();
        let found = value.and_then(text_fields).and_then(|fields| fields.into_iter().nth(1));
        if found.as_deref() != Some(wanted) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "redis_version:7.0.15\r\nrun_id:aa\r\nrole:master\r\ncluster_enabled:0\r\n";

    #[test]
    fn a_redis_of_its_own_may_be_a_node() {
        assert_eq!(identity(INFO).unwrap(), "aa");
        for (from, to, reason) in [
            ("role:master", "role:slave", "is a replica"),
            ("cluster_enabled:0", "cluster_enabled:1", "node of a cluster"),
            ("run_id:aa", "", "INFO lacks run_id"),
        ] {
            let error = identity(&INFO.replace(from, to)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
