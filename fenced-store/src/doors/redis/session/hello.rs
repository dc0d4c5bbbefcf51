//! HELLO and the name of a client.

use bytes::Bytes;

use super::super::password::NOAUTH_HELLO;
use super::super::refusal::{Refusal, quoted};
use super::super::resp::request::Command;
use super::super::resp::{Protocol, encode};
use super::{Session, line, login, ok};

/// The longest name that a client may give itself, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Arguments of a HELLO.
#[derive(Debug)]
struct Hello<'a> {
    protocol: Protocol,
    credential: Option<&'a [u8]>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// Reads `HELLO [2|3 [AUTH user credential] [SETNAME name]]`, where `spoken` is the protocol
    /// now.
    fn parse(command: Command<'a>, spoken: Protocol) -> Result<Self, Refusal> {
        let protocol = match command.arg(1) {
            _ if command.len() == 1 => spoken,
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            _ => return Err(line("NOPROTO unsupported protocol version")),
        };
        let mut hello = Self { protocol, credential: None, name: None };
        let mut at = 2;
        while at < command.len() {
            let option = command.arg(at);
            let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
            if is(b"AUTH") && at + 2 < command.len() {
                hello.credential = Some(command.arg(at + 2));
                at += 3;
            } else if is(b"SETNAME") && at + 1 < command.len() {
                let name = command.arg(at + 1);
                check_name(name)?;
                hello.name = Some(name);
                at += 2;
            } else {
                let option = quoted(option);
                return Err(Refusal::Line(format!("ERR Syntax error in HELLO option '{option}'")));
            }
        }
        Ok(hello)
    }
}

/// HELLO: all of its options take effect or none, as in Redis from 7.2 on.
pub(super) async fn hello<S: Session>(
    session: &mut S,
    command: Command<'_>,
) -> Result<(), Refusal> {
    let Hello { protocol, credential, name } = Hello::parse(command, session.protocol())?;
    match credential {
        Some(credential) => login::log_in(session, credential, protocol).await?,
        None if !session.identity().is_admitted => return Err(line(NOAUTH_HELLO)),
        None => session.speak(protocol).await?,
    }
    if let Some(name) = name {
        session.identity_mut().name = Bytes::copy_from_slice(name);
    }
    introduce(session);
    Ok(())
}

/// The reply to HELLO. The mode is `standalone` before a cluster too: a client need not know of
/// nodes and slots.
fn introduce(session: &mut impl Session) {
    let protocol = session.protocol();
    let id = session.identity().id;
    let facts = session.server_facts();
    session.reply(|out| {
        encode::map(out, 7, protocol);
        for (key, value) in [("server", &facts.server), ("version", &facts.version)] {
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
        facts.encode_modules(out, protocol);
    });
}

/// `CLIENT SETNAME name`.
pub(super) fn set_name(session: &mut impl Session, name: &[u8]) -> Result<(), Refusal> {
    check_name(name)?;
    session.identity_mut().name = Bytes::copy_from_slice(name);
    ok(session);
    Ok(())
}

fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(line("ERR Client names cannot contain spaces, newlines or special characters."))
}
