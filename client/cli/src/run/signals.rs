//! The signals that are passed on to the command.

use std::future::poll_fn;
use std::task::Poll;

use fence_protocol::Invalid;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use fence_terminal::exit::{Failure, code};

const FORWARDED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Receives them. Listens from before the lock is acquired, so that none is ever lost or ends this
/// process without its command.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// `always` is one that is listened for in any case.
    pub(crate) fn listen(always: Option<Signal>) -> Result<Self, Failure> {
        // What was ignored when this process began (nohup) stays ignored, for it and its command.
        FORWARDED
            .into_iter()
            .filter(|signal| Some(*signal) == always || !is_ignored(*signal))
            .map(|signal| Ok((signal, listen(signal)?)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The next terminating signal: without a command, the others have no receiver.
    /// Cancel-safe.
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if !matches!(signal, Signal::USR1 | Signal::USR2) {
                return signal;
            }
        }
    }

    /// The next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
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

/// Listens for one signal; `None` where it was ignored when this process began.
pub(super) fn listen_unless_ignored(signal: Signal) -> Result<Option<unix::Signal>, Failure> {
    if is_ignored(signal) { Ok(None) } else { listen(signal).map(Some) }
}

fn is_ignored(signal: Signal) -> bool {
    ignored_mask() & (1 << (signal.as_raw() - 1)) != 0
}

/// The bit mask of ignored signals, where the system reports it.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// Failure of a command that a signal ended while it was `doing` something, with the exit code of a
/// shell.
pub(crate) fn ended(signal: Signal, doing: &str) -> Failure {
    let number = u8::try_from(signal.as_raw()).unwrap_or(0);
    Failure::new(code::SIGNAL_BASE + number, format!("{} while {doing}", name(signal)))
}

/// Its name.
pub(crate) fn name(signal: Signal) -> String {
    match signal {
        Signal::TERM => "SIGTERM".to_owned(),
        Signal::INT => "SIGINT".to_owned(),
        Signal::HUP => "SIGHUP".to_owned(),
        Signal::QUIT => "SIGQUIT".to_owned(),
        Signal::KILL => "SIGKILL".to_owned(),
        Signal::USR1 => "SIGUSR1".to_owned(),
        Signal::USR2 => "SIGUSR2".to_owned(),
        other => format!("signal {}", other.as_raw()),
    }
}

/// Reads the name of a signal, with SIG or without, in any case.
pub(crate) fn parse(text: &str) -> Result<Signal, Invalid> {
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found =
        FORWARDED.into_iter().find(|signal| name(*signal).strip_prefix("SIG") == Some(short));
    found.ok_or_else(|| Invalid::new("signal", text, "must be TERM, INT, HUP, QUIT, USR1 or USR2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(parse("usr1").unwrap(), Signal::USR1);
        assert_eq!(parse("SIGTERM").unwrap(), Signal::TERM);
        for wrong in ["KILL", "SIG", "", "10"] {
            assert!(parse(wrong).unwrap_err().to_string().contains("USR1"), "{wrong}");
        }
    }
}
