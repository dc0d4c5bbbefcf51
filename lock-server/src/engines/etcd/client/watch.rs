//! A stream of changes.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use super::channel::{Path, Replies};
use super::{CallError, EtcdClient};
use crate::engines::etcd::txn::Range;
use crate::engines::etcd::wire::{NO_DELETE, WatchCreate, WatchReply, WatchRequest};

const WATCH: Path = "/etcdserverpb.Watch/Watch";
/// The longest message of a watch that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A watch that is open.
#[derive(Debug)]
pub(crate) struct WatchStream {
    member: usize,
    replies: Replies,
}

impl EtcdClient {
    /// Watches what is written in a range from now on.
    ///
    /// # Errors
    /// [`CallError`]; no endpoint that replies.
    pub(crate) async fn watch(&self, range: &Range) -> Result<WatchStream, CallError> {
        let key = range.begin.clone();
        let range_end = range.end.clone();
        let create = WatchCreate { key, range_end, filters: vec![NO_DELETE] };
        let request = WatchRequest { create: Some(create) };
        let (member, replies) = self.open_stream(WATCH, &request, MESSAGE_BYTES_MAX).await?;
        Ok(WatchStream { member, replies })
    }
}

impl WatchStream {
    /// The member that it is open at.
    pub(crate) fn member(&self) -> usize {
        self.member
    }

    /// The next reply; `None` where the stream has ended. Cancel-safe.
    ///
    /// # Errors
    /// A sentence where it broke.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchReply>, String> {
        self.replies.next().await?.map(parsed).transpose()
    }

    /// The first reply, which says that the watch is in force.
    ///
    /// # Errors
    /// A sentence where it does not come in time.
    pub(crate) async fn created(&mut self, within: Duration) -> Result<WatchReply, String> {
        match tokio::time::timeout(within, self.next()).await {
            Ok(Ok(Some(reply))) => Ok(reply),
            Ok(Ok(None)) => Err("the watch ended before it began".to_owned()),
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err(format!("no reply to a watch within {} ms", within.as_millis())),
        }
    }
}

fn parsed(message: Bytes) -> Result<WatchReply, String> {
    let reply =
        WatchReply::decode(message).map_err(|error| format!("no reply of a watch: {error}"))?;
    if reply.canceled || reply.compact_revision > 0 {
        return Err(format!(
            "the watch was cancelled at revision {}: {}",
            reply.header.revision, reply.cancel_reason
        ));
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_events_or_ends() {
        let parsed = |reply: WatchReply| parsed(Bytes::from(reply.encode_to_vec()));
        let events = WatchReply { events: vec![Default::default()], ..WatchReply::default() };
        assert_eq!(parsed(events.clone()), Ok(events));
        assert!(parsed(WatchReply { canceled: true, ..WatchReply::default() }).is_err());
        assert!(parsed(WatchReply { compact_revision: 9, ..WatchReply::default() }).is_err());
        assert!(super::parsed(Bytes::from_static(b"<html>")).is_err());
    }
}
