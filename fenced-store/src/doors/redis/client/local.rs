//! Commands that the guard answers by itself: who the client is, and how it speaks.

use bytes::Bytes;

use super::super::commands::Local;
use super::super::password::{Login, NOAUTH_HELLO};
use super::super::refusal::Refusal;
use super::super::resp::{Protocol, encode};
use super::super::tokens::HeldTokens;
use super::command::OwnedCommand;
use super::{Client, Next};

impl Client {
    pub(super) async fn local(&mut self, local: Local, command: &OwnedCommand) -> Next {
        let done = match local {
            Local::Auth => self.auth(command).await,
            Local::Hello => self.hello(command).await,
            Local::Select => self.select(command).await,
            Local::Fence => return self.fence(command).await,
            Local::Reset => self.reset().await,
            Local::Quit => {
                self.settled().await;
                self.ok();
                return Next::Close;
            }
            Local::ClientSetName => self.set_name(command.command().arg(2)),
            Local::ClientSetInfo => {
                self.ok();
                Ok(())
            }
            Local::ClientGetName
            | Local::ClientId
            | Local::ClientInfo
            | Local::ClientList
            | Local::AclWhoAmI
            | Local::ModuleList => self.look_up(local, command.command()),
            Local::ClientUnblock => self.unblock(command.command()).await,
            Local::ConfigGet => self.config_get(command.command()).await,
        };
        match done {
            Ok(()) => Next::Serve,
            Err(refusal) => self.refuse(&refusal),
        }
    }

    /// As [`Client::local`], inside MULTI. Redis queues look-ups, so a script that returns what is known
    /// is queued in their place. There is nothing to queue the others in.
    pub(super) async fn local_in_transaction(
        &mut self,
        local: Local,
        command: &OwnedCommand,
    ) -> Next {
        if matches!(local, Local::Quit | Local::Reset) {
            return self.local(local, command).await;
        }
        let queued = match self.queued_look_up(local, command.command()) {
            Ok(Some(script)) => match self.connected().await {
                Ok(()) => self.send(&script).await,
                Err(refusal) => Err(refusal),
            },
            Ok(None) => {
                let name = self.hub.port.table.borrow().name_of(command.command());
                Err(Refusal::Line(format!(
                    "DENIED {name} is answered by the guard and cannot be queued inside MULTI; send it \
                     before MULTI. This transaction can only be discarded"
                )))
            }
            Err(refusal) => Err(refusal),
        };
        match queued {
            Ok(()) => Next::Serve,
            Err(refusal) => self.refuse(&refusal),
        }
    }

    pub(super) fn ok(&self) {
        self.outbox.local(|out| encode::simple(out, "OK"));
    }

    /// `AUTH [user] credential`: the tokens of this connection, in place of those it had.
    async fn auth(&mut self, command: &OwnedCommand) -> Result<(), Refusal> {
        let command = command.command();
        if command.len() > 3 {
            return Err(Refusal::Line("ERR syntax error".to_owned()));
        }
        self.log_in(command.arg(command.len() - 1), self.profile.protocol).await?;
        self.ok();
        Ok(())
    }

    async fn log_in(&mut self, credential: &[u8], protocol: Protocol) -> Result<(), Refusal> {
        let login = self.read_login(credential)?;
        self.is_known |= matches!(login, Login::Tokens(_));
        let tokens = HeldTokens::default().with(login.tokens())?;
        self.change(tokens, protocol).await?;
        self.is_admitted = true;
        Ok(())
    }

    /// Makes these the tokens of the connection, and has them registered, so that a stale one is
    /// refused at once and a new one takes over at once.
    ///
    /// # Errors
    /// The line to be answered; the tokens are then as they were.
    pub(super) async fn hold(&mut self, tokens: HeldTokens) -> Result<(), Refusal> {
        self.change(tokens, self.profile.protocol).await
    }

    /// As [`Client::hold`], and the protocol with it: both or none.
    async fn change(&mut self, tokens: HeldTokens, protocol: Protocol) -> Result<(), Refusal> {
        let is_same = tokens == self.held && protocol == self.profile.protocol;
        if is_same && self.refused.is_none() && self.has_connection() {
            return self.verify_held().await;
        }
        if self.observes() && protocol == self.profile.protocol {
            // No connection is registered under them, so none is replaced.
            self.observe_tokens(&tokens).await?;
            self.held = tokens;
            return Ok(());
        }
        self.may_be_replaced("tokens")?;
        // Tokens that were refused have nothing on its way.
        let refused = self.refused.take();
        if let Err(refusal) = self.detached().await {
            self.refused = self.refused.take().or(refused);
            return Err(refusal);
        }
        if self.observes() {
            self.observe_tokens(&tokens).await?;
            self.held = tokens;
            self.profile.protocol = protocol;
            return Ok(());
        }
        let db = self.profile.db;
        let profile = super::ConnectionProfile { tokens: tokens.clone(), db, protocol };
        if !profile.tokens.is_empty() {
            match self.hub.shared(&profile).await {
                Ok(upstream) => self.upstream = Some(upstream),
                Err(refusal) => {
                    self.hub.port.note_refusal(&refusal);
                    self.refused = refused;
                    return Err(refusal);
                }
            }
        }
        self.group = self.hub.groups.join(&tokens);
        self.profile = profile;
        self.held = tokens;
        Ok(())
    }

    /// Whether the tokens are in force: a connection that is registered under them exists.
    fn has_connection(&self) -> bool {
        self.profile.tokens.is_empty()
            || self.upstream.as_ref().is_some_and(|upstream| !upstream.is_broken())
    }

    /// `HELLO [2|3 [AUTH user credential] [SETNAME name]]`: all of it or nothing, as from Redis 7.2 on.
    async fn hello(&mut self, command: &OwnedCommand) -> Result<(), Refusal> {
        let line = |text: &str| Refusal::Line(text.to_owned());
        let args = command.command();
        let protocol = match args.arg(1) {
            b"" if args.len() == 1 => self.profile.protocol,
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            _ => return Err(line("NOPROTO unsupported protocol version")),
        };
        let (mut credential, mut name, mut at) = (None, None, 2);
        while at < args.len() {
            let option = args.arg(at).to_ascii_uppercase();
            match option.as_slice() {
                b"AUTH" if at + 2 < args.len() => {
                    credential = Some(args.arg(at + 2));
                    at += 3;
                }
                b"SETNAME" if at + 1 < args.len() => {
                    name = Some(args.arg(at + 1));
                    at += 2;
                }
                _ => return Err(line("ERR Syntax error in HELLO option")),
            }
        }
        name.map_or(Ok(()), checked_name)?;
        match credential {
            Some(credential) => self.log_in(credential, protocol).await?,
            None if !self.is_admitted => return Err(line(NOAUTH_HELLO)),
            None => self.speak(protocol).await?,
        }
        if let Some(name) = name {
            self.name = Bytes::copy_from_slice(name);
        }
        self.introduce();
        Ok(())
    }

    async fn speak(&mut self, protocol: Protocol) -> Result<(), Refusal> {
        if protocol == self.profile.protocol {
            return Ok(());
        }
        self.may_be_replaced("protocol")?;
        self.detached().await?;
        self.profile.protocol = protocol;
        Ok(())
    }

    /// Refuses what would take the connection to Redis away, and with it what is kept there.
    pub(super) fn may_be_replaced(&self, what: &str) -> Result<(), Refusal> {
        if self.is_bound() {
            return Err(Refusal::Line(format!(
                "DENIED the {what} of a connection that watches or subscribes cannot be changed; \
                 UNWATCH or UNSUBSCRIBE first, or open another connection"
            )));
        }
        Ok(())
    }

    /// Refuses what would write to the client while Redis may send it messages.
    pub(super) fn may_not_subscribe(&self, what: &str) -> Result<(), Refusal> {
        let both = self.own.as_ref().zip(self.upstream.as_ref());
        if both.is_some_and(|(own, upstream)| self.subscribes(own, upstream)) {
            return Err(Refusal::Line(format!(
                "DENIED {what} a connection that subscribes or tracks: its reply and the messages \
                 would come from two connections; UNSUBSCRIBE first, or open another connection"
            )));
        }
        Ok(())
    }

    fn introduce(&self) {
        let (protocol, id) = (self.profile.protocol, self.id);
        let version = self.hub.port.redis_version();
        self.outbox.local(|out| {
            encode::map(out, 7, protocol);
            for (key, value) in [("server", "redis"), ("version", version.as_str())] {
                encode::bulk(out, key.as_bytes());
                encode::bulk(out, value.as_bytes());
            }
            encode::bulk(out, b"proto");
            encode::integer(out, if protocol == Protocol::Resp3 { 3 } else { 2 });
            encode::bulk(out, b"id");
            encode::integer(out, i64::try_from(id).unwrap_or(i64::MAX));
            for (key, value) in [("mode", "standalone"), ("role", "master")] {
                encode::bulk(out, key.as_bytes());
                encode::bulk(out, value.as_bytes());
            }
            encode::bulk(out, b"modules");
            encode::array(out, 0);
        });
    }

    /// `SELECT db`: another connection, on which the same tokens are registered.
    async fn select(&mut self, command: &OwnedCommand) -> Result<(), Refusal> {
        let text = std::str::from_utf8(command.command().arg(1)).ok();
        let db: Option<i64> = text.and_then(|text| text.parse().ok());
        let db = db.ok_or_else(|| {
            Refusal::Line("ERR value is not an integer or out of range".to_owned())
        })?;
        if db != self.profile.db {
            self.may_be_replaced("database")?;
            self.detached().await?;
            let profile = super::ConnectionProfile { db, ..self.profile.clone() };
            let made = self.hub.shared(&profile).await;
            if let Err(refusal) = &made {
                self.note(refusal);
            }
            self.upstream = Some(made?);
            self.profile = profile;
        }
        self.ok();
        Ok(())
    }

    /// `RESET`: as if it had just connected.
    async fn reset(&mut self) -> Result<(), Refusal> {
        // What is on its way is answered first: a reply that came later would be taken for that of
        // a later command.
        if self.settled().await == Next::Close {
            self.outbox.give_up(super::End::Gone);
            return Ok(());
        }
        self.transaction = None;
        self.lost_watch = false;
        self.is_known = false;
        self.is_admitted = self.hub.port.settings.password.is_none();
        if let Some(upstream) = self.upstream.take()
            && upstream.is_own()
        {
            upstream.close();
        }
        self.own = None;
        self.refused = None;
        self.name = Bytes::new();
        self.group = None;
        self.held = HeldTokens::default();
        self.profile = super::ConnectionProfile {
            tokens: HeldTokens::default(),
            db: self.hub.port.redis.link.target().db(),
            protocol: Protocol::Resp2,
        };
        self.outbox.local(|out| encode::simple(out, "RESET"));
        Ok(())
    }

    fn set_name(&mut self, name: &[u8]) -> Result<(), Refusal> {
        checked_name(name)?;
        self.name = Bytes::copy_from_slice(name);
        self.ok();
        Ok(())
    }
}

fn checked_name(name: &[u8]) -> Result<(), Refusal> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) && name.len() <= 256 {
        return Ok(());
    }
    Err(Refusal::Line(
        "ERR Client names cannot contain spaces, newlines or special characters.".to_owned(),
    ))
}
