//! Trying to write past the guard, as the application would.
//!
//! A guard protects only what has to go through it. That an application cannot reach the datastore
//! by itself is an operator's work, and here is where it shows whether it was done.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use redis_link::RedisTarget;

use super::check::{Check, Verdict};
use super::redis::words;
use super::unreached::{Reachability, reachability};

const TIMEOUT: Duration = Duration::from_secs(3);
/// For how long the scratch key lives if it cannot be removed, in milliseconds.
const SCRATCH_MS: u64 = 5_000;
const ABOUT: &str = "direct write";
/// Reply of the guard's own Redis port to a write without a token.
const WORDS_OF_THE_GUARD: [&str; 6] =
    ["NOTOKEN", "WRONGTOKEN", "FENCED", "COLLISION", "DENIED", "UNAVAILABLE"];
/// Parts of the errors of a connection over TLS to a port that does not speak it.
const WORDS_WITHOUT_TLS: [&str; 6] = [
    "a plain port does not answer",
    "does not answer in TLS",
    "end of file",
    "handshake eof",
    "reset by peer",
    "broken pipe",
];
/// A part of the error of a plain connection to a port that speaks anything else.
const NOT_PLAIN: &str = "a TLS port does not answer";

/// Result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    /// The user may do this.
    Allowed,
    /// The user may not run the command.
    NoCommand(String),
    /// The user may not touch the key.
    NoKey(String),
    /// Nothing is allowed before a login.
    NoLogin(String),
    /// This is a guard's port, which wants a token.
    Guarded(String),
    /// No answer, or a refusal for a reason that has nothing to do with rights.
    Unclear(String),
}

/// Tries it with the credentials of `target`, and without any; a refusal is what is wanted.
pub(super) async fn check(target: &RedisTarget, key: Option<&str>) -> Vec<Check> {
    let (user, password) = target.credentials();
    let mut checks = vec![check_as(target, user.unwrap_or("default"), key).await];
    if password.is_some() && checks[0].verdict == Verdict::Ok {
        // A client whose credentials are refused can leave them out.
        let mut check = match target.without_login(TIMEOUT).await {
            Ok(anonymous) => check_as(&anonymous, "default", key).await,
            Err(error) => unchecked(&error),
        };
        check.about.push_str(" without a login");
        checks.push(check);
    }
    checks
}

async fn check_as(target: &RedisTarget, user: &str, key: Option<&str>) -> Check {
    // A refusal by sentinels says nothing of the Redis that they watch.
    let address = match target.tcp_address(TIMEOUT).await {
        Ok(address) => address,
        Err(error) => return unchecked(&error),
    };
    let mut connection = match target.connect(TIMEOUT).await {
        Ok(connection) => connection,
        Err(error) => return unconnected(target, &address, &error).await,
    };
    let scratch = format!("fence-doctor:{}", service_kit::ids::random_hex(8));
    let is_scratch = key.is_none();
    let key = key.unwrap_or(&scratch);
    match set(&mut connection, key).await {
        Attempt::NoCommand(_) => others(&mut connection, key, user, is_scratch).await,
        attempt => verdict(attempt, user, is_scratch),
    }
}

type Connection = redis::aio::MultiplexedConnection;

/// Sets the key for a short time, where it is free, and removes it.
async fn set(connection: &mut Connection, key: &str) -> Attempt {
    let value = service_kit::ids::random_hex(16);
    let mut set = redis::cmd("SET");
    set.arg(key).arg(&value).arg("NX").arg("PX").arg(SCRATCH_MS);
    let attempt = attempt(connection, &set).await;
    if attempt == Attempt::Allowed {
        // Only what was written here is removed; if that is refused, it expires.
        let found = answer(connection, redis::cmd("GET").arg(key)).await;
        if let Some(Ok(Value::BulkString(found))) = found
            && found == value.as_bytes()
        {
            let _ = answer(connection, redis::cmd("DEL").arg(key)).await;
        }
    }
    attempt
}

/// Commands that write, with an argument that makes Redis refuse them after it looked at the rights
/// of the user and before it reads the key: they change nothing, whatever is there.
fn harmless(key: &str) -> [Cmd; 5] {
    [
        words(&["INCRBY", key, "no number"]),
        words(&["HINCRBY", key, "field", "no number"]),
        words(&["ZADD", key, "no number", "member"]),
        words(&["LTRIM", key, "no number", "no number"]),
        words(&["EXPIRE", key, "no number"]),
    ]
}

/// SET is refused to the user; perhaps that alone.
async fn others(connection: &mut Connection, key: &str, user: &str, is_scratch: bool) -> Check {
    let mut allowed = Vec::new();
    let mut unlike = None;
    let mut tried = vec!["SET".to_owned()];
    for command in harmless(key) {
        tried.extend(name(&command));
        match attempt(connection, &command).await {
            Attempt::NoCommand(_) => {}
            Attempt::Allowed => allowed.extend(name(&command)),
            Attempt::Unclear(why) if why.starts_with("ERR") => allowed.extend(name(&command)),
            // The command is allowed, and perhaps another key.
            attempt => unlike = unlike.or(Some(attempt)),
        }
    }
    if allowed.is_empty() {
        let tried = tried.join(", ");
        let refused = || Check::ok(ABOUT, format!("{tried}: refused, as they should be"));
        return unlike.map_or_else(refused, |attempt| verdict(attempt, user, is_scratch));
    }
    let text = format!(
        "SET is refused to the user \"{user}\", and {} {} not: the application can bypass the \
         guard; {}",
        allowed.join(", "),
        if allowed.len() == 1 { "is" } else { "are" },
        remedy(user)
    );
    Check::warning(ABOUT, text)
}

fn name(command: &Cmd) -> Option<String> {
    match command.args_iter().next()? {
        redis::Arg::Simple(name) => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    }
}

async fn attempt(connection: &mut Connection, command: &Cmd) -> Attempt {
    match answer(connection, command).await {
        None => Attempt::Unclear(format!("no reply within {} s", TIMEOUT.as_secs())),
        Some(Ok(_)) => Attempt::Allowed,
        Some(Err(error)) => {
            attempt_of(error.code().unwrap_or_default(), error.detail().unwrap_or_default(), &error)
        }
    }
}

async fn answer(connection: &mut Connection, command: &Cmd) -> Option<RedisResult<Value>> {
    tokio::time::timeout(TIMEOUT, command.query_async(connection)).await.ok()
}

fn attempt_of(code: &str, detail: &str, error: &dyn std::fmt::Display) -> Attempt {
    let text = || format!("{code} {detail}");
    match code {
        "NOAUTH" | "WRONGPASS" => Attempt::NoLogin(text()),
        "NOPERM" if detail.contains("permissions to access") => Attempt::NoKey(text()),
        "NOPERM" => Attempt::NoCommand(text()),
        code if WORDS_OF_THE_GUARD.contains(&code) => Attempt::Guarded(text()),
        "" => Attempt::Unclear(error.to_string()),
        _ => Attempt::Unclear(text()),
    }
}

fn verdict(attempt: Attempt, user: &str, is_scratch: bool) -> Check {
    let refused = |why: String| Check::ok(ABOUT, format!("refused, as it should be: {why}"));
    match attempt {
        Attempt::NoLogin(why) | Attempt::NoCommand(why) => refused(why),
        Attempt::Guarded(why) => refused(format!("this is a guard's port ({why})")),
        Attempt::NoKey(why) if is_scratch => Check::warning(
            ABOUT,
            format!(
                "the user \"{user}\" may write, but not to the key that was tried ({why}); name one \
                 of the application's keys with --direct-key: one that exists is not changed"
            ),
        ),
        Attempt::NoKey(why) => refused(why),
        Attempt::Allowed => Check::warning(
            ABOUT,
            format!("it was done: the application can bypass the guard; {}", remedy(user)),
        ),
        Attempt::Unclear(why) => Check::warning(
            ABOUT,
            format!("whether the user \"{user}\" may write is not known: {why}; try again"),
        ),
    }
}

/// The finding without a connection: only a refusal shows that the application is shut out.
async fn unconnected(target: &RedisTarget, address: &str, error: &str) -> Check {
    if let Some(why) = refusal(error) {
        return Check::ok(ABOUT, why);
    }
    match reachability(address, TIMEOUT).await {
        Reachability::Open => unchecked(&obstacle(error, target.is_tls())),
        Reachability::Untried(why) => unchecked(&format!("{why}; correct the address")),
        Reachability::Closed(why) => {
            let text = format!(
                "nothing answers at {address} from here now ({why}), so no write past the guard \
                 is possible there; but this proves nothing if the address is wrong; if the \
                 application runs on another machine, try it there"
            );
            Check::information(ABOUT, text)
        }
    }
}

fn unchecked(why: &str) -> Check {
    Check::warning(ABOUT, format!("not checked: {why}"))
}

/// The finding, if a password or an access rule refused the connection.
fn refusal(error: &str) -> Option<&'static str> {
    if error.contains("WRONGPASS") || error.contains("AuthenticationFailed") {
        return Some("these credentials are refused, as they should be");
    }
    // A Redis that sentinels name is asked for its role.
    let is_login_missing = error.contains("ROLE") && error.contains("NOAUTH");
    is_login_missing.then_some("refused, as it should be: NOAUTH")
}

/// The reason why a port that accepts connections could not be tried, and what to do.
fn obstacle(error: &str, is_tls: bool) -> String {
    let why = cause(error);
    if is_tls && WORDS_WITHOUT_TLS.iter().any(|words| error.contains(words)) {
        return format!(
            "it does not reply in TLS ({why}); write redis:// in --direct if it is a plain port, \
             else correct the address"
        );
    }
    if !is_tls && error.contains(NOT_PLAIN) {
        return format!(
            "it does not reply as a Redis without TLS ({why}); write rediss:// in --direct if it \
             speaks TLS, else correct the address"
        );
    }
    if error.contains("timed out") {
        let text = "it accepts connections and does not reply; see that its process runs, and try \
                    again";
        return text.to_owned();
    }
    match error.contains("certificate") {
        // The cause says what to do.
        true => why,
        false => format!("{why}; correct the URL, or try again"),
    }
}

/// The cause of a failed connection, in one line, without the advice for a server.
fn cause(error: &str) -> String {
    let begins = [" cannot be reached: ", " cannot be used: "];
    let begin = begins.iter().find_map(|begin| error.split_once(*begin));
    let why = begin.map_or(error, |(_, why)| why);
    if why.contains("Parse error") {
        return "its reply is none of Redis".to_owned();
    }
    if why.starts_with("it does not answer in TLS") {
        return "its reply is not in TLS".to_owned();
    }
    let ends = [". Start it", " (a TLS port", " (a plain port", "; name one with TlsOptions"];
    let why = ends.iter().fold(why, |why, end| why.split(*end).next().unwrap_or(why));
    // The driver takes no other setting for it.
    why.replace("with TlsOptions::with_ca", "in the variable SSL_CERT_FILE")
}

/// Advice for a Redis that an application can write to directly.
fn remedy(user: &str) -> String {
    format!(
        "give it no credentials for the datastore, only the guard should have them: ACL SETUSER \
         guard on '>SECRET' '~*' '&*' +@all, start fenced-store with \
         --store redis://guard:SECRET@HOST:PORT, then ACL SETUSER {user} off, and ACL SAVE"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_rights_is_well() {
        let check = |code: &str, detail: &str, is_scratch| {
            verdict(attempt_of(code, detail, &"broken"), "app", is_scratch).verdict
        };
        assert_eq!(check("NOAUTH", "Authentication required.", true), Verdict::Ok);
        assert_eq!(check("NOTOKEN", "a token is required", true), Verdict::Ok);
        let no_key = "No permissions to access a key";
        assert_eq!(check("NOPERM", no_key, true), Verdict::Warning);
        assert_eq!(check("NOPERM", no_key, false), Verdict::Ok);
        for unclear in ["READONLY", "OOM", "LOADING", "MISCONF", "ERR", ""] {
            assert_eq!(check(unclear, "x", true), Verdict::Warning, "{unclear}");
        }
        let done = verdict(Attempt::Allowed, "app", true);
        assert_eq!(done.verdict, Verdict::Warning);
        assert!(done.text.contains("ACL SETUSER app off"), "{}", done.text);
    }

    const OPEN_END: &str = ". Start it, or correct the URL";

    #[test]
    fn another_protocol_is_no_refusal() {
        let garbled = "Redis at redis://a cannot be reached: Incompatible type - Parse error at \
                       1\nUnexpected `33`\n (a TLS port does not answer to plain text: write \
                       rediss:// if it is one)";
        let reset = "Redis at redis://a cannot be reached: Connection reset by peer (os error 104) \
                     (a TLS port does not answer to plain text: write rediss:// if it is one)";
        let silent = "Redis at rediss://a cannot be reached: no answer (a plain port does not \
                      answer to TLS: write redis:// if it is one)";
        let plain = "Redis at rediss://a cannot be used: it does not answer in TLS; if its port is \
                     a plain one, leave the s out of the URL's scheme";
        for (error, is_tls, why, other) in [
            (format!("{garbled}{OPEN_END}"), false, "(its reply is none of Redis)", "rediss://"),
            (format!("{reset}{OPEN_END}"), false, "(Connection reset by peer (", "rediss://"),
            (format!("{silent}{OPEN_END}"), true, "(no answer)", "redis://"),
            (plain.to_owned(), true, "(its reply is not in TLS)", "redis://"),
        ] {
            assert_eq!(refusal(&error), None);
            let text = obstacle(&error, is_tls);
            assert!(text.contains(why) && text.contains(&format!("write {other} in")), "{text}");
            assert!(!text.contains('\n') && !text.contains("Start it"), "{text}");
        }
    }

    #[test]
    fn other_obstacles_keep_their_cause() {
        let at = "Redis at rediss://a cannot be";
        for (error, text) in [
            (
                format!(
                    "{at} used: its certificate is signed by a CA that this system does not \
                         know; name the file of that CA with TlsOptions::with_ca"
                ),
                "its certificate is signed by a CA that this system does not know; name the file \
                 of that CA in the variable SSL_CERT_FILE",
            ),
            (
                format!(
                    "{at} used: it refused the TLS handshake (HandshakeFailure), probably for \
                         want of a client certificate; name one with TlsOptions::with_client"
                ),
                "it refused the TLS handshake (HandshakeFailure), probably for want of a client \
                 certificate",
            ),
            (
                format!("{at} reached: Redis server refused to switch database{OPEN_END}"),
                "Redis server refused to switch database; correct the URL, or try again",
            ),
        ] {
            assert_eq!(refusal(&error), None);
            assert_eq!(obstacle(&error, true), text);
        }
        let late = obstacle("Redis at redis://a cannot be reached: timed out", false);
        assert!(late.contains("does not reply"), "{late}");
    }

    #[test]
    fn refusals_of_a_connection_are_well() {
        for error in [
            "Redis at redis://a cannot be used: it refuses the user \"app\" with this password \
             (WRONGPASS); correct --store-user and --store-password-file, or the URL",
            "it does not answer ROLE: \"NOAUTH\": Authentication required.",
        ] {
            assert!(refusal(error).is_some(), "{error}");
        }
        assert_eq!(refusal("it does not answer ROLE: NoPerm"), None);
    }
}
