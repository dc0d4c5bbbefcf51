//! The guards that this lock server knows, as witnesses of what was issued.
//!
//! A guard's highest mark is a token that somebody was granted once. A lock server whose counter is
//! below it has lost its memory, whatever its store says. So guards are asked at start and before a
//! new lineage begins, and the counter is lifted above what they answer (L5). A guard cannot vouch
//! for the opposite: tokens that never reached it are not in its marks, which is why the clock
//! floor stays in force beside them.
//!
//! The choices are in docs/decisions/0018-guards-as-witnesses.md.

mod ask;
pub(crate) mod http;
mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::http::HeaderValue;
use fence_protocol::{Namespace, Token};
use service_kit::health::{Health, Status};

pub use self::url::GuardUrl;
use lease::tokens;

/// How many guards may be named.
pub const GUARDS_MAX: usize = 16;
/// How long one guard may take to answer.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a guard that has not answered is asked again.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(5);
/// The readiness check.
const CHECK: &str = "guards";

/// The guards of a lock server. Cheap to clone; clones share what was heard.
#[derive(Clone, Debug)]
pub struct Guards {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    urls: Vec<GuardUrl>,
    namespace: Namespace,
    http: reqwest::Client,
    health: Health,
    /// The highest mark that was ever heard; 0 for none.
    highest: AtomicU64,
    asked: AtomicBool,
    is_incomplete: AtomicBool,
}

/// What the guards said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Testimony {
    /// The highest mark that can be lifted to.
    pub highest: Option<Token>,
    /// Whether any guard has seen any token at all.
    pub has_marks: bool,
    /// A sentence for each guard that gave no answer that can be used.
    pub unheard: Vec<String>,
    /// A sentence for each mark that no lock server can have issued.
    pub incredible: Vec<String>,
}

impl Testimony {
    fn add(&mut self, url: &GuardUrl, answer: Result<Option<Token>, String>) {
        match answer {
            Ok(None) => {}
            Ok(Some(mark)) => {
                self.has_marks = true;
                if mark.get() <= tokens::CREDIBLE_MARK_MAX {
                    self.highest = self.highest.max(Some(mark));
                } else {
                    self.incredible.push(format!(
                        "the guard {url} has seen token {mark}, which no lock server can have \
                         issued: its lock is shut until an operator removes that mark; sign tokens"
                    ));
                }
            }
            Err(why) => self.unheard.push(format!("the guard {url} was not heard: {why}")),
        }
    }

    /// Nothing, where every guard has answered and none has seen a token: only then may tokens begin
    /// at 1.
    ///
    /// # Errors
    /// A sentence with what was said or not said, and what to do.
    pub fn vouch_for_a_new_namespace(&self) -> Result<(), String> {
        if let Some(highest) = self.highest {
            return Err(format!(
                "the namespace is not new: a guard has seen token {highest}; nothing was done"
            ));
        }
        if self.has_marks {
            return Err(format!("the namespace is not new: {}", self.incredible.join("; ")));
        }
        self.all_were_heard()
    }

    /// Nothing, where every guard has answered.
    ///
    /// # Errors
    /// A sentence with who has not, and what to do.
    pub fn all_were_heard(&self) -> Result<(), String> {
        if self.unheard.is_empty() {
            return Ok(());
        }
        Err(format!(
            "whether tokens were issued before is not known, because not every guard answers: {}. \
             Start the guards, or leave out --guard where you know that they have seen nothing",
            self.unheard.join("; ")
        ))
    }

    fn status(&self) -> Status {
        let texts: Vec<&str> =
            self.unheard.iter().chain(&self.incredible).map(String::as_str).collect();
        if texts.is_empty() { Status::Ok } else { Status::Warn(texts.join("; ")) }
    }
}

impl Guards {
    /// The guards at `urls`, which must belong to `namespace`.
    ///
    /// # Errors
    /// A sentence where no HTTP client can be made.
    pub fn new(urls: &[GuardUrl], namespace: &Namespace, health: &Health) -> Result<Self, String> {
        Self::with_auth(urls, namespace, health, None)
    }

    /// The guards, asked with this `Authorization` header.
    ///
    /// # Errors
    /// A sentence where no HTTP client can be made.
    pub fn with_auth(
        urls: &[GuardUrl],
        namespace: &Namespace,
        health: &Health,
        auth: Option<&HeaderValue>,
    ) -> Result<Self, String> {
        Ok(Self {
            inner: Arc::new(Inner {
                urls: urls.to_vec(),
                namespace: namespace.clone(),
                http: http::client(auth)?,
                health: health.clone(),
                highest: AtomicU64::new(0),
                asked: AtomicBool::new(false),
                is_incomplete: AtomicBool::new(false),
            }),
        })
    }

    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.inner.urls.is_empty()
    }

    /// Asks every guard at the same time, for at most [`ASK_TIMEOUT`] each, and notes in `/readyz`
    /// who was not heard.
    pub async fn ask(&self) -> Testimony {
        let inner = &*self.inner;
        let mut testimony = Testimony::default();
        if inner.urls.is_empty() {
            return testimony;
        }
        let questions = inner.urls.iter().map(|url| ask::ask(&inner.http, url, &inner.namespace));
        let answers = futures_util::future::join_all(questions).await;
        for (url, answer) in inner.urls.iter().zip(answers) {
            testimony.add(url, answer);
        }
        if let Some(highest) = testimony.highest {
            self.saw(highest);
        }
        inner.is_incomplete.store(!testimony.unheard.is_empty(), Ordering::Relaxed);
        inner.asked.store(true, Ordering::Relaxed);
        inner.health.set(CHECK, testimony.status());
        testimony
    }

    /// Whether the guards were asked since this process started; true where none is named.
    pub(crate) fn were_asked(&self) -> bool {
        self.is_empty() || self.inner.asked.load(Ordering::Relaxed)
    }

    /// The highest mark that was heard so far; 0 for none.
    pub(crate) fn highest(&self) -> u64 {
        self.inner.highest.load(Ordering::Relaxed)
    }

    /// Remembers a mark.
    pub(crate) fn saw(&self, mark: Token) {
        self.inner.highest.fetch_max(mark.get(), Ordering::Relaxed);
    }

    /// Whether a guard was not heard when they were asked last.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.inner.is_incomplete.load(Ordering::Relaxed)
    }

    /// Has the guards asked again, because their highest mark could not be used yet.
    pub(crate) fn set_incomplete(&self) {
        self.inner.is_incomplete.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> GuardUrl {
        "http://127.0.0.1:7421".parse().unwrap()
    }

    fn testimony(answers: &[Result<Option<u64>, &str>]) -> Testimony {
        let mut testimony = Testimony::default();
        for answer in answers {
            let answer = match answer {
                Ok(mark) => Ok(mark.map(|mark| Token::new(mark).unwrap())),
                Err(why) => Err((*why).to_owned()),
            };
            testimony.add(&url(), answer);
        }
        testimony
    }

    #[test]
    fn the_highest_of_all_counts_and_silence_hides_none() {
        let heard = testimony(&[Ok(Some(7)), Err("silent"), Ok(Some(90)), Ok(None)]);
        assert_eq!(heard.highest, Token::new(90).ok());
        assert!(heard.has_marks);
        assert_eq!(heard.unheard.len(), 1);
        assert!(matches!(heard.status(), Status::Warn(text) if text.contains("silent")));
        assert_eq!(testimony(&[Ok(None)]), Testimony::default());
        assert_eq!(testimony(&[Ok(None)]).status(), Status::Ok);
    }

    /// A forged mark must not use up the tokens of the whole namespace; that there is one still
    /// says that the namespace is not new.
    #[test]
    fn a_mark_that_nobody_can_have_issued_lifts_nothing() {
        let heard = testimony(&[Ok(Some(Token::MAX)), Ok(Some(5))]);
        assert_eq!(heard.highest, Token::new(5).ok());
        assert_eq!(heard.incredible.len(), 1);
        let alone = testimony(&[Ok(Some(tokens::CREDIBLE_MARK_MAX + 1))]);
        assert_eq!((alone.highest, alone.has_marks), (None, true));
        assert!(matches!(alone.status(), Status::Warn(_)));
        let last = testimony(&[Ok(Some(tokens::CREDIBLE_MARK_MAX))]);
        assert_eq!(last.highest, Token::new(tokens::CREDIBLE_MARK_MAX).ok());
    }
}
