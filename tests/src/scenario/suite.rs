//! Runs all scenarios for one language, and writes the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::file::{Scenario, scenarios};
use super::host::Drivers;
use super::run::{run, rust_driver};
use crate::wait::scaled;

/// Scenarios that run at a time, of all languages together.
static UNDER_WAY: Semaphore = Semaphore::const_new(8);
/// Longest time of a scenario.
const LIMIT: Duration = Duration::from_secs(180);
/// Longest time of a package's `check`: it downloads tools the first time.
const CHECK_LIMIT: Duration = Duration::from_secs(600);

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs the scenarios whose names contain `part` for a language; returns their number.
///
/// # Errors
/// The rows that failed, each with its reason.
///
/// # Panics
/// If a scenario cannot be read, or the driver cannot be made ready.
pub async fn conforms(language: &str, part: &str) -> Result<usize, String> {
    let scenarios = scenarios(part);
    assert!(!scenarios.is_empty(), "no scenario has {part:?} in its name");
    let words = driver_command(language);
    // Python takes as long to load the SDK as for two scenarios.
    let drivers = match language.starts_with("python") {
        true => Drivers::forked(words).await,
        false => Drivers::new(words),
    };
    let drivers = Arc::new(drivers);
    let mut results = BTreeMap::new();
    let mut running = Vec::new();
    for scenario in scenarios {
        let name = scenario.name.clone();
        match scenario.not_for.get(language) {
            Some(reason) => drop(results.insert(name, Row::NotFor(reason.clone()))),
            None => running.push((name, tokio::spawn(limited(scenario, Arc::clone(&drivers))))),
        }
    }
    for (name, task) in running {
        let row = match task.await {
            Ok(Ok(())) => Row::Passed,
            Ok(Err(why)) => Row::Failed(why),
            Err(panic) => Row::Failed(reason(panic)),
        };
        results.insert(name, row);
    }
    if part.is_empty() {
        write_table(language, &results);
    }
    let failed = results.iter().filter_map(|(name, row)| match row {
        Row::Failed(why) => Some(format!("{name}: {why}")),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() {
        return Ok(results.len());
    }
    Err(format!("{language}: {} of {} failed\n{}", failed.len(), results.len(), failed.join("\n")))
}

/// Result of a scenario for a language.
#[derive(Clone, Debug)]
enum Row {
    Passed,
    Failed(String),
    NotFor(String),
}

async fn limited(scenario: Scenario, drivers: Arc<Drivers>) -> Result<(), String> {
    let _turn = UNDER_WAY.acquire().await.map_err(|error| error.to_string())?;
    let limit = scaled(LIMIT);
    let done = tokio::time::timeout(limit, run(&scenario, &drivers)).await;
    done.unwrap_or_else(|_| Err(format!("not done within {limit:?}")))
}

fn reason(failure: tokio::task::JoinError) -> String {
    let panic = failure.into_panic();
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a text").to_owned()
}

/// The command of a language's driver, made ready if it has to be.
fn driver_command(language: &str) -> Vec<String> {
    // A package that is not part of the repository yet.
    if let Ok(words) = std::env::var("FENCE_DRIVER") {
        return serde_json::from_str(&words).expect("FENCE_DRIVER is a JSON array");
    }
    if language == "rust" {
        return rust_driver();
    }
    // Python has two clients: one for asyncio, and one for threads.
    let package = language.trim_end_matches("_sync");
    let output = package_check(package, &["--prepare"]);
    let last = output.lines().last().unwrap_or_default();
    let mut words: Vec<String> = serde_json::from_str(last).unwrap_or_else(|error| {
        panic!("client/{package}/check --prepare ends in {last:?}, no list of words: {error}")
    });
    words.extend((package != language).then(|| "--sync".to_owned()));
    words
}

/// Runs `client/LANGUAGE/check` to its end; its standard output.
///
/// # Panics
/// If it fails or takes longer, with its output.
pub fn package_check(language: &str, args: &[&str]) -> String {
    // The two uses of a language's package share its folder.
    static TURNS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let turn = {
        let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(language.to_owned()).or_default())
    };
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let script = Path::new(ROOT).join("client").join(language).join("check");
    let programs = crate::binaries::path("fence");
    // A check that hangs is a failure, not the end of the run.
    let limit = scaled(CHECK_LIMIT).as_secs();
    let output = crate::process::command("timeout")
        .arg(limit.to_string())
        .arg(&script)
        .args(args)
        .env("FENCE_BIN", programs.parent().expect("a folder"))
        .output()
        .expect("timeout");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} {args:?}: {} (124 after {limit} s)\n{text}\n{errors}",
        script.display(),
        output.status
    );
    text
}

/// Writes the language's column, and the table of all that were written.
fn write_table(language: &str, results: &BTreeMap<String, Row>) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(ROOT).join("target/sdk/scenarios");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut column = String::new();
    for (name, row) in results {
        let (word, note) = match row {
            Row::Passed => ("passed", ""),
            Row::Failed(_) => ("FAILED", ""),
            Row::NotFor(reason) => ("-", reason.as_str()),
        };
        writeln!(column, "{name}\t{word}\t{note}").expect("text");
    }
    std::fs::write(folder.join(language), column).expect("a column");
    std::fs::write(folder.with_extension("txt"), table(&folder)).expect("the table");
}

/// The table scenario × language of the columns in a folder, with the reasons of what a language
/// cannot show.
fn table(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).expect("the columns");
    let mut columns: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    columns.sort();
    let mut rows: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
    let mut notes = BTreeMap::new();
    let mut head = format!("{:40}", "scenario");
    for (at, path) in columns.iter().enumerate() {
        let language = path.file_name().expect("a name").to_string_lossy().into_owned();
        write!(head, "{language:12}").expect("text");
        for line in std::fs::read_to_string(path).expect("a column").lines() {
            let mut cells = line.splitn(3, '\t').map(ToOwned::to_owned);
            let name = cells.next().unwrap_or_default();
            let row = rows.entry(name.clone()).or_default();
            row.insert(at, cells.next().unwrap_or_default());
            let note = cells.next().unwrap_or_default();
            if !note.is_empty() {
                notes.insert(format!("- {name}, {language}: "), note);
            }
        }
    }
    let mut text = format!("{}\n", head.trim_end());
    for (name, row) in rows {
        let cell = |at| format!("{:12}", row.get(&at).map_or("not run", String::as_str));
        let cells: String = (0..columns.len()).map(cell).collect();
        writeln!(text, "{name:40}{}", cells.trim_end()).expect("text");
    }
    for (what, note) in notes {
        writeln!(text, "{what}{note}").expect("text");
    }
    text
}
