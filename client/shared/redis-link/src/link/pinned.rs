//! Commands that must not move to another connection.

use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use super::{LinkError, Live, RedisLink};

/// One physical connection of a [`RedisLink`]. Cheap to clone.
///
/// A command goes through this connection or fails: once the link has replaced the connection, a
/// call is [`LinkError::Down`]. A caller whose steps only mean something together (register, then
/// kill, then record) does all of them on one, so that a Redis that restarted in between cannot be
/// taken for the one that took the first step.
#[derive(Clone, Debug)]
pub struct Pinned {
    link: RedisLink,
    live: Live,
}

impl Pinned {
    pub(super) fn new(link: RedisLink, live: Live) -> Self {
        Self { link, live }
    }

    /// The number of the verification that was in force when the handle was made.
    pub fn generation(&self) -> u64 {
        self.live.generation
    }

    /// Address of the connection, `host:port`.
    pub fn address(&self) -> String {
        self.live.at.address()
    }

    /// True while the link uses this connection.
    pub fn is_current(&self) -> bool {
        self.link.is_current(&self.live)
    }

    /// Sends one command and awaits its reply. `NOSCRIPT` is an error like any other here.
    ///
    /// # Errors
    /// [`LinkError`]; only [`LinkError::Unknown`] leaves open whether the command was run.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the command back.
    pub async fn call(&self, command: &Cmd) -> Result<Value, LinkError> {
        self.still_current()?;
        self.link.send(&self.live, command).await
    }

    /// Sends commands one right behind the other, no other caller's between them, and awaits
    /// all replies. An error that Redis answers to one of them is a [`Value::ServerError`] in its
    /// place; the others were run all the same.
    ///
    /// # Errors
    /// [`LinkError`]; after [`LinkError::Unknown`] any of them may or may not have been run.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the commands back.
    pub async fn pipeline(&self, commands: &[Cmd]) -> Result<Vec<Value>, LinkError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.still_current()?;
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let mut connection = self.live.connection.clone();
        let replies = connection.send_packed_commands(&pipeline, 0, commands.len());
        let replies = self.link.awaited(&self.live, replies).await?;
        for reply in &replies {
            if let Value::ServerError(error) = reply {
                // The reply stays where it is; an error such as MOVED replaces the connection.
                self.link.refused(&self.live, &error.clone().into());
            }
        }
        Ok(replies)
    }

    /// Asks the sentinels, where there are some, whether for more than half of all the choice is in
    /// force by which this connection was made. What they answer is true after this call began: no
    /// later choice was named by a majority before it.
    ///
    /// # Errors
    /// A sentence with what they said, also where too few answered.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn confirm_master(&self, timeout: Duration) -> Result<(), String> {
        self.link.target().confirm(&self.live.at, timeout).await
    }

    fn still_current(&self) -> Result<(), LinkError> {
        if self.is_current() {
            return Ok(());
        }
        let target = self.link.target();
        Err(LinkError::Down(format!("the connection to Redis at {target} was replaced")))
    }
}
