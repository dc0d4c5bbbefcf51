//! Checks of a server from outside.

use fence_protocol::Problem;
use fence_protocol::wire::version::VersionReply;
use serde::Deserialize;
use service_kit::clock::{Clock as _, SystemClock};

use super::check::Check;
use super::http::{Answer, Http, get};

/// A Date header counts whole seconds; more than this apart is worth a word.
const CLOCK_OFFSET_MS: u64 = 5_000;

/// Findings at a server.
pub(super) struct Examined {
    pub(super) checks: Vec<Check>,
    /// Its reply to `GET /version`; `None` if it cannot be examined further.
    pub(super) version: Option<VersionReply>,
    /// `true` if it is ready.
    pub(super) is_ready: bool,
}

impl Examined {
    /// A server of which nothing else can be found.
    fn closed(checks: Vec<Check>) -> Self {
        Self { checks, version: None, is_ready: false }
    }

    /// `true` if requests can be expected to succeed.
    pub(super) fn is_usable(&self) -> bool {
        self.version.is_some() && self.is_ready
    }
}

/// Examines the server at `base`; `name` is what it should be.
pub(super) async fn examine(name: &str, base: &str, http: &Http) -> Examined {
    let live = match get(http, base, "/livez").await {
        Ok(answer) if answer.status == 200 => answer,
        Ok(answer) => {
            let text = format!("{base} answers {} to /livez; is it a {name}?", answer.status);
            return Examined::closed(vec![Check::failing(name, text)]);
        }
        Err(why) => {
            return Examined::closed(vec![Check::failing(name, format!("{base} {why}"))]);
        }
    };
    let mut checks = vec![Check::ok(name, format!("{base} is alive"))];
    let answer = get(http, base, "/version").await;
    if let Ok(Answer { status: 401, text, .. }) = &answer {
        checks.push(Check::failing(format!("{name} access"), unauthorized(text)));
        return Examined::closed(checks);
    }
    let version = match version(name, answer) {
        Ok((check, version)) => {
            checks.push(check);
            version
        }
        Err(check) => {
            checks.push(check);
            return Examined::closed(checks);
        }
    };
    checks.push(clock(name, live.wall_ms));
    let (is_ready, lines) = readiness(name, get(http, base, "/readyz?verbose").await);
    checks.extend(lines);
    Examined { checks, version, is_ready }
}

/// A 401 says nothing about the server's health.
fn unauthorized(body: &str) -> String {
    let detail = serde_json::from_str::<Problem>(body).ok().map(|problem| problem.detail);
    format!(
        "it needs a bearer token, so nothing else could be checked: name the file by --auth-file \
         ({})",
        detail.as_deref().unwrap_or("401")
    )
}

/// As much of `/version` as every version has.
#[derive(Deserialize)]
struct Introduction {
    name: String,
    version: String,
}

/// The check, and the whole reply if the server is recent enough to give one.
///
/// # Errors
/// The check of what is another server, or none.
fn version(
    name: &str,
    answer: Result<Answer, String>,
) -> Result<(Check, Option<VersionReply>), Check> {
    let about = format!("{name} version");
    let unread =
        |error: String| Check::failing(&about, format!("/version cannot be read: {error}"));
    let text = answer.map_err(|why| unread(format!("it {why}")))?.text;
    let found: Introduction =
        serde_json::from_str(&text).map_err(|error| unread(error.to_string()))?;
    if found.name != name {
        let text = format!("this is a {}, not a {name}; swap the addresses", found.name);
        return Err(Check::failing(about, text));
    }
    let ours = env!("CARGO_PKG_VERSION");
    let reply: Option<VersionReply> = serde_json::from_str(&text).ok();
    let check = if found.version != ours {
        Check::warning(about, format!("{}, and this command is {ours}", found.version))
    } else if reply.is_none() {
        let text = "it is older than this command: it shows no keys, and is not tried any further";
        Check::warning(about, text)
    } else {
        Check::ok(about, found.version)
    };
    Ok((check, reply))
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

/// Returns `true` if it is ready, and a check for each line of `/readyz?verbose`.
fn readiness(name: &str, answer: Result<Answer, String>) -> (bool, Vec<Check>) {
    let about = format!("{name} readiness");
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => return (false, vec![Check::failing(about, format!("it {why}"))]),
    };
    let mut checks: Vec<Check> =
        answer.text.lines().filter_map(|line| readiness_line(name, line)).collect();
    checks.push(match answer.status {
        200 => Check::ok(about, "ready"),
        503 if is_standby(&answer.text) => {
            Check::information(about, "a standby takes no requests while another guard leads")
        }
        503 => Check::failing(about, "it takes no requests until this is repaired"),
        other => Check::failing(about, format!("it answers {other} to /readyz?verbose")),
    });
    (answer.status == 200, checks)
}

/// Returns `true` if nothing keeps a server from being ready but another one that leads.
fn is_standby(text: &str) -> bool {
    let mut keeps = text.lines().filter(|line| line.starts_with("[-]")).peekable();
    keeps.peek().is_some() && keeps.all(is_led)
}

fn is_led(line: &str) -> bool {
    line.contains(" standby: ") && line.ends_with(" leads")
}

fn readiness_line(name: &str, line: &str) -> Option<Check> {
    let (sign, rest) = line.split_at_checked(3)?;
    // The name of a check may have blanks.
    let (make, parts): (fn(String, String) -> Check, _) = match sign {
        "[+]" => (Check::ok, rest.strip_suffix(" ok").map(|check| (check, "ok"))),
        "[!]" => (Check::warning, rest.split_once(" warning: ")),
        "[-]" if is_led(line) => (Check::information, rest.split_once(" standby: ")),
        "[-]" => (Check::failing, rest.split_once(" failed: ")),
        _ => return None,
    };
    let (check, text) = parts.or_else(|| rest.split_once(' ')).unwrap_or((rest, "ok"));
    Some(make(format!("{name} {check}"), text.to_owned()))
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
        let node = Check::warning("guard node 3 redis://a", "gone");
        assert_eq!(line("[!]node 3 redis://a warning: gone"), Some(node));
        let node = Check::ok("guard node 1 redis://a", "ok");
        assert_eq!(line("[+]node 1 redis://a ok"), Some(node));
        let row = Check::ok("guard guarantee", "memory: tokens rise");
        assert_eq!(line("[+]guarantee memory: tokens rise"), Some(row));
        assert_eq!(line("readyz check passed"), None);
        assert_eq!(line(""), None);
    }

    #[test]
    fn another_server_on_the_port_is_noticed() {
        let answer = |text: &str| Ok(Answer { status: 200, text: text.to_owned(), wall_ms: None });
        let swapped = version("lock-server", answer(r#"{"name":"fenced-store","version":"0"}"#));
        assert!(swapped.unwrap_err().text.contains("not a lock-server"));
        assert!(version("lock-server", answer("<html>")).is_err());
        let older = version("lock-server", answer(r#"{"name":"lock-server","version":"0"}"#));
        let (check, reply) = older.unwrap();
        assert_eq!(check.verdict, super::super::check::Verdict::Warning);
        assert_eq!(reply, None);
    }

    #[test]
    fn a_status_says_what_readiness_is() {
        let of = |status, text: &str| {
            let answer = Answer { status, text: text.to_owned(), wall_ms: None };
            readiness("guard", Ok(answer))
        };
        assert!(of(200, "[+]store ok\nready\n").0);
        let (is_ready, checks) = of(503, "[-]store failed: gone\n");
        assert!(!is_ready && checks[1].text.contains("takes no requests"), "{checks:?}");
        assert!(!of(500, "").1[0].text.contains("takes no requests"));
    }
}
