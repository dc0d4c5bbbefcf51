//! A stream of changes: one line of JSON an answer.

use std::time::Duration;

use serde_json::json;

use super::{Gateway, GatewayError, causes};
use crate::store::records::etcd::txn::{Range, encoded};
use crate::store::records::etcd::wire::{Line, WatchReply};

/// The longest line that is read, in bytes.
const LINE_MAX: usize = 4 * 1024 * 1024;

/// A watch that is open.
#[derive(Debug)]
pub(crate) struct WatchStream {
    member: usize,
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Gateway {
    /// Watches what is written in a range from now on.
    ///
    /// # Errors
    /// [`GatewayError`]; no endpoint that answers.
    pub(in crate::store::records::etcd) async fn watch(
        &self,
        range: &Range,
    ) -> Result<WatchStream, GatewayError> {
        let body = json!({ "create_request": {
            "key": encoded(&range.begin), "range_end": encoded(&range.end), "filters": ["NODELETE"],
        }});
        let (member, response) = self.open_stream("/v3/watch", &body.to_string()).await?;
        Ok(WatchStream { member, response, buffer: Vec::new() })
    }
}

impl WatchStream {
    /// The member that it is open at.
    pub(in crate::store::records::etcd) fn member(&self) -> usize {
        self.member
    }

    /// The next answer; `None` where the stream has ended. Cancel-safe.
    ///
    /// # Errors
    /// A sentence where it broke.
    pub(in crate::store::records::etcd) async fn next(
        &mut self,
    ) -> Result<Option<WatchReply>, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return parsed(&line).map(Some);
            }
            let Some(chunk) = self.response.chunk().await.map_err(causes)? else { return Ok(None) };
            if self.buffer.len() + chunk.len() > LINE_MAX {
                return Err(format!("a line of the watch has more than {LINE_MAX} bytes"));
            }
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The first answer, which says that the watch is in force.
    ///
    /// # Errors
    /// A sentence where it does not come in time.
    pub(in crate::store::records::etcd) async fn created(
        &mut self,
        within: Duration,
    ) -> Result<WatchReply, String> {
        match tokio::time::timeout(within, self.next()).await {
            Ok(Ok(Some(reply))) => Ok(reply),
            Ok(Ok(None)) => Err("the watch ended before it began".to_owned()),
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err(format!("no word of the watch within {} ms", within.as_millis())),
        }
    }
}

fn parsed(line: &[u8]) -> Result<WatchReply, String> {
    let line: Line<WatchReply> =
        serde_json::from_slice(line).map_err(|error| format!("no line of a watch: {error}"))?;
    if let Some(error) = line.error {
        return Err(format!("the watch ended with {}: {}", error.grpc_code, error.message));
    }
    let reply = line.result.unwrap_or_default();
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
    fn lines_are_events_or_ends() {
        let events = parsed(br#"{"result":{"events":[{"kv":{"key":"YQ==","value":"dg=="}}]}}"#);
        let events = events.unwrap().events;
        assert_eq!((events[0].kv.key.as_str(), &events[0].kv.value[..]), ("a", &b"v"[..]));
        assert!(parsed(br#"{"result":{"created":true}}"#).unwrap().events.is_empty());
        for ended in [
            r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#,
            r#"{"result":{"canceled":true,"compact_revision":"9"}}"#,
            "<html>",
        ] {
            assert!(parsed(ended.as_bytes()).is_err(), "{ended}");
        }
    }
}
