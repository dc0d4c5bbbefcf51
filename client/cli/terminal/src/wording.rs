//! Errors in the words of the command line. Servers and SDK speak of headers and fields; here each
//! has its flag.

use std::time::Duration;

use fence_client::Error;
use fence_protocol::{Code, Problem, duration};

/// A word of the API or the SDK, and what it is on the command line. The longer ones come first.
const FLAGS: &[(&str, &str)] = &[
    ("(ClientBuilder::owner, FENCE_OWNER)", "with --owner"),
    ("takeover and takeover_of", "--takeover and --takeover-of"),
    ("takeover_of", "--takeover-of"),
    ("mode permit needs size", "--permits needs a number"),
    ("min_token", "--min-token"),
    ("ttl_ms", "--ttl in ms"),
    ("wait_ms", "--wait in ms"),
    ("session_id", "session id"),
    ("lease_id", "lease id"),
    ("fencing_token", "fencing token"),
    ("the Fencing-Token header", "--token-header"),
    ("Fencing-Token header", "--token-header"),
    ("the Authorization header", "the token of --auth-file"),
    ("Authorization header", "token of --auth-file"),
    ("Fencing-Token \"", "--token-header \""),
    ("Idempotency-Key", "id of the operation"),
    ("after Retry-After", "later"),
    ("at least Retry-After", "then try again"),
];

/// The next step for a person, in place of one that names headers and fields.
fn hint(code: Code) -> &'static str {
    match code {
        Code::MalformedToken => {
            "Give --token-header what `fence lock acquire` printed as Fencing-Token, unchanged."
        }
        Code::Unauthorized => {
            "Name the file with a token of the server's access file: --auth-file."
        }
        Code::BadSignature => {
            "Present a token of this guard's lock server; both need the same key file."
        }
        Code::LeaseIdConflict | Code::OpIdReused => "Run the command again.",
        Code::LeaseLost => "Stop the work that the lease protected, then acquire again.",
        Code::LockHeld => "Wait for longer with --wait.",
        Code::TakeoverRefused => {
            "Acquire without --takeover; stop if this incarnation was itself taken over."
        }
        Code::TokenRequired => {
            "Acquire the lock that the detail names: run this under `fence run`, or give \
             --token-header."
        }
        Code::NotFound | Code::MethodNotAllowed | Code::UnsupportedMediaType => {
            "Check --server and --guard: another program or an older server may run there."
        }
        Code::MisdirectedRequest => {
            "Name the server by address, localhost, or one of its --host-name."
        }
        Code::GuardUnsealed => "Try again; an operator must check the guards that are named.",
        Code::OutcomeUnknown => "Look before you repeat it: `fence lock show`, `fence object get`.",
        _ => code.hint(),
    }
}

/// Words between a time to live and its range: the server's, and those of the protocol.
const OUT_OF_RANGE: [&str; 2] = [" is out of range: this server takes ", " must be from "];

/// The text with flags in place of headers and fields.
pub(crate) fn in_flags(text: &str) -> String {
    refused_ttl(text).unwrap_or_else(|| {
        FLAGS.iter().fold(text.to_owned(), |text, (word, flag)| text.replace(word, flag))
    })
}

/// A refused time to live with units, which the API states in milliseconds.
fn refused_ttl(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("ttl_ms ")?;
    let split = |words: &'static str| Some((words, rest.split_once(words)?));
    let (words, (ttl, range)) = OUT_OF_RANGE.into_iter().find_map(split)?;
    let (least, most) = range.strip_suffix(" (a day)").unwrap_or(range).split_once(" to ")?;
    let show = |ms: &str| Some(duration::show(Duration::from_millis(ms.parse().ok()?)));
    let ttl = show(ttl.trim_matches('"'))?;
    Some(format!("{}--ttl {ttl}{words}{} to {}", in_flags(before), show(least)?, show(most)?))
}

/// The message of an error for people.
pub(crate) fn message(error: &Error) -> String {
    let text = error.to_string();
    let Some(problem) = error.problem() else {
        return in_flags(&text);
    };
    // Behind the context, which has been added to it, the SDK has its own next step.
    match text.find(&format!("{} ({})", problem.detail, problem.code)) {
        Some(at) => in_flags(&text[..at]) + &reworded(problem).to_string(),
        None => in_flags(&text),
    }
}

/// The problem in the words of the command line.
pub(crate) fn reworded(problem: &Problem) -> Problem {
    let is_usual = problem.hint == problem.code.hint();
    let next = if is_usual { hint(problem.code) } else { &problem.hint };
    Problem { detail: in_flags(&problem.detail), hint: in_flags(next), ..problem.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_names_a_header_or_a_field() {
        for &code in Code::ALL {
            let detail = "takeover_of and min_token, ttl_ms 5, wait_ms 6 of lease_id 7, session_id 8; \
                          the request has more than one Fencing-Token header; the Authorization \
                          header is not ASCII text";
            let text = reworded(&Problem::new(code, detail)).to_string();
            for word in [
                "_ms",
                "lease_id",
                "session_id",
                "min_token",
                "takeover_of",
                "fencing_token",
                " header",
                "Authorization",
                "Retry-After",
                "Idempotency-Key",
                "content-type",
                "Allow",
            ] {
                assert!(!text.contains(word), "{code}: {word} in {text:?}");
            }
        }
    }

    #[test]
    fn a_refused_time_to_live_has_units() {
        assert_eq!(
            in_flags("ttl_ms 1 is out of range: this server takes 100 to 3600000"),
            "--ttl 1ms is out of range: this server takes 100ms to 1h"
        );
        assert_eq!(
            in_flags("acquire a: ttl_ms \"90000000\" must be from 1 to 86400000 (a day)"),
            "acquire a: --ttl 1day1h must be from 1ms to 1day"
        );
    }

    #[test]
    fn a_servers_own_hint_stays() {
        let problem = Problem::new(Code::LockHeld, "x").hint("Retry with wait_ms.");
        assert_eq!(reworded(&problem).hint, "Retry with --wait in ms.");
    }
}
