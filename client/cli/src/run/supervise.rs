//! Watching the command and its lease.

use std::time::Duration;

use fence_client::clock::{self, Moment};
use fence_client::{ErrorKind, LostReason, Warning, Warnings};
use fence_protocol::duration;
use rustix::process::{Signal, kill_current_process_group};
use tokio::signal::unix;

use super::ending::kill_at;
use super::held::Held;
use super::job::{Exit, Job};
use super::options::Options;
use super::progress::{self, Reports};
use super::signals::{self, Signals};
use super::terminal::{Terminal, has_shell};
use fence_terminal::exit::Failure;
use fence_terminal::output::say;
use fence_terminal::readable::readable;

/// Interval between checks of a group whose leader has ended, until it is empty.
const EMPTY_CHECK: Duration = Duration::from_millis(20);

/// Longest wait for a group that was killed after its lease was lost.
const LAST_MS_MAX: u64 = 1000;

/// Time that the rest of a group has to end by itself before it is signalled: what still writes the
/// last output of the command.
const SETTLE_MS: u64 = 200;

/// End of the command.
#[derive(Debug)]
pub(super) struct Ended {
    /// The exit code of the command, as a shell would report it.
    pub(super) code: u8,
    /// The end in words.
    pub(super) what: String,
    /// Why the lease was lost, where it was while the command ran.
    pub(super) lost: Option<LostReason>,
    /// `true` after a terminating signal was passed on to it.
    pub(super) was_signalled: bool,
}

/// Event that woke the supervisor.
enum Event {
    ChildChanged,
    Resumed,
    Stop,
    Forward(Signal),
    LeaseLost,
    KillTime,
    Progress,
    Warned(Warning),
}

/// The group is being ended: its lease is lost, or its leader has ended.
#[derive(Clone, Copy)]
struct Ending {
    lost: Option<LostReason>,
    kill_at: Moment,
    killed_at: Option<Moment>,
}

struct Supervisor<'a> {
    job: Job,
    held: &'a Held,
    options: &'a Options,
    reports: Option<Reports>,
    warnings: Warnings,
    was_signalled: bool,
    terminal: Option<Terminal>,
    ending: Option<Ending>,
    /// This process was asked to stop, and passed that on.
    was_asked_to_stop: bool,
    suspended: bool,
}

/// Signals about the command. They are listened for from before it starts: a Ctrl-Z between its
/// start and the first look would stop this process alone.
pub(super) struct JobSignals {
    children: unix::Signal,
    resumes: unix::Signal,
    /// `None` where requests to stop are ignored.
    stops: Option<unix::Signal>,
}

impl JobSignals {
    pub(super) fn listen() -> Result<Self, Failure> {
        Ok(Self {
            children: signals::listen(Signal::CHILD)?,
            resumes: signals::listen(Signal::CONT)?,
            stops: signals::listen_unless_ignored(Signal::TSTP)?,
        })
    }
}

/// Runs until the command and its whole group have ended; where its background members may stay,
/// until the command has.
pub(super) async fn supervise(
    (job, mut job_signals): (Job, JobSignals),
    held: &Held,
    signals: &mut Signals,
    reports: Option<Reports>,
    options: &Options,
) -> Result<Ended, Failure> {
    let terminal = Terminal::for_job(job.group());
    if let Some(terminal) = &terminal {
        terminal.give_input();
    }
    let mut all = Supervisor {
        job,
        held,
        options,
        reports,
        warnings: held.warnings(),
        was_signalled: false,
        terminal,
        ending: None,
        was_asked_to_stop: false,
        suspended: false,
    };
    // The command may have ended before the listener was ready.
    let mut event = Event::ChildChanged;
    loop {
        // Before anything else: this process may just have been resumed, past its lease.
        all.check_lease();
        match event {
            Event::Forward(signal) => all.forward(signal),
            Event::Progress => held.report_progress(),
            Event::Warned(warning) => all.warn(warning),
            Event::Resumed => all.resume(),
            Event::Stop => all.pass_stop_on(),
            Event::LeaseLost => {}
            Event::KillTime => all.kill(),
            Event::ChildChanged => {
                if let Some(exit) = all.job.exited()? {
                    return Ok(all.finish(exit, signals).await);
                }
                all.job.reap_adopted();
                if let Some(signal) = all.job.stopped_by() {
                    all.on_stop(signal);
                }
            }
        }
        event = all.next(&mut job_signals, signals).await;
    }
}

impl Supervisor<'_> {
    async fn next(&mut self, job: &mut JobSignals, signals: &mut Signals) -> Event {
        let ending = self.ending.filter(|ending| ending.killed_at.is_none());
        let kill_time = ending.map(|ending| ending.kill_at);
        tokio::select! {
            biased;
            () = self.held.lost(), if self.ending.is_none() => Event::LeaseLost,
            () = until(kill_time) => Event::KillTime,
            // Before what came with it: a command that is to end is not waited for.
            signal = signals.next() => Event::Forward(signal),
            _ = job.children.recv() => Event::ChildChanged,
            _ = job.resumes.recv() => Event::Resumed,
            () = stop(job.stops.as_mut()) => Event::Stop,
            () = report(self.reports.as_ref()) => Event::Progress,
            warning = self.warnings.next() => Event::Warned(warning),
        }
    }

    /// Passes a signal on, unless it is the command's own report.
    fn forward(&mut self, signal: Signal) {
        if self.reports.is_some() && signal == progress::SIGNAL {
            return self.held.report_progress();
        }
        self.job.signal(signal);
        if !matches!(signal, Signal::USR1 | Signal::USR2) {
            self.was_signalled = true;
            // A stopped process would not see it.
            self.job.signal(Signal::CONT);
        }
    }

    /// Ctrl-Z where the terminal is not the command's, or a request of another program.
    fn pass_stop_on(&mut self) {
        self.was_asked_to_stop = true;
        self.job.signal(Signal::TSTP);
    }

    fn warn(&self, warning: Warning) {
        let locks = self.held.names();
        let why = about(warning.reason);
        let left = warning.ends_at.since(clock::now()).as_millis();
        let left = readable(u64::try_from(left).unwrap_or(u64::MAX));
        say(&format!("fence: the lease on {locks} will be lost in {left}: {why}"));
        if let Some(signal) = self.options.warn_signal {
            // What a script has just started knows nothing of warnings, and would die of it.
            self.job.signal_leader(signal);
        }
    }

    /// Begins to end the group when the lease can no longer be trusted.
    fn check_lease(&mut self) {
        let Err(error) = self.held.check() else {
            return;
        };
        let ErrorKind::LeaseLost { reason } = *error.kind() else {
            return;
        };
        if self.lost().is_some() {
            return;
        }
        let now = clock::now();
        let kill_at = kill_at(now, self.held.window(), reason, self.options.grace);
        let earlier = self.ending.map_or(kill_at, |ending| ending.kill_at);
        let killed_at = self.ending.and_then(|ending| ending.killed_at);
        let kill_at = kill_at.min(earlier);
        self.ending = Some(Ending { lost: Some(reason), kill_at, killed_at });
        if kill_at <= now {
            return self.kill();
        }
        tracing::info!(
            locks = %self.held.names(), %reason, grace_ms = kill_at.since(now).as_millis(),
            "the lease is lost; ending the command"
        );
        self.ask_to_end();
    }

    /// Why the lease is lost, where it is.
    fn lost(&self) -> Option<LostReason> {
        self.ending.and_then(|ending| ending.lost)
    }

    fn ask_to_end(&self) {
        self.job.signal(Signal::TERM);
        // A stopped process would not see it.
        self.job.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.job.signal(Signal::KILL);
        if let Some(ending) = &mut self.ending {
            ending.killed_at = Some(clock::now());
        }
    }

    fn on_stop(&mut self, signal: Signal) {
        let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
        if wants_terminal && self.terminal.as_ref().is_some_and(Terminal::give) {
            self.job.signal(Signal::CONT);
        } else if self.was_signalled {
            self.end_stopped();
        } else if self.terminal.is_some() || self.was_asked_to_stop {
            if wants_terminal {
                say(
                    "fence: the command waits for the terminal, which another job has; fg gives it \
                     the terminal, and a lease that expires until then is lost",
                );
            }
            self.suspend();
        }
    }

    /// It got a terminating signal and stopped instead.
    fn end_stopped(&mut self) {
        if self.ending.is_none() {
            let grace = self.options.grace;
            say(&format!(
                "fence: the command stopped though it was to end; it is killed in {}",
                duration::show(grace)
            ));
            let kill_at = clock::now().plus(grace);
            self.ending = Some(Ending { lost: None, kill_at, killed_at: None });
            self.ask_to_end();
        }
    }

    /// The command was stopped (Ctrl-Z): stop with it, as a shell expects. The lease is not renewed
    /// meanwhile; a command that resumes too late finds it lost.
    fn suspend(&mut self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back();
        }
        self.was_asked_to_stop = false;
        self.suspended = true;
        if !has_shell() {
            say("fence: the command was stopped, and no shell could resume it; it continues");
            return self.resume();
        }
        // Not SIGTSTP, which this process passes on.
        if let Err(error) = kill_current_process_group(Signal::STOP) {
            tracing::warn!(%error, "cannot stop together with the command");
        }
    }

    fn resume(&mut self) {
        if std::mem::take(&mut self.suspended) {
            if let Some(terminal) = &self.terminal {
                terminal.give_input();
            }
            self.job.signal(Signal::CONT);
        }
    }

    /// The leader has ended. The rest of its group ends before the lock is released.
    async fn finish(&mut self, exit: Exit, signals: &mut Signals) -> Ended {
        if let Some(terminal) = self.terminal.take() {
            terminal.take_back();
        }
        self.job.reap();
        if self.ending.is_some() || !self.options.leave_background {
            self.end_group(signals).await;
        }
        if self.job.let_go() {
            let locks = self.held.names();
            say(&format!("fence: processes of the command continue without the lock on {locks}"));
        }
        let was_signalled = self.was_signalled;
        Ended { code: exit.code(), what: exit.words(), lost: self.lost(), was_signalled }
    }

    /// Ends what is left of the group: TERM, and KILL after the grace or where the lease is lost.
    async fn end_group(&mut self, signals: &mut Signals) {
        let settled_at = clock::now().plus_ms(SETTLE_MS);
        loop {
            self.job.reap_adopted();
            if self.is_group_over() {
                return;
            }
            self.check_lease();
            let now = clock::now();
            match self.ending {
                None if now >= settled_at => self.end_rest(now),
                Some(Ending { killed_at: None, kill_at, .. }) if now >= kill_at => self.kill(),
                _ => {}
            }
            if self.ending.is_none_or(|ending| ending.killed_at.is_none()) {
                // The limit is for the command, which has ended.
                self.held.report_progress();
            }
            tokio::select! {
                biased;
                signal = signals.next() => self.forward(signal),
                () = tokio::time::sleep(EMPTY_CHECK) => {}
            }
        }
    }

    /// Returns `true` if there is nothing left to wait for. A zombie can do nothing any more, and
    /// one whose parent has left the group may stay.
    fn is_group_over(&self) -> bool {
        match self.ending {
            Some(Ending { killed_at: Some(killed_at), lost, .. }) => {
                let is_past = lost.is_some() && clock::now() >= killed_at.plus_ms(LAST_MS_MAX);
                is_past || !self.job.has_live_members()
            }
            _ => !self.job.has_live_members(),
        }
    }

    /// Begins to end the rest of a group whose leader ended in time.
    fn end_rest(&mut self, now: Moment) {
        say("fence: the command has left processes in its group; ending them before the lock is \
             released (--leave-background leaves them)");
        let kill_at = now.plus(self.options.grace);
        self.ending = Some(Ending { lost: None, kill_at, killed_at: None });
        self.ask_to_end();
    }
}

/// Warning: cause of the coming end of the lease, and a remedy.
fn about(reason: LostReason) -> String {
    match reason {
        LostReason::NoProgress { .. } => {
            "the command has not reported progress for most of its time".to_owned()
        }
        LostReason::Deadline => "its renewals fail".to_owned(),
        LostReason::HeldTooLong { max } => {
            format!("it will have been held for {}, the longest allowed", duration::show(max))
        }
        reason => reason.to_string(),
    }
}

/// Waits for a report; for ever where none is expected.
async fn report(reports: Option<&Reports>) {
    match reports {
        Some(reports) => reports.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for a request to stop; for ever where those are ignored.
async fn stop(stops: Option<&mut unix::Signal>) {
    match stops {
        Some(stops) => drop(stops.recv().await),
        None => std::future::pending().await,
    }
}

/// Waits for a moment; for ever without one.
async fn until(moment: Option<Moment>) {
    match moment {
        Some(moment) => clock::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
