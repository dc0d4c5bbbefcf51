//! The session of a client of a cluster. It has no connection of its own: each command brings its
//! tokens along, so tokens and protocol change without a round trip.

use std::sync::Arc;

use bytes::BytesMut;
use redis::Value;

use super::ClusterSession;
use super::handle::not_before_a_cluster;
use crate::doors::redis::commands::{Handling, Plan};
use crate::doors::redis::refusal::Refusal;
use crate::doors::redis::resp::request::Command;
use crate::doors::redis::resp::{Protocol, encode};
use crate::doors::redis::server_facts::ServerFacts;
use crate::doors::redis::session::{Flow, Identity, Session};
use crate::doors::redis::tokens::HeldTokens;

impl Session for ClusterSession {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn identity_mut(&mut self) -> &mut Identity {
        &mut self.identity
    }

    fn server_facts(&self) -> Arc<ServerFacts> {
        self.port.cluster.nodes.server_facts()
    }

    fn protocol(&self) -> Protocol {
        self.protocol
    }

    fn db(&self) -> i64 {
        0
    }

    fn reply(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.out);
    }

    fn refuse(&mut self, refusal: &Refusal) -> Flow {
        encode::error(&mut self.out, &refusal.not_applied());
        Flow::Continue
    }

    fn plan(&mut self, command: Command<'_>) -> Result<Plan, Refusal> {
        let Some(table) = self.port.cluster.nodes.command_table() else {
            let reason = "no node of the cluster was reached yet".to_owned();
            return Err(Refusal::Unavailable(reason));
        };
        let planned = table.plan(command, &mut self.keys);
        let plan = planned.map_err(|refused| Refusal::Line(refused.0))?;
        if let Handling::Local(_) = plan.handling {
            return Ok(plan);
        }
        if let Some(reason) = not_before_a_cluster(plan.handling, plan.touches, command) {
            let name = table.name_of(command);
            return Err(Refusal::Line(format!("DENIED {name} is not passed on: {reason}")));
        }
        Ok(plan)
    }

    async fn hold(&mut self, tokens: HeldTokens, protocol: Protocol) -> Result<(), Refusal> {
        self.identity.tokens = tokens;
        self.protocol = protocol;
        Ok(())
    }

    async fn speak(&mut self, protocol: Protocol) -> Result<(), Refusal> {
        self.protocol = protocol;
        Ok(())
    }

    /// A cluster has one database.
    async fn select(&mut self, _db: i64) -> Result<(), Refusal> {
        Err(Refusal::Line("ERR SELECT is not allowed in cluster mode".to_owned()))
    }

    /// Each command is answered before the next one is read.
    async fn settle(&mut self) -> Flow {
        Flow::Continue
    }

    async fn disconnect(&mut self) -> Flow {
        self.protocol = Protocol::Resp2;
        Flow::Continue
    }

    /// Nothing blocks before a cluster.
    async fn unblock(&mut self, _id: u64, _reason: &'static str) -> Result<bool, Refusal> {
        Ok(false)
    }

    async fn config_get(&mut self, _command: Command<'_>) -> Result<Value, Refusal> {
        Err(Refusal::Line(
            "DENIED CONFIG GET is not passed on: before a cluster each node has its own settings; ask \
             the nodes themselves"
                .to_owned(),
        ))
    }

    async fn run_once(
        &mut self,
        command: Command<'_>,
        plan: Plan,
        tokens: HeldTokens,
    ) -> Result<(), Refusal> {
        let fences = self.fences(&tokens, command, plan, &mut String::new())?;
        // A refusal concerns these tokens, and not those that the session holds.
        self.run(command, &fences).await;
        Ok(())
    }
}
