//! Highest token that a lock server can have issued.
//!
//! A mark never falls, so one token near the maximum would refuse every holder from then on. A
//! signed token was issued by the lock server. An unsigned one is bounded by this guard's clock:
//! tokens stay below the clock floor, and above it by what lock servers with fast clocks may have
//! issued.

use fence_protocol::Token;
use fence_protocol::token::{EPOCH_2025_MS, clock_floor};

const DAY_MS: u64 = 86_400_000;
/// Time by which a lock server's clock may be ahead of this guard's: ten years.
const TOKEN_AHEAD_MS: u64 = 3_660 * DAY_MS;
/// Time by which a floor may be ahead, unless an operator forces it.
const FLOOR_AHEAD_MS: u64 = DAY_MS;

/// Returns the highest unsigned token admitted at `wall_ms`, milliseconds since 1970.
pub(crate) fn token_max(wall_ms: u64) -> u64 {
    ahead(wall_ms, TOKEN_AHEAD_MS)
}

/// Returns the highest floor accepted without force at `wall_ms`, milliseconds since 1970.
pub(crate) fn floor_max(wall_ms: u64) -> u64 {
    ahead(wall_ms, FLOOR_AHEAD_MS)
}

/// Returns the clock floor at a later time. A clock before 2025 is wrong, and must not refuse
/// everything.
fn ahead(wall_ms: u64, by_ms: u64) -> u64 {
    clock_floor(wall_ms.max(EPOCH_2025_MS).saturating_add(by_ms)).min(Token::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lock_server_issues_is_credible() {
        for wall_ms in [0, EPOCH_2025_MS, EPOCH_2025_MS + 700 * DAY_MS] {
            let issued = clock_floor(wall_ms) + 1;
            assert!(issued < floor_max(wall_ms), "{wall_ms}");
            assert!(floor_max(wall_ms) < token_max(wall_ms), "{wall_ms}");
            assert!(token_max(wall_ms) < Token::MAX, "{wall_ms}");
        }
        assert_eq!(token_max(u64::MAX), Token::MAX);
    }
}
