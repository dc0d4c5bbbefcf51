//! The guards that `--guard` names, as evidence of issued tokens.
//!
//! A guard's highest mark is a token that was granted once. If the counter of a lock server is
//! below it, the store has lost data. So the server reads the marks at start and before a new
//! lineage begins, and raises the counter above them (L5). A low mark proves nothing: tokens that
//! never reached a guard are not in its marks, so the clock floor stays in force.
//!
//! The choices are in docs/decisions/0018-guards-as-witnesses.md.

pub(crate) mod http;
mod mark;
pub(crate) mod overview;
pub mod revoke;
pub(crate) mod seal;
pub(crate) mod sealer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::http::HeaderValue;
use fence_protocol::{Namespace, Token};
use service_kit::health::{Health, Status};
use service_kit::tls::{ServerUrl, TlsOptions};

use self::http::GuardClient;
use lease::tokens;

/// Largest number of guards.
pub const GUARDS_MAX: usize = 16;
/// Time-out for the reply of one guard.
pub const GUARD_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of retries while a guard has not replied.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The readiness check.
const CHECK: &str = "guards";

/// Addresses of a lock server's guards, and its credentials for them.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// The addresses, each once.
    pub urls: Vec<ServerUrl>,
    /// `Authorization` header, for guards with an access file.
    pub auth: Option<HeaderValue>,
    /// Certificates, for guards over TLS.
    pub tls: TlsOptions,
}

/// The guards of a lock server. Cheap to clone; clones share the marks that were read.
#[derive(Clone, Debug)]
pub struct Guards {
    inner: Arc<GuardsShared>,
}

#[derive(Debug)]
struct GuardsShared {
    urls: Vec<ServerUrl>,
    namespace: Namespace,
    http: GuardClient,
    health: Health,
    /// Highest mark read so far; 0 for none.
    highest: AtomicU64,
    asked: AtomicBool,
    is_incomplete: AtomicBool,
}

/// Marks that the guards reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardMarks {
    /// Highest credible mark.
    pub highest: Option<Token>,
    /// `true` if a guard has seen a token.
    pub has_marks: bool,
    /// A sentence for each guard without a usable reply.
    pub unreachable: Vec<String>,
    /// A sentence for each mark that no lock server can have issued.
    pub incredible: Vec<String>,
}

impl GuardMarks {
    fn add(&mut self, url: &ServerUrl, answer: Result<Option<Token>, String>) {
        match answer {
            Ok(None) => {}
            Ok(Some(mark)) => {
                self.has_marks = true;
                if mark.get() <= tokens::CREDIBLE_MARK_MAX {
                    self.highest = self.highest.max(Some(mark));
                } else {
                    self.incredible.push(format!(
                        "the guard {url} has seen token {mark}, which no lock server can have \
                         issued, and refuses every holder of its lock: see \"A forged mark\" in \
                         docs/operating/redis-port.md, and sign tokens"
                    ));
                }
            }
            Err(why) => self.unreachable.push(format!("the guard {url} gave no mark: {why}")),
        }
    }

    /// Checks that every guard has replied and none has seen a token: only then may tokens begin at
    /// 1.
    ///
    /// # Errors
    /// A sentence with the replies, and what to do.
    pub fn vouch_for_a_new_namespace(&self) -> Result<(), String> {
        if let Some(highest) = self.highest {
            return Err(format!(
                "the namespace is not new: a guard has seen token {highest}; nothing was done"
            ));
        }
        if self.has_marks {
            return Err(format!("the namespace is not new: {}", self.incredible.join("; ")));
        }
        self.check_complete()
    }

    /// Checks that every guard has replied.
    ///
    /// # Errors
    /// A sentence with the guards that have not, and what to do.
    pub fn check_complete(&self) -> Result<(), String> {
        if self.unreachable.is_empty() {
            return Ok(());
        }
        Err(format!(
            "tokens may have been issued before, because not every guard replies: {}. Start the \
             guards, or leave out --guard if you know that they have seen no token",
            self.unreachable.join("; ")
        ))
    }

    fn status(&self) -> Status {
        let texts: Vec<&str> =
            self.unreachable.iter().chain(&self.incredible).map(String::as_str).collect();
        if texts.is_empty() { Status::Ok } else { Status::Warn(texts.join("; ")) }
    }
}

impl Guards {
    /// The guards, which must belong to `namespace`.
    ///
    /// # Errors
    /// A sentence where no HTTP client can be made.
    pub fn new(
        guards: &GuardOptions,
        namespace: &Namespace,
        health: &Health,
    ) -> Result<Self, String> {
        Ok(Self {
            inner: Arc::new(GuardsShared {
                urls: guards.urls.clone(),
                namespace: namespace.clone(),
                http: GuardClient::new(guards)?,
                health: health.clone(),
                highest: AtomicU64::new(0),
                asked: AtomicBool::new(false),
                is_incomplete: AtomicBool::new(false),
            }),
        })
    }

    /// `true` if no guard is named.
    pub fn is_empty(&self) -> bool {
        self.inner.urls.is_empty()
    }

    /// Reads the highest mark of every guard at the same time, for at most [`GUARD_TIMEOUT`] each,
    /// and reports in `/readyz` the guards that did not reply.
    pub async fn marks(&self) -> GuardMarks {
        let inner = &*self.inner;
        let mut marks = GuardMarks::default();
        if inner.urls.is_empty() {
            return marks;
        }
        let requests =
            inner.urls.iter().map(|url| mark::highest(&inner.http, url, &inner.namespace));
        let answers = futures_util::future::join_all(requests).await;
        for (url, answer) in inner.urls.iter().zip(answers) {
            marks.add(url, answer);
        }
        if let Some(highest) = marks.highest {
            self.saw(highest);
        }
        inner.is_incomplete.store(!marks.unreachable.is_empty(), Ordering::Relaxed);
        inner.asked.store(true, Ordering::Relaxed);
        inner.health.set(CHECK, marks.status());
        marks
    }

    /// `true` if the marks were read since this process started, or no guard is named.
    pub(crate) fn were_asked(&self) -> bool {
        self.is_empty() || self.inner.asked.load(Ordering::Relaxed)
    }

    /// Highest mark read so far; 0 for none.
    pub(crate) fn highest(&self) -> u64 {
        self.inner.highest.load(Ordering::Relaxed)
    }

    /// Remembers a mark.
    pub(crate) fn saw(&self, mark: Token) {
        self.inner.highest.fetch_max(mark.get(), Ordering::Relaxed);
    }

    /// `true` if a guard did not reply last time.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.inner.is_incomplete.load(Ordering::Relaxed)
    }

    /// Has the marks read again, because the highest one could not be used yet.
    pub(crate) fn set_incomplete(&self) {
        self.inner.is_incomplete.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> ServerUrl {
        "http://127.0.0.1:7421".parse().unwrap()
    }

    fn marks(answers: &[Result<Option<u64>, &str>]) -> GuardMarks {
        let mut marks = GuardMarks::default();
        for answer in answers {
            let answer = match answer {
                Ok(mark) => Ok(mark.map(|mark| Token::new(mark).unwrap())),
                Err(why) => Err((*why).to_owned()),
            };
            marks.add(&url(), answer);
        }
        marks
    }

    #[test]
    fn the_highest_of_all_counts_and_silence_hides_none() {
        let read = marks(&[Ok(Some(7)), Err("silent"), Ok(Some(90)), Ok(None)]);
        assert_eq!(read.highest, Token::new(90).ok());
        assert!(read.has_marks);
        assert_eq!(read.unreachable.len(), 1);
        assert!(matches!(read.status(), Status::Warn(text) if text.contains("silent")));
        assert_eq!(marks(&[Ok(None)]), GuardMarks::default());
        assert_eq!(marks(&[Ok(None)]).status(), Status::Ok);
    }

    /// A forged mark must not use up the tokens of the whole namespace; that there is one still
    /// says that the namespace is not new.
    #[test]
    fn a_mark_that_no_server_can_have_issued_raises_nothing() {
        let read = marks(&[Ok(Some(Token::MAX)), Ok(Some(5))]);
        assert_eq!(read.highest, Token::new(5).ok());
        assert_eq!(read.incredible.len(), 1);
        let alone = marks(&[Ok(Some(tokens::CREDIBLE_MARK_MAX + 1))]);
        assert_eq!((alone.highest, alone.has_marks), (None, true));
        assert!(matches!(alone.status(), Status::Warn(_)));
        let last = marks(&[Ok(Some(tokens::CREDIBLE_MARK_MAX))]);
        assert_eq!(last.highest, Token::new(tokens::CREDIBLE_MARK_MAX).ok());
    }
}
