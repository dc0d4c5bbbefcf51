//! The port before a Redis Cluster: one Lua script a command, in the command's slot.
//!
//! Preempt and abort needs one place where a lock's connections are registered and its mark is
//! raised; the keys of a lock may be in many slots, on many nodes. So here each command travels
//! inside a script that checks the marks, raises them and runs the command, in one step of the node
//! that owns the slot. A lock has a mark in every slot that its holders have touched: the first
//! touch of a slot, read or write, raises it there, so no lower token can change what a holder has
//! read. The old holder can still write a slot that the new holder has not touched yet.
//!
//! A mark is `{fence:<namespace>:<number>}:mark:<lock>`, where the number makes the name hash to
//! the slot. It is a key like any other, so it moves with its slot when the cluster is resharded.
//! While a slot is on its way, Redis runs a script only where all of its keys are (TRYAGAIN
//! otherwise), so that no script can miss a mark that is on the other side.

use bytes::BytesMut;
use fence_protocol::Namespace;
use redis::{Cmd, Value};
use redis_link::{ClusterTarget, LinkError, RedisLink, slot_of};
use service_kit::Kit;

use super::commands::KeyUse;
use super::refusal::{self, Refusal};
use super::resp::request::Command;
use super::resp::{Protocol, encode};
use crate::verdict::{Fence, Mark};

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod limits;
mod nodes;
mod probe;
mod reply;
pub(crate) mod session;
mod shape;
mod slots;
mod step;

use nodes::Nodes;
use shape::Shape;
use slots::Tags;
use step::{Marks, StepScript};

/// Attempts of one command: each follows a redirection, or waits for a slot that moves.
const TRIES: u32 = 12;
/// First pause before a retry in a slot that moves; each next one is twice as long.
const FIRST_PAUSE_MS: u64 = 4;
/// The longest of these pauses: all of them together are about a second.
const LONGEST_PAUSE_MS: u64 = 200;

/// A Redis Cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Nodes,
    step: StepScript,
    tags: Tags,
}

impl Cluster {
    /// Finds the nodes through the seeds, checks each master, and probes on each that the script is
    /// atomic.
    ///
    /// # Errors
    /// A sentence with the address, why this cluster cannot be used, and what to do.
    pub(crate) async fn open(
        target: ClusterTarget,
        namespace: &Namespace,
        kit: &Kit,
    ) -> Result<Self, String> {
        let step = StepScript::new();
        let tags = Tags::new(namespace);
        let nodes = Nodes::open(target, step.script().clone(), kit).await?;
        probe::probe(&nodes, &step, &tags).await?;
        Ok(Self { nodes, step, tags })
    }

    /// Runs a command under these fences: those that its keys need, all checked in the same step.
    /// Writes the reply to `out`, and returns the refusal if a fence refused the command.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel a command that was sent.
    pub(crate) async fn run(
        &self,
        command: Command<'_>,
        keys: &[KeyUse],
        fences: &[Fence],
        protocol: Protocol,
        out: &mut BytesMut,
    ) -> Option<Refusal> {
        let shape = Shape::from_command(command, protocol);
        match self.value(command, keys, fences, shape).await {
            Ok(value) => {
                reply::encode(out, value, shape, protocol);
                None
            }
            Err(refusal) => {
                encode::error(out, &refusal.not_applied());
                refusal.is_final().then_some(refusal)
            }
        }
    }

    /// Runs a command without keys on any node.
    async fn keyless(&self, command: Command<'_>) -> Result<Value, Refusal> {
        let mut packed = Cmd::new();
        for arg in command.iter() {
            packed.arg(arg);
        }
        let node = self.nodes.any().await.map_err(Refusal::Unavailable)?;
        node.call(&packed).await.map_err(line)
    }

    /// Runs a command in the slot of its keys.
    async fn value(
        &self,
        command: Command<'_>,
        keys: &[KeyUse],
        fences: &[Fence],
        shape: Shape,
    ) -> Result<Value, Refusal> {
        limits::check(command, fences.len()).map_err(Refusal::Line)?;
        let Some(first) = keys.first() else { return self.keyless(command).await };
        let slot = slot_of(command.arg(first.arg));
        if keys.iter().any(|key| slot_of(command.arg(key.arg)) != slot) {
            return Err(Refusal::Line(CROSS_SLOT.to_owned()));
        }
        let each = fences.iter().map(|fence| self.tags.mark(slot, fence.lock.as_str())).collect();
        let marks = Marks { each, all: self.tags.marks(slot) };
        let names = keys.iter().map(|key| command.arg(key.arg));
        let words = command.iter();
        let packed = self.step.pack(&marks, fences, names, words, shape.is_native);
        self.directed(slot, &packed, fences).await
    }

    /// Sends a script to the node that owns `slot`, and follows redirections.
    async fn directed(&self, slot: u16, packed: &Cmd, fences: &[Fence]) -> Result<Value, Refusal> {
        let nodes = &self.nodes;
        let mut to = To::Owner;
        let mut last = String::new();
        for attempt in 0..TRIES {
            let seen = nodes.map().version();
            let (address, asking) = match std::mem::replace(&mut to, To::Owner) {
                To::Asking(address) => (address, true),
                To::Owner => match nodes.map().owner(slot) {
                    Some(address) => (address, false),
                    None => {
                        last = format!("CLUSTERDOWN no node serves slot {slot}");
                        nodes.refresh(seen).await;
                        pause(attempt).await;
                        continue;
                    }
                },
            };
            match send(nodes, &address, asking, packed).await {
                Ok(value) => return Ok(value),
                Err(LinkError::Server { code, message }) => match code.as_str() {
                    "MOVED" => {
                        last = on_its_way(slot, &code, &message);
                        nodes.moved(slot, &message, &address);
                        if attempt > 0 {
                            pause(attempt).await;
                        }
                    }
                    "ASK" => {
                        last = on_its_way(slot, &code, &message);
                        to = To::Asking(slots::direction(&message, &address));
                    }
                    "TRYAGAIN" | "CLUSTERDOWN" => {
                        last = format!("{code} {message}");
                        if code == "CLUSTERDOWN" {
                            nodes.refresh(seen).await;
                        }
                        pause(attempt).await;
                    }
                    _ => return step::outcome(&code, &message, fences),
                },
                Err(LinkError::Down(reason)) => {
                    // Nothing was sent. Another node may serve the slot by now.
                    nodes.refresh(seen).await;
                    if nodes.map().owner(slot).is_none_or(|owner| owner == address) {
                        return Err(Refusal::Unavailable(reason));
                    }
                    last = format!("UNAVAILABLE {reason}. Nothing was sent; try again");
                }
                Err(LinkError::Unknown(reason)) => {
                    nodes.refresh_soon();
                    return Err(Refusal::Line(refusal::unknown(&reason)));
                }
            }
        }
        // Each of these errors means that nothing was run.
        Err(Refusal::Line(last))
    }
}

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Destination of the next attempt.
enum To {
    /// The owner of the slot.
    Owner,
    /// The node that is importing the slot, for one attempt.
    Asking(String),
}

async fn send(
    nodes: &Nodes,
    address: &str,
    asking: bool,
    packed: &Cmd,
) -> Result<Value, LinkError> {
    let link = nodes.link(address).await.map_err(LinkError::Down)?;
    if !asking {
        return link.call(packed).await;
    }
    let generation = link.generation();
    match call_asking(&link, packed).await {
        // The command was not run. Verifying the node again loads the script.
        Err(LinkError::Server { code, .. }) if code == "NOSCRIPT" => {
            link.verify_again(generation).await?;
            call_asking(&link, packed).await
        }
        other => other,
    }
}

/// Sends ASKING and the command in one pipeline: ASKING covers only the next command of its
/// connection.
async fn call_asking(link: &RedisLink, packed: &Cmd) -> Result<Value, LinkError> {
    let replies = link.pinned()?.pipeline(&[redis::cmd("ASKING"), packed.clone()]).await?;
    match replies.into_iter().nth(1) {
        Some(Value::ServerError(error)) => Err(LinkError::Server {
            code: error.code().to_owned(),
            message: error.details().unwrap_or_default().to_owned(),
        }),
        Some(value) => Ok(value),
        None => Err(LinkError::Unknown("Redis answered ASKING alone".to_owned())),
    }
}

/// Refusal for a link error of a command that is no script.
fn line(error: LinkError) -> Refusal {
    match error {
        LinkError::Down(reason) => Refusal::Unavailable(reason),
        LinkError::Unknown(reason) => Refusal::Line(refusal::unknown(&reason)),
        LinkError::Server { code, message } => Refusal::Line(step::error_line(&code, &message)),
    }
}

/// Refusal of a command whose slot was at none of the nodes that were asked. A client that follows
/// directions must not get one: it would pass the guard by.
fn on_its_way(slot: u16, code: &str, message: &str) -> String {
    format!(
        "TRYAGAIN slot {slot} is on its way between nodes, or they do not agree on its owner: the \
         last one that was asked said {code} {message}. Nothing was done; try again"
    )
}

async fn pause(attempt: u32) {
    let ms = (FIRST_PAUSE_MS << attempt.min(16)).min(LONGEST_PAUSE_MS);
    tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
}

/// Reads a mark from the scripts' reply.
fn mark_of(token: &str, lease: &str) -> Option<Mark> {
    Some(Mark { token: token.parse().ok()?, lease: lease.parse().ok()? })
}
