//! Random batches, beside the engine in memory.

use lock_server::engines::memory::MemoryRecords;
use service_kit::clock::SystemClock;

use super::*;
use crate::seed::Seed;

const BATCHES: usize = 150;

/// Every outcome of every batch, and every record afterwards.
pub async fn it_does_what_the_reference_does((store, other): &Servers) {
    let mut seed = Seed::of_run("it_does_what_the_reference_does");
    let (_, counter) = store.read(&[]).await.unwrap();
    let reference: Store = Arc::new(MemoryRecords::new(Arc::new(SystemClock::new()), counter));
    let mut keys: Vec<Key> = (0..3).map(|at| lock(&format!("l{at}"))).collect();
    keys.extend([session(), session()]);
    let mut versions: HashMap<Key, Version> = HashMap::new();
    let mut bases: HashMap<Version, u64> = HashMap::new();
    let mut last = counter;
    for at in 0..BATCHES {
        let batch = random_batch(&mut seed, &keys, &versions);
        let server = if seed.next_u64().is_multiple_of(2) { store } else { other };
        let wanted = reference.commit(batch.clone()).await.unwrap();
        let found = server.commit(batch.clone()).await.unwrap();
        // A counter may jump: each value has that of the batch which wrote it.
        assert!(found.base >= last, "{at}: {batch:?}");
        last = found.base + batch.tokens;
        // Where no token was taken, no value needs it.
        let groups = batch.groups.iter().filter(|_| batch.tokens > 0);
        for write in groups.flat_map(|group| &group.writes) {
            bases.entry(version_of(write)).or_insert(found.base);
        }
        let comparable = |snapshots: Vec<Snapshot>| -> Vec<Snapshot> {
            all_timeless(snapshots).into_iter().map(|found| Snapshot { base: 0, ..found }).collect()
        };
        let outcomes = |committed: Committed| -> Vec<Result<(), Vec<Snapshot>>> {
            committed.groups.into_iter().map(|group| group.map_err(comparable)).collect()
        };
        let committed = outcomes(found);
        let expected = outcomes(wanted);
        let wanted = reference.read(&keys).await.unwrap();
        let after = comparable(wanted.0.clone());
        // The records of a refused group may be read after the commit.
        let later = |records: &Vec<Snapshot>| -> Vec<Snapshot> {
            let now = |key: &Key| after.iter().find(|record| record.key == *key).cloned();
            records.iter().filter_map(|record| now(&record.key)).collect()
        };
        assert_eq!(committed.len(), expected.len(), "{at}: {batch:?}");
        for (found, wanted) in committed.iter().zip(&expected) {
            let later = wanted.as_ref().copied().map_err(later);
            assert!(
                found == wanted || *found == later,
                "{at}: {batch:?}: {found:?} for {wanted:?}"
            );
        }
        let (found, counter) = server.read(&keys).await.unwrap();
        assert!(counter >= last, "{at}: {batch:?}");
        for record in found.iter().filter(|record| record.version != Version::ABSENT) {
            let base = bases.get(&record.version);
            assert!(base.is_none_or(|base| record.base == *base), "{at}: {batch:?}");
        }
        assert_eq!(comparable(found), comparable(wanted.0.clone()), "{at}: {batch:?}");
        for key in &keys {
            let items = reference.items(key, None, 100).await.unwrap();
            assert_eq!(server.items(key, None, 100).await.unwrap(), items, "{at}: {batch:?}");
        }
        versions = wanted.0.into_iter().map(|found| (found.key, found.version)).collect();
    }
}

fn random_batch(seed: &mut Seed, keys: &[Key], versions: &HashMap<Key, Version>) -> Batch {
    let mut below = |limit: u64| seed.next_u64() % limit;
    let mut versions = versions.clone();
    let mut groups = Vec::new();
    for _ in 0..=below(3) {
        let mut group = Group { before_ms: u64::MAX, ..Group::default() };
        for key in keys {
            if below(3) > 0 {
                continue;
            }
            let known = versions.get(key).copied().unwrap_or(Version::ABSENT);
            let is_right = below(10) > 0;
            group.reads.push((key.clone(), if is_right { known } else { next_version() }));
            if below(4) == 0 {
                continue;
            }
            let mut write = match below(6) {
                0 => remove(key),
                1 | 2 => keep(key, &[]),
                3 => put_for(key, "lives", Some(3_600_000)),
                _ => put(key, "stays"),
            };
            for _ in 0..below(3) {
                let value = (below(3) > 0).then(|| below(100).to_string().into_bytes());
                write.items.push((format!("i{}", below(4)), value));
            }
            if write.change != Change::Keep {
                versions.insert(key.clone(), version_of(&write));
            }
            group.writes.push(write);
        }
        groups.push(group);
    }
    // Groups of a batch that takes tokens have no record in common.
    let mut keys: Vec<&Key> =
        groups.iter().flat_map(|group| &group.reads).map(|(key, _)| key).collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    let tokens = if keys.len() == count { below(4) } else { 0 };
    Batch { groups, tokens, ..Batch::default() }
}
