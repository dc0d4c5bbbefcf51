//! The end of a connection to Redis, and of a client's connection whose tokens were refused
//! (`--after-fenced close`).
//!
//! No command can succeed on the latter any more, and a pool would use it until it is closed. The
//! client receives the error first, also for the rest of a pipeline.

use std::rc::Rc;

use tokio_util::sync::CancellationToken;

use super::super::refusal::{Refusal, unknown};
use super::super::session::Flow;
use super::super::token_group::TokenGroup;
use super::{Client, READ};
use crate::doors::tcp::front::LINGER;

/// Waits until another client of the group received `FENCED`; without a group, for ever.
pub(super) async fn refusal(group: Option<&TokenGroup>) {
    match group {
        Some(group) => group.refused().await,
        None => std::future::pending().await,
    }
}

impl Client {
    /// Handles a broken connection to Redis. The reply to each pending command says that a higher
    /// token ended the connection, or that the outcome is unknown.
    pub(super) async fn lost(&mut self) -> Flow {
        let Some(upstream) = self.upstream.take() else { return Flow::Continue };
        let own = self.own.take();
        let why = upstream.broken().unwrap_or_else(|| "closed".into());
        let expected = self.outbox.expected();
        let subscribes = own.as_ref().is_some_and(|own| self.subscribes(own, &upstream));
        let is_bound =
            subscribes || own.as_ref().is_some_and(|own| own.watches) || self.transaction.is_some();
        if expected == 0 && !is_bound && own.is_none() {
            return Flow::Continue;
        }
        let refusal = if self.profile.tokens.is_empty() {
            None
        } else {
            self.hub.shared(&self.profile).await.err()
        };
        let line = refusal.as_ref().map_or_else(|| unknown(&why), Refusal::unknown);
        self.outbox.fail_expected(&line);
        self.hub.port.counters.unknown.inc_by(expected);
        self.lost_watch |= own.as_ref().is_some_and(|own| own.watches);
        let is_fenced = refusal.as_ref().is_some_and(Refusal::is_final);
        if let Some(refusal) = refusal.filter(|_| is_fenced) {
            self.hub.port.note_refusal(&refusal);
            self.refused = Some(refusal);
            if expected > 0 {
                self.answered_refusal();
            }
        }
        let must_close = match own {
            Some(own) => subscribes || own.is_tuned || !is_fenced,
            None => self.transaction.is_some() && !is_fenced,
        };
        if must_close { Flow::Close } else { Flow::Continue }
    }

    /// Ends the connection after a reply, if its tokens are refused, and idle ones with the same
    /// tokens.
    pub(super) fn answered_refusal(&mut self) {
        if self.refused.is_none() || !self.identity.context.settings.closes_fenced() {
            return;
        }
        self.ends = true;
        if let Some(group) = &self.group {
            group.refuse();
        }
    }

    /// `true` if the connection ends and every command that was read has its reply.
    pub(super) fn has_answered_all(&self) -> bool {
        self.ends && self.buf.is_empty() && self.may_serve()
    }

    /// Reads what is in the socket by now: the rest of a pipeline receives replies before the end.
    pub(super) async fn rest_of_pipeline(&mut self) -> Flow {
        tokio::task::yield_now().await;
        self.buf.reserve(READ);
        match self.reader.try_read_buf(&mut self.buf) {
            Ok(bytes @ 1..) => self.charged(bytes),
            _ => Flow::Close,
        }
    }

    /// `true` if another client with the same tokens received `FENCED` while this one is idle. A
    /// client with watched keys, a transaction or a subscription must receive the error itself.
    pub(super) fn is_superseded(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.is_refused())
            && self.buf.is_empty()
            && self.outbox.expected() == 0
            && self.transaction.is_none()
            && !self.lost_watch
            && !self.is_bound()
    }

    /// Writes all replies, then the end of the stream, and waits until the client closes its side.
    ///
    /// Commands that arrive meanwhile are dropped: a client may have to send all of them before it
    /// reads.
    pub(super) async fn deliver(&mut self, stop: &CancellationToken) {
        self.kick();
        self.buf.clear();
        let outbox = Rc::clone(&self.outbox);
        let mut sends = true;
        while outbox.end().is_none() && (outbox.unread() > 0 || outbox.expected() > 0) {
            outbox.wait();
            outbox.set_backlog(0);
            self.buf.reserve(READ);
            let is_settled = outbox.expected() == 0;
            tokio::select! {
                biased;
                () = outbox.wake.notified() => {
                    outbox.flush();
                    if self.woken().await == Flow::Close {
                        return outbox.flush();
                    }
                }
                () = outbox.writable(), if outbox.unread() > 0 => outbox.flush(),
                () = stop.cancelled(), if is_settled => return,
                read = self.reader.read_buf(&mut self.buf), if sends => match read {
                    Ok(1..) => self.buf.clear(),
                    Ok(0) if is_settled => sends = false,
                    _ => return,
                },
            }
        }
        if outbox.end().is_some() {
            return;
        }
        let until_closed = async {
            outbox.finish().await;
            self.buf.clear();
            while matches!(self.reader.read_buf(&mut self.buf).await, Ok(1..)) {
                self.buf.clear();
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(LINGER, until_closed) => {}
            () = stop.cancelled() => {}
        }
    }
}
