//! Random batches, beside the engine in memory.

use lock_server::store::records::MemoryRecords;
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
    for at in 0..BATCHES {
        let batch = random_batch(&mut seed, &keys, &versions);
        let server = if seed.next_u64().is_multiple_of(2) { store } else { other };
        let wanted = reference.commit(batch.clone()).await.unwrap();
        let found = server.commit(batch.clone()).await.unwrap();
        assert_eq!((&found.groups, found.base), (&wanted.groups, wanted.base), "{at}: {batch:?}");
        let wanted = reference.read(&keys).await.unwrap();
        assert_eq!(server.read(&keys).await.unwrap(), wanted, "{at}: {batch:?}");
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
    for _ in 0..=below(4) {
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
    Batch { groups, tokens: below(4), ..Batch::default() }
}
