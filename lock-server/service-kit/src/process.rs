//! Start and end of both service processes.

use std::process::ExitCode;
use std::time::Duration;

use crate::config::{ProcessEnv, unknown_variables};
use crate::listener::DrainReport;
use crate::{Kit, notify, signals};

/// Longest time for the rest after the listeners are done: commits, forwards, releases.
const TASKS_DEADLINE: Duration = Duration::from_secs(10);

/// Warns of variables that begin with the prefix and set nothing: misspelt ones, perhaps.
pub fn warn_of_unknown_variables<A: clap::Parser>(prefix: &str) {
    for name in unknown_variables::<A>(prefix, &[], &ProcessEnv) {
        tracing::warn!(name, "this variable sets nothing; see --help for the flags' names");
    }
}

/// Notifies systemd that the listeners are bound, serves until a signal, then drains and says how
/// that went.
pub async fn serve_until_signal(kit: &Kit, serve: impl Future<Output = DrainReport>) -> ExitCode {
    let tasks = kit.tasks.clone();
    // Before the notice: what reads it may send a signal at once.
    let terminated = signals::terminated();
    let signal = kit.tasks.spawn(async move {
        let stop = tasks.shutdown_token();
        tokio::select! {
            () = terminated => tracing::info!("shutting down"),
            () = stop.cancelled() => {}
        }
        notify::stopping();
        tasks.begin_shutdown();
    });
    notify::ready(&kit.health.report(false));
    let report = serve.await;
    signal.abort();
    let done = kit.tasks.drained(TASKS_DEADLINE).await;
    tracing::info!(open = report.open, cut = report.cut, all_tasks_ended = done, "ended");
    ExitCode::SUCCESS
}
