//! The signals that ask a server to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for SIGTERM or SIGINT. From the call on, also before the future is polled, neither ends
/// the process by itself.
///
/// Where a handler cannot be installed, that signal keeps its usual effect. Cancel-safe.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn terminated() -> impl Future<Output = ()> + Send + use<> {
    let mut terminate = handler(SignalKind::terminate());
    let mut interrupt = handler(SignalKind::interrupt());
    async move {
        tokio::select! {
            () = next(terminate.as_mut()) => {}
            () = next(interrupt.as_mut()) => {}
        }
    }
}

fn handler(kind: SignalKind) -> Option<Signal> {
    signal(kind)
        .inspect_err(
            |error| tracing::warn!(%error, "no handler for signal {}", kind.as_raw_value()),
        )
        .ok()
}

async fn next(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}
