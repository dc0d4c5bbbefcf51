//! A token that comes by `SET fence.token = '…'`, as the first statement of a reader.
//!
//! Nothing has run in the reader's session then, so that a session of the writer, registered under
//! the token, can take its place; in the extended protocol it executes the statement, too. Later
//! statements of this kind set a name that nothing reads.

use std::borrow::Cow;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use super::frames::{self, HEADER};
use super::login::{Admitted, Client, Early, READY, within, write_all};
use super::refusal::Refusal;
use super::server::ServerSession;
use super::startup::Startup;
use super::{PortThread, admission};

/// The longest statement that is read for a token.
const STATEMENT_MAX: usize = 80 << 10;

/// Waits for the first statement of a reader. If it presents a token, the session becomes one of
/// the writer's; all else is left to the relay.
pub(super) async fn await_token(
    thread: &PortThread,
    client: &mut Client,
    startup: &Startup,
    mut admitted: Admitted,
    stop: &CancellationToken,
) -> Result<Admitted, Early> {
    let first = first_statement(client, &mut admitted.server, stop).await?;
    let Some((credential, frame)) = first else { return Ok(admitted) };
    client.inbox.advance(frame.len());
    let port = &thread.port;
    let admission = admission::present(port, startup, &credential)?;
    let opening = admission::open(thread, &admission, startup);
    let server = within(port.settings.login_within, opening).await?;
    admitted.key.stand_for(server.cancel_target());
    let mut reply = BytesMut::from(&server.greeting[..]);
    if frame[0] == b'Q' {
        reply.extend_from_slice(b"C\0\0\0\x08SET\0");
        reply.extend_from_slice(READY);
    } else {
        let mut inbox = without_credential(&frame);
        inbox.extend_from_slice(&client.inbox);
        client.inbox = inbox;
    }
    write_all(&client.writer, &reply).await?;
    Ok(Admitted { server, fences: admission.fences, key: admitted.key })
}

/// Returns the credential in the first statement, and its frame.
async fn first_statement(
    client: &mut Client,
    server: &mut ServerSession,
    stop: &CancellationToken,
) -> Result<Option<(String, Bytes)>, Early> {
    loop {
        if !may_present(&client.inbox) {
            return Ok(None);
        }
        // The relay refuses a bad length.
        let Ok(header) = frames::header(&client.inbox) else { return Ok(None) };
        if let Some((_, len)) = header {
            if len > STATEMENT_MAX {
                return Ok(None);
            }
            if let Some(frame) = client.inbox.get(..len) {
                let found = credential(statement(frame).unwrap_or_default())?;
                let frame = Bytes::copy_from_slice(frame);
                return Ok(found.map(|text| (text.into_owned(), frame)));
            }
        }
        tokio::select! {
            read = client.reader.read_buf(&mut client.inbox) => {
                if read? == 0 {
                    return Err(Early::Gone);
                }
            }
            // A notice, or the end of the session.
            () = server.received() => return Ok(None),
            () = stop.cancelled() => return Ok(None),
        }
    }
}

/// Returns the statement of a Query or Parse, as far as it is there; `None` for other frames, and
/// until the name before it is complete.
fn statement(frame: &[u8]) -> Option<&[u8]> {
    let mut texts = frame.get(HEADER..).unwrap_or_default().split(|byte| *byte == 0);
    match frame.first()? {
        b'Q' => texts.next(),
        b'P' => texts.nth(1),
        _ => None,
    }
}

/// Returns `true` as long as the bytes may be the beginning of a statement with SET.
fn may_present(bytes: &[u8]) -> bool {
    let Some(statement) = statement(bytes) else { return matches!(bytes, [] | [b'P', ..]) };
    let text = statement.trim_ascii_start();
    let begun = &text[..text.len().min(3)];
    begun.eq_ignore_ascii_case(&b"SET"[..begun.len()])
}

/// Returns a Parse with an empty credential: servers log statements.
fn without_credential(parse: &[u8]) -> BytesMut {
    let name = parse[HEADER..].split_inclusive(|byte| *byte == 0).next().unwrap_or_default();
    let body = [name, b"SET fence.token = ''\0\0\0"].concat();
    frames::frame(b'P', &body)
}

/// Reads `SET [SESSION] fence.token {=|TO} 'credential'`; `None` for any other statement.
///
/// # Errors
/// The refusal of one that sets the token and more, or to a value without quotes.
fn credential(statement: &[u8]) -> Result<Option<Cow<'_, str>>, Refusal> {
    let text = String::from_utf8_lossy(statement);
    let Some(value) = value(&text).map(str::to_owned) else { return Ok(None) };
    let value = value.trim().trim_end_matches(|char: char| char == ';' || char.is_whitespace());
    let quoted = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    match quoted.filter(|quoted| !quoted.contains('\'')) {
        Some(quoted) => Ok(Some(Cow::Owned(quoted.to_owned()))),
        None => Err(Refusal::token_statement()),
    }
}

/// Returns what follows `SET fence.token =`.
fn value(text: &str) -> Option<&str> {
    let rest = word(text, "SET")?;
    let rest = word(rest, "SESSION").unwrap_or(rest).trim_start();
    let name = rest.get(.."fence.token".len())?;
    if !name.eq_ignore_ascii_case("fence.token") {
        return None;
    }
    let rest = rest[name.len()..].trim_start();
    rest.strip_prefix('=').or_else(|| word(rest, "TO"))
}

/// Returns what follows a keyword, which ends at a blank or a quote.
fn word<'a>(text: &'a str, keyword: &str) -> Option<&'a str> {
    let text = text.trim_start();
    let begun = text.get(..keyword.len())?;
    let rest = &text[begun.len()..];
    let ends = rest.starts_with(|char: char| char.is_whitespace() || char == '\'');
    (begun.eq_ignore_ascii_case(keyword) && ends).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_set_the_token_are_read() {
        for text in [
            "SET fence.token = 'T'",
            "set\n session Fence.Token to 'T' ; ",
            "SET fence.token='T';",
            "SET fence.token TO'T'",
        ] {
            assert_eq!(credential(text.as_bytes()).unwrap().as_deref(), Some("T"), "{text}");
        }
        for text in
            ["SET fence.tokens = 'T'", "SET x = 'fence.token'", "SELECT 1", "SETfence.token"]
        {
            assert_eq!(credential(text.as_bytes()).unwrap(), None, "{text}");
        }
        for text in
            ["SET fence.token = T", "SET fence.token = 'T'; SELECT 1", "SET fence.token TO "]
        {
            assert!(credential(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn other_first_frames_are_not_awaited() {
        for (bytes, may) in [
            (&b""[..], true),
            (b"Q\0\0", true),
            (b"Q\0\0\0\x20 se", true),
            (b"Q\0\0\0\x20SELECT", false),
            (b"P\0", true),
            (b"P\0\0\0\x20name", true),
            (b"P\0\0\0\x20name\0set", true),
            (b"P\0\0\0\x20\0SELECT", false),
            (b"X", false),
        ] {
            assert_eq!(may_present(bytes), may, "{bytes:?}");
        }
    }
}
