//! Trying to write past the guard, as the application would.
//!
//! A guard protects only what has to go through it. That an application cannot reach the datastore
//! by itself is an operator's work, and here is where it shows whether it was done.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use redis_link::RedisTarget;

use super::check::{Check, Verdict};

const TIMEOUT: Duration = Duration::from_secs(3);
/// For how long the scratch key lives if it cannot be removed, in milliseconds.
const SCRATCH_MS: u64 = 5_000;
const ABOUT: &str = "direct write";
/// Reply of the guard's own Redis port to a write without a token.
const WORDS_OF_THE_GUARD: [&str; 6] =
    ["NOTOKEN", "WRONGTOKEN", "FENCED", "COLLISION", "DENIED", "UNAVAILABLE"];

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
        let Ok(anonymous) = target.without_login(TIMEOUT).await else { return checks };
        let mut check = check_as(&anonymous, "default", key).await;
        check.about.push_str(" without a login");
        checks.push(check);
    }
    checks
}

async fn check_as(target: &RedisTarget, user: &str, key: Option<&str>) -> Check {
    let mut connection = match target.connect(TIMEOUT).await {
        Ok(connection) => connection,
        Err(error) => return unconnected(&error),
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
    let command = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command
    };
    [
        command(&["INCRBY", key, "no number"]),
        command(&["HINCRBY", key, "field", "no number"]),
        command(&["ZADD", key, "no number", "member"]),
        command(&["LTRIM", key, "no number", "no number"]),
        command(&["EXPIRE", key, "no number"]),
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
        None => Attempt::Unclear(format!("no answer in {} ms", TIMEOUT.as_millis())),
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

fn unconnected(error: &str) -> Check {
    if error.contains("WRONGPASS") || error.contains("AuthenticationFailed") {
        return Check::ok(ABOUT, "these credentials are refused, as they should be");
    }
    // The advice for a server does not fit here.
    let error = error.split(". Start it").next().unwrap_or(error);
    let text = "no connection came about from here, as it should be; if the application runs on \
                another machine, try it there";
    Check::ok(ABOUT, format!("{text} ({error})"))
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
}
