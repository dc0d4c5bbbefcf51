//! Sending of one report to one lock server, or to the next if it does not reply.

use bytes::Bytes;
use fence_protocol::wire::event::RefusalsReport;
use http::HeaderValue;
use service_kit::tls::ServerUrl;

use crate::lock_servers::{Caller, Failed, TIMEOUT, judge};

/// Sends to the server that replied last, then to the others in turn, until one replies. A report
/// whose reply was lost is sent twice.
pub(super) async fn send(
    servers: &mut Caller,
    report: &RefusalsReport,
    trace: Option<&HeaderValue>,
) -> Result<(), Failed> {
    let body = Bytes::from(serde_json::to_vec(report).unwrap_or_default());
    let judge = |url: &ServerUrl, status, body: &[u8]| judge(url, status, body).map(drop);
    servers.post("/v1/refusals", body, trace, TIMEOUT, judge).await
}
