#!/usr/bin/env bash
# redb 4.4.0, InMemoryBackend: an emptied database in memory keeps more than twice what it held, and
# compact() gives nothing back. Dropping the database does.
#
# Seen with Rust 1.95 on Linux, resident memory (VmRSS) of the process in MiB:
#   60 values of 16 MiB, 960 in all   3091
#   all of them deleted               2099
#   after compact()                   2099
#   database dropped                    19
#
# So a store that adds up the bytes of its values does not bound its memory with that sum. Fails if
# the emptied and compacted database takes less than its values did.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/src"
cat >"$dir/Cargo.toml" <<'TOML'
[package]
name = "seen"
version = "0.0.0"
edition = "2024"
[dependencies]
redb = "=4.4.0"
TOML
cat >"$dir/src/main.rs" <<'RUST'
use redb::{Database, TableDefinition, backends::InMemoryBackend};

const VALUES: TableDefinition<u64, &[u8]> = TableDefinition::new("values");
const COUNT: u64 = 60;

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn main() {
    let mut database = Database::builder().create_with_backend(InMemoryBackend::new()).unwrap();
    let value = vec![7; 16 << 20];
    for key in 0..COUNT {
        let write = database.begin_write().unwrap();
        write.open_table(VALUES).unwrap().insert(key, value.as_slice()).unwrap();
        write.commit().unwrap();
    }
    let filled = resident_mib();
    for key in 0..COUNT {
        let write = database.begin_write().unwrap();
        write.open_table(VALUES).unwrap().remove(key).unwrap();
        write.commit().unwrap();
    }
    let deleted = resident_mib();
    database.compact().unwrap();
    let compact = resident_mib();
    drop(database);
    let dropped = resident_mib();
    println!("filled {filled} deleted {deleted} compact {compact} dropped {dropped}");
    assert!(compact > COUNT * 16, "an emptied database gives memory back now");
}
RUST
cd "$dir"
cargo run --quiet --release
