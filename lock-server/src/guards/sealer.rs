//! Seals every guard at the same time.

use std::sync::Arc;
use std::time::Duration;

use fence_protocol::wire::lock::GuardSeal;
use fence_protocol::{LeaseId, LockName, Token};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use service_kit::Kit;
use service_kit::clock::Clock;
use service_kit::metrics::Metrics;
use service_kit::tls::ServerUrl;

use super::seal::{self, SealedMark};
use crate::guards::GuardOptions;
use crate::guards::http::GuardClient;
use crate::signer::Signer;
use lease::tokens;

/// Reason for a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A lease is about to be revoked.
    Revoke,
    /// A lock was granted, and the grant is not acknowledged yet.
    Required,
    /// A lock was granted, and the grant is acknowledged.
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

/// Metrics of seals.
#[derive(Clone, Debug)]
struct Figures {
    seals: Family<Labels, Counter>,
    seconds: Histogram,
}

impl Figures {
    fn new(metrics: &Metrics) -> Self {
        let seconds = Histogram::new(exponential_buckets(0.001, 2.0, 12));
        Self {
            seals: metrics.register(
                "lock_guard_seals",
                "Seals of guards by cause and outcome: sealed, above or failed",
                Family::default(),
            ),
            seconds: metrics.register(
                "lock_guard_seal_seconds",
                "Time to seal every guard",
                seconds,
            ),
        }
    }

    fn count(&self, cause: Cause, result: &GuardSealed) {
        let outcome = match result.outcome {
            Ok(SealedMark::At(_)) => "sealed",
            Ok(SealedMark::Above(_)) => "above",
            Err(_) => "failed",
        };
        let labels = Labels { cause: cause.as_str(), guard: result.guard.clone(), outcome };
        self.seals.get_or_create(&labels).inc();
    }
}

/// Outcome of sealing one guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardSealed {
    /// Address of the guard.
    pub(crate) guard: String,
    /// Its mark, or the reason why it was not sealed.
    pub(crate) outcome: Result<SealedMark, String>,
}

impl GuardSealed {
    /// Shape of the API.
    pub(crate) fn wire(&self) -> GuardSeal {
        let guard = self.guard.clone();
        match &self.outcome {
            Ok(standing) => GuardSeal { guard, mark: Some(standing.mark()), problem: None },
            Err(why) => GuardSeal { guard, mark: None, problem: Some(why.clone()) },
        }
    }
}

/// Highest credible mark above the token that the guards were sealed with.
pub(crate) fn higher_mark(results: &[GuardSealed]) -> Option<Token> {
    let marks = results.iter().filter_map(|result| match result.outcome {
        Ok(SealedMark::Above(mark)) if mark.get() <= tokens::CREDIBLE_MARK_MAX => Some(mark),
        _ => None,
    });
    marks.max()
}

/// Seals the guards that `--guard` names. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sealer {
    inner: Arc<SealerShared>,
}

#[derive(Debug)]
struct SealerShared {
    urls: Vec<ServerUrl>,
    http: GuardClient,
    signer: Signer,
    clock: Arc<dyn Clock>,
    figures: Figures,
}

impl Sealer {
    /// # Errors
    /// A sentence where no HTTP client can be made.
    pub(crate) fn new(guards: &GuardOptions, signer: Signer, kit: &Kit) -> Result<Self, String> {
        Ok(Self {
            inner: Arc::new(SealerShared {
                urls: guards.urls.clone(),
                http: GuardClient::new(guards)?,
                signer,
                clock: kit.clock.clone(),
                figures: Figures::new(&kit.metrics),
            }),
        })
    }

    /// HTTP client for the guards.
    pub(crate) fn http(&self) -> &GuardClient {
        &self.inner.http
    }

    /// Addresses of the guards.
    pub(crate) fn urls(&self) -> &[ServerUrl] {
        &self.inner.urls
    }

    /// Seals every guard at the same time, for at most `patience` each, and returns their outcomes
    /// in order. If dropped, guards may be sealed or not.
    pub(crate) async fn seal(
        &self,
        cause: Cause,
        (lock, token, lease): (&LockName, Token, LeaseId),
        patience: Duration,
    ) -> Vec<GuardSealed> {
        let inner = &*self.inner;
        let fence = inner.signer.sign(token, lock.clone(), lease);
        let begun_ms = inner.clock.monotonic_ms();
        let guards = inner.urls.iter();
        let seals = guards.map(|url| seal::seal(&inner.http, url, &fence, patience));
        let outcomes = futures_util::future::join_all(seals).await;
        let took_ms = inner.clock.monotonic_ms().saturating_sub(begun_ms);
        #[expect(clippy::cast_precision_loss, reason = "a histogram of seconds needs no more")]
        inner.figures.seconds.observe(took_ms as f64 / 1_000.0);
        let guards = inner.urls.iter().map(ToString::to_string);
        let results: Vec<GuardSealed> =
            guards.zip(outcomes).map(|(guard, outcome)| GuardSealed { guard, outcome }).collect();
        results.iter().for_each(|result| inner.figures.count(cause, result));
        results
    }
}
