//! A process that is killed while it appends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tempfile::tempdir;

use super::*;

/// Names the folder to the child process.
const FOLDER: &str = "FENCE_TEST_LOG_FOLDER";
const ACKNOWLEDGED: &str = "acknowledged ";

/// Body of the child process: appends until it is killed.
#[test]
#[ignore = "run by a_killed_process_loses_nothing_acknowledged in a process of its own"]
#[expect(clippy::disallowed_methods, reason = "the child's folder")]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let (log, restored) = Log::open(Path::new(&folder), SMALL).unwrap();
    let first = number(&live(&restored));
    let mut out = std::io::stdout();
    for n in first + 1.. {
        // Two more batches are on their way when this one is acknowledged.
        let tickets: Vec<_> = (0..3).map(|i| log.append(&batch(n * 3 + i))).collect();
        for ticket in tickets {
            wait(ticket).unwrap();
        }
        writeln!(out, "{ACKNOWLEDGED}{n}").unwrap();
    }
}

fn batch(n: u64) -> Vec<Change> {
    let number = n / 3;
    let value = vec![n.to_le_bytes()[0]; 150];
    vec![put("number", number.to_le_bytes()), put("left", &value), put("right", &value)]
}

fn number(live: &Live) -> u64 {
    live.get(&b"number"[..])
        .map_or(0, |bytes| u64::from_le_bytes(bytes.as_slice().try_into().unwrap()))
}

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    let folder = tempdir().unwrap();
    for life in 1..=5_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "engines::embedded::log::tests::kill::child",
            ])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = 0;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let numbers = lines.map_while(Result::ok).filter_map(|line| {
            line.rsplit_once(ACKNOWLEDGED).map(|(_, n)| n.parse::<u64>().unwrap())
        });
        for (count, number) in (0..).zip(numbers) {
            acknowledged = number;
            if count == 40 * life {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(acknowledged > 0, "the child appended nothing");
        let (_log, restored) = Log::open(folder.path(), SMALL).unwrap();
        let live = live(&restored);
        assert!(number(&live) >= acknowledged, "{} after {acknowledged}", number(&live));
        assert_eq!(live[&b"left"[..]], live[&b"right"[..]], "half a batch");
    }
}
