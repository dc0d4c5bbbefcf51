//! State of every guard, for people: stores, marks, refusals.

use fence_protocol::LockName;
use fence_protocol::wire::guards::GuardReply;
use futures_util::future::{join_all, try_join};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use service_kit::tls::ServerUrl;

use super::GUARD_TIMEOUT;
use super::http::{self, GuardClient};

/// Largest number of marks of a guard. With the longest names they fit into a reply.
const MARKS_MAX: usize = 100;

/// Part of a guard's state.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// Its stores, and its first marks with this prefix.
    Stores(String),
    /// The mark of this lock, and what was refused there.
    Lock(LockName),
}

/// Reads the part of every guard at the same time, for at most [`GUARD_TIMEOUT`].
pub(crate) async fn read(client: &GuardClient, urls: &[ServerUrl], part: &Part) -> Vec<GuardReply> {
    join_all(urls.iter().map(|url| guard(client, url, part))).await
}

async fn guard(client: &GuardClient, url: &ServerUrl, part: &Part) -> GuardReply {
    let reply = async {
        match part {
            Part::Stores(prefix) => stores(client, url, prefix).await,
            Part::Lock(lock) => fence(client, url, lock).await,
        }
    };
    let late = || Err(format!("no reply within {} ms", GUARD_TIMEOUT.as_millis()));
    let reply = tokio::time::timeout(GUARD_TIMEOUT, reply).await.unwrap_or_else(|_| late());
    let reply =
        reply.unwrap_or_else(|why| GuardReply { problem: Some(why), ..GuardReply::default() });
    GuardReply { guard: url.to_string(), ..reply }
}

async fn stores(client: &GuardClient, url: &ServerUrl, prefix: &str) -> Result<GuardReply, String> {
    let marks = format!("/v1/fences?limit={MARKS_MAX}&prefix={}", encoded(prefix));
    let (stores, marks) =
        try_join(http::get(client, url, "/v1/stores"), http::get(client, url, &marks)).await?;
    Ok(GuardReply { stores: Some(stores), marks: Some(marks), ..GuardReply::default() })
}

async fn fence(
    client: &GuardClient,
    url: &ServerUrl,
    lock: &LockName,
) -> Result<GuardReply, String> {
    let path = format!("/v1/fences/{}", encoded(lock.as_str()));
    let fence = http::get(client, url, &path).await?;
    Ok(GuardReply { fence: Some(fence), ..GuardReply::default() })
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
