//! Rules without a server.

use fence_client::clock::Moment;
use fence_client::protocol::{FencingToken, credential as credentials};
use fence_client::timing;
use serde_json::json;

use crate::arguments::Arguments;
use crate::failure::{DriverResult, Failure};

/// The op `window`.
pub(crate) fn window(request: &Arguments) -> DriverResult {
    let sent_at = Moment::from_ms(request.number("sent_at_ms")?.unwrap_or_default());
    let window = timing::Window::new(sent_at, request.number("ttl_ms")?.unwrap_or_default());
    Ok(json!({
        "renew_at": window.renew_at().ms(), "deadline": window.deadline().ms(),
        "kill_by": window.kill_by().ms(), "expires_at": window.expires_at().ms(),
    }))
}

/// The op `pause`.
pub(crate) fn pause(request: &Arguments) -> DriverResult {
    let attempt = request.number("attempt")?.unwrap_or_default();
    let attempt = u32::try_from(attempt).map_err(|_| Failure::invalid("attempt is too large"))?;
    let pause = timing::pause(attempt, request.number("random")?.unwrap_or_default());
    Ok(json!({"ms": u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)}))
}

/// The op `credential`: that of several tokens, which is checked as a guard does.
pub(crate) fn credential(request: &Arguments) -> DriverResult {
    let parts = request.texts("tokens").into_iter().map(|header| {
        let token: FencingToken = header.parse()?;
        Ok(token.credential())
    });
    let parts = parts.collect::<Result<Vec<_>, Failure>>()?;
    let joined = parts.join(&credentials::SEPARATOR.to_string());
    credentials::parse(&joined)?;
    Ok(json!({"credential": joined}))
}

/// The op `parse_token`.
pub(crate) fn parse_token(request: &Arguments) -> DriverResult {
    let token: FencingToken = request.text("header")?.parse()?;
    Ok(json!({"token": token.token, "lock": token.lock, "lease": token.lease}))
}
