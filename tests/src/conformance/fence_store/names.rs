//! Operations that were named: a retry gets the result of the first, and nothing is done
//! twice.

use super::*;

fn once(name: &str, id: &str, operation: &Operation) -> Option<Once> {
    Some(Once::new(Some(&lock(name)), id, operation))
}

/// Does `operation` under the name `id` of the lock of the fence.
async fn named(store: &Store, fence: &Fence, id: &str, operation: Operation) -> FenceOutcome {
    let once = once(fence.lock.as_str(), id, &operation);
    store.apply_once(Some(fence.clone()), operation, once).await.expect("the store works")
}

fn repeated(first: First, token: u64) -> FenceOutcome {
    FenceOutcome::Repeated { first, mark: Token::new(token).ok() }
}

fn put_etag(operation: &Operation) -> ETag {
    match operation {
        Operation::Put { object, .. } => object.etag.clone(),
        other => panic!("{other:?}"),
    }
}

/// The same operation as a later attempt sends it: with a tag of its own.
fn again(operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    if let Operation::Put { object, .. } = &mut operation {
        object.etag = ETag::from_body(&object.body, &fence_nonce());
    }
    operation
}

/// A repeat gives the first outcome and the first tag, also where others wrote since.
pub async fn a_repeat_gives_the_first_outcome(store: &Store) {
    let fence = fence("repeat", 1);
    let write = put("repeat/a", "first");
    let stored = First::Stored { created: true, etag: put_etag(&write) };
    let effect = Effect::Stored { created: true };
    let applied_now = FenceOutcome::Applied { effect, mark: Token::new(1).ok() };
    assert_eq!(named(store, &fence, "w", write.clone()).await, applied_now);
    for _ in 0..2 {
        assert_eq!(named(store, &fence, "w", again(&write)).await, repeated(stored.clone(), 1));
    }
    applied(store, fence.clone(), put("repeat/a", "second")).await;
    assert_eq!(named(store, &fence, "w", again(&write)).await, repeated(stored, 1));
    assert_eq!(text_at(store, "repeat/a").await.as_deref(), Some("second"));
    let gone = delete("repeat/a");
    named(store, &fence, "d", gone.clone()).await;
    applied(store, fence.clone(), put("repeat/a", "third")).await;
    let deleted = First::Deleted { existed: true };
    assert_eq!(named(store, &fence, "d", gone).await, repeated(deleted, 1));
    assert_eq!(text_at(store, "repeat/a").await.as_deref(), Some("third"));
    let nothing = delete("repeat/none");
    named(store, &fence, "n", nothing.clone()).await;
    let absent = First::Deleted { existed: false };
    assert_eq!(named(store, &fence, "n", nothing).await, repeated(absent, 1));
}

/// The name belongs to the lock, not to the lease: a client that takes the work over does not do it
/// twice, and its repeat raises the mark as any operation does.
pub async fn the_next_holder_repeats_too(store: &Store) {
    let write = put("handed", "first");
    let stored = First::Stored { created: true, etag: put_etag(&write) };
    named(store, &fence("handed", 1), "job-7", write.clone()).await;
    let outcome = named(store, &fence("handed", 2), "job-7", again(&write)).await;
    assert_eq!(outcome, repeated(stored, 2));
    assert_eq!(mark_of(store, "handed").await, Some(mark(2, 2)));
    let late = store.apply(Some(fence("handed", 1)), put("handed", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(2, 2) });
}

/// A stale holder is refused, and learns what became of what it had sent before.
pub async fn a_stale_repeat_learns_what_was_done(store: &Store) {
    let old = fence("stale-names", 1);
    let write = put("stale-names", "first");
    let first = First::Stored { created: true, etag: put_etag(&write) };
    named(store, &old, "w", write.clone()).await;
    applied(store, fence("stale-names", 2), put("stale-names", "second")).await;
    let expected = FenceOutcome::StaleRepeat { mark: mark(2, 2), first };
    assert_eq!(named(store, &old, "w", again(&write)).await, expected);
    let refused = FenceOutcome::Stale { mark: mark(2, 2) };
    assert_eq!(named(store, &old, "new", put("stale-names", "late")).await, refused);
    assert_eq!(named(store, &old, "w", put("stale-names", "other")).await, refused);
    assert_eq!(text_at(store, "stale-names").await.as_deref(), Some("second"));
    // A refusal was not remembered under the name.
    let newer = fence("stale-names", 3);
    let outcome = named(store, &newer, "new", put("stale-names", "late")).await;
    assert!(matches!(outcome, FenceOutcome::Applied { .. }), "{outcome:?}");
}

/// A collision is an alarm, whatever the name.
pub async fn a_collision_learns_nothing(store: &Store) {
    let write = put("colliding-names", "first");
    named(store, &fence("colliding-names", 1), "w", write.clone()).await;
    let twin = Fence { lock: lock("colliding-names"), presented: mark(1, 9) };
    let outcome = named(store, &twin, "w", again(&write)).await;
    assert_eq!(outcome, FenceOutcome::Collision { mark: mark(1, 1) });
}

/// A condition that failed once has failed: the name is decided.
pub async fn a_failed_condition_is_remembered(store: &Store) {
    let fence = fence("decided", 1);
    applied(store, fence.clone(), put("decided", "there")).await;
    let create = put_if("decided", "new", Condition::Absent);
    let failed = named(store, &fence, "c", create.clone()).await;
    let FenceOutcome::PreconditionFailed { etag, .. } = failed else { panic!("{failed:?}") };
    assert!(etag.is_some());
    applied(store, fence.clone(), delete("decided")).await;
    let first = First::PreconditionFailed { etag };
    assert_eq!(named(store, &fence, "c", again(&create)).await, repeated(first, 1));
    let update = put_if("decided", "new", Condition::Exists);
    named(store, &fence, "e", update.clone()).await;
    let first = First::PreconditionFailed { etag: None };
    assert_eq!(named(store, &fence, "e", again(&update)).await, repeated(first, 1));
    assert_eq!(text_at(store, "decided").await, None);
}

/// One name, one operation; the mark rises all the same, because the holder was answered.
pub async fn a_name_is_taken_once(store: &Store) {
    named(store, &fence("taken", 1), "w", put("taken", "first")).await;
    for (token, other) in [
        (1, put("taken", "other")),
        (2, put("taken/b", "first")),
        (3, put_if("taken", "first", Condition::Exists)),
        (4, delete("taken")),
    ] {
        let outcome = named(store, &fence("taken", token), "w", other).await;
        assert_eq!(outcome, FenceOutcome::NameTaken { mark: Token::new(token).ok() });
        assert_eq!(mark_of(store, "taken").await, Some(mark(token, token)));
    }
    assert_eq!(text_at(store, "taken").await.as_deref(), Some("first"));
    // Another lock has names of its own.
    let elsewhere = put("elsewhere", "first");
    let outcome = named(store, &fence("elsewhere", 1), "w", elsewhere).await;
    assert!(matches!(outcome, FenceOutcome::Applied { .. }), "{outcome:?}");
}

/// The number of remembered names is bounded: the last ones are kept.
pub async fn the_last_names_are_kept(store: &Store) {
    let fence = fence("many", 1);
    let first = put("many/0", "0");
    let kept = Once::new(Some(&lock("many")), "0", &first).capacity();
    named(store, &fence, "0", first.clone()).await;
    let second = put("many/1", "1");
    named(store, &fence, "1", second.clone()).await;
    for n in 2..=kept {
        named(store, &fence, &n.to_string(), put("many/n", &n.to_string())).await;
    }
    let outcome = named(store, &fence, "1", again(&second)).await;
    assert!(
        matches!(outcome, FenceOutcome::Repeated { .. }),
        "the oldest that is kept: {outcome:?}"
    );
    let outcome = named(store, &fence, "0", again(&first)).await;
    assert!(matches!(outcome, FenceOutcome::Applied { .. }), "one too many is kept: {outcome:?}");
    // That took the place of the oldest, and of no other.
    let outcome = named(store, &fence, "1", again(&second)).await;
    assert!(matches!(outcome, FenceOutcome::Applied { .. }), "two too many are kept: {outcome:?}");
    let last = put("many/n", &kept.to_string());
    let outcome = named(store, &fence, &kept.to_string(), last).await;
    assert!(matches!(outcome, FenceOutcome::Repeated { .. }), "{outcome:?}");
}

/// Operations on open keys have names too, each key its own.
pub async fn open_operations_can_be_named(store: &Store) {
    let write = put("open/a", "a");
    let other = put("open/b", "b");
    let apply = async |operation: &Operation| {
        let once = Once::new(None, "w", operation);
        store.apply_once(None, again(operation), Some(once)).await.unwrap()
    };
    for operation in [&write, &other] {
        let outcome = apply(operation).await;
        assert!(matches!(outcome, FenceOutcome::Applied { mark: None, .. }), "{outcome:?}");
        let outcome = apply(operation).await;
        assert!(matches!(outcome, FenceOutcome::Repeated { mark: None, .. }), "{outcome:?}");
    }
}

/// Many attempts at the same moment do it once.
pub async fn racing_repeats_do_it_once(store: &Store) {
    const ATTEMPTS: usize = 16;
    for round in 0..8_u64 {
        let at = format!("racing-names/{round}");
        let operation = put(&at, "once");
        let attempts = (0..ATTEMPTS).map(|_| {
            let store = Arc::clone(store);
            let operation = again(&operation);
            tokio::spawn(async move {
                named(&store, &fence("racing-names", 1), &round.to_string(), operation).await
            })
        });
        let attempts: Vec<_> = attempts.collect();
        let mut now = 0;
        let mut before = Vec::new();
        for attempt in attempts {
            match attempt.await.expect("no panic") {
                FenceOutcome::Applied { .. } => now += 1,
                FenceOutcome::Repeated { first, .. } => before.push(first),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((now, before.len()), (1, ATTEMPTS - 1));
        let FenceOutcome::Applied { effect: Effect::Found(found), .. } =
            store.apply(None, get(&at)).await.unwrap()
        else {
            panic!("nothing is there")
        };
        let first = First::Stored { created: true, etag: found.etag };
        assert!(before.iter().all(|seen| *seen == first), "{before:?}");
    }
}

/// The highest mark, which the lock server reads: no mark is above it.
pub async fn the_highest_mark_is_known(store: &Store) {
    let highest = async || store.highest_mark().await.expect("the store works");
    let before = highest().await.map_or(0, Token::get);
    applied(store, fence("highest/a", before + 7), put("highest/a", "a")).await;
    assert_eq!(highest().await, Token::new(before + 7).ok());
    applied(store, fence("highest/b", before + 3), get("highest/b")).await;
    assert_eq!(highest().await, Token::new(before + 7).ok());
    store.seal(fence("highest/b", before + 9)).await.expect("the store works");
    assert_eq!(highest().await, Token::new(before + 9).ok());
    let stale = store.seal(fence("highest/b", before + 8)).await.expect("the store works");
    assert!(matches!(stale, FenceOutcome::Stale { .. }), "{stale:?}");
    assert_eq!(highest().await, Token::new(before + 9).ok());
}
