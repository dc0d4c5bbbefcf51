//! Tests of the log, on folders and on a simulated disk.

mod contract;
mod crashes;
mod damage;
mod faults;
mod kill;
mod rates;
mod sim_disk;

use std::collections::BTreeMap;

use super::*;

/// Live entries in an order, so that they can be compared and printed.
type Live = BTreeMap<Vec<u8>, Vec<u8>>;

const SMALL: LogOptions =
    LogOptions { segment_bytes: 2_048, snapshot_bytes_min: 4_096, waiting_bytes_max: 1 << 20 };

fn live(entries: &Entries) -> Live {
    entries.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

fn apply(live: &mut Live, batch: &[Change]) {
    for (key, value) in batch {
        match value {
            Some(value) => live.insert(key.to_vec(), value.to_vec()),
            None => live.remove(&key[..]),
        };
    }
}

fn put(key: &str, value: impl AsRef<[u8]>) -> Change {
    (Bytes::copy_from_slice(key.as_bytes()), Some(Bytes::copy_from_slice(value.as_ref())))
}

fn removal(key: &str) -> Change {
    (Bytes::copy_from_slice(key.as_bytes()), None)
}

fn wait(ticket: Result<Ticket, AppendError>) -> Result<(), AppendError> {
    ticket?.0.blocking_recv().unwrap_or_else(|_| Err(AppendError::Unknown("no result".into())))
}

fn commit(log: &Log, batch: &[Change]) {
    wait(log.append(batch)).unwrap();
}

/// A generator of numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A batch that no other one equals: one entry has its number.
    fn batch(&mut self, number: u64) -> Vec<Change> {
        let mut batch = vec![put("number", number.to_le_bytes())];
        for _ in 0..self.below(4) {
            let key = format!("key-{}", self.below(12));
            let value =
                vec![self.next().to_le_bytes()[0]; usize::try_from(self.below(120)).unwrap()];
            batch.push(if self.below(4) == 0 { removal(&key) } else { put(&key, value) });
        }
        batch
    }
}
