//! The driver of the Rust SDK for the conformance scenarios; `fence_tests::scenario::driver` has
//! its protocol.
//!
//! It runs on one thread, like an event loop of another language, so that a blocked thread blocks
//! the renewal too.

mod arguments;
mod failure;
mod held;
mod leases;
mod objects;
mod pure;
mod state;
mod streams;

use std::io::{BufRead as _, Write as _};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use arguments::Arguments;
use failure::{DriverResult, Failure};
use state::DriverState;

/// Requests that were read and not begun.
const AHEAD_MAX: usize = 64;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (sender, receiver) = mpsc::channel(AHEAD_MAX);
    std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read_lines(&sender))?;
    LocalSet::new().block_on(&runtime, serve(receiver));
    std::process::exit(0);
}

fn read_lines(requests: &mpsc::Sender<String>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        if requests.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Writes one line of JSON.
fn write(value: &Value) {
    let mut out = std::io::stdout().lock();
    // The test that reads it is gone if this fails.
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

async fn serve(mut requests: mpsc::Receiver<String>) {
    let state = Rc::new(DriverState::default());
    while let Some(line) = requests.recv().await {
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            write(&json!({"event": "no JSON", "line": line}));
            continue;
        };
        let id = request["id"].as_u64().unwrap_or_default();
        if request["op"] == "quit" {
            write(&json!({"id": id, "ok": {}}));
            return;
        }
        let stop = CancellationToken::new();
        state.running.borrow_mut().insert(id, stop.clone());
        let state = Rc::clone(&state);
        tokio::task::spawn_local(async move {
            let arguments = Arguments(request);
            let done = tokio::select! {
                biased;
                () = stop.cancelled() => Err(Failure::own("cancelled", "the request was cancelled")),
                done = perform(&state, &arguments) => done,
            };
            state.running.borrow_mut().remove(&id);
            let mut reply = match done {
                Ok(value) => json!({"ok": value}),
                Err(failure) => failure.reply(),
            };
            reply["id"] = json!(id);
            write(&reply);
        });
    }
}

async fn perform(state: &Rc<DriverState>, request: &Arguments) -> DriverResult {
    match request.text("op")?.as_str() {
        "client" => state.client(request),
        "lock" => leases::lock(state, request).await,
        "lock_all" => leases::lock_all(state, request).await,
        "run" => leases::run(state, request).await,
        "check" => leases::check(state, request),
        "release" => leases::release(state, request).await,
        "progress" => leases::progress(state, request),
        "session" => leases::session(state, request).await,
        "session_check" => leases::session_check(state, request),
        "session_end" => leases::session_end(state, request).await,
        "campaign" => leases::campaign(state, request).await,
        "leader" => leases::leader(state, request).await,
        "resign" => leases::release(state, request).await,
        "put" => objects::put(state, request).await,
        "get" => objects::get(state, request).await,
        "delete" => objects::delete(state, request).await,
        "show" => streams::show(state, request).await,
        "revoke" => streams::revoke(state, request).await,
        "events" => streams::open(state, request).await,
        "events_close" => streams::close(state, request),
        "cancel" => {
            let target = request.number("target")?.unwrap_or_default();
            let running = state.running.borrow().get(&target).cloned();
            running.ok_or_else(|| Failure::invalid("no such request is under way"))?.cancel();
            Ok(json!({}))
        }
        "block_loop" => {
            let blocked = Duration::from_millis(request.number("ms")?.unwrap_or_default());
            std::thread::sleep(blocked);
            Ok(json!({}))
        }
        "window" => pure::window(request),
        "pause" => pure::pause(request),
        "credential" => pure::credential(request),
        "parse_token" => pure::parse_token(request),
        _ => Err(Failure::Unsupported),
    }
}
