//! What the guard answers a client by itself: who it is, which tokens it has, how it speaks.

use bytes::{Bytes, BytesMut};
use fence_protocol::LockName;

use super::super::super::commands::Local;
use super::super::super::look_ups::{self, ClientInfo};
use super::super::super::password::{Login, NOAUTH_HELLO};
use super::super::super::refusal::{Refusal, quoted};
use super::super::super::resp::request::Command;
use super::super::super::resp::{Protocol, encode};
use super::super::super::tokens::{self, HeldTokens};
use super::{ClusterPort, Next, State};

/// The longest name that a client may give itself, in bytes.
const NAME_BYTES_MAX: usize = 256;

impl State {
    /// Answers what Redis sees nothing of.
    pub(super) async fn local(
        &mut self,
        port: &ClusterPort,
        local: Local,
        command: Command<'_>,
        out: &mut BytesMut,
    ) -> Next {
        match local {
            Local::Fence => return self.fence(port, command, out).await,
            Local::Quit => {
                encode::simple(out, "OK");
                return Next::Close;
            }
            Local::Auth => self.told(out, |state| state.auth(port, command)),
            Local::Hello => match self.hello(port, command) {
                Ok(()) => self.introduce(port, out),
                Err(refusal) => encode::error(out, &refusal.not_applied()),
            },
            Local::Select => self.told(out, |_| match command.arg(1) {
                b"0" => Ok(()),
                _ => Err(line("ERR SELECT is not allowed in cluster mode")),
            }),
            Local::Reset => {
                self.tokens = HeldTokens::default();
                self.is_known = false;
                self.is_admitted = port.settings.password.is_none();
                self.protocol = Protocol::Resp2;
                self.name = Bytes::new();
                encode::simple(out, "RESET");
            }
            Local::ClientSetName => self.told(out, |state| state.set_name(command.arg(2))),
            Local::ClientGetName if self.name.is_empty() => encode::null(out, self.protocol),
            Local::ClientGetName => encode::bulk(out, &self.name),
            Local::ClientSetInfo => encode::simple(out, "OK"),
            Local::ClientId => encode::integer(out, i64::try_from(self.id).unwrap_or(i64::MAX)),
            Local::ClientInfo => look_ups::text(out, &self.client().info(), self.protocol),
            // Nothing blocks before a cluster.
            Local::ClientUnblock => match look_ups::unblock(command) {
                Ok(_) => encode::integer(out, 0),
                Err(refusal) => encode::error(out, &refusal.not_applied()),
            },
            Local::ClientList => match self.client().list(command) {
                Ok(list) => look_ups::text(out, &list, self.protocol),
                Err(refusal) => encode::error(out, &refusal.not_applied()),
            },
            Local::AclWhoAmI => encode::bulk(out, look_ups::USER.as_bytes()),
            Local::ModuleList => encode::array(out, 0),
            Local::ConfigGet => encode::error(out, CONFIG_OF_NODES),
        }
        Next::Serve
    }

    fn client(&self) -> ClientInfo<'_> {
        let (id, name, protocol) = (self.id, &self.name[..], self.protocol);
        ClientInfo { id, name, addresses: self.addresses, db: 0, protocol }
    }

    fn told(&mut self, out: &mut BytesMut, set: impl FnOnce(&mut Self) -> Result<(), Refusal>) {
        match set(self) {
            Ok(()) => encode::simple(out, "OK"),
            Err(refusal) => encode::error(out, &refusal.not_applied()),
        }
    }

    /// `AUTH credential`, or `AUTH user credential`; the user's name means nothing. What is
    /// presented takes the place of all tokens before.
    fn auth(&mut self, port: &ClusterPort, command: Command<'_>) -> Result<(), Refusal> {
        let credential = match command.len() {
            2 => command.arg(1),
            3 => command.arg(2),
            _ => return Err(line("ERR syntax error")),
        };
        self.log_in(read_login(port, credential)?)
    }

    fn log_in(&mut self, login: Login) -> Result<(), Refusal> {
        let is_known = matches!(login, Login::Tokens(_));
        self.tokens = HeldTokens::default().with(login.tokens())?;
        self.is_known |= is_known;
        self.is_admitted = true;
        Ok(())
    }

    /// `HELLO [2|3 [AUTH user credential] [SETNAME name]]`: all of it, or nothing.
    fn hello(&mut self, port: &ClusterPort, command: Command<'_>) -> Result<(), Refusal> {
        let protocol = match command.arg(1) {
            _ if command.len() == 1 => self.protocol,
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            _ => return Err(line("NOPROTO unsupported protocol version")),
        };
        let (mut login, mut name, mut at) = (None, None, 2);
        while at < command.len() {
            let (option, left) = (command.arg(at), command.len() - at - 1);
            if option.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
                login = Some(read_login(port, command.arg(at + 2))?);
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
                name = Some(command.arg(at + 1));
                at += 2;
            } else {
                let option = quoted(option);
                return Err(Refusal::Line(format!("ERR Syntax error in HELLO option '{option}'")));
            }
        }
        if login.is_none() && !self.is_admitted {
            return Err(line(NOAUTH_HELLO));
        }
        if let Some(name) = name {
            self.set_name(name)?;
        }
        if let Some(login) = login {
            self.log_in(login)?;
        }
        self.protocol = protocol;
        Ok(())
    }

    /// The reply to HELLO. The mode is `standalone`: the client need not know of nodes and slots.
    fn introduce(&self, port: &ClusterPort, out: &mut BytesMut) {
        encode::map(out, 7, self.protocol);
        let text = |out: &mut BytesMut, name: &str, value: &str| {
            encode::bulk(out, name.as_bytes());
            encode::bulk(out, value.as_bytes());
        };
        text(out, "server", "redis");
        text(out, "version", &port.cluster.version());
        encode::bulk(out, b"proto");
        encode::integer(out, if self.protocol == Protocol::Resp3 { 3 } else { 2 });
        encode::bulk(out, b"id");
        encode::integer(out, i64::try_from(self.id).unwrap_or(i64::MAX));
        text(out, "mode", "standalone");
        text(out, "role", "master");
        encode::bulk(out, b"modules");
        encode::array(out, 0);
    }

    fn set_name(&mut self, name: &[u8]) -> Result<(), Refusal> {
        if name.len() > NAME_BYTES_MAX || !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
            return Err(line(
                "ERR Client names cannot contain spaces, newlines or special characters.",
            ));
        }
        self.name = Bytes::copy_from_slice(name);
        Ok(())
    }

    /// `FENCE SET credential`, `FENCE CLEAR [lock]`, `FENCE SHOW`, `FENCE credential COMMAND …`.
    async fn fence(
        &mut self,
        port: &ClusterPort,
        command: Command<'_>,
        out: &mut BytesMut,
    ) -> Next {
        let word = command.arg(1).to_ascii_uppercase();
        match (&word[..], command.len()) {
            (b"SET", 3) => self.told(out, |state| {
                let tokens = HeldTokens::genuine(command.arg(2), &port.guard.fencing)?;
                state.is_known = true;
                state.tokens = state.tokens.with(tokens)?;
                state.is_admitted = true;
                Ok(())
            }),
            (b"CLEAR", 2) => self.told(out, |state| {
                state.tokens = HeldTokens::default();
                Ok(())
            }),
            (b"CLEAR", 3) => self.told(out, |state| {
                let lock = std::str::from_utf8(command.arg(2)).ok();
                let lock = lock.and_then(|lock| LockName::new(lock).ok());
                let lock = lock.ok_or_else(|| line("ERR that is no lock's name"))?;
                state.tokens = state.tokens.without(&lock);
                Ok(())
            }),
            (b"SHOW", 2) => self.tokens.show(out),
            (b"HELP", 2) => tokens::help(out),
            (b"SET" | b"SHOW" | b"CLEAR" | b"HELP", _) | (_, 0..=2) => {
                encode::error(out, FENCE_SYNTAX)
            }
            _ => return self.once(port, command, out).await,
        }
        Next::Serve
    }

    /// One command under tokens of its own.
    async fn once(&mut self, port: &ClusterPort, command: Command<'_>, out: &mut BytesMut) -> Next {
        let inner = command.tail(2);
        if inner.arg(0).eq_ignore_ascii_case(b"FENCE") {
            encode::error(out, FENCE_SYNTAX);
            return Next::Serve;
        }
        let tokens = HeldTokens::genuine(command.arg(1), &port.guard.fencing)
            .and_then(|tokens| self.tokens.with(tokens));
        match tokens {
            Ok(tokens) => {
                self.is_known = true;
                self.answer_under(port, inner, &tokens, out).await
            }
            Err(refusal) => {
                encode::error(out, &refusal.not_applied());
                Next::Serve
            }
        }
    }
}

const CONFIG_OF_NODES: &str = "DENIED CONFIG GET is not passed on: before a cluster each node has its own \
                               settings; ask the nodes themselves";

const FENCE_SYNTAX: &str = "ERR FENCE is FENCE SET credential, FENCE CLEAR [lock], FENCE SHOW, or \
                            FENCE credential COMMAND [argument ...]";

fn read_login(port: &ClusterPort, text: &[u8]) -> Result<Login, Refusal> {
    let read = Login::read(text, &port.guard.fencing, port.settings.password.as_ref());
    read.map_err(|(_, refusal)| refusal)
}

fn line(text: &str) -> Refusal {
    Refusal::Line(text.to_owned())
}
