//! Start-up probe of the upstream: conditions are relied on only after it has just shown that it
//! checks them in one step with the write, and never gives a tag twice (invariant G7).
//!
//! All bodies have the same length and are written within moments, so that a tag made of size and
//! time of change shows itself as one made of the content does.

use futures_util::future::join_all;
use http::{Method, StatusCode};

use super::attempt::Precondition;
use crate::etag::ETag;

/// Number of writes that race.
const RACERS: usize = 16;

/// Reply of an upstream.
#[derive(Clone, Debug)]
pub(in crate::doors::http_proxy) struct Reply {
    pub(in crate::doors::http_proxy) status: StatusCode,
    /// The strong tag, if there is exactly one.
    pub(in crate::doors::http_proxy) tag: Option<ETag>,
    pub(in crate::doors::http_proxy) body: Vec<u8>,
}

/// An upstream, with one resource that is the probe's own.
pub(in crate::doors::http_proxy) trait Origin {
    /// Sends a request to the resource; a sentence if there is no reply.
    async fn send(
        &self,
        method: Method,
        precondition: Option<&Precondition>,
        body: &str,
    ) -> Result<Reply, String>;
}

/// Probes an upstream whose resource is missing, and removes the resource at the end. Returns a
/// description of the result.
///
/// # Errors
/// A sentence: the check that failed, and what was seen.
pub(in crate::doors::http_proxy) async fn examine<O: Origin>(origin: &O) -> Result<String, String> {
    let mut probe = Probe { origin, tags: Vec::new() };
    let result = probe.run().await;
    let removed = probe.remove().await;
    result?;
    removed?;
    Ok(format!(
        "the upstream gave {} strong ETags and none twice, refused stale and missing ones, and let \
         one of {RACERS} racing writes win",
        probe.tags.len()
    ))
}

const A: &str = r#"{"probe":10}"#;
const B: &str = r#"{"probe":11}"#;

struct Probe<'a, O> {
    origin: &'a O,
    /// All tags that were seen.
    tags: Vec<ETag>,
}

impl<O: Origin> Probe<'_, O> {
    async fn run(&mut self) -> Result<(), String> {
        let first = self.make().await?;
        self.refuses(Method::PUT, &Precondition::Absent, "of a creation over it").await?;
        let second = self.replace(&first, B).await?;
        let stale = Precondition::Match(first);
        self.refuses(Method::PUT, &stale, "under a stale ETag").await?;
        self.refuses(Method::DELETE, &stale, "under a stale ETag").await?;
        let third = self.replace(&second, A).await?;
        let fourth = self.replace(&third, A).await?;
        self.delete(&fourth).await?;
        self.refuses_missing(&fourth).await?;
        let fifth = self.make().await?;
        let won = self.race(&Precondition::Match(fifth)).await?;
        self.delete(&won).await?;
        let made = self.race(&Precondition::Absent).await?;
        self.delete(&made).await
    }

    async fn make(&mut self) -> Result<ETag, String> {
        let reply = self.put(&Precondition::Absent, A).await?;
        success("a PUT with If-None-Match: * of a missing resource", &reply)?;
        self.fresh_tag(&reply).await
    }

    async fn replace(&mut self, tag: &ETag, body: &str) -> Result<ETag, String> {
        let reply = self.put(&Precondition::Match(tag.clone()), body).await?;
        success("a PUT with If-Match and the current ETag", &reply)?;
        self.fresh_tag(&reply).await
    }

    async fn delete(&self, tag: &ETag) -> Result<(), String> {
        let current = Precondition::Match(tag.clone());
        let reply = self.origin.send(Method::DELETE, Some(&current), "").await?;
        success("a DELETE with If-Match and the current ETag", &reply)?;
        self.is_missing("after its DELETE").await
    }

    async fn put(&self, precondition: &Precondition, body: &str) -> Result<Reply, String> {
        self.origin.send(Method::PUT, Some(precondition), body).await
    }

    /// Returns the tag of the resource, which must be strong and new, and that of the PUT's reply
    /// if it had one.
    async fn fresh_tag(&mut self, written: &Reply) -> Result<ETag, String> {
        let reply = self.origin.send(Method::HEAD, None, "").await?;
        success("a HEAD of the resource", &reply)?;
        let tag = reply.tag.ok_or("HEAD shows no strong ETag (one, in quotes, without W/)")?;
        if let Some(written) = written.tag.as_ref().filter(|written| **written != tag) {
            return Err(format!("the reply to a PUT has ETag {written}, and HEAD shows {tag}"));
        }
        if self.tags.contains(&tag) {
            return Err(format!("ETag {tag} was given twice: equal tags are no equal versions"));
        }
        self.tags.push(tag.clone());
        Ok(tag)
    }

    /// Checks that a write is refused, and that it changes nothing.
    async fn refuses(
        &self,
        method: Method,
        precondition: &Precondition,
        what: &str,
    ) -> Result<(), String> {
        let before = self.origin.send(Method::GET, None, "").await?;
        let reply = self.origin.send(method.clone(), Some(precondition), A).await?;
        if reply.status != StatusCode::PRECONDITION_FAILED {
            return Err(format!("a {method} {what} got {} and not 412", reply.status));
        }
        let after = self.origin.send(Method::GET, None, "").await?;
        if before.tag != after.tag || before.body != after.body {
            return Err(format!("a {method} {what} got 412 and changed the resource"));
        }
        Ok(())
    }

    async fn refuses_missing(&self, tag: &ETag) -> Result<(), String> {
        let reply = self.put(&Precondition::Match(tag.clone()), A).await?;
        if reply.status.is_success() {
            let status = reply.status;
            return Err(format!("a PUT with If-Match of a missing resource got {status}"));
        }
        self.is_missing("after a refused PUT").await
    }

    async fn is_missing(&self, when: &str) -> Result<(), String> {
        let status = self.origin.send(Method::HEAD, None, "").await?.status;
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(()),
            _ => Err(format!("HEAD of the resource {when} got {status} and not 404")),
        }
    }

    /// Lets writes race under one condition; exactly one may win.
    async fn race(&mut self, precondition: &Precondition) -> Result<ETag, String> {
        let bodies: Vec<String> =
            (0..RACERS).map(|racer| format!(r#"{{"probe":{}}}"#, racer + 12)).collect();
        let racers = bodies.iter().map(|body| self.put(precondition, body));
        let replies: Result<Vec<Reply>, String> = join_all(racers).await.into_iter().collect();
        let replies = replies?;
        let won: Vec<&Reply> = replies.iter().filter(|reply| reply.status.is_success()).collect();
        let lost = |reply: &&Reply| reply.status == StatusCode::PRECONDITION_FAILED;
        let refused = replies.iter().filter(lost).count();
        match won[..] {
            [winner] if refused == RACERS - 1 => self.fresh_tag(winner).await,
            _ => Err(format!(
                "of {RACERS} racing PUTs with one condition {} won and {refused} got 412",
                won.len()
            )),
        }
    }

    /// Removes what the probe made.
    async fn remove(&self) -> Result<(), String> {
        let reply = self.origin.send(Method::DELETE, None, "").await?;
        match reply.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(()),
            _ => success("the last DELETE", &reply),
        }
    }
}

fn success(what: &str, reply: &Reply) -> Result<(), String> {
    let status = reply.status;
    if status.is_success() { Ok(()) } else { Err(format!("{what} got {status}")) }
}
