//! Verdict on the configuration of a Redis: whether it keeps what it acknowledged.
//!
//! The verdict ([`judge`]) is pure, apart from the queries that feed it ([`probe`]). The lock
//! server probes at start and while it runs, because settings can be changed meanwhile; `fence
//! doctor` probes too.

use std::fmt;

use ::redis::Value;
use redis_link::{LinkError, Product, RedisLink, text_fields};
use service_kit::clock::Clock;
use service_kit::health::Status;

/// Move of the clock of Redis against ours between two probes above which it is reported, in
/// milliseconds.
const CLOCK_STEP_MS: u64 = 500;
/// Distance of the clock of Redis from this machine's wall clock above which it is reported, in
/// milliseconds.
const CLOCK_OFFSET_MS: u64 = 60_000;

/// A version of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// Reads `major.minor.patch`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(str::parse);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Some(Self(major, minor, patch)),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The oldest version that is supported: 7.0 neither persists nor replicates loaded scripts, which
/// the lineage check relies on.
pub fn oldest_version() -> Version {
    Version(7, 0, 0)
}

/// Facts read of a Redis. A setting that may not be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Name and version of the server.
    pub product: Option<Product>,
    /// Value of `appendonly`.
    pub appendonly: Option<String>,
    /// Value of `appendfsync`.
    pub appendfsync: Option<String>,
    /// `no-appendfsync-on-rewrite`.
    pub no_appendfsync_on_rewrite: Option<String>,
    /// Value of `maxmemory-policy`.
    pub maxmemory_policy: Option<String>,
    /// Value of `maxmemory`.
    pub maxmemory: Option<String>,
    /// The clock of Redis minus this machine's wall clock, ms.
    pub clock_offset_ms: Option<i64>,
    /// Move of the clock of Redis against our monotonic clock since the last probe, in
    /// milliseconds.
    pub clock_step_ms: Option<i64>,
}

/// A finding for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Breaks a guarantee.
    pub severe: bool,
    /// The setting concerned.
    pub about: &'static str,
    /// The fact, its consequence, and what to do.
    pub text: String,
}

/// Judges the facts.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(text) = facts.product.as_ref().and_then(Product::untested) {
        findings.push(Finding { severe: false, about: "version", text });
    }
    persistence(facts, &mut findings);
    if let Some(policy) = &facts.maxmemory_policy
        && policy != "noeviction"
    {
        findings.push(Finding {
            severe: facts.maxmemory.as_deref() != Some("0"),
            about: "maxmemory-policy",
            text: format!(
                "maxmemory-policy is {policy}: Redis may drop leases and the token counter; set noeviction"
            ),
        });
    }
    clock(facts, &mut findings);
    findings
}

fn persistence(facts: &Facts, findings: &mut Vec<Finding>) {
    let mut warn = |about, text: String| findings.push(Finding { severe: false, about, text });
    match (facts.appendonly.as_deref(), facts.appendfsync.as_deref()) {
        (None, _) => warn(
            "persistence",
            "the settings may not be read; allow CONFIG GET, or check by hand that appendonly is \
             yes and appendfsync is always"
                .to_owned(),
        ),
        (Some("yes"), Some("always")) => {}
        (Some("yes"), fsync) => warn(
            "appendfsync",
            format!(
                "appendfsync is {}: a power failure loses the last second's leases (tokens still \
                 rise: a new lineage lifts them); set always to keep every acknowledged lease",
                fsync.unwrap_or("unknown")
            ),
        ),
        (Some(_), _) => warn(
            "appendonly",
            "appendonly is no: a restart of Redis forgets leases that are held (tokens still rise: \
             a new lineage lifts them); set appendonly yes and appendfsync always"
                .to_owned(),
        ),
    }
    if facts.no_appendfsync_on_rewrite.as_deref() == Some("yes") {
        warn(
            "no-appendfsync-on-rewrite",
            "no-appendfsync-on-rewrite is yes: appendfsync always is void while Redis rewrites its \
             file; set no"
                .to_owned(),
        );
    }
}

fn clock(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(step) = facts.clock_step_ms
        && step.unsigned_abs() > CLOCK_STEP_MS
    {
        findings.push(Finding {
            severe: false,
            about: "clock",
            text: format!(
                "the clock of Redis moved by {step} ms against ours: leases may have ended early \
                 or late; slew the clock instead of stepping it"
            ),
        });
    }
    if facts.clock_offset_ms.is_none() {
        findings.push(Finding {
            severe: false,
            about: "clock",
            text: "the clock of Redis may not be read; allow TIME, or check by hand that NTP sets \
                   it"
            .to_owned(),
        });
    }
    if let Some(offset) = facts.clock_offset_ms
        && offset.unsigned_abs() > CLOCK_OFFSET_MS
    {
        findings.push(Finding {
            severe: false,
            about: "clock",
            text: format!(
                "the clock of Redis is {offset} ms from this machine's: leases are unaffected, but \
                 the floor of a new lineage comes from the later of the two; set both by NTP"
            ),
        });
    }
}

/// One line for `/readyz`.
pub fn status(findings: &[Finding]) -> Status {
    let text = findings.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join("; ");
    match findings {
        [] => Status::Ok,
        all if all.iter().any(|finding| finding.severe) => Status::Failing(text),
        _ => Status::Warn(text),
    }
}

/// Difference of the clocks at the last probe.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockWatch {
    last_ms: Option<i64>,
}

impl ClockWatch {
    /// Returns the move of the difference between the two clocks, in milliseconds.
    pub fn step(&mut self, redis_ms: u64, monotonic_ms: u64) -> Option<i64> {
        let difference = signed(redis_ms) - signed(monotonic_ms);
        let step = self.last_ms.map(|last| difference - last);
        self.last_ms = Some(difference);
        step
    }
}

/// Reads the facts and judges them.
///
/// # Errors
/// A sentence where Redis does not answer.
pub async fn probe(
    link: &RedisLink,
    clock: &dyn Clock,
    clocks: &mut ClockWatch,
) -> Result<Vec<Finding>, String> {
    let mut facts = Facts::default();
    let info = text(link.call(::redis::cmd("INFO").arg("server")).await)?;
    facts.product = info.as_deref().and_then(Product::from_info);
    for (name, slot) in [
        ("appendonly", &mut facts.appendonly),
        ("appendfsync", &mut facts.appendfsync),
        ("no-appendfsync-on-rewrite", &mut facts.no_appendfsync_on_rewrite),
        ("maxmemory-policy", &mut facts.maxmemory_policy),
        ("maxmemory", &mut facts.maxmemory),
    ] {
        *slot = setting(link, name).await?;
    }
    if let Some(redis_ms) = time_ms(link).await? {
        facts.clock_step_ms = clocks.step(redis_ms, clock.monotonic_ms());
        facts.clock_offset_ms = Some(signed(redis_ms) - signed(clock.wall_ms()));
    }
    Ok(judge(&facts))
}

async fn setting(link: &RedisLink, name: &str) -> Result<Option<String>, String> {
    let reply = link.call(::redis::cmd("CONFIG").arg("GET").arg(name)).await;
    let value = unless_refused(reply)?;
    Ok(value.and_then(text_fields).and_then(|fields| fields.into_iter().nth(1)))
}

async fn time_ms(link: &RedisLink) -> Result<Option<u64>, String> {
    let value = unless_refused(link.call(&::redis::cmd("TIME")).await)?;
    let fields = value.and_then(text_fields).unwrap_or_default();
    let numbers: Vec<u64> = fields.iter().filter_map(|field| field.parse().ok()).collect();
    Ok(match numbers.as_slice() {
        [seconds, micros] => Some(seconds * 1_000 + micros / 1_000),
        _ => None,
    })
}

fn text(reply: Result<Value, LinkError>) -> Result<Option<String>, String> {
    let value = unless_refused(reply)?;
    Ok(value.and_then(|value| text_fields(Value::Array(vec![value]))?.pop()))
}

/// Treats a refusal (an ACL without the command) as a reply: nothing can be read.
fn unless_refused(reply: Result<Value, LinkError>) -> Result<Option<Value>, String> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(LinkError::Server { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            product: Product::from_info("redis_version:7.0.15"),
            appendonly: Some("yes".into()),
            appendfsync: Some("always".into()),
            no_appendfsync_on_rewrite: Some("no".into()),
            maxmemory_policy: Some("noeviction".into()),
            maxmemory: Some("0".into()),
            clock_offset_ms: Some(3),
            clock_step_ms: Some(-2),
        }
    }

    fn about(facts: &Facts) -> Vec<&'static str> {
        judge(facts).into_iter().map(|finding| finding.about).collect()
    }

    #[test]
    fn a_strict_redis_is_fine() {
        assert_eq!(judge(&good()), []);
        assert_eq!(status(&[]), Status::Ok);
    }

    #[test]
    fn each_weakness_is_named() {
        let facts = Facts { appendonly: Some("no".into()), ..good() };
        assert_eq!(about(&facts), ["appendonly"]);
        let facts = Facts { appendfsync: Some("everysec".into()), ..good() };
        assert_eq!(about(&facts), ["appendfsync"]);
        let facts = Facts { no_appendfsync_on_rewrite: Some("yes".into()), ..good() };
        assert_eq!(about(&facts), ["no-appendfsync-on-rewrite"]);
        let facts = Facts { clock_step_ms: Some(3_600_000), ..good() };
        assert_eq!(about(&facts), ["clock"]);
        assert_eq!(about(&Facts { appendonly: None, ..good() }), ["persistence"]);
        let newer = Product::from_info("redis_version:99.0.0");
        assert_eq!(about(&Facts { product: newer, ..good() }), ["version"]);
        assert_eq!(about(&Facts { clock_offset_ms: None, ..good() }), ["clock"]);
    }

    #[test]
    fn eviction_fails_readiness_only_where_it_can_happen() {
        let lru = Facts { maxmemory_policy: Some("allkeys-lru".into()), ..good() };
        assert!(matches!(status(&judge(&lru)), Status::Warn(_)));
        let limited = Facts { maxmemory: Some("1000000".into()), ..lru };
        assert!(matches!(status(&judge(&limited)), Status::Failing(_)));
    }

    #[test]
    fn clock_steps_are_differences_of_differences() {
        let mut watch = ClockWatch::default();
        assert_eq!(watch.step(1_000, 10), None);
        assert_eq!(watch.step(2_000, 1_010), Some(0));
        assert_eq!(watch.step(9_000, 2_010), Some(6_000));
    }
}
