//! Look-ups inside MULTI, and commands of the guard's own connection.

use redis::Value;
use redis_link::LinkError;

use super::super::commands::Local;
use super::super::refusal::Refusal;
use super::super::resp::request::Command;
use super::super::session::{LookUp, look_up};
use super::Client;
use super::command::OwnedCommand;

impl Client {
    /// A command with the same reply, for Redis to queue; `None` for what is no look-up.
    ///
    /// # Errors
    /// Redis' line for options that it does not take.
    pub(super) fn queued_look_up(
        &self,
        local: Local,
        command: Command<'_>,
    ) -> Result<Option<OwnedCommand>, Refusal> {
        let Some(found) = look_up(self, local, command)? else { return Ok(None) };
        let (script, argument) = match found {
            LookUp::Null => ("return false", Vec::new()),
            LookUp::Number(number) => ("return tonumber(ARGV[1])", number.to_string().into_bytes()),
            LookUp::Word(word) => ("return ARGV[1]", word),
            LookUp::Text(text) => {
                ("return {verbatim_string={format='txt', string=ARGV[1]}}", text.into_bytes())
            }
            LookUp::Modules(facts) => {
                let modules = facts.modules_for_script(self.profile.protocol);
                ("return cjson.decode(ARGV[1])", modules)
            }
        };
        let words: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"0", &argument];
        Ok(Some(OwnedCommand::new(words.into_iter())))
    }

    /// The reply to a command of the guard's own connection.
    pub(super) async fn call(&self, command: &redis::Cmd) -> Result<Value, Refusal> {
        self.hub.port.redis.link.call(command).await.map_err(|error| match error {
            LinkError::Server { code, message } => Refusal::Line(format!("{code} {message}")),
            error => Refusal::Unavailable(error.to_string()),
        })
    }
}
