//! One command of a client: planned, held against its tokens, and run.

use bytes::BytesMut;
use fence_protocol::Code;

use super::super::super::commands::{Handling, KeyAccess, KeyUse, Touches};
use super::super::super::password;
use super::super::super::refusal::{Refusal, denied_key, no_token};
use super::super::super::resp::encode;
use super::super::super::resp::request::Command;
use super::super::super::tokens::HeldTokens;
use super::super::Answer;
use super::{ClusterPort, Next, State};
use crate::rules::Protects;
use crate::service::{Guard, RequestSummary};
use crate::store::FenceOutcome;
use crate::verdict::Fence;

impl State {
    /// Answers a command.
    pub(super) async fn answer(
        &mut self,
        port: &ClusterPort,
        command: Command<'_>,
        out: &mut BytesMut,
    ) -> Next {
        if let Some(line) = &self.fenced {
            // The rest of a pipeline. Nothing of it is executed, whatever it is.
            encode::error(out, line);
            return Next::Serve;
        }
        if !self.is_admitted
            && let Some(line) = password::before_login(command)
        {
            encode::error(out, line);
            return Next::Serve;
        }
        let tokens = self.tokens.clone();
        self.answer_under(port, command, &tokens, out).await
    }

    /// Answers a command with these tokens, which need not be the connection's own.
    pub(super) async fn answer_under(
        &mut self,
        port: &ClusterPort,
        command: Command<'_>,
        tokens: &HeldTokens,
        out: &mut BytesMut,
    ) -> Next {
        let Some(table) = port.cluster.command_table() else {
            let refusal = Refusal::Unavailable("no node of the cluster was reached yet".to_owned());
            encode::error(out, &refusal.not_applied());
            return Next::Serve;
        };
        let plan = match table.plan(command, &mut self.keys) {
            Ok(plan) => plan,
            Err(refused) => {
                encode::error(out, &refused.0);
                return Next::Serve;
            }
        };
        if let Handling::Local(local) = plan.handling {
            return Box::pin(self.local(port, local, command, out)).await;
        }
        if let Some(reason) = not_before_a_cluster(plan.handling, plan.touches, command) {
            let name = String::from_utf8_lossy(command.arg(0)).to_uppercase();
            encode::error(out, &format!("DENIED {name} is not passed on: {reason}"));
            return Next::Serve;
        }
        match fences(&port.guard, tokens, command, &self.keys) {
            Ok(fences) => {
                let refused = self.run(port, command, &fences, out).await;
                if port.settings.closes_fenced() && *tokens == self.tokens {
                    self.fenced = refused;
                }
            }
            Err(refusal) => encode::error(out, &refusal.not_applied()),
        }
        Next::Serve
    }

    /// Runs a command; the line that it was answered, where its tokens are refused.
    async fn run(
        &self,
        port: &ClusterPort,
        command: Command<'_>,
        fences: &[Fence],
        out: &mut BytesMut,
    ) -> Option<String> {
        let run = async |fences| port.cluster.run(command, &self.keys, fences, self.protocol).await;
        let Answer { reply, refused } = run(fences).await;
        let Some(refusal) = refused else {
            port.guard.counters.count(KIND, "answered");
            out.extend_from_slice(&reply);
            return None;
        };
        let key = self.keys.first().map_or(&b""[..], |key| command.arg(key.arg));
        let line = refusal.not_applied();
        let rule = port.guard.fencing.rules.label(key);
        let (code, fence, outcome) = match refusal {
            Refusal::Stale { fence, mark } => {
                (Code::StaleToken, fence, FenceOutcome::Stale { mark })
            }
            Refusal::Collision { fence, mark } => {
                (Code::TokenCollision, fence, FenceOutcome::Collision { mark })
            }
            Refusal::Unavailable(_) | Refusal::Line(_) => {
                out.extend_from_slice(&reply);
                return None;
            }
        };
        if port.guard.observer.passes(code, rule, &line) {
            out.extend_from_slice(&run(&[]).await.reply);
            return None;
        }
        let name = String::from_utf8_lossy(command.arg(0)).to_uppercase();
        let text = format!("{name} {}", key.escape_ascii());
        let asked = RequestSummary { fence: Some(fence), kind: KIND, text, owner: None };
        // The refusal is on its way already; this is the account of it.
        let _ = port.guard.account(&asked, Ok(outcome));
        out.extend_from_slice(&reply);
        Some(line)
    }
}

/// What the port's operations are called in the counters.
const KIND: &str = "redis";

/// The fences that the keys of a command need, each once.
///
/// # Errors
/// The line to be answered.
fn fences(
    guard: &Guard,
    tokens: &HeldTokens,
    command: Command<'_>,
    keys: &[KeyUse],
) -> Result<Vec<Fence>, Refusal> {
    let mut needed: Vec<Fence> = Vec::new();
    let mut scratch = String::new();
    for key in keys {
        let name = command.arg(key.arg);
        let resolved = guard
            .fencing
            .rules
            .resolve(name, &mut scratch)
            .map_err(|error| Refusal::Line(denied_key(name, &error.to_string())))?;
        let may_read = resolved.unfenced_reads || guard.fencing.allow_unfenced_reads;
        let lock = match resolved.protection {
            Protects::Open => continue,
            Protects::Deny => {
                let reason = "the guard's rules deny it to everybody";
                return Err(Refusal::Line(denied_key(name, reason)));
            }
            Protects::Lock(lock) => lock,
        };
        match tokens.fences().iter().find(|fence| fence.lock.as_str() == lock) {
            Some(fence) if needed.contains(fence) => {}
            Some(fence) => needed.push(fence.clone()),
            None if key.access == KeyAccess::Read && may_read => {}
            None => {
                let line = no_token(name, lock, tokens.listed());
                let rule = guard.fencing.rules.label(name);
                if !guard.observer.passes(Code::TokenRequired, rule, &line) {
                    return Err(Refusal::Line(line));
                }
            }
        }
    }
    Ok(needed)
}

/// Why a command that one Redis would take cannot be passed on before a cluster.
fn not_before_a_cluster(
    handling: Handling,
    touches: Touches,
    command: Command<'_>,
) -> Option<&'static str> {
    let is = |name: &str| command.arg(0).eq_ignore_ascii_case(name.as_bytes());
    match handling {
        _ if matches!(touches, Touches::Keyspace | Touches::Everything) => {
            Some("before a cluster no node has all keys; ask each node itself")
        }
        _ if touches == Touches::NamedByData => Some(
            "before a cluster BY and GET with a * reach keys of other nodes; sort in the client",
        ),
        Handling::Shared if is("script") || is("function") => {
            Some("before a cluster scripts and functions of clients are not run")
        }
        Handling::Shared if is("spublish") => {
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
