//! Start-up probe of the upstream: conditions are relied on only after it has just shown that it
//! checks them in one step with the write, and never gives a tag twice (invariant G7).
//!
//! Small bodies have the same length and are written within moments, so that a tag made of size and
//! time of change shows itself as one made of the content does. An upstream may check when the head
//! of a request arrives and store when its body is whole, which small bodies do not show: so others
//! come in two halves, and something else comes between.

use std::time::Duration;

use futures_util::future::{join, join_all, join3};
use http::{Method, StatusCode};
use tokio::sync::oneshot;

use super::attempt::Precondition;
use crate::etag::ETag;

/// Number of writes that race.
const RACERS: usize = 16;

/// Length of a body that comes in two halves. What was shown holds for no longer ones.
pub(crate) const PROBED_BYTES: usize = 1 << 20;
/// Longest time that what comes between two halves is waited for: an upstream that takes resources
/// one after the other gives it no reply before.
const BETWEEN_MAX: Duration = Duration::from_secs(2);

/// Reply of an upstream.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    /// The strong tag, if there is exactly one.
    pub(crate) tag: Option<ETag>,
    pub(crate) body: Vec<u8>,
}

/// An upstream, with one resource that is the probe's own.
pub(crate) trait Origin {
    /// Sends a request to the resource; a sentence if there is no reply.
    async fn send(
        &self,
        method: Method,
        precondition: Option<&Precondition>,
        body: &str,
    ) -> Result<Reply, String>;

    /// Sends a PUT of [`PROBED_BYTES`] in two halves: notifies once the first is out, and waits
    /// before the second.
    async fn put_in_halves(
        &self,
        precondition: &Precondition,
        first_is_out: oneshot::Sender<()>,
        second: oneshot::Receiver<()>,
    ) -> Result<Reply, String>;
}

/// Probes an upstream whose resource is missing, and removes the resource at the end. Returns a
/// description of the result.
///
/// # Errors
/// A sentence: the check that failed, and what was seen.
pub(crate) async fn examine<O: Origin>(origin: &O) -> Result<String, String> {
    let mut probe = Probe { origin, tags: Vec::new() };
    let result = probe.run().await;
    let removed = probe.remove().await;
    result?;
    removed?;
    Ok(format!(
        "the upstream gave {} strong ETags and none twice, refused stale and missing ones, and let \
         one of {RACERS} racing writes win, and one of two where \
         {PROBED_BYTES} bytes came in halves",
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
        let made = self.overlap(&Precondition::Match(made)).await?;
        let made = self.interrupt(made, Method::PUT).await?.ok_or("a PUT left nothing")?;
        if let Some(left) = self.interrupt(made, Method::DELETE).await? {
            self.delete(&left).await?;
        }
        let made = self.overlap(&Precondition::Absent).await?;
        self.delete(&made).await
    }

    /// Lets two PUTs that come in halves overlap; exactly one may win.
    async fn overlap(&mut self, precondition: &Precondition) -> Result<ETag, String> {
        let (one_out, one_is_out) = oneshot::channel();
        let (two_out, two_is_out) = oneshot::channel();
        let (one_second, one_go) = oneshot::channel();
        let (two_second, two_go) = oneshot::channel();
        let halves = async {
            // Where an upstream replied to a head, its second half goes nowhere.
            let _ = join(one_is_out, two_is_out).await;
            let looked = self.origin.send(Method::HEAD, None, "").await;
            let _ = (one_second.send(()), two_second.send(()));
            looked
        };
        let one = self.origin.put_in_halves(precondition, one_out, one_go);
        let two = self.origin.put_in_halves(precondition, two_out, two_go);
        let (one, two, looked) = join3(one, two, halves).await;
        looked?;
        self.one_of(&[one?, two?], "of two PUTs whose halves overlap").await
    }

    /// Lets a whole request come between the halves of a PUT; exactly one may win. Returns the tag
    /// of the resource, if it is there.
    async fn interrupt(&mut self, tag: ETag, method: Method) -> Result<Option<ETag>, String> {
        let precondition = Precondition::Match(tag);
        let (out, is_out) = oneshot::channel();
        let (second, go) = oneshot::channel();
        let between = async {
            let _ = is_out.await;
            let looked = self.origin.send(Method::HEAD, None, "").await;
            let body = if method == Method::PUT { B } else { "" };
            let whole = self.origin.send(method.clone(), Some(&precondition), body);
            let mut whole = std::pin::pin!(whole);
            let early = tokio::time::timeout(BETWEEN_MAX, &mut whole).await;
            let _ = second.send(());
            looked?;
            match early {
                Ok(reply) => reply,
                Err(_) => whole.await,
            }
        };
        let halves = self.origin.put_in_halves(&precondition, out, go);
        let (halves, whole) = join(halves, between).await;
        let replies = [halves?, whole?];
        let is_deleted = method == Method::DELETE && replies[1].status.is_success();
        let what = format!("of a PUT in halves and a {method} between them");
        if is_deleted && !replies[0].status.is_success() {
            self.is_missing("after its DELETE").await?;
            return Ok(None);
        }
        self.one_of(&replies, &what).await.map(Some)
    }

    /// Returns the tag of the only one that won.
    async fn one_of(&mut self, replies: &[Reply], what: &str) -> Result<ETag, String> {
        let won: Vec<&Reply> = replies.iter().filter(|reply| reply.status.is_success()).collect();
        match won[..] {
            [winner] => self.fresh_tag(winner).await,
            _ => {
                let got: Vec<&str> = replies.iter().map(|reply| reply.status.as_str()).collect();
                let got = got.join(" and ");
                Err(format!("{what}, under one condition, {} won ({got})", won.len()))
            }
        }
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
