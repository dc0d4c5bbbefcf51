//! The metadata of leases and sessions.

use fence_protocol::Code;
use fence_protocol::wire::lock::METADATA_BYTES_MAX;
use service_kit::problem::Reject;

/// Metadata as JSON text, within its bound.
pub(super) fn bounded(metadata: Option<&serde_json::Value>) -> Result<Option<String>, Reject> {
    let metadata = metadata.map(ToString::to_string);
    let too_many = metadata.as_ref().map(String::len).filter(|len| *len > METADATA_BYTES_MAX);
    match too_many {
        None => Ok(metadata),
        Some(bytes) => Err(Reject::new(
            Code::PayloadTooLarge,
            format!("metadata has {bytes} bytes as JSON; at most {METADATA_BYTES_MAX} are allowed"),
        )),
    }
}
