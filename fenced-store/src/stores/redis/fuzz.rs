//! Parsing of Redis' replies, for the fuzz target of the stores.

use redis::Value;
use service_kit::health::Status;

use super::{gaps, reply, verify};
use crate::stores::contract::FenceOutcome;
use crate::verdict::Fence;

/// Parses replies of our scripts and of commands on the marks.
pub(crate) fn replies(value: &Value, fence: &Fence) {
    if let Ok(reply::ScriptReply::Done(FenceOutcome::Stale { mark })) =
        reply::parse(value.clone(), Some(fence))
    {
        assert!(mark.token.get() > 0);
    }
    let _ = reply::parse(value.clone(), None);
    let _ = reply::mark(value.clone());
    let _ = reply::highest(value.clone());
    if let Ok(page) = reply::page(value.clone(), 2) {
        assert!(page.fences.len() <= 2);
    }
}

/// Parses an INFO reply.
pub(crate) fn info(text: &str) {
    let _ = verify::judge(text);
    let _ = gaps::gaps(text, &Status::Ok, "");
}
