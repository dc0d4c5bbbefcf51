//! Checks of a server from outside.

use serde::Deserialize;
use service_kit::clock::{Clock as _, SystemClock};

use super::check::Check;
use super::http::{Answer, Http, get};

/// A Date header counts whole seconds; more than this apart is worth a word.
const CLOCK_OFFSET_MS: u64 = 5_000;

/// Everything there is to find about the server at `base`; `name` is what it should be.
pub(super) async fn check(name: &str, base: &str, http: &Http) -> Vec<Check> {
    let live = match get(http, base, "/livez").await {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            let text = format!("{base} answers {} to /livez; is it a {name}?", answer.status);
            return vec![Check::failing(name, text)];
        }
        Err(error) => {
            let text =
                format!("{base} cannot be reached ({error}); start it, or check the address");
            return vec![Check::failing(name, text)];
        }
    };
    let mut checks = vec![Check::ok(name, format!("{base} is alive"))];
    checks.push(version(name, get(http, base, "/version").await));
    checks.push(clock(name, live.wall_ms));
    checks.extend(readiness(name, get(http, base, "/readyz?verbose").await));
    checks
}

#[derive(Deserialize)]
struct Version {
    name: String,
    version: String,
}

fn version(name: &str, answer: Result<Answer, String>) -> Check {
    let about = format!("{name} version");
    let read = answer.and_then(|answer| {
        if answer.status == 401 {
            return Err("it wants a bearer token; name one with --auth-file".to_owned());
        }
        serde_json::from_str::<Version>(&answer.text).map_err(|error| error.to_string())
    });
    match read {
        Err(error) => Check::failing(about, format!("/version cannot be read: {error}")),
        Ok(other) if other.name != name => Check::failing(
            about,
            format!("this is a {}, not a {name}; swap the addresses", other.name),
        ),
        Ok(found) if found.version != env!("CARGO_PKG_VERSION") => Check::warning(
            about,
            format!("{}, and this command is {}", found.version, env!("CARGO_PKG_VERSION")),
        ),
        Ok(found) => Check::ok(about, found.version),
    }
}

fn clock(name: &str, wall_ms: Option<u64>) -> Check {
    let about = format!("{name} clock");
    let Some(theirs) = wall_ms else {
        return Check::warning(about, "its replies have no Date header");
    };
    let ours = SystemClock::new().wall_ms();
    let apart = ours.abs_diff(theirs);
    if apart > CLOCK_OFFSET_MS {
        let text = format!(
            "{} s from this machine's: leases are unaffected, but logs do not fit together; set \
             both by NTP",
            apart / 1000
        );
        return Check::warning(about, text);
    }
    Check::ok(about, "agrees with this machine's to the second")
}

/// A check for each line of `/readyz?verbose`.
fn readiness(name: &str, answer: Result<Answer, String>) -> Vec<Check> {
    let about = format!("{name} readiness");
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return vec![Check::failing(about, error)],
    };
    let mut checks: Vec<Check> =
        answer.text.lines().filter_map(|line| readiness_line(name, line)).collect();
    if answer.status != 200 {
        checks.push(Check::failing(about, "it takes no requests until this is repaired"));
    } else {
        checks.push(Check::ok(about, "ready"));
    }
    checks
}

fn readiness_line(name: &str, line: &str) -> Option<Check> {
    let (sign, rest) = line.split_at_checked(3)?;
    let (check, text) = rest.split_once(' ').unwrap_or((rest, "ok"));
    let about = format!("{name} {check}");
    match sign {
        "[+]" => Some(Check::ok(about, text)),
        "[!]" => Some(Check::warning(about, text.trim_start_matches("warning: "))),
        "[-]" => Some(Check::failing(about, text.trim_start_matches("failed: "))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_readyz_become_checks() {
        let line = |line| readiness_line("guard", line);
        assert_eq!(line("[+]store ok"), Some(Check::ok("guard store", "ok")));
        assert_eq!(
            line("[!]redis warning: appendonly is no"),
            Some(Check::warning("guard redis", "appendonly is no"))
        );
        assert_eq!(line("[-]store failed: gone"), Some(Check::failing("guard store", "gone")));
        assert_eq!(line("readyz check passed"), None);
        assert_eq!(line(""), None);
    }

    #[test]
    fn another_server_on_the_port_is_noticed() {
        let answer = |text: &str| Ok(Answer { status: 200, text: text.to_owned(), wall_ms: None });
        let swapped = version("lock-server", answer(r#"{"name":"fenced-store","version":"0"}"#));
        assert!(swapped.text.contains("not a lock-server"), "{swapped:?}");
        let html = version("lock-server", answer("<html>"));
        assert_eq!(html.verdict, super::super::check::Verdict::Failing);
    }
}
