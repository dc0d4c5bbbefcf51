//! Roles of this program when a demo or a benchmark starts it again: a server, a worker, or the
//! handler that a benchmark compares with.

use std::ffi::OsString;
use std::io::BufRead as _;
use std::process::ExitCode;

use clap::Subcommand;
use tokio::sync::mpsc;

use crate::bench::{origin, thin};
use crate::demo::worker;
use fence_terminal::exit::{Failure, code};
use fence_terminal::output::say;

/// Orders that were read and not carried out yet.
const ORDERS_MAX: usize = 16;

/// Started by `demo` and `bench`, never by people.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The process that must be alive
    #[arg(long)]
    director: i32,
    #[command(subcommand)]
    role: Role,
}

#[derive(Clone, Debug, Subcommand)]
enum Role {
    LockServer(Server),
    FencedStore(Server),
    DemoWorker(worker::Args),
    BenchHandler(thin::Args),
    BenchOrigin,
}

#[derive(Clone, Debug, clap::Args)]
struct Server {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs the role until its director ends it or has ended.
pub fn start(args: Args) -> ExitCode {
    let orders = match tie_to(args.director) {
        Ok(orders) => orders,
        Err(failure) => return ended(&failure),
    };
    let line = |program: &str, server: Server| {
        std::iter::once(OsString::from(program)).chain(server.args).collect::<Vec<_>>()
    };
    let played = match args.role {
        Role::LockServer(server) => return lock_server::process::run(line("lock-server", server)),
        Role::FencedStore(server) => {
            return fenced_store::process::run(line("fenced-store", server));
        }
        Role::DemoWorker(args) => play(worker::work(args, orders)),
        Role::BenchHandler(args) => thin::start(args),
        Role::BenchOrigin => origin::start(),
    };
    played.map_or_else(|failure| ended(&failure), |()| ExitCode::SUCCESS)
}

fn ended(failure: &Failure) -> ExitCode {
    say(&format!("fence: {failure}"));
    ExitCode::from(failure.code())
}

fn play(role: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("the runtime does not start: {error}")))?;
    runtime.block_on(role)
}

/// Ends this process when the director is gone, and passes on what the director says.
///
/// The pipe from the director shows it on every system; on Linux the kernel does it too, and that
/// also reaches a process that is stopped.
fn tie_to(director: i32) -> Result<mpsc::Receiver<String>, Failure> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Failure::internal(format!("the kernel refuses to watch: {error}")))?;
    if rustix::process::getppid() != rustix::process::Pid::from_raw(director) {
        return Err(Failure::usage("this is for `fence demo`"));
    }
    let (sender, receiver) = mpsc::channel(ORDERS_MAX);
    let watch = move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            // A server takes no orders.
            let _ = sender.blocking_send(line);
        }
        std::process::exit(i32::from(code::OK));
    };
    std::thread::Builder::new()
        .name("director".to_owned())
        .spawn(watch)
        .map_err(|error| Failure::internal(format!("no thread: {error}")))?;
    Ok(receiver)
}
