//! What the guard tells a client of itself and of Redis' settings.

use super::super::commands::Local;
use super::super::look_ups::{self, ClientInfo, USER};
use super::super::refusal::Refusal;
use super::super::resp::encode;
use super::super::resp::request::Command;
use super::Client;

impl Client {
    pub(super) fn look_up(&self, local: Local, command: Command<'_>) -> Result<(), Refusal> {
        let protocol = self.likeness.protocol;
        let client = ClientInfo {
            id: self.id,
            name: &self.name,
            addresses: [self.reader.peer_addr().ok(), self.reader.local_addr().ok()],
            db: self.likeness.db,
            protocol,
        };
        let list = match local {
            Local::ClientList => client.list(command)?,
            _ => String::new(),
        };
        self.outbox.local(|out| match local {
            Local::ClientId => encode::integer(out, i64::try_from(self.id).unwrap_or(i64::MAX)),
            Local::ClientInfo => client.info(out),
            Local::AclWhoAmI => encode::bulk(out, USER.as_bytes()),
            Local::ModuleList => encode::array(out, 0),
            _ => look_ups::text(out, &list, protocol),
        });
        Ok(())
    }

    /// `CONFIG GET` of what drivers ask, by the guard's own connection.
    pub(super) async fn config_get(&self, command: Command<'_>) -> Result<(), Refusal> {
        use service_kit::redis_link::LinkError;
        let get = look_ups::config_get(command)?;
        let reply = self.hub.port.redis.link.call(&get).await.map_err(|error| match error {
            LinkError::Server { code, message } => Refusal::Line(format!("{code} {message}")),
            error => Refusal::Unavailable(error.to_string()),
        })?;
        let protocol = self.likeness.protocol;
        self.outbox.local(|out| look_ups::settings(out, reply, protocol));
        Ok(())
    }
}
