//! Two servers that both commit.

use super::*;

const TASKS: u64 = 8;
const ROUNDS: u64 = 40;

/// Each adds one to counts that all share, with a token, and decides again where it lost. Tokens
/// rise with every write of a record, and no two writes have the same.
pub async fn no_update_is_lost((store, other): &Servers) {
    let keys: Arc<Vec<Key>> = Arc::new((0..3).map(|at| lock(&format!("count/{at}"))).collect());
    let tasks: Vec<_> = (0..TASKS)
        .map(|at| {
            let store = if at % 2 == 0 { store } else { other }.clone();
            let keys = keys.clone();
            tokio::spawn(async move {
                let mut tokens = Vec::new();
                for round in 0..ROUNDS {
                    let key = &keys[usize::try_from((at + round) % 3).unwrap()];
                    tokens.push(add_one(&store, key).await);
                }
                tokens
            })
        })
        .collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.extend(task.await.unwrap());
    }
    let (snapshots, _) = store.read(&keys).await.unwrap();
    let written: Vec<Vec<u64>> = snapshots.iter().map(tokens_of).collect();
    assert!(
        written.iter().all(|tokens| tokens.is_sorted_by(|one, next| one < next)),
        "{written:?}"
    );
    let mut written = written.concat();
    written.sort_unstable();
    tokens.sort_unstable();
    assert_eq!(written, tokens);
    tokens.dedup();
    assert_eq!(tokens.len() as u64, TASKS * ROUNDS);
}

/// Appends the token of the write to the record; starts from a guess.
async fn add_one(store: &Store, key: &Key) -> u64 {
    let mut known = Snapshot::absent(key.clone());
    loop {
        let mut tokens = tokens_of(&known);
        tokens.push(1);
        let text: Vec<String> = tokens.iter().map(u64::to_string).collect();
        let one = group(&[(key, known.version)], vec![put(key, &text.join(" "))]);
        let committed = commit(store, Batch { groups: vec![one], tokens: 1, ..Batch::default() });
        let mut committed = committed.await;
        match committed.groups.pop().unwrap() {
            Ok(()) => return committed.base + 1,
            Err(mut found) => known = found.pop().unwrap(),
        }
    }
}

/// The last one stands there as a distance.
fn tokens_of(found: &Snapshot) -> Vec<u64> {
    let text = std::str::from_utf8(&found.value).unwrap();
    let mut tokens: Vec<u64> =
        text.split_whitespace().map(|number| number.parse().unwrap()).collect();
    if let Some(last) = tokens.last_mut() {
        *last += found.base;
    }
    tokens
}
