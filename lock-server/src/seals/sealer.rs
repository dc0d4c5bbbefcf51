//! Sealing every guard at the same time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use fence_protocol::wire::lock::GuardSeal;
use fence_protocol::{LeaseId, LockName, Token};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::metrics::Metrics;

use super::seal::{self, Standing};
use crate::guards::{GuardUrl, http};
use crate::signer::Signer;
use lease::tokens;

/// Why guards are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A lease is about to be revoked.
    Revoke,
    /// A lock was granted, and its client has not been told yet.
    Required,
    /// A lock was granted, and its client knows.
    Lazy,
}

impl Cause {
    fn as_str(self) -> &'static str {
        match self {
            Self::Revoke => "revoke",
            Self::Required => "required",
            Self::Lazy => "lazy",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    cause: &'static str,
    guard: String,
    outcome: &'static str,
}

/// What is counted of seals.
#[derive(Clone, Debug)]
struct Figures {
    seals: Family<Labels, Counter>,
    seconds: Histogram,
}

impl Figures {
    fn new(metrics: &Metrics) -> Self {
        let figures = Self {
            seals: Family::default(),
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 12)),
        };
        metrics.registry(|registry| {
            registry.register(
                "lock_guard_seals",
                "Seals of guards by cause and outcome: sealed, above or failed",
                figures.seals.clone(),
            );
            registry.register(
                "lock_guard_seal_seconds",
                "How long sealing every guard took",
                figures.seconds.clone(),
            );
        });
        figures
    }

    fn count(&self, cause: Cause, told: &Told) {
        let outcome = match told.answer {
            Ok(Standing::At(_)) => "sealed",
            Ok(Standing::Above(_)) => "above",
            Err(_) => "failed",
        };
        let labels = Labels { cause: cause.as_str(), guard: told.guard.clone(), outcome };
        self.seals.get_or_create(&labels).inc();
    }
}

/// What a guard said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Where it is.
    pub(crate) guard: String,
    /// Its mark, or why it was not sealed.
    pub(crate) answer: Result<Standing, String>,
}

impl Told {
    /// As the API tells it.
    pub(crate) fn wire(&self) -> GuardSeal {
        let guard = self.guard.clone();
        match &self.answer {
            Ok(standing) => GuardSeal { guard, mark: Some(standing.mark()), problem: None },
            Err(why) => GuardSeal { guard, mark: None, problem: Some(why.clone()) },
        }
    }
}

/// The highest mark above the token that was sealed with, where a guard had one that a lock server
/// can have issued.
pub(crate) fn higher_mark(told: &[Told]) -> Option<Token> {
    let marks = told.iter().filter_map(|told| match told.answer {
        Ok(Standing::Above(mark)) if mark.get() <= tokens::CREDIBLE_MARK_MAX => Some(mark),
        _ => None,
    });
    marks.max()
}

/// Seals the guards that `--guard` names. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sealer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    urls: Vec<GuardUrl>,
    /// `None` without guards: making one reads every certificate of the system.
    http: Option<reqwest::Client>,
    signer: Signer,
    clock: Arc<dyn Clock>,
    figures: Figures,
}

impl Sealer {
    /// # Errors
    /// A sentence where no HTTP client can be made.
    pub(crate) fn new(
        urls: &[GuardUrl],
        auth: Option<&HeaderValue>,
        signer: Signer,
        kit: &Kit,
    ) -> Result<Self, String> {
        Ok(Self {
            inner: Arc::new(Inner {
                urls: urls.to_vec(),
                http: (!urls.is_empty()).then(|| http::client(auth)).transpose()?,
                signer,
                clock: kit.clock.clone(),
                figures: Figures::new(&kit.metrics),
            }),
        })
    }

    /// The guards.
    pub(crate) fn urls(&self) -> &[GuardUrl] {
        &self.inner.urls
    }

    /// Seals every guard at the same time, for at most `patience` each; what each said, in their
    /// order. Dropped, it leaves guards sealed or not.
    pub(crate) async fn seal(
        &self,
        cause: Cause,
        (lock, token, lease): (&LockName, Token, LeaseId),
        patience: Duration,
    ) -> Vec<Told> {
        let inner = &*self.inner;
        let fence = inner.signer.sign(token, lock.clone(), lease);
        let begun_ms = inner.clock.monotonic_ms();
        let guards =
            inner.http.iter().flat_map(|http| inner.urls.iter().map(move |url| (http, url)));
        let seals = guards.map(|(http, url)| seal::seal(http, url, &fence, patience));
        let answers = futures_util::future::join_all(seals).await;
        let took_ms = inner.clock.monotonic_ms().saturating_sub(begun_ms);
        #[expect(clippy::cast_precision_loss, reason = "a histogram of seconds needs no more")]
        inner.figures.seconds.observe(took_ms as f64 / 1_000.0);
        let guards = inner.urls.iter().map(ToString::to_string);
        let told: Vec<Told> =
            guards.zip(answers).map(|(guard, answer)| Told { guard, answer }).collect();
        told.iter().for_each(|told| inner.figures.count(cause, told));
        told
    }
}
