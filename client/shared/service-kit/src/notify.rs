//! Notices to systemd, for units of `Type=notify`. Without `NOTIFY_SOCKET` they go nowhere.

use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;

/// True between [`ready`] and [`stopping`]: only then does a status describe the service.
static IS_SERVING: AtomicBool = AtomicBool::new(false);

/// Announces that the listeners are bound, and the status from here on.
pub(crate) fn ready(summary: &str) {
    IS_SERVING.store(true, Ordering::Release);
    send(&[NotifyState::Ready, NotifyState::Status(summary)]);
}

/// Shows the readiness in `systemctl status`.
pub(crate) fn status(summary: &str) {
    if IS_SERVING.load(Ordering::Acquire) {
        send(&[NotifyState::Status(summary)]);
    }
}

/// Announces that requests in flight are finished, and no others are accepted.
pub(crate) fn stopping() {
    IS_SERVING.store(false, Ordering::Release);
    send(&[NotifyState::Stopping, NotifyState::Status("shutting down")]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd cannot be notified; see NOTIFY_SOCKET");
    }
}
