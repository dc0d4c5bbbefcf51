//! Sending of one report to one lock server, or to the next if it does not reply.

use bytes::Bytes;
use fence_protocol::Problem;
use fence_protocol::wire::event::RefusalsReport;
use http::HeaderValue;
use service_kit::tls::ServerUrl;

use crate::lock_servers::{Caller, Failed, TIMEOUT};

/// Sends to the server that replied last, then to the others in turn, until one replies. A report
/// whose reply was lost is sent twice.
pub(super) async fn send(
    servers: &mut Caller,
    report: &RefusalsReport,
    trace: Option<&HeaderValue>,
) -> Result<(), Failed> {
    let body = Bytes::from(serde_json::to_vec(report).unwrap_or_default());
    servers.post("/v1/refusals", body, trace, TIMEOUT, judge).await
}

fn judge(url: &ServerUrl, status: u16, body: &[u8]) -> Result<(), Failed> {
    if status == 200 {
        return Ok(());
    }
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let detail = problem.map_or_else(|| "is it a lock server?".to_owned(), |known| known.detail);
    let detail: String = detail.chars().take(200).collect();
    Err(verdict(status, format!("{url} answers {status}: {detail}")))
}

/// Classifies a refusal: final, or to be retried later.
fn verdict(status: u16, text: String) -> Failed {
    match status {
        400 | 413 | 501 => Failed::Refused(text),
        401 => Failed::Unreachable(format!(
            "{text} (name a bearer token by --report-auth-file that has the right \"report *\" there)"
        )),
        403 => Failed::Refused(format!(
            "{text} (the guard's bearer token needs the right \"report *\" there)"
        )),
        _ => Failed::Unreachable(text),
    }
}
