//! Holding a lease while a command runs: what `run` and `elect` have in common.

use std::ffi::OsString;
use std::time::Duration;

use fence_client::{Client, ErrorKind};

use super::held::Held;
use super::options::Options;
use super::signals::Signals;
use super::supervise::{self, Ended};
use super::{job, progress};
use crate::connect::Connect;
use fence_terminal::exit::Failure;
use fence_terminal::output::say;

/// Longest wait for a release in flight when the command ends early.
pub(crate) const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// End of a run under a lease.
pub(crate) enum HoldingOutcome {
    /// The command ended by itself, with this code, and the lock was released.
    Ended(u8),
    /// The lease was lost before the command was started; nothing has run.
    NotStarted(String),
    /// The lease did not last as long as the command.
    Lost {
        /// Cause of the loss.
        message: String,
        /// `true` if the command had been signalled to end before that.
        was_signalled: bool,
    },
}

/// Listens for the signals that are passed on; also for the one that reports progress, where that
/// was asked for.
pub(crate) fn listen(options: &Options) -> Result<Signals, Failure> {
    Signals::listen(options.progress_within.map(|_| progress::SIGNAL))
}

/// Runs the command under what is held and gives it back.
pub(crate) async fn hold(
    options: &Options,
    command: &[OsString],
    (client, connect): (&Client, &Connect),
    held: impl Into<Held>,
    signals: &mut Signals,
) -> Result<HoldingOutcome, Failure> {
    let held = held.into();
    if options.verbose {
        say(&format!("fence: holding {}", held.tokens()));
    }
    let mut environment = held.environment(client);
    environment.extend(connect.environment());
    let outcome = run_under(options, command, &environment, held, signals).await;
    client.drained(RELEASE_WAIT).await;
    outcome
}

async fn run_under(
    options: &Options,
    command: &[OsString],
    environment: &[(&'static str, String)],
    held: Held,
    signals: &mut Signals,
) -> Result<HoldingOutcome, Failure> {
    // This process may have been stopped since the grant came: then nothing is started at all.
    if let Err(error) = held.check() {
        return Ok(HoldingOutcome::NotStarted(error.to_string()));
    }
    let reports = options.progress_within.map(|_| progress::Reports::open()).transpose()?;
    let job_signals = supervise::JobSignals::listen()?;
    let job = job::Job::start(command, environment, reports.as_ref())?;
    let job = (job, job_signals);
    let ended = supervise::supervise(job, &held, signals, reports, options).await?;
    if let Some(reason) = ended.lost {
        let message =
            format!("{} while the command ran: {reason}; {}", held.lost_words(), ended.what);
        return Ok(lost(&ended, message));
    }
    let names = held.names();
    match held.give_back().await {
        Ok(()) if options.verbose => say(&format!("fence: released {names}")),
        Ok(()) => {}
        Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => {
            let message = format!("the command ran beyond its lease: {error}; {}", ended.what);
            return Ok(lost(&ended, message));
        }
        Err(error) => say(&format!("fence: not released, expires by itself: {names}: {error}")),
    }
    Ok(HoldingOutcome::Ended(ended.code))
}

fn lost(ended: &Ended, message: String) -> HoldingOutcome {
    HoldingOutcome::Lost { message, was_signalled: ended.was_signalled }
}
