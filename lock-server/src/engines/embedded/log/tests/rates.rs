//! Rates of the log beside redb and beside a plain write with a sync. They are printed, not
//! asserted: `cargo test --release -p lock-server --lib -- --ignored --nocapture rates`.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use redb::{Database, TableDefinition};
use tempfile::tempdir;

use super::*;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(250);
const VALUE_BYTES: usize = 300;
/// Names in use, so that the log is much longer than what lives.
const NAMES: u64 = 1_000;
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("locks");

/// Batches a second, the median time of one and the 99th percentile, in microseconds.
#[derive(Clone, Copy)]
struct Rate {
    per_second: f64,
    p50_us: u128,
    p99_us: u128,
}

#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn measure(mut commit: impl FnMut(u64)) -> Rate {
    let start = std::time::Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < ROUND {
        let before = std::time::Instant::now();
        commit(times.len() as u64);
        times.push(before.elapsed());
    }
    let per_second = times.len() as f64 / start.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100].as_micros();
    Rate { per_second, p50_us: at(50), p99_us: at(99) }
}

fn batch(number: u64, entries: u64) -> Vec<Change> {
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    (0..entries)
        .map(|n| {
            (Bytes::from(format!("orders/{}", (number * entries + n) % NAMES)), Some(value.clone()))
        })
        .collect()
}

fn plain(is_reserved: bool, entries: u64) -> Rate {
    let file = tempfile::tempfile().unwrap();
    let bytes = vec![7; usize::try_from(entries).unwrap() * VALUE_BYTES];
    let reserved = if is_reserved { 8 << 20 } else { 0 };
    super::super::segment::preallocate(&file, 0, reserved).unwrap();
    file.sync_data().unwrap();
    let len = bytes.len() as u64;
    measure(|number| {
        let at = if is_reserved { number * len % (reserved - len) } else { number * len };
        file.write_all_at(&bytes, at).unwrap();
        file.sync_data().unwrap();
    })
}

fn redb(entries: u64) -> Rate {
    let folder = tempdir().unwrap();
    let database = Database::create(folder.path().join("locks.redb")).unwrap();
    measure(|number| {
        let write = database.begin_write().unwrap();
        let mut table = write.open_table(TABLE).unwrap();
        for (key, value) in batch(number, entries) {
            table.insert(&key[..], &value.unwrap()[..]).unwrap();
        }
        drop(table);
        write.commit().unwrap();
    })
}

fn log(entries: u64) -> Rate {
    let folder = tempdir().unwrap();
    let (log, _) = Log::open(folder.path(), LogOptions::default()).unwrap();
    measure(|number| commit(&log, &batch(number, entries)))
}

/// As many tasks as there are entries, each with a batch of one.
fn tasks(entries: u64) -> Rate {
    let folder = tempdir().unwrap();
    let (log, _) = Log::open(folder.path(), LogOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let one = batch(0, 1);
    runtime.block_on(async {
        let mut waiting = futures_util::stream::FuturesUnordered::new();
        let mut done = 0_u64;
        for _ in 0..entries {
            waiting.push(log.append(&one).unwrap());
        }
        let mut rate = None;
        measure_async(&mut rate, async || {
            futures_util::StreamExt::next(&mut waiting).await.unwrap().unwrap();
            done += 1;
            waiting.push(log.append(&one).unwrap());
        })
        .await;
        rate.unwrap()
    })
}

#[expect(clippy::disallowed_methods, reason = "a measurement")]
async fn measure_async(rate: &mut Option<Rate>, mut step: impl AsyncFnMut()) {
    let start = std::time::Instant::now();
    let mut count = 0_u64;
    while start.elapsed() < ROUND {
        step().await;
        count += 1;
    }
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    *rate = Some(Rate { per_second, p50_us: 0, p99_us: 0 });
}

#[test]
#[ignore = "a measurement"]
fn rates() {
    let mut out = std::io::stdout();
    writeln!(out, "entries a batch: batches/s (lowest to highest), entries/s, p50 / p99 in us")
        .unwrap();
    for entries in [1, 8, 64] {
        let kinds: [(&str, &dyn Fn() -> Rate); 5] = [
            ("write + fdatasync", &|| plain(false, entries)),
            ("the same, reserved", &|| plain(true, entries)),
            ("redb commit", &|| redb(entries)),
            ("log, one caller", &|| log(entries)),
            ("log, n callers of 1", &|| tasks(entries)),
        ];
        let mut rates = vec![Vec::new(); kinds.len()];
        for _ in 0..ROUNDS {
            for (rates, (_, run)) in rates.iter_mut().zip(&kinds) {
                rates.push(run());
            }
        }
        for (mut rates, (name, _)) in rates.into_iter().zip(&kinds) {
            rates.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            let median = rates[ROUNDS / 2];
            let low = rates[0].per_second;
            let high = rates[ROUNDS - 1].per_second;
            let per_batch = if name.contains("callers") { 1 } else { entries };
            let entries_per_second = median.per_second * per_batch as f64;
            writeln!(
                out,
                "{entries:>2}  {name:20} {:7.0} ({low:.0} to {high:.0})  {entries_per_second:8.0}  {} / {}",
                median.per_second, median.p50_us, median.p99_us
            )
            .unwrap();
        }
    }
}

/// Longest waits for an append while snapshots of many live entries are made.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn pauses() {
    const LIVE: u64 = 100_000;
    const SECONDS: u64 = 15;
    let mut out = std::io::stdout();
    let folder = tempdir().unwrap();
    let (log, _) = Log::open(folder.path(), LogOptions::default()).unwrap();
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let change = |n: u64| (Bytes::from(format!("orders/{}", n % LIVE)), Some(value.clone()));
    for n in 0..LIVE / 100 {
        commit(&log, &(0..100).map(|i| change(n * 100 + i)).collect::<Vec<_>>());
    }
    let start = std::time::Instant::now();
    let mut times = Vec::new();
    while start.elapsed().as_secs() < SECONDS {
        let n = times.len() as u64 * 64;
        let batch: Vec<_> = (0..64).map(|i| change(n + i)).collect();
        let before = std::time::Instant::now();
        commit(&log, &batch);
        times.push(before.elapsed().as_micros());
    }
    let batches = times.len();
    times.sort_unstable();
    let at = |per_mille: usize| times[batches * per_mille / 1_000];
    let p50 = at(500);
    let p99 = at(990);
    let p999 = at(999);
    let max = times[batches - 1];
    writeln!(out, "{batches} batches of 64, us: p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}")
        .unwrap();
    drop(log);
    let before = std::time::Instant::now();
    let (_log, restored) = Log::open(folder.path(), LogOptions::default()).unwrap();
    let live = restored.len();
    let ms = before.elapsed().as_millis();
    writeln!(
        out,
        "opened with {live} live entries in {ms} ms: {:?}",
        Folder::new(folder.path()).list()
    )
    .unwrap();
}
