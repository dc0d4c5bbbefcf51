//! Requirements on every `FenceStore`: check, raise and effect in one step, and refusals that
//! change nothing (G1 to G6).
//!
//! [`fence_store_suite!`](crate::fence_store_suite) makes a test of every case for one store.

use std::sync::Arc;

use bytes::Bytes;
use fence_protocol::{LeaseId, LockName, Token};
use fenced_store::etag::{Condition, ETag};
use fenced_store::key::ObjectKey;
use fenced_store::stores::contract::{
    Effect, FenceOutcome, FenceStore, First, Object, Once, Operation,
};
use fenced_store::verdict::{Fence, Mark};

mod data;
mod marks;
mod names;
mod races;

pub use data::*;
pub use marks::*;
pub use names::*;
pub use races::*;

/// The store under test, shared by the tasks of a case.
pub type Store = Arc<dyn FenceStore>;

fn lock(name: &str) -> LockName {
    LockName::new(name).expect("a lock name")
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

/// Lease `n` is a UUID that ends in `n`.
fn mark(token: u64, lease: u64) -> Mark {
    let lease = lease & 0xffff_ffff_ffff;
    let lease: LeaseId = format!("00000000-0000-4000-8000-{lease:012x}").parse().expect("an id");
    Mark { token: Token::new(token).expect("a token"), lease }
}

/// Token `token` of lease `token`.
fn fence(name: &str, token: u64) -> Fence {
    Fence { lock: lock(name), presented: mark(token, token) }
}

fn object(body: &str) -> Object {
    let nonce = fence_nonce();
    Object {
        etag: ETag::from_body(body.as_bytes(), &nonce),
        content_type: "text/plain".to_owned(),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

fn fence_nonce() -> String {
    service_kit::ids::random_hex(8)
}

fn put(at: &str, body: &str) -> Operation {
    Operation::Put { key: key(at), object: object(body), condition: Condition::None }
}

fn put_if(at: &str, body: &str, condition: Condition) -> Operation {
    Operation::Put { key: key(at), object: object(body), condition }
}

fn get(at: &str) -> Operation {
    Operation::Get { key: key(at) }
}

fn delete(at: &str) -> Operation {
    Operation::Delete { key: key(at), condition: Condition::None }
}

/// Applies an operation that the fence must admit and whose condition must hold.
async fn applied(store: &Store, fence: Fence, operation: Operation) -> Effect {
    let presented = fence.presented.token;
    match store.apply(Some(fence), operation).await.expect("the store works") {
        FenceOutcome::Applied { effect, mark } => {
            assert_eq!(mark, Some(presented), "the mark is what was presented");
            effect
        }
        other => panic!("{other:?}"),
    }
}

/// Reads the object without a fence, so that the read changes nothing.
async fn text_at(store: &Store, at: &str) -> Option<String> {
    match store.apply(None, get(at)).await.expect("the store works") {
        FenceOutcome::Applied { effect: Effect::Found(object), .. } => {
            Some(String::from_utf8(object.body.to_vec()).expect("text"))
        }
        FenceOutcome::Applied { effect: Effect::Absent, .. } => None,
        other => panic!("{other:?}"),
    }
}

async fn mark_of(store: &Store, name: &str) -> Option<Mark> {
    store.show(&lock(name)).await.expect("the store works")
}

/// Makes a test of every case of the suite. `$store` is an expression that gives a
/// `(guard, Store)`; the guard lives as long as the test (a Redis, a folder).
#[macro_export]
macro_rules! fence_store_suite {
    ($store:expr) => {
        $crate::fence_store_suite!(@cases $store;
            the_first_token_makes_the_mark
            the_holder_of_the_mark_continues
            a_stale_token_changes_nothing
            a_collision_changes_nothing
            reads_raise_the_mark
            deletes_raise_the_mark
            seals_raise_the_mark_alone
            one_lock_covers_many_keys
            locks_do_not_touch_each_other
            the_largest_tokens_are_exact
            fences_are_listed_in_pages
            the_fence_comes_before_the_condition
            a_failed_condition_raises_the_mark_alone
            conditions_compare_the_version
            without_a_fence_nothing_is_raised
            every_byte_comes_back
            deleting_says_what_was_there
            racing_tokens_leave_the_highest
            racing_tokens_and_conditions_lose_nothing
            a_repeat_gives_the_first_outcome
            the_next_holder_repeats_too
            a_stale_repeat_learns_what_was_done
            a_collision_learns_nothing
            a_failed_condition_is_remembered
            a_name_is_taken_once
            the_last_names_are_kept
            open_operations_can_be_named
            racing_repeats_do_it_once
            the_highest_mark_is_known
        );
    };
    (@cases $store:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (_guard, store) = $store;
                $crate::conformance::fence_store::$case(&store).await;
            }
        )*
    };
}
