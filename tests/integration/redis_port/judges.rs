//! Drivers and tools that we did not write judge the port: `tests/drivers/run`.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use fence_tests::process::command;

fn judge(name: &str) {
    run("drivers/run", name);
}

/// Runs one judge of a script to its end, however long it takes to download it the first time.
pub(crate) fn run(script: &str, name: &str) {
    // Judges share what is downloaded.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    // A judge that hangs is a failure, not the end of the run.
    let mut judging = command("timeout");
    judging
        .args(["900"])
        .arg(script)
        .arg(name)
        .env("FENCED_STORE_PROGRAM", fence_tests::binaries::path("fenced-store"));
    for kept in ["FENCE_LONG", "FENCE_DRIVERS_DIR"] {
        judging.envs(std::env::var(kept).map(|value| (kept, value)));
    }
    let output = judging.output().expect("a script of judges");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{text}\n{errors}", output.status);
}

/// Returns whether this program answers to `--version` with at least this major version.
pub(crate) fn is_there(program: &str, major: u32) -> bool {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let number = text.trim().trim_start_matches('v').split('.').next().unwrap_or_default();
    number.parse::<u32>().is_ok_and(|found| found >= major)
}

#[test]
fn redis_py_says_that_it_is_redis() {
    judge("redis-py");
}

#[test]
fn a_pool_of_redis_py_presents_the_newest_lease_by_itself() {
    judge("pool");
}

#[test]
fn redis_py_as_in_the_guide_repeats_no_write_and_no_blpop() {
    judge("retries");
}

#[test]
fn half_a_million_commands_of_redis_py_are_one_pipeline() {
    judge("pipeline");
}

/// Only where Node is: a distribution's packages of it are too old or too large to install here.
#[test]
fn ioredis_and_node_redis_say_that_it_is_redis() {
    if is_there("node", 20) && is_there("npm", 9) {
        judge("node");
    } else {
        eprintln!("not judged by ioredis and node-redis: there is no Node 20 with npm");
    }
}

#[test]
fn ioredis_and_node_redis_as_in_the_guide_repeat_no_write() {
    if is_there("node", 20) && is_there("npm", 9) {
        judge("node-retries");
    } else {
        eprintln!("not judged by ioredis and node-redis: there is no Node 20 with npm");
    }
}

#[test]
fn bullmq_and_its_like_run_unmodified() {
    if is_there("node", 20) && is_there("npm", 9) {
        judge("node-queues");
    } else {
        eprintln!("not judged by BullMQ, Bull and bee-queue: there is no Node 20 with npm");
    }
}

#[test]
fn the_programs_of_the_guide_on_pools_do_what_it_says() {
    if is_there("node", 20) && is_there("npm", 9) {
        judge("guide");
    } else {
        eprintln!("the guide's programs are not run: there is no Node 20 with npm");
    }
}

/// With `FENCE_LONG=1`: it downloads some thirty packages.
#[test]
fn celery_and_its_like_run_unmodified() {
    if std::env::var("FENCE_LONG").is_ok_and(|long| long == "1") {
        judge("queues");
    } else {
        eprintln!("not judged by Celery and its like: FENCE_LONG=1 does");
    }
}

#[test]
fn redis_benchmark_says_that_it_is_redis() {
    judge("benchmark");
}

#[test]
fn redis_benchmark_and_redis_py_speak_tls() {
    judge("tls");
}
