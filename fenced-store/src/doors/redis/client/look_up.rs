//! What the guard tells a client of itself and of Redis' settings.

use redis::Value;
use service_kit::redis_link::LinkError;

use super::super::commands::Local;
use super::super::look_ups::{self, ClientInfo, USER};
use super::super::refusal::Refusal;
use super::super::resp::encode;
use super::super::resp::request::Command;
use super::Client;
use super::command::OwnedCommand;

/// What the guard knows of a client, as a reply.
#[derive(Debug)]
enum Answer {
    Null,
    Number(u64),
    Word(Vec<u8>),
    /// A text with line ends.
    Text(String),
    NoItems,
}

impl Client {
    pub(super) fn look_up(&self, local: Local, command: Command<'_>) -> Result<(), Refusal> {
        let protocol = self.profile.protocol;
        let answer = self.answer(local, command)?;
        self.outbox.local(|out| match &answer {
            None | Some(Answer::Null) => encode::null(out, protocol),
            Some(Answer::Number(number)) => {
                encode::integer(out, i64::try_from(*number).unwrap_or(i64::MAX));
            }
            Some(Answer::Word(word)) => encode::bulk(out, word),
            Some(Answer::Text(text)) => look_ups::text(out, text, protocol),
            Some(Answer::NoItems) => encode::array(out, 0),
        });
        Ok(())
    }

    /// A command with the same reply, for Redis to queue; `None` for what is no look-up.
    ///
    /// # Errors
    /// Redis' line for options that it does not take.
    pub(super) fn queued_look_up(
        &self,
        local: Local,
        command: Command<'_>,
    ) -> Result<Option<OwnedCommand>, Refusal> {
        let Some(answer) = self.answer(local, command)? else { return Ok(None) };
        let (script, argument) = match answer {
            Answer::Null => ("return false", Vec::new()),
            Answer::Number(number) => ("return tonumber(ARGV[1])", number.to_string().into_bytes()),
            Answer::Word(word) => ("return ARGV[1]", word),
            Answer::Text(text) => {
                ("return {verbatim_string={format='txt', string=ARGV[1]}}", text.into_bytes())
            }
            Answer::NoItems => ("return {}", Vec::new()),
        };
        let words: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"0", &argument];
        Ok(Some(OwnedCommand::new(words.into_iter())))
    }

    /// The reply to a look-up; `None` for any other command.
    ///
    /// # Errors
    /// Redis' line for options that it does not take.
    fn answer(&self, local: Local, command: Command<'_>) -> Result<Option<Answer>, Refusal> {
        let client = ClientInfo {
            id: self.id,
            name: &self.name,
            addresses: [self.reader.peer_addr().ok(), self.reader.local_addr().ok()],
            db: self.profile.db,
            protocol: self.profile.protocol,
        };
        Ok(Some(match local {
            Local::ClientGetName if self.name.is_empty() => Answer::Null,
            Local::ClientGetName => Answer::Word(self.name.to_vec()),
            Local::ClientId => Answer::Number(self.id),
            Local::ClientInfo => Answer::Text(client.info()),
            Local::ClientList => Answer::Text(client.list(command)?),
            Local::AclWhoAmI => Answer::Word(USER.as_bytes().to_vec()),
            Local::ModuleList => Answer::NoItems,
            _ => return Ok(None),
        }))
    }

    /// `CLIENT UNBLOCK id [TIMEOUT|ERROR]`, of a client with the same tokens.
    pub(super) async fn unblock(&mut self, command: Command<'_>) -> Result<(), Refusal> {
        let (id, reason) = look_ups::unblock(command)?;
        // It goes by another connection, and behind what was sent before it.
        self.settle_or_fail().await?;
        let port = &self.hub.port;
        // As in Redis, one that is not there, or does not wait, is not unblocked.
        let Some(other) = port.own_clients.find(id) else {
            self.outbox.local(|out| encode::integer(out, 0));
            return Ok(());
        };
        if other.tokens != self.profile.tokens {
            return Err(Refusal::Line(format!(
                "DENIED client {id} holds other tokens; a client unblocks those with the same tokens"
            )));
        }
        let mut unblock = redis::cmd("CLIENT");
        unblock.arg("UNBLOCK").arg(other.redis_id).arg(reason);
        // In another process the id would be another client's.
        let is_same = || other.run_id.as_ref().is_none_or(|id| port.redis.state.run_id() == *id);
        let unblocked = is_same() && self.call(&unblock).await? == Value::Int(1);
        if unblocked && !is_same() {
            return Err(Refusal::Unavailable("Redis changed behind the guard".to_owned()));
        }
        self.outbox.local(|out| encode::integer(out, i64::from(unblocked)));
        Ok(())
    }

    /// `CONFIG GET` of what drivers ask, by the guard's own connection.
    pub(super) async fn config_get(&self, command: Command<'_>) -> Result<(), Refusal> {
        let reply = self.call(&look_ups::config_get(command)?).await?;
        let protocol = self.profile.protocol;
        self.outbox.local(|out| look_ups::settings(out, reply, protocol));
        Ok(())
    }

    /// The reply to a command of the guard's own connection.
    async fn call(&self, command: &redis::Cmd) -> Result<Value, Refusal> {
        self.hub.port.redis.link.call(command).await.map_err(|error| match error {
            LinkError::Server { code, message } => Refusal::Line(format!("{code} {message}")),
            error => Refusal::Unavailable(error.to_string()),
        })
    }
}
