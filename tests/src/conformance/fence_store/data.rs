//! Objects: values, versions and conditions.

use super::*;

fn etag_of(outcome: &FenceOutcome) -> Option<ETag> {
    match outcome {
        FenceOutcome::PreconditionFailed { etag, .. } => etag.clone(),
        other => panic!("{other:?}"),
    }
}

async fn found(store: &Store, at: &str) -> Object {
    match store.apply(None, get(at)).await.expect("the store works") {
        FenceOutcome::Applied { effect: Effect::Found(object), .. } => object,
        other => panic!("{other:?}"),
    }
}

/// A stale holder learns that it is stale, not whether its condition would hold.
pub async fn the_fence_comes_before_the_condition(store: &Store) {
    applied(store, fence("order", 2), put("order", "a")).await;
    for condition in [Condition::Absent, Condition::Exists] {
        let operation = put_if("order", "late", condition);
        let outcome = store.apply(Some(fence("order", 1)), operation).await.unwrap();
        assert_eq!(outcome, FenceOutcome::Stale { mark: mark(2, 2) });
    }
    assert_eq!(text_at(store, "order").await.as_deref(), Some("a"));
}

/// A condition that fails was answered to the holder of the token: G2 holds for it too.
pub async fn a_failed_condition_raises_the_mark_alone(store: &Store) {
    applied(store, fence("failed", 1), put("failed", "a")).await;
    let tag = found(store, "failed").await.etag;
    for (token, operation) in [
        (2, put_if("failed", "b", Condition::Absent)),
        (
            3,
            Operation::Delete {
                key: key("failed"),
                condition: Condition::NoneOf(vec![tag.clone()]),
            },
        ),
    ] {
        let outcome = store.apply(Some(fence("failed", token)), operation).await.unwrap();
        let expected = Token::new(token).ok();
        assert!(
            matches!(&outcome, FenceOutcome::PreconditionFailed { mark, .. } if *mark == expected),
            "{outcome:?}"
        );
        assert_eq!(etag_of(&outcome), Some(tag.clone()));
        assert_eq!(mark_of(store, "failed").await, Some(mark(token, token)));
    }
    let late = store.apply(Some(fence("failed", 1)), put("failed", "late")).await.unwrap();
    assert_eq!(late, FenceOutcome::Stale { mark: mark(3, 3) });
    assert_eq!(text_at(store, "failed").await.as_deref(), Some("a"));
}

/// A condition holds for exactly one version, also where a later one has the same bytes.
pub async fn conditions_compare_the_version(store: &Store) {
    let fence = || fence("versions", 1);
    let at = "versions";
    let missing = put_if(at, "a", Condition::Exists);
    assert_eq!(etag_of(&store.apply(Some(fence()), missing).await.unwrap()), None);
    let created = applied(store, fence(), put_if(at, "a", Condition::Absent)).await;
    assert_eq!(created, Effect::Stored { created: true });
    let first = found(store, at).await.etag;
    let matching = put_if(at, "a", Condition::AnyOf(vec![first.clone()]));
    assert_eq!(applied(store, fence(), matching.clone()).await, Effect::Stored { created: false });
    let second = found(store, at).await.etag;
    assert_ne!(first, second);
    let again = store.apply(Some(fence()), matching).await.unwrap();
    assert_eq!(etag_of(&again), Some(second.clone()));
    let one_of = put_if(at, "b", Condition::AnyOf(vec![first.clone(), second]));
    applied(store, fence(), one_of).await;
    applied(store, fence(), put_if(at, "c", Condition::NoneOf(vec![first]))).await;
    let gone = Operation::Delete { key: key(at), condition: Condition::Exists };
    assert_eq!(applied(store, fence(), gone.clone()).await, Effect::Deleted);
    assert_eq!(etag_of(&store.apply(Some(fence()), gone).await.unwrap()), None);
}

/// Operations on keys that a rule declares open compare no token and raise no mark.
pub async fn without_a_fence_nothing_is_raised(store: &Store) {
    let outcome = store.apply(None, put("open", "a")).await.unwrap();
    let effect = Effect::Stored { created: true };
    assert_eq!(outcome, FenceOutcome::Applied { effect, mark: None });
    assert_eq!(mark_of(store, "open").await, None);
    let outcome = store.apply(None, delete("open")).await.unwrap();
    assert_eq!(outcome, FenceOutcome::Applied { effect: Effect::Deleted, mark: None });
}

/// Bytes, media type and tag come back as they were given.
pub async fn every_byte_comes_back(store: &Store) {
    let all: Vec<u8> = (0..=255_u8).collect();
    let large: Vec<u8> = all.iter().copied().cycle().take(1_500_000).collect();
    for body in [Vec::new(), b"\r\n\0".to_vec(), all, large] {
        let object = Object {
            etag: ETag::from_body(&body, &fence_nonce()),
            content_type: "application/x-thing; v=1".to_owned(),
            body: Bytes::from(body),
        };
        let operation = Operation::Put {
            key: key("bytes"),
            object: object.clone(),
            condition: Condition::None,
        };
        applied(store, fence("bytes", 1), operation).await;
        assert!(found(store, "bytes").await == object, "{} bytes differ", object.body.len());
    }
}

/// Removing what is not there is a success that says so.
pub async fn deleting_says_what_was_there(store: &Store) {
    assert_eq!(applied(store, fence("deleted", 1), delete("deleted")).await, Effect::Absent);
    applied(store, fence("deleted", 1), put("deleted", "a")).await;
    assert_eq!(applied(store, fence("deleted", 1), delete("deleted")).await, Effect::Deleted);
    assert_eq!(applied(store, fence("deleted", 1), get("deleted")).await, Effect::Absent);
    let again = applied(store, fence("deleted", 1), put("deleted", "b")).await;
    assert_eq!(again, Effect::Stored { created: true });
}
