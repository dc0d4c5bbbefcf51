//! Start and end of both service processes.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{ProcessEnv, unknown_variables};
use crate::listener::DrainReport;
use crate::{Kit, notify, signals};

/// Error that keeps a service from starting: one sentence with the value and what to do. It is
/// shown, and nothing decides by its kind.
pub type StartError = Box<dyn Error + Send + Sync>;

/// Longest time for the rest after the listeners are done: commits, forwards, releases.
const TASKS_DEADLINE: Duration = Duration::from_secs(10);

/// Open files beside those of the connections: listeners, the store, logs, what starts meanwhile.
const OTHER_FILES: u64 = 256;

/// Raises the limit of open files to what `max_connections` need, as far as the process may.
/// Returns the number of connections that there are files for, and warns if those are fewer.
pub fn raise_open_files(max_connections: usize) -> usize {
    let needed = (max_connections as u64).saturating_add(OTHER_FILES);
    let limit = getrlimit(Resource::Nofile);
    let mut files = limit.current.unwrap_or(u64::MAX);
    if files < needed {
        let raised = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
        let new = Rlimit { current: Some(raised), maximum: limit.maximum };
        if setrlimit(Resource::Nofile, new).is_ok() {
            files = raised;
        }
    }
    if files >= needed {
        return max_connections;
    }
    let connections = files.saturating_sub(OTHER_FILES).max(files / 2).max(1);
    let connections = usize::try_from(connections).unwrap_or(usize::MAX).min(max_connections);
    tracing::warn!(
        max_connections,
        files,
        connections,
        "the limit of open files leaves fewer connections than --max-connections; raise it to \
         {needed} (ulimit -Hn, LimitNOFILE= of systemd)"
    );
    connections
}

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
    notify::ready(&kit.health.report(false).summary());
    let report = serve.await;
    signal.abort();
    let done = kit.tasks.drained(TASKS_DEADLINE).await;
    tracing::info!(open = report.open, cut = report.cut, all_tasks_ended = done, "ended");
    ExitCode::SUCCESS
}
