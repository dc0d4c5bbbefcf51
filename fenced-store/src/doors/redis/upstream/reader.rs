//! Reader of Redis' output: splits it into replies and messages, and delivers them as they arrive.

use std::io;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

use super::barrier::Seen;
use super::error_lines::ErrorLines;
use super::{Instead, Upstream, UpstreamState, Waiting};
use crate::doors::redis::commands::names;
use crate::doors::redis::out::Out;
use crate::doors::redis::outbox::{End, Outbox};
use crate::doors::redis::resp::reply::ReplyScanner;
use crate::doors::redis::script_denial::{ScriptDenials, ScriptName};

/// Maximum size of one read, in bytes.
const READ: usize = 64 * 1024;

impl Upstream {
    pub(super) async fn read_loop(&self, mut reader: OwnedReadHalf) {
        let mut replies = Replies::new();
        let why = loop {
            replies.buf.reserve(READ / 4);
            tokio::select! {
                biased;
                read = self.read(&mut reader, &mut replies.buf) => match read {
                    Ok(0) => break "Redis closed it".to_owned(),
                    Ok(_) => self.reads.set(self.reads.get() + 1),
                    Err(error) => break error.to_string(),
                },
                () = self.closing.notified() => break "closed".to_owned(),
            }
            let distributed = self.distribute(&mut replies);
            // Replies before one that cannot be read are whole.
            for outbox in replies.flush.drain(..) {
                outbox.flush_and_wake();
            }
            if let Err(why) = distributed {
                break why;
            }
        };
        if let Some(is_message) = replies.cut {
            self.cut_off(is_message);
        }
        self.break_off(&why);
    }

    /// Reads once the owner has room for its output.
    async fn read(&self, reader: &mut OwnedReadHalf, buf: &mut BytesMut) -> io::Result<usize> {
        if let Some(owner) = &self.owner {
            while owner.holds_up() && owner.end().is_none() {
                owner.drained.notified().await;
            }
        }
        reader.read_buf(buf).await
    }

    /// A client that received a part of what will never be whole must be disconnected.
    fn cut_off(&self, is_message: bool) {
        let state = self.state.borrow();
        match state.waiting.front() {
            Some(Waiting::Reply {
                instead: Some(Instead::Reply(_) | Instead::Names { .. }),
                ..
            }) if !is_message => {}
            Some(Waiting::Reply { outbox, .. }) if !is_message => outbox.end_with(End::Cut),
            Some(Waiting::Probe) if !is_message => {}
            _ => self.owner.iter().for_each(|owner| owner.end_with(End::Cut)),
        }
    }

    /// Delivers the bytes that were read.
    fn distribute(&self, replies: &mut Replies) -> Result<(), String> {
        while !replies.buf.is_empty() {
            if self.is_broken() {
                return Err("closed".to_owned());
            }
            let scan = replies.scanner.scan(&replies.buf).map_err(|error| error.to_string())?;
            if scan.consumed == 0 {
                return Ok(());
            }
            let is_message = replies.scanner.kind() == b'>';
            let begins = replies.cut.is_none();
            replies.cut = (!scan.done).then_some(is_message);
            let piece = Piece { len: scan.consumed, begins, ends: scan.done, is_message };
            self.hand_on(replies, piece)?;
        }
        Ok(())
    }

    fn hand_on(&self, replies: &mut Replies, piece: Piece) -> Result<(), String> {
        let state = &mut *self.state.borrow_mut();
        match (state.waiting.front(), &self.owner) {
            (Some(Waiting::Barrier), Some(owner)) => {
                if Self::meets_barrier(state, owner, replies, piece) {
                    state.waiting.pop_front();
                    owner.done();
                    replies.will_flush(owner);
                }
                Ok(())
            }
            (Some(Waiting::Reply { instead: Some(Instead::Names { .. }), .. }), _)
                if !piece.is_message =>
            {
                Self::hold_names(state, replies, piece);
                Ok(())
            }
            (Some(Waiting::Reply { outbox, instead }), _) if !piece.is_message => {
                match (instead, &self.denials) {
                    (Some(Instead::Script(name)), Some(denials)) => {
                        replies.pass_script(denials, name, outbox, piece)?;
                    }
                    (Some(Instead::Reply(bytes)), _) => {
                        replies.buf.advance(piece.len);
                        if piece.ends {
                            outbox.copy(bytes, true);
                            replies.will_flush(outbox);
                        }
                    }
                    _ => replies.deliver(outbox, piece),
                }
                if piece.ends
                    && let Some(Waiting::Reply { outbox, .. }) = state.waiting.pop_front()
                {
                    outbox.done();
                }
                Ok(())
            }
            (Some(Waiting::Probe), _) if !piece.is_message => {
                // The command had no effect; BUSY and similar errors are transient.
                if piece.begins && replies.buf.starts_with(b"-NOPERM") {
                    return Err("Redis refused a command of the guard's own".to_owned());
                }
                replies.buf.advance(piece.len);
                if piece.ends {
                    state.waiting.pop_front();
                }
                Ok(())
            }
            (_, Some(owner)) if piece.is_message || state.subscribed => {
                replies.deliver(owner, piece);
                Ok(())
            }
            (_, None) if piece.is_message => {
                replies.buf.advance(piece.len);
                Ok(())
            }
            // Redis sends an unrequested line, such as the reason for closing the connection.
            _ => Err(format!(
                "Redis sent {} without a request",
                replies.buf[..piece.len.min(200)].escape_ascii()
            )),
        }
    }

    /// Holds a reply that lists names until it is whole.
    fn hold_names(state: &mut UpstreamState, replies: &mut Replies, piece: Piece) {
        let Some(Waiting::Reply {
            outbox,
            instead: Some(Instead::Names { listing, replies: left, protocol }),
        }) = state.waiting.front_mut()
        else {
            return;
        };
        outbox.hold(&replies.buf[..piece.len]);
        replies.buf.advance(piece.len);
        if !piece.ends {
            return;
        }
        *left -= 1;
        if *left > 0 {
            return;
        }
        outbox.pass_held(|held| listing.reply(held, *protocol), names::TOO_LARGE);
        outbox.done();
        replies.will_flush(outbox);
        state.waiting.pop_front();
    }

    /// Delivers a reply to a subscription; `true` for the last one.
    fn meets_barrier(
        state: &mut UpstreamState,
        owner: &Rc<Outbox>,
        replies: &mut Replies,
        piece: Piece,
    ) -> bool {
        match state.barrier.sees(&replies.buf[..piece.len], piece.begins, piece.ends) {
            Seen::Held => replies.buf.advance(piece.len),
            Seen::Passed(held) => {
                if !held.is_empty() {
                    owner.copy(&held, false);
                }
                replies.deliver(owner, piece);
            }
            Seen::Reached { subscribed } => {
                replies.buf.advance(piece.len);
                state.subscribed = subscribed;
                state.barriers -= 1;
                return true;
            }
        }
        false
    }
}

impl Replies {
    /// Delivers a reply to a script, or to an EXEC with scripts. Errors in it are held until their
    /// line is whole, and are in the guard's words if they are Redis' refusal of a script.
    fn pass_script(
        &mut self,
        denials: &ScriptDenials,
        name: &ScriptName,
        outbox: &Rc<Outbox>,
        piece: Piece,
    ) -> Result<(), String> {
        let bytes = &self.buf[..piece.len];
        if piece.begins {
            self.errors = ErrorLines::default();
        }
        // Few replies have the sign of an error at all.
        let is_whole = piece.begins && piece.ends;
        let changed = match is_whole && !bytes.contains(&b'-') {
            true => None,
            false => {
                let in_place_of = |error: &[u8]| denials.in_place_of(error, name);
                self.errors.pass(bytes, &in_place_of).map_err(|error| error.to_string())?
            }
        };
        let Some(bytes) = changed else {
            self.deliver(outbox, piece);
            return Ok(());
        };
        self.buf.advance(piece.len);
        if !bytes.is_empty() {
            outbox.give(bytes.into(), piece.ends);
            self.will_flush(outbox);
        }
        Ok(())
    }
}

/// A part of a reply, or a whole one, at the beginning of the buffer.
#[derive(Clone, Copy, Debug)]
struct Piece {
    len: usize,
    begins: bool,
    ends: bool,
    /// A push of RESP3.
    is_message: bool,
}

/// Bytes that were read and not yet delivered.
struct Replies {
    buf: BytesMut,
    scanner: ReplyScanner,
    flush: Vec<Rc<Outbox>>,
    errors: ErrorLines,
    /// Set while part of a value was delivered; `true` for a message.
    cut: Option<bool>,
}

impl Replies {
    fn new() -> Self {
        Self {
            buf: BytesMut::new(),
            scanner: ReplyScanner::new(),
            flush: Vec::new(),
            errors: ErrorLines::default(),
            cut: None,
        }
    }

    fn deliver(&mut self, outbox: &Rc<Outbox>, piece: Piece) {
        if Out::is_large(piece.len) {
            outbox.give(self.buf.split_to(piece.len).freeze(), piece.ends);
        } else {
            outbox.copy(&self.buf[..piece.len], piece.ends);
            self.buf.advance(piece.len);
        }
        self.will_flush(outbox);
    }

    fn will_flush(&mut self, outbox: &Rc<Outbox>) {
        if outbox.mark_for_flush() {
            self.flush.push(Rc::clone(outbox));
        }
    }
}
