//! Properties that hold in every state.

use stateright::Property;

use super::bounds::{Bounds, Recovery};
use super::proposer::Proposer;
use super::world::{Loss, World};

pub(super) const UNIQUE: &str = "a token has one lease";
pub(super) const ORDERED: &str = "a later grant has a higher token";
pub(super) const ONE_HOLDER: &str = "a lock has one holder, with one token";

impl Bounds {
    pub(super) fn all_properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(UNIQUE, |bounds: &Self, world: &World| {
                pairs(bounds, world).all(|(one, other, same_lease)| {
                    let one = one.granted();
                    let other = other.granted();
                    same_lease || one.is_none() || one != other
                })
            }),
            Property::always(ORDERED, |bounds: &Self, world: &World| {
                world.proposers.iter().all(|proposer| match proposer.granted() {
                    // A repeat of a request that was granted before gets the same token.
                    Some(token) if bounds.repeats() => Some(token) >= proposer.granted_before,
                    Some(token) => Some(token) > proposer.granted_before,
                    None => true,
                })
            }),
            Property::always(ONE_HOLDER, |bounds: &Self, world: &World| {
                // Other locks are no rivals.
                bounds.requests[0].lock != bounds.requests[1].lock
                    || pairs(bounds, world).all(|(one, other, same_lease)| {
                        let both = one.believes(world.now_ms) && other.believes(world.now_ms);
                        !both || (same_lease && one.granted() == other.granted())
                    })
            }),
        ];
        // Where the bounds leave room for it: what never happens is not checked either.
        let rivals = self.requests[0].lock == self.requests[1].lock && !self.releases;
        let room = self.tokens >= self.requests.len() as u64 && !(rivals && self.time_ms == 0);
        if room || self.repeats() {
            properties.push(Property::sometimes("everybody is granted", |_, world: &World| {
                world.proposers.iter().all(|proposer| proposer.granted().is_some())
            }));
        }
        if self.recovery != Recovery::NoLoss && (!self.waits || self.time_ms > 1) {
            properties.push(Property::sometimes("the loser votes again", |_, world: &World| {
                world.loss == Loss::Over
            }));
        }
        properties
    }
}

/// Every two proposers, and whether they are of one lease.
fn pairs<'a>(
    bounds: &'a Bounds,
    world: &'a World,
) -> impl Iterator<Item = (&'a Proposer, &'a Proposer, bool)> {
    let of = |at: usize| (&world.proposers[at], bounds.requests[at].lease);
    let count = world.proposers.len();
    (0..count).flat_map(move |one| {
        (one + 1..count).map(move |other| {
            let (a, a_lease) = of(one);
            let (b, b_lease) = of(other);
            (a, b, a_lease == b_lease)
        })
    })
}
