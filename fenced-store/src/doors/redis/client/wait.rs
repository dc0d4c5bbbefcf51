//! WAIT and WAITAOF, which count the writes of their own connection.

use bytes::BytesMut;

use super::super::refusal::Refusal;
use super::super::resp::encode;
use super::super::resp::request::Command;
use super::Client;

/// The refusal of a WAIT that could not wait.
const WAIT_IN_MULTI: &str = "DENIED WAIT is not passed on inside MULTI, where it does not wait and counts \
                             nothing of the transaction; send it behind EXEC";

pub(super) fn is_wait(command: Command<'_>) -> bool {
    command.begins(&["wait"]) || command.begins(&["waitaof"])
}

impl Client {
    /// Sends a write ahead of WAIT. It comes behind all writes of the client, on whichever
    /// connection these were made, so WAIT counts them all.
    pub(super) async fn write_before_wait(&self) -> Result<(), Refusal> {
        if self.transaction.is_some() {
            return Err(Refusal::Line(WAIT_IN_MULTI.to_owned()));
        }
        let channel = format!("{{fence:{}}}:wait", self.identity.context.guard.fencing.namespace);
        let publish: [&[u8]; 3] = [b"PUBLISH", channel.as_bytes(), b""];
        let mut bytes = BytesMut::new();
        encode::request(&mut bytes, publish);
        self.with_room().await?.send_own(&bytes);
        Ok(())
    }
}
