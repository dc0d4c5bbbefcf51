//! Body of an object being sent, which counts in a budget until it is sent.

use std::convert::Infallible;
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
    _memory: Memory,
}

/// Makes a reply's body of `object`.
///
/// # Errors
/// 429 if slow readers hold all memory for replies.
pub(super) async fn body(object: Bytes, budget: &BodyBudget) -> Result<Body, Reject> {
    let mut memory = budget.begin(Some(object.len())).await?;
    memory.cover(object.len()).await?;
    Ok(Body::new(Download { rest: object, _memory: memory }))
}

impl http_body::Body for Download {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
