//! Requirements on every `LockStore`: invariants L1 to L3, acquire-once, the queue, and the
//! reasons.
//!
//! [`lock_store_suite!`](crate::lock_store_suite) makes a test of every case for one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fence_protocol::wire::lock::{EndReason, LockReply};
use fence_protocol::{LeaseId, LockName, Owner, Token, Ttl};
use lock_server::store::{Acquire, Grant, LockStore, Mode, Revoke, StoreError, Takeover};
use tokio::task::JoinHandle;

use crate::key_file::lease_id;
use crate::wait::{soon, until, until_true};

mod basics;
mod delays;
mod endings;
mod groups;
mod kinds;
pub mod not_offered;
mod permits;
mod principals;
mod queue;
mod revoking;
mod sessions;
mod takeover;
mod takeover_races;
mod waits;

pub use basics::*;
pub use delays::*;
pub use endings::*;
pub use groups::*;
pub use kinds::*;
pub use permits::*;
pub use principals::*;
pub use queue::*;
pub use revoking::*;
pub use sessions::*;
pub use takeover::*;
pub use takeover_races::*;
pub use waits::*;

/// The store under test, shared by the tasks of a case.
pub type Store = Arc<dyn LockStore>;

/// A time to live that no test outlasts.
const LONG_MS: u64 = 600_000;
/// A time to live that passes during a test.
const SHORT_MS: u64 = 300;

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a lock name")
}

fn owner(text: &str) -> Owner {
    Owner::new(text).expect("an owner")
}

fn request(lock: &str, ttl_ms: u64, wait_ms: u64) -> Acquire {
    let ttl = Ttl::from_ms(ttl_ms).expect("a time to live");
    Acquire { wait_ms, ..Acquire::new(name(lock), lease_id(), owner("conformance"), ttl) }
}

/// Retries with the id if the outcome is unknown: nodes of a busy machine reply late.
async fn grant(store: &Store, lock: &str, ttl_ms: u64) -> Grant {
    let request = request(lock, ttl_ms, 0);
    until("a known outcome", || async {
        match store.acquire(request.clone()).await {
            Err(error) if is_late(&error) => None,
            outcome => Some(outcome.expect("the lock is free")),
        }
    })
    .await
}

/// Releases a live lease, once more where the outcome is unknown.
async fn released(store: &Store, lock: &str, lease: LeaseId) -> Token {
    let lock = name(lock);
    let is_repeat = AtomicBool::new(false);
    until("a release of known outcome", || async {
        match store.release(&lock, lease).await {
            Err(error) if is_late(&error) => {
                is_repeat.store(true, Ordering::Relaxed);
                None
            }
            Err(StoreError::Lost { reason: EndReason::Released, .. })
                if is_repeat.load(Ordering::Relaxed) =>
            {
                let mut history = state_of(store, &lock).await.history.into_iter();
                let ended = history.find(|ended| ended.lease_id == lease).expect("its end");
                Some(ended.token.expect("its token"))
            }
            outcome => {
                let ended = outcome.expect("the lease is live");
                assert_eq!((ended.lease_id, ended.reason), (lease, EndReason::Released));
                Some(ended.token)
            }
        }
    })
    .await
}

/// Takes a lease that expires soon, however late the replies are: it is granted for long, and then
/// shortened. A store may roll back a grant whose time had passed before it could reply.
async fn brief(store: &Store, request: Acquire) -> Grant {
    let lock = request.lock.clone();
    let grant = take(store, request).await;
    shorten(store, lock.as_str(), grant.lease_id).await;
    grant
}

/// Leaves [`SHORT_MS`] to a lease, or less.
async fn shorten(store: &Store, lock: &str, lease: LeaseId) {
    let shorter = Ttl::from_ms(SHORT_MS).ok();
    until("the lease to be shortened", || async {
        match store.renew(&name(lock), lease, shorter).await {
            Ok(_) | Err(StoreError::Lost { reason: EndReason::Expired, .. }) => Some(()),
            Err(error) if is_late(&error) => None,
            Err(other) => panic!("{lock}: {other:?}"),
        }
    })
    .await;
}

fn lost(outcome: Result<Grant, StoreError>) -> EndReason {
    match outcome {
        Err(StoreError::Lost { reason, .. }) => reason,
        other => panic!("expected a lost lease: {other:?}"),
    }
}

fn shared(lock: &str, ttl_ms: u64, wait_ms: u64) -> Acquire {
    Acquire { mode: Mode::Shared, ..request(lock, ttl_ms, wait_ms) }
}

fn permit(lock: &str, size: u32, wait_ms: u64) -> Acquire {
    Acquire { mode: Mode::Permit { size }, ..request(lock, LONG_MS, wait_ms) }
}

/// Retries with the id where the store replied late.
async fn take(store: &Store, request: Acquire) -> Grant {
    until("a known outcome", || async {
        match store.acquire(request.clone()).await {
            Err(error) if is_late(&error) => None,
            outcome => Some(outcome.expect("there is room")),
        }
    })
    .await
}

/// A request that nothing can be granted to now.
async fn refused(store: &Store, request: Acquire) -> fence_protocol::wire::lock::HolderInfo {
    match store.acquire(request).await {
        Err(StoreError::Held { holder, .. }) => holder,
        other => panic!("expected a held lock: {other:?}"),
    }
}

/// Returns `true` for an error that a busy machine alone may cause.
fn is_late(error: &StoreError) -> bool {
    matches!(error, StoreError::Unknown(_) | StoreError::Unavailable(_))
}

async fn state_of(store: &Store, lock: &LockName) -> LockReply {
    until("the state of a lock", || async {
        match store.show(lock).await {
            Err(error) if is_late(&error) => None,
            shown => Some(shown.expect("show")),
        }
    })
    .await
}

async fn queue_length(store: &Store, lock: &str) -> usize {
    state_of(store, &name(lock)).await.queue_length
}

/// Waits until the queue is so long.
async fn until_queued(store: &Store, lock: &str, length: usize) {
    until_true(&format!("{length} to wait for {lock}"), || async {
        queue_length(store, lock).await == length
    })
    .await;
}

/// A request that waits in a task of its own.
type Waiting = JoinHandle<Result<Grant, StoreError>>;

/// Starts a request that must wait, and returns when it has its place in the queue; or its answer,
/// where what it should wait for was over before.
async fn enqueue(store: &Store, request: Acquire) -> Waiting {
    let lock = request.lock.clone();
    let lease = request.lease_id;
    let own = store.clone();
    let waiting = tokio::spawn(async move { own.acquire(request).await });
    until_true("a place in the queue", || async {
        let state = state_of(store, &lock).await;
        waiting.is_finished() || state.queue.iter().any(|waiter| waiter.lease_id == lease)
    })
    .await;
    waiting
}

async fn granted(waiting: Waiting) -> Grant {
    soon("the grant", waiting).await.expect("no panic").expect("a grant")
}

/// Waits until the lock is free.
async fn until_free(store: &Store, lock: &str) {
    let lock = name(lock);
    until(&format!("{lock} to be free"), || async {
        state_of(store, &lock).await.holder.is_none().then_some(())
    })
    .await;
}

/// Makes a test of every case of the suite. `$store` is an expression that gives a
/// `(guard, Store)`; the guard lives as long as the test (a Redis, a folder).
///
/// A store that cannot do everything names what it offers, and what it lacks and refuses as
/// not offered: `lock_store_suite!(store().await, offers core sessions, lacks kinds groups)`.
#[macro_export]
macro_rules! lock_store_suite {
    ($store:expr) => {
        $crate::lock_store_suite!($store,
            offers core namespace takeover kinds groups delays sessions, lacks);
    };
    ($store:expr, offers $($offered:ident)*, lacks $($lacked:ident)*) => {
        $($crate::lock_store_suite!(@$offered $store);)*
        mod not_offered {
            #[allow(unused_imports, reason = "the store may be named by a path")]
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $lacked() {
                    let (_guard, store) = $store;
                    $crate::conformance::lock_store::not_offered::$lacked(&store).await;
                }
            )*
        }
    };
    (@core $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            the_same_id_gets_the_same_grant
            an_id_belongs_to_its_owner
            a_held_lock_is_refused_with_its_holder
            patience_ends_in_a_refusal
            a_minimum_is_exceeded
            a_guards_mark_is_exceeded
            what_is_shown_is_what_was_asked
            pages_are_complete_and_in_order
            contenders_never_hold_at_once
            an_ended_id_is_never_granted_again
            an_expired_lease_is_gone_loudly
            a_renewal_replaces_the_time_and_keeps_the_token
            a_renewal_never_resurrects
            a_release_that_overtakes_its_acquire_wins
            a_release_takes_only_its_own_lease
            a_floor_parts_earlier_tokens_from_later_ones
            revoking_ends_whatever_is_live
            history_is_newest_first_and_bounded
            waiters_are_served_in_order
            no_waiter_overtakes_the_queue
            expiry_wakes_the_next_waiter
            revoking_wakes_the_next_waiter
            a_waiter_that_leaves_is_skipped
            an_undelivered_grant_is_rolled_back
            a_grant_that_was_asked_for_again_is_not_rolled_back
            a_waiter_that_is_released_never_gets_the_lock
            a_waiting_id_that_repeats_keeps_its_place
            a_revoked_holder_learns_the_reason
            a_lease_belongs_to_its_principal
            a_lease_without_a_principal_is_open
            a_waiter_belongs_to_its_principal
        );
    };
    (@namespace $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            tokens_rise_over_all_locks
            tokens_run_out_loudly
            a_minimum_lifts_all_locks
            many_tasks_on_many_locks_keep_the_tokens_unique
            minted_tokens_rise_with_the_granted
            a_grant_that_was_rolled_back_has_ended
        );
    };
    (@takeover $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            a_new_life_takes_over_at_once
            takeover_never_crosses_owners
            an_earlier_life_does_not_take_the_lock_back
            a_named_lease_is_taken_over
            a_waiting_life_takes_over_once
            a_takeover_without_a_token_changes_nothing
            one_of_many_supervisors_takes_over
            supervisors_that_wait_are_granted_in_turn
            a_takeover_races_a_release
            a_takeover_races_an_expiry
            a_takeover_races_the_end_of_the_session
            a_takeover_in_many_copies_is_one_grant
            a_bound_lease_is_taken_over
            takeover_never_crosses_principals
        );
    };
    (@kinds $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            shared_leases_live_side_by_side
            a_writer_is_not_overtaken_by_readers
            a_stream_of_readers_starves_no_writer
            readers_are_let_in_together
            a_writer_that_leaves_lets_the_readers_in
            readers_and_writers_never_meet
            shared_leases_are_bounded
            one_of_several_leases_ends_alone
            the_refusal_names_who_goes_first
            permits_are_as_many_as_the_size
            permits_never_exceed_the_size
            a_permit_is_waited_for_in_order
            another_kind_is_refused
            a_waiting_kind_is_a_kind
            a_repeat_with_another_mode_is_the_same_grant
            what_is_shared_is_not_taken_over
            a_session_holds_several_permits_of_one_lock
            several_leases_are_shown_and_listed
            one_of_several_is_revoked
            everything_is_revoked_oldest_first
            a_revocation_lets_the_queue_in
        );
    };
    (@groups $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            a_group_is_granted_as_one
            a_group_is_all_or_nothing
            a_group_is_granted_once
            an_ended_group_is_not_granted_again
            the_leases_of_a_group_are_independent
            a_waiting_group_holds_nothing_and_keeps_its_places
            a_waiting_group_that_repeats_keeps_its_places
            a_group_that_leaves_frees_those_behind_it
            a_group_that_loses_patience_frees_those_behind_it
            a_group_that_is_released_frees_those_behind_it
            a_group_whose_session_ends_frees_those_behind_it
            a_group_of_a_session_is_bound_to_it
            an_undelivered_grant_of_a_group_is_rolled_back
            a_retried_grant_of_a_group_is_not_rolled_back
            crossing_groups_wait_in_one_order
            philosophers_never_starve
            groups_and_single_waiters_get_on
            a_group_has_modes
            a_large_group_is_one_step
            the_holder_of_a_revoked_part_of_a_group_learns_the_reason
            a_group_belongs_to_its_principal
        );
    };
    (@delays $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            a_delay_closes_the_lock_after_expiry
            a_delay_closes_the_lock_after_a_session
            a_holders_word_leaves_no_delay
            a_delay_closes_one_place_of_several
            a_delay_keeps_writers_out_and_lets_readers_in
            a_delay_is_lifted_by_a_revocation
            a_group_waits_for_a_delay
        );
    };
    (@sessions $store:expr) => {
        $crate::lock_store_suite!(@cases $store;
            a_session_is_created_once
            a_session_keeps_its_principal
            a_heartbeat_keeps_every_lease
            the_end_of_a_session_frees_its_leases_together
            an_expired_session_wakes_the_waiters
            an_ended_session_is_granted_nothing
            a_blocked_session_ends_at_its_time
            a_bound_lease_is_a_lease
            a_session_belongs_to_its_owner
            sessions_hand_locks_to_each_other
            session_pages_are_complete_and_in_order
            a_large_session_ends_as_one
        );
    };
    (@cases $store:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (_guard, store) = $store;
                $crate::conformance::lock_store::$case(&store).await;
            }
        )*
    };
}
