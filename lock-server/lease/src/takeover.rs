//! Takeover rules: an owner takes a lock over only from itself, and a principal only its own lease.

use fence_protocol::wire::lock::EndReason;
use fence_protocol::{LeaseId, Owner};

use super::principal::is_anothers;
use super::record::{Holder, Record};
use crate::{Acquire, Mode, NoTakeover, Takeover};

/// Effect of an acquire on the live lease of another id.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict<'a> {
    /// None: it is granted, waits or is refused like any other.
    Ordinary,
    /// It ends this lease and is granted in the same transition, before all waiters.
    Supersede(LeaseId),
    /// It is refused: the lease is not its own.
    Refuse(&'a Holder, NoTakeover),
    /// It is refused: another principal acquired this lease.
    OfAnother(LeaseId),
}

/// Decides on the takeover of an acquire.
///
/// Incarnations have no order: that one of them was taken over distinguishes the earlier from the
/// later. So two processes that run under one name by mistake do not take the lock from each other
/// in turns, and a late request of a dead process does not take it from a live one.
pub(super) fn verdict<'a>(record: &'a Record, request: &Acquire) -> Verdict<'a> {
    // A shared lock, or one in a lock-delay, is granted in the usual order.
    let holder = record.exclusive().filter(|_| request.mode == Mode::Exclusive);
    let Some(holder) = holder else { return Verdict::Ordinary };
    let same_owner = holder.owner == request.owner;
    let verdict = match request.takeover {
        Takeover::Never => Verdict::Ordinary,
        Takeover::Of(lease_id) if holder.lease_id != lease_id => Verdict::Ordinary,
        Takeover::Of(_) if same_owner => Verdict::Supersede(holder.lease_id),
        Takeover::Of(_) => Verdict::Refuse(holder, NoTakeover::OtherOwner),
        Takeover::EarlierSelf if !same_owner => {
            unless_it_waits(holder, request, NoTakeover::OtherOwner)
        }
        Takeover::EarlierSelf if was_taken_over(record, request) => {
            Verdict::Refuse(holder, NoTakeover::WasTakenOver)
        }
        Takeover::EarlierSelf if holder.incarnation.is_none() || request.incarnation.is_none() => {
            unless_it_waits(holder, request, NoTakeover::NoIncarnation)
        }
        // One incarnation has two requests under way: the second waits for the first.
        Takeover::EarlierSelf if holder.incarnation == request.incarnation => Verdict::Ordinary,
        Takeover::EarlierSelf => Verdict::Supersede(holder.lease_id),
    };
    match verdict {
        Verdict::Supersede(lease_id) if !may_supersede(holder, request) => {
            let waits = request.takeover == Takeover::EarlierSelf && request.wait_ms > 0;
            if waits { Verdict::Ordinary } else { Verdict::OfAnother(lease_id) }
        }
        verdict => verdict,
    }
}

fn may_supersede(holder: &Holder, request: &Acquire) -> bool {
    !is_anothers(holder.principal.as_deref(), request.principal.as_deref())
        || request.may_supersede == Some(holder.lease_id)
}

/// Queues a request that is willing to wait instead of refusing it.
fn unless_it_waits<'a>(holder: &'a Holder, request: &Acquire, why: NoTakeover) -> Verdict<'a> {
    if request.wait_ms > 0 { Verdict::Ordinary } else { Verdict::Refuse(holder, why) }
}

fn was_taken_over(record: &Record, request: &Acquire) -> bool {
    let same = |theirs: &Option<Owner>, mine: &Owner| theirs.as_ref() == Some(mine);
    let Some(mine) = &request.incarnation else { return false };
    record.ended.iter().any(|ended| {
        ended.reason == EndReason::Superseded
            && same(&ended.owner, &request.owner)
            && same(&ended.incarnation, mine)
    })
}
