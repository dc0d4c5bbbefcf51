//! Body of a reply to a write, which is received whole before the client gets it.

use axum::body::Body;
use bytes::Bytes;
use service_kit::problem::Pieces;

use crate::doors::http::body_budget::{BodyBudget, Memory};
use crate::doors::http::download;

/// Bytes of a reply that need no memory of the budget: the buffer of their connection has as many.
const FREE_BYTES: usize = 4096;

/// Limits of the replies to writes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ReplyLimits {
    /// Maximum size of one body, in bytes.
    pub(super) bytes_max: usize,
    /// Memory for all of them, and for other bodies being sent.
    pub(super) budget: BodyBudget,
}

/// A body that is being received. The outcome of its write is certain once it ends, so all of it is
/// awaited; what has no room is dropped, and the client's transfer breaks off there.
pub(super) struct ReceivedReply {
    limits: ReplyLimits,
    pieces: Pieces,
    memory: Option<Memory>,
    is_cut: bool,
}

impl ReceivedReply {
    pub(super) fn new(limits: &ReplyLimits) -> Self {
        Self { limits: limits.clone(), pieces: Pieces::default(), memory: None, is_cut: false }
    }

    /// Adds the next bytes, if there is room.
    pub(super) fn push(&mut self, data: Bytes) {
        let bytes = self.pieces.len() + data.len();
        self.is_cut |= bytes > self.limits.bytes_max || !self.cover(bytes);
        if !self.is_cut {
            self.pieces.push(data);
        }
    }

    fn cover(&mut self, bytes: usize) -> bool {
        if bytes <= FREE_BYTES {
            return true;
        }
        self.memory.get_or_insert_with(|| self.limits.budget.small()).try_cover(bytes)
    }

    /// Returns `true` if a part had no room.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the body for the client.
    pub(super) fn finish(self) -> Body {
        let Self { pieces, memory, is_cut, .. } = self;
        match memory {
            None if !is_cut => Body::from(pieces.finish()),
            memory => download::counted(pieces.finish(), memory, is_cut),
        }
    }
}
