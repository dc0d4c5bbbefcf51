//! Body of an object being sent, which counts in a budget until it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use service_kit::problem::Reject;

use super::body_budget::{BodyBudget, Memory};

/// Size of a piece. hyper takes the next piece when the one before is nearly in the socket, so
/// unsent bytes are counted here.
const PIECE_BYTES: usize = 64 * 1024;

/// The unsent bytes.
struct Download {
    rest: Bytes,
    /// They are a part: the transfer breaks off behind them.
    is_cut: bool,
    _memory: Option<Memory>,
}

/// Makes a reply's body of `object`.
///
/// # Errors
/// 429 if slow readers hold all memory for replies.
pub(crate) async fn body(object: Bytes, budget: &BodyBudget) -> Result<Body, Reject> {
    let mut memory = budget.begin(Some(object.len())).await?;
    memory.cover(object.len()).await?;
    Ok(counted(object, Some(memory), false))
}

/// Makes a reply's body of bytes that were counted; `is_cut` if there were more.
pub(crate) fn counted(rest: Bytes, memory: Option<Memory>, is_cut: bool) -> Body {
    Body::new(Download { rest, is_cut, _memory: memory })
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.rest.is_empty() {
            let broken = || io::Error::other("the rest of the reply had no room in memory");
            return Poll::Ready(std::mem::take(&mut self.is_cut).then(|| Err(broken())));
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && !self.is_cut
    }

    fn size_hint(&self) -> SizeHint {
        match self.is_cut {
            true => SizeHint::default(),
            false => SizeHint::with_exact(self.rest.len() as u64),
        }
    }
}
