//! Judging a Redis directly, before a server relies on it.

use std::sync::Arc;

use async_trait::async_trait;
use lock_server::store::redis::judge::{ClockWatch, Finding, look};
use redis::aio::MultiplexedConnection;
use service_kit::clock::SystemClock;
use service_kit::redis_link::{LinkOptions, RedisLink, RedisTarget, Verifier};
use service_kit::tasks::Tasks;

use super::check::Check;

/// Doctor only reads, so any Redis will do; the server's own verification is another matter.
struct AnyRedis;

#[async_trait]
impl Verifier for AnyRedis {
    async fn verify(&self, _connection: &mut MultiplexedConnection) -> Result<(), String> {
        Ok(())
    }
}

/// What the lock server would find.
pub(super) async fn judge(target: RedisTarget) -> Vec<Check> {
    let tasks = Tasks::new();
    let link = RedisLink::start(target, LinkOptions::default(), Arc::new(AnyRedis), &tasks).await;
    let found = match link {
        Ok(link) => look(&link, &SystemClock::new(), &mut ClockWatch::default()).await,
        Err(error) => Err(error),
    };
    tasks.begin_shutdown();
    match found {
        Err(error) => vec![Check::failing("redis", error)],
        Ok(findings) if findings.is_empty() => {
            vec![Check::ok("redis", "keeps what it acknowledges, and its clock agrees")]
        }
        Ok(findings) => findings.into_iter().map(check).collect(),
    }
}

fn check(finding: Finding) -> Check {
    let about = format!("redis {}", finding.about);
    if finding.severe {
        Check::failing(about, finding.text)
    } else {
        Check::warning(about, finding.text)
    }
}
