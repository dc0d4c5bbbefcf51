//! One command of a client: planned, checked against its tokens, and run.

use super::ClusterSession;
use crate::doors::redis::authorize::authorize;
use crate::doors::redis::commands::{Handling, KeyUse, Plan, Touches};
use crate::doors::redis::refusal::Refusal;
use crate::doors::redis::resp::encode;
use crate::doors::redis::resp::request::Command;
use crate::doors::redis::session::{self, Flow, Session};
use crate::doors::redis::tokens::HeldTokens;
use crate::guard::RequestSummary;
use crate::rules::{Protects, Rules};
use crate::verdict::Fence;

impl ClusterSession {
    /// Replies to a command.
    pub(super) async fn answer(&mut self, command: Command<'_>) -> Flow {
        if let Some(line) = &self.fenced {
            // The rest of a pipeline. Nothing of it is executed, whatever it is.
            encode::error(&mut self.out, line);
            return Flow::Continue;
        }
        let plan = match session::plan(self, command) {
            Ok(plan) => plan,
            Err(refusal) => return self.refuse(&refusal),
        };
        if let Handling::Local(local) = plan.handling {
            return session::answer(self, local, command).await;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let fences = self.fences(&self.identity.tokens, command, plan, &mut scratch);
        self.scratch = scratch;
        let fences = match fences {
            Ok(fences) => fences,
            Err(refusal) => return self.refuse(&refusal),
        };
        let refused = self.run(command, &fences).await;
        if self.port.context.settings.closes_fenced() {
            self.fenced = refused;
        }
        Flow::Continue
    }

    /// Returns the fences that the keys of a command need, each once.
    ///
    /// # Errors
    /// The refusal of a key that `tokens` do not allow.
    pub(super) fn fences(
        &self,
        tokens: &HeldTokens,
        command: Command<'_>,
        plan: Plan,
        scratch: &mut String,
    ) -> Result<Vec<Fence>, Refusal> {
        let guard = &self.port.context.guard;
        authorize(guard, tokens, command, plan, &self.keys, scratch)?;
        Ok(needed(&guard.fencing.rules, tokens, command, &self.keys, scratch))
    }

    /// Runs a command and replies. Returns the refusal of its tokens.
    pub(super) async fn run(&mut self, command: Command<'_>, fences: &[Fence]) -> Option<String> {
        let Self { port, keys, protocol, out, .. } = self;
        let begin = out.len();
        let Some(refusal) = port.cluster.run(command, keys, fences, *protocol, out).await else {
            port.context.guard.counters.count(KIND, "answered");
            return None;
        };
        let key = keys.first().map_or(&b""[..], |key| command.arg(key.arg));
        let line = refusal.not_applied();
        let guard = &port.context.guard;
        let rule = guard.fencing.rules.label(key);
        let (code, fence, outcome) = refusal.by_fence()?;
        if guard.observer.passes(code, rule, &line) {
            out.truncate(begin);
            port.cluster.run(command, keys, &[], *protocol, out).await;
            return None;
        }
        let name = String::from_utf8_lossy(command.arg(0)).to_uppercase();
        let text = format!("{name} {}", key.escape_ascii());
        let request = RequestSummary { fence: Some(fence.clone()), kind: KIND, text, owner: None };
        // The reply is made already; this counts and reports the refusal.
        let _ = guard.account(&request, Ok(outcome));
        Some(line)
    }
}

/// Kind of the port's operations in the counters.
const KIND: &str = "redis";

/// The fences of the locks that protect these keys, as far as `tokens` have them.
fn needed(
    rules: &Rules,
    tokens: &HeldTokens,
    command: Command<'_>,
    keys: &[KeyUse],
    scratch: &mut String,
) -> Vec<Fence> {
    let mut needed: Vec<Fence> = Vec::new();
    for key in keys {
        let Ok(resolved) = rules.resolve(command.arg(key.arg), scratch) else { continue };
        let Protects::Lock(lock) = resolved.protection else { continue };
        let fence = tokens.fences().iter().find(|fence| fence.lock.as_str() == lock);
        if let Some(fence) = fence.filter(|fence| !needed.contains(fence)) {
            needed.push(fence.clone());
        }
    }
    needed
}

/// Why a command that one Redis would take cannot be passed on before a cluster.
pub(super) fn not_before_a_cluster(
    handling: Handling,
    touches: Touches,
    command: Command<'_>,
) -> Option<&'static str> {
    match handling {
        _ if matches!(touches, Touches::Keyspace | Touches::Everything) => {
            Some("before a cluster no node has all keys; ask each node itself")
        }
        _ if touches == Touches::NamedByData => Some(
            "before a cluster BY and GET with a * reach keys of other nodes; sort in the client",
        ),
        Handling::Shared if command.begins(&["script"]) || command.begins(&["function"]) => {
            Some("before a cluster scripts and functions of clients are not run")
        }
        Handling::Shared if command.begins(&["spublish"]) => {
            Some("before a cluster sharded channels are not served; use PUBLISH")
        }
        Handling::Shared | Handling::Local(_) => None,
        Handling::Own => Some(
            "before a cluster nothing may block, and no connection to a node is the client's own",
        ),
        Handling::Script => Some(
            "before a cluster every command runs inside of a script already, and scripts cannot \
             call scripts",
        ),
        Handling::Multi | Handling::Exec | Handling::Discard => {
            Some("before a cluster there are no transactions; each command is one step by itself")
        }
        Handling::Watch | Handling::Unwatch => {
            Some("before a cluster there are no transactions, so nothing can be watched for one")
        }
        Handling::Subscribe | Handling::Unsubscribe => {
            Some("before a cluster the guard keeps no subscriptions; subscribe at a node itself")
        }
    }
}
