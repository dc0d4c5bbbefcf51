//! The signals that are passed on to the command.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;

const FORWARDED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Receives them. Listens from before the lock is acquired, so that none is ever lost or ends this
/// process without its command.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        // What was ignored when this process began (nohup) stays ignored, for it and its command.
        let ignored = ignored_mask();
        FORWARDED
            .into_iter()
            .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0)
            .map(|signal| Ok((signal, listen(signal)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The next one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Listens for one signal.
pub(super) fn listen(signal: Signal) -> Result<unix::Signal, Failure> {
    unix::signal(SignalKind::from_raw(signal.as_raw()))
        .map_err(|error| Failure::internal(format!("no handler for {}: {error}", name(signal))))
}

/// The bit mask of ignored signals, where the system tells.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// The number of a signal; all of them fit in an exit code.
pub(super) fn number(signal: Signal) -> u8 {
    u8::try_from(signal.as_raw()).unwrap_or(0)
}

/// Its name.
pub(super) fn name(signal: Signal) -> String {
    match signal {
        Signal::TERM => "SIGTERM".to_owned(),
        Signal::INT => "SIGINT".to_owned(),
        Signal::HUP => "SIGHUP".to_owned(),
        Signal::QUIT => "SIGQUIT".to_owned(),
        Signal::KILL => "SIGKILL".to_owned(),
        other => format!("signal {}", other.as_raw()),
    }
}
