//! The script for plain batches does what the general one does: the same batch goes to either, over
//! records of its own.

use fence_tests::conformance::record_store::next_version;
use fence_tests::seed::Seed;
use lock_server::engines::contract::{Change, Committed, Group, RecordStore as _, Write};

use super::*;

/// A server in a namespace.
struct Side {
    store: RedisRecords,
    /// Begin of its keys.
    keys: String,
    /// A message is added that makes each batch one for the general script.
    is_general: bool,
    /// Counter before the first batch.
    base: u64,
}

impl Side {
    async fn start(redis: &Redis, namespace: &str, is_general: bool) -> Self {
        let store = open_in(&redis.url(), namespace, AfterLoss::Wait).await.unwrap();
        let base = store.commit(Batch::default()).await.unwrap().base;
        Self { store, keys: format!("{{fence:{namespace}}}:"), is_general, base }
    }

    /// Commits a batch whose counters are relative, and returns the outcome in such counters.
    async fn commit(&self, mut batch: Batch) -> Result<Committed, String> {
        batch.counter += self.base;
        if self.is_general
            && let Some(group) = batch.groups.first_mut()
        {
            group.notify.push((ServerId(9), group.reads[0].0.clone()));
        }
        let outcome = self.store.commit(batch).await;
        let mut committed = outcome.map_err(|error| error.to_string().replace(&self.keys, ""))?;
        for snapshot in committed.groups.iter_mut().filter_map(|group| group.as_mut().err()) {
            snapshot.iter_mut().for_each(|snapshot| self.relative(snapshot));
        }
        committed.base -= self.base;
        Ok(Committed { now_ms: None, lineage: None, ..committed })
    }

    fn relative(&self, snapshot: &mut Snapshot) {
        snapshot.base = snapshot.base.saturating_sub(self.base);
    }

    /// Returns the record of a lock, and whether it and its items will be forgotten.
    async fn stored(&self, redis: &Redis, name: &str) -> (Snapshot, bool, bool) {
        let (mut found, _) = self.store.read(&[lock(name)]).await.unwrap();
        let mut found = found.remove(0);
        self.relative(&mut found);
        if matches!(found.version, Version::ABSENT) {
            found.base = 0;
        }
        let key = format!("{}lock:{name}", self.keys);
        let record: i64 = redis.run(&["PTTL", &key]).await;
        let items: i64 = redis.run(&["PTTL", &format!("{key}#")]).await;
        (found, record > 0, items > 0)
    }

    /// Changes a key behind the server's back.
    async fn hurt(&self, redis: &Redis, command: &[&str]) {
        let words: Vec<String> = command.iter().map(|word| word.replace("@", &self.keys)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _: redis::Value = redis.run(&words).await;
    }
}

async fn sides(redis: &Redis) -> [Side; 2] {
    [Side::start(redis, "plain", false).await, Side::start(redis, "general", true).await]
}

fn index(seed: &mut Seed, bound: usize) -> usize {
    usize::try_from(seed.below(bound as u64)).unwrap()
}

/// A batch of one group a lock, as the locks stand: some are decided on an old version, too late or
/// too early; some change nothing.
fn random_batch(seed: &mut Seed, versions: &[Version], now_ms: u64) -> Batch {
    let mut groups = Vec::new();
    for (at, version) in versions.iter().enumerate() {
        if seed.below(3) == 0 {
            continue;
        }
        let key = lock(&format!("l{at}"));
        let stale = seed.below(5) == 0;
        let version = if stale { next_version() } else { *version };
        let lives_ms = (seed.below(2) == 0).then_some(3_600_000);
        let write = put_for(&key, &"value".repeat(index(seed, 4)), lives_ms);
        groups.push(Group {
            reads: vec![(key, version)],
            not_before_ms: if seed.below(9) == 0 { now_ms + 3_600_000 } else { now_ms / 2 },
            before_ms: [u64::MAX, now_ms + 3_600_000, now_ms - 60_000][index(seed, 3)],
            writes: if seed.below(4) == 0 { Vec::new() } else { vec![write] },
            notify: Vec::new(),
        });
    }
    // The earliest time of a plain batch is one for all of its groups.
    let not_before_ms = groups.iter().map(|group| group.not_before_ms).max().unwrap_or(0);
    groups.iter_mut().for_each(|group| group.not_before_ms = not_before_ms);
    Batch { groups, tokens: seed.below(4), lives_ms: 1_000, ..Batch::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_have_the_same_outcome_and_leave_the_same() {
    let redis = Redis::start().await;
    let sides = sides(&redis).await;
    let mut seed = Seed::of_run("batches_have_the_same_outcome_and_leave_the_same");
    let names: Vec<String> = (0..6).map(|at| format!("l{at}")).collect();
    let keys: Vec<_> = names.iter().map(|name| lock(name)).collect();
    let mut counter = 0;
    for round in 0..300 {
        let now_ms = sides[0].store.now_ms();
        let (stored, _) = sides[0].store.read(&keys).await.unwrap();
        let versions: Vec<Version> = stored.iter().map(|snapshot| snapshot.version).collect();
        if seed.below(4) == 0 {
            // Items make a record one that is put together in Redis.
            let at = index(&mut seed, names.len());
            let write = Write { change: Change::Keep, ..put(&lock(&names[at]), "") };
            let items = vec![("i".to_owned(), (seed.below(3) > 0).then(|| b"x".to_vec()))];
            for side in &sides {
                let write = Write { items: items.clone(), ..write.clone() };
                let reads = vec![(write.key.clone(), versions[at])];
                let group = Group { reads, writes: vec![write], ..Group::everything() };
                let groups = vec![group];
                side.store.commit(Batch { groups, ..Batch::default() }).await.unwrap();
            }
        }
        let mut batch = random_batch(&mut seed, &versions, now_ms);
        // Decided beside a batch that is under way, or before another server's. Without tokens the
        // counter beside a record has no meaning, and the general script writes another.
        batch.counter = counter;
        if batch.tokens > 0 {
            batch.counter = (counter + seed.below(3)).saturating_sub(seed.below(3));
        }
        batch.ahead = 3;
        let [plain, general] = &sides;
        let outcome = plain.commit(batch.clone()).await;
        assert_eq!(outcome, general.commit(batch.clone()).await, "round {round}: {batch:?}");
        counter = outcome.unwrap().base + batch.tokens;
        for name in &names {
            let stored = plain.stored(&redis, name).await;
            let expected = general.stored(&redis, name).await;
            assert_eq!(stored, expected, "round {round}, {name}: {batch:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_refuse_the_same_and_change_nothing() {
    let redis = Redis::start().await;
    for hurts in [
        &[&["SET", "@paused-for", "60000", "PX", "60000"][..]][..],
        &[&["SET", "@token", "999999999999998"]],
    ] {
        let _: () = redis.run(&["FLUSHALL"]).await;
        let sides = sides(&redis).await;
        let mut outcomes = Vec::new();
        for side in &sides {
            for hurt in hurts {
                side.hurt(&redis, hurt).await;
            }
            let groups = ["a", "b"].map(|name| {
                let key = lock(name);
                group(&[(&key, Version::ABSENT)], vec![put(&key, "x")])
            });
            let batch = Batch { groups: groups.into(), tokens: 2, ..Batch::default() };
            let refusal = side.commit(batch).await.unwrap_err();
            let kept: Option<String> = redis.run(&["GET", &format!("{}lock:a", side.keys)]).await;
            assert_eq!(kept, None, "{hurts:?}: {refusal}");
            // The rest of a pause is another at each moment.
            outcomes.push(refusal.chars().filter(|c| !c.is_ascii_digit()).collect::<String>());
        }
        assert_eq!(outcomes[0], outcomes[1], "{hurts:?}");
    }
}
