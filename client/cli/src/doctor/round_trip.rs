//! A round trip through everything that is configured: a lock of its own is granted twice, an
//! object is written under it, and the first of the two tokens must be refused.

use std::time::Duration;

use fence_client::{Client, Error, ErrorKind, EventStream, HandedToken, StreamItem};
use fence_protocol::wire::event::EventKind;
use fence_protocol::wire::fence::Guarantee;
use fence_protocol::wire::lock::LeaseReply;
use fence_protocol::{Code, LockName, Token};
use service_kit::login::StoreLogin;

use super::check::Check;
use super::redis_port;
use super::stores::Stores;

/// Prefix of the names that a round trip uses. Two digits follow: a guard keeps the mark of each
/// name, so their number is bounded.
const PREFIX: &str = "fence-doctor/";
const RIGHT: &str = "use fence-doctor/*";
const ABOUT: &str = "round trip";
const TTL: Duration = Duration::from_secs(15);
/// Longest wait for the round trip of another process under the same name.
const WAIT: Duration = Duration::from_secs(5);
/// Time for which an unreachable lock server is retried.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest time until a report of the guard is seen at the lock server; it sends five a second.
const REPORT: Duration = Duration::from_secs(5);

/// Servers of the round trip.
pub(super) struct Site<'a> {
    pub(super) client: &'a Client,
    pub(super) guard: Option<GuardSide<'a>>,
    /// `true` if only the tokens of one lock are comparable, as in a quorum.
    pub(super) compares_by_lock: bool,
}

/// Facts about the guard.
pub(super) struct GuardSide<'a> {
    /// Its stores, if the caller may see them.
    pub(super) stores: Option<&'a Stores>,
    /// Certificates for its Redis port.
    pub(super) login: StoreLogin,
    /// `true` if its reports of refusals are accepted by a lock server.
    pub(super) reports: bool,
}

/// Operation of the first holder at the guard.
enum Written {
    Object,
    /// A seal alone, and the reason.
    Seal(String),
}

/// Goes there and back. Whatever fails, what was written is removed and the lock released.
pub(super) async fn check(site: &Site<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    let name = format!("{PREFIX}{}", service_kit::ids::random_hex(1));
    let done = match LockName::new(&name) {
        Ok(lock) => Trip { site, lock }.run(&mut checks).await,
        Err(invalid) => Err(Check::failing(ABOUT, invalid.to_string())),
    };
    checks.push(done.unwrap_or_else(|failed| failed));
    checks
}

struct Trip<'a> {
    site: &'a Site<'a>,
    lock: LockName,
}

impl Trip<'_> {
    async fn run(&self, checks: &mut Vec<Check>) -> Result<Check, Check> {
        let Some(guard) = &self.site.guard else {
            let lease = self.acquire().await?;
            self.release(&lease).await?;
            let text =
                format!("{} was granted with token {}, and released", self.lock, lease.token);
            return Ok(Check::ok(ABOUT, text));
        };
        let fences = self.site.client.objects().fences(PREFIX, None).await;
        let highest = fences.ok().and_then(|page| page.highest_mark);
        let first = self.acquire().await?;
        checks.extend(self.counter(guard, highest, first.token));
        let low = handed(&first)?;
        let written = self.write(&low).await;
        let released = self.release(&first).await;
        let second = match (written, released) {
            (Ok(written), Ok(())) => self.acquire().await.map(|second| (written, second)),
            (Err(failed), _) | (_, Err(failed)) => Err(failed),
        };
        let (written, second) = match second {
            Ok(both) => both,
            Err(failed) => {
                // Whether an object was written is not known.
                let _ = self.site.client.objects().delete(&low, self.lock.as_str()).await;
                return Err(failed);
            }
        };
        let high = handed(&second)?;
        let refused = self.overtake(guard, &low, &high, &written, checks).await;
        if let Some(port) = guard.stores.and_then(Stores::redis_port) {
            let base = self.site.client.fenced_store();
            checks.push(redis_port::check(port, base, &guard.login, [&first, &second]).await);
        }
        let removed = self.remove(&high, &written).await;
        self.release(&second).await?;
        removed?;
        refused.map(|text| self.summary(&first, &second, &written, &text))
    }

    async fn acquire(&self) -> Result<LeaseReply, Check> {
        let request = self.site.client.lock(&self.lock).ttl(TTL).wait(WAIT).patience(PATIENCE);
        request.acquire_detached().await.map_err(|error| refusal("the lock server", &error))
    }

    async fn release(&self, lease: &LeaseReply) -> Result<(), Check> {
        let released = self.site.client.locks().release(&self.lock, lease.lease_id).await;
        released.map_err(|error| refusal("the lock server", &error))
    }

    /// A token that was just granted is above everything that was granted before, so above every
    /// mark of the guard.
    fn counter(
        &self,
        guard: &GuardSide<'_>,
        highest: Option<Token>,
        token: Token,
    ) -> Option<Check> {
        let about = "token counter";
        if self.site.compares_by_lock {
            return None;
        }
        match highest {
            Some(mark) if mark >= token => Some(Check::failing(about, below(token, mark))),
            Some(mark) => {
                let text = format!("token {token} is above every mark of the guard ({mark})");
                Some(Check::ok(about, text))
            }
            None if guard.stores.is_some() => {
                Some(Check::ok(about, "the guard has no marks that could be above"))
            }
            None => Some(Check::information(
                about,
                "not compared with the marks of other locks: that needs the right \"read *\" in the \
                 guard's access file",
            )),
        }
    }

    /// Seals, which needs neither an object nor a rule, and then writes an object if there is a
    /// place for it.
    async fn write(&self, low: &HandedToken) -> Result<Written, Check> {
        let objects = self.site.client.objects();
        let sealed = objects.seal(low, &self.lock).await;
        sealed.map_err(|error| refusal("the guard", &error))?;
        let put = objects.put(low, self.lock.as_str(), "written by fence doctor").await;
        match put {
            Ok(applied) if applied.mark.is_some() => Ok(Written::Object),
            Ok(_) => {
                let _ = objects.delete(low, self.lock.as_str()).await;
                Ok(Written::Seal(format!("a rule of the guard leaves {} open", self.lock)))
            }
            Err(error) => match error.problem().map(|problem| problem.code) {
                Some(Code::NotOffered) => {
                    Ok(Written::Seal("the guard keeps no objects".to_owned()))
                }
                // The seal was admitted, so this is a rule.
                Some(Code::Forbidden | Code::WrongLock | Code::InvalidRequest) => {
                    Ok(Written::Seal(format!("a rule of the guard forbids it: {error}")))
                }
                _ => Err(refusal("the guard", &error)),
            },
        }
    }

    /// Seals with the higher token and tries the lower one, which must be refused.
    async fn overtake(
        &self,
        guard: &GuardSide<'_>,
        low: &HandedToken,
        high: &HandedToken,
        written: &Written,
        checks: &mut Vec<Check>,
    ) -> Result<String, Check> {
        let stream = match guard.reports {
            true => Some(self.site.client.events_of(&self.lock).open().await),
            false => None,
        };
        let objects = self.site.client.objects();
        let sealed = objects.seal(high, &self.lock).await;
        sealed.map_err(|error| refusal("the guard", &error))?;
        let is_observed = match written {
            Written::Object => {
                let put = objects.put(low, self.lock.as_str(), "too late").await;
                put.map(|applied| applied.guarantee == Some(Guarantee::Observe))
            }
            Written::Seal(_) => {
                let seal = objects.seal(low, &self.lock).await;
                seal.map(|reply| reply.mark > low.parsed().token)
            }
        };
        let low = low.parsed().token;
        let high = high.parsed().token;
        match is_observed {
            Err(error) if matches!(error.kind(), ErrorKind::Stale { .. }) => {
                if let Some(stream) = stream {
                    checks.push(self.reported(stream).await);
                }
                Ok(format!("{low} was refused"))
            }
            Err(error) => Err(refusal("the guard", &error)),
            Ok(true) => Err(Check::warning(
                ABOUT,
                format!(
                    "token {low} was admitted after {high}, because the guard only observes: start \
                     it with --mode enforce"
                ),
            )),
            Ok(false) => Err(Check::failing(
                ABOUT,
                format!(
                    "token {low} was admitted after {high} was sealed: the guard does not protect; \
                     report this as a defect"
                ),
            )),
        }
    }

    /// Waits for the refusal among the events of the lock server.
    async fn reported(&self, stream: Result<EventStream, Error>) -> Check {
        let about = "reports";
        let server = self.site.client.lock_server();
        let seen = match stream {
            Ok(stream) => tokio::time::timeout(REPORT, refused(stream)).await,
            Err(error) => Ok(Err(error)),
        };
        match seen {
            Ok(Ok(())) => Check::ok(about, format!("a refusal by the guard was shown by {server}")),
            Ok(Err(error)) => {
                let text = format!("whether refusals are shown is not known: {error}");
                Check::warning(about, text)
            }
            Err(_) => Check::warning(
                about,
                format!(
                    "a refusal by the guard was not shown by {server} within {} s: the guard reports \
                     to another lock server; name this one in its --report-to",
                    REPORT.as_secs()
                ),
            ),
        }
    }

    async fn remove(&self, high: &HandedToken, written: &Written) -> Result<(), Check> {
        if !matches!(written, Written::Object) {
            return Ok(());
        }
        let deleted = self.site.client.objects().delete(high, self.lock.as_str()).await;
        deleted.map(|_| ()).map_err(|error| {
            let text = format!("the object {} could not be removed: {error}", self.lock);
            Check::warning(ABOUT, text)
        })
    }

    fn summary(
        &self,
        first: &LeaseReply,
        second: &LeaseReply,
        written: &Written,
        refused: &str,
    ) -> Check {
        let wrote = match written {
            Written::Object => "an object was written and removed".to_owned(),
            Written::Seal(why) => format!("no object was written ({why})"),
        };
        let text = format!(
            "{} was granted with {}, then with {}; {wrote}; {refused} after the seal",
            self.lock, first.token, second.token
        );
        Check::ok(ABOUT, text)
    }
}

async fn refused(mut stream: EventStream) -> Result<(), Error> {
    loop {
        if let StreamItem::Event { event, .. } = stream.next().await?
            && event.kind == EventKind::Refused
        {
            return Ok(());
        }
    }
}

fn handed(lease: &LeaseReply) -> Result<HandedToken, Check> {
    HandedToken::new(lease.fencing_token.as_str())
        .map_err(|invalid| Check::failing(ABOUT, format!("the lock server's token: {invalid}")))
}

fn below(token: Token, mark: Token) -> String {
    format!(
        "token {token} was just granted, and a mark of the guard is {mark} already: the guard refuses \
         fresh leases of locks with such marks. The lock server's store is older than the guard's \
         marks, or is not the one that they came from; start lock-server with --guard and the \
         guard's address, so that it continues above them"
    )
}

/// The finding of an error reply, by what has to be done.
fn refusal(who: &str, error: &Error) -> Check {
    let Some(problem) = error.problem() else {
        let text = error.to_string();
        return match error.kind() {
            ErrorKind::OutcomeUnknown => Check::failing(ABOUT, unserved(who, &text)),
            _ => Check::failing(ABOUT, text),
        };
    };
    let detail = &problem.detail;
    match problem.code {
        Code::Unauthorized => {
            let text =
                format!("{who} needs a bearer token: name the file by --auth-file ({detail})");
            Check::failing(ABOUT, text)
        }
        Code::Forbidden => Check::warning(
            ABOUT,
            format!(
                "{detail}, so that it could not be tried; give the bearer token's principal the right \
                 \"{RIGHT}\" in the access file of {who}"
            ),
        ),
        Code::BadSignature => Check::failing(
            ABOUT,
            format!(
                "the guard refuses every write: {detail}; give both servers the same --token-key-file"
            ),
        ),
        Code::WrongLock => {
            let text = format!("the guard refuses every write: {detail}; {}", problem.hint);
            Check::failing(ABOUT, text)
        }
        Code::StaleToken => {
            let text = format!("the guard refuses a lease that was just granted: {detail}");
            Check::failing(ABOUT, text)
        }
        Code::StoreUnavailable | Code::UpstreamUnavailable | Code::OutcomeUnknown => {
            Check::failing(ABOUT, unserved(who, detail))
        }
        _ => Check::failing(ABOUT, error.to_string()),
    }
}

/// A server that replied that it cannot do it for now, or did not reply.
fn unserved(who: &str, text: &str) -> String {
    format!(
        "{who} fails: {}; see that its store runs and replies, and look at the server's log",
        cause(text)
    )
}

/// The cause at the end of an error, without the advice for a program, which could send its request
/// once more.
fn cause(text: &str) -> &str {
    let last = text.rsplit("; the retry failed: ").next().unwrap_or(text);
    let cause = last.rsplit(" is unknown: ").next().unwrap_or(last);
    let advice = Code::ALL.iter().filter_map(|code| cause.find(&format!(" ({code}): "))).min();
    advice.map_or(cause, |at| &cause[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cut_to_its_cause() {
        let broke = "the connection to Redis at redis://a broke: no reply within 2000 ms";
        let retried = format!(
            "acquire a: no reply, so the outcome is unknown: the outcome of the request for lock a \
             is unknown: {broke} (outcome-unknown): Retry with the same lease_id.; the retry \
             failed: acquire a: {broke} (store-unavailable): Try again after Retry-After."
        );
        assert_eq!(cause(&retried), format!("acquire a: {broke}"));
        let text = unserved("the lock server", &retried);
        assert!(text.len() < 200 && text.contains("its store"), "{text}");
        let detail = format!("the outcome of the request for lock a is unknown: {broke}");
        assert_eq!(cause(&detail), broke);
        assert_eq!(cause(broke), broke);
        let silent = "acquire a: no reply, so the outcome is unknown: http://a: timed out";
        assert_eq!(cause(silent), "http://a: timed out");
    }
}
