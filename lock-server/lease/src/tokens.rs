//! Token sources when the counter may have lost its memory.

use fence_protocol::Token;
pub use fence_protocol::token::{EPOCH_2025_MS, TOKENS_PER_MS, clock_floor};

/// Distance above the clock floor to which a client may lift the counter: one hour of clock.
pub const LIFT_SLACK: u64 = 3_600_000 * TOKENS_PER_MS;

/// Highest mark of a guard that the counter is lifted to. It leaves 10^12 tokens; no lock server
/// with a correct clock issues more before the year 2056, so a higher mark is forged, and lifting
/// the counter to it would use up the tokens of the namespace.
pub const CREDIBLE_MARK_MAX: u64 = Token::MAX - 1_000_000_000_000;

/// Returns the first value of a counter whose memory may be lost: above every token that can have
/// been issued, even if a client had lifted the counter as far as [`min_token_ceiling`] allows.
pub fn restart_floor(wall_ms: u64) -> u64 {
    clock_floor(wall_ms).saturating_add(LIFT_SLACK)
}

/// Returns the next value of a counter that has lost its memory, as a guard has seen `mark`. Tokens
/// that were issued and never reached a guard may be above that mark.
pub fn after_loss(mark: u64, wall_ms: u64) -> u64 {
    restart_floor(wall_ms).max(mark)
}

/// Returns the highest `min_token` that a client may request.
///
/// A guard's mark can be above the counter when the counter lost its memory, and then it is at most
/// about the clock floor. Without this bound one request could use up all remaining tokens.
pub fn min_token_ceiling(counter: u64, wall_ms: u64) -> u64 {
    counter.max(clock_floor(wall_ms)).saturating_add(LIFT_SLACK).min(Token::MAX - 1)
}

/// Returns the next token after `counter` that also exceeds `min_token`; `None` when tokens are
/// exhausted.
pub fn next(counter: u64, min_token: Option<Token>) -> Option<Token> {
    Token::new(counter.max(min_token.map_or(0, Token::get)) + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_leaves_decades() {
        let year_2050_ms = EPOCH_2025_MS + 25 * 366 * 86_400_000;
        assert!(clock_floor(year_2050_ms) < Token::MAX - LIFT_SLACK);
        assert_eq!(clock_floor(0), 0);
        assert_eq!(clock_floor(EPOCH_2025_MS + 2), 2_000);
    }

    /// A client lifts the counter as far as allowed, tokens are issued at the full rate, and then
    /// the memory is lost: the new first value is above all of them, at every later time.
    #[test]
    fn a_lifted_counter_is_below_the_next_beginning() {
        let lifted_at_ms = EPOCH_2025_MS + 1_000_000;
        let lifted = min_token_ceiling(0, lifted_at_ms) + 1;
        for later_ms in [0, 1, 999, 3_600_000, 86_400_000] {
            let issued = lifted + later_ms * TOKENS_PER_MS;
            let begins = next(restart_floor(lifted_at_ms + later_ms), None).unwrap().get();
            assert!(begins >= issued, "{begins} after {issued}");
        }
    }

    /// Above the mark that was seen, and above the tokens that were issued and never seen.
    #[test]
    fn after_a_loss_both_witnesses_count() {
        let wall_ms = EPOCH_2025_MS + 5;
        assert_eq!(after_loss(34, wall_ms), restart_floor(wall_ms));
        let mark = restart_floor(wall_ms) + 7;
        assert_eq!(after_loss(mark, wall_ms), mark);
    }

    #[test]
    fn the_next_token_is_above_both() {
        assert_eq!(next(0, None).unwrap().get(), 1);
        assert_eq!(next(33, Some(Token::new(40).unwrap())).unwrap().get(), 41);
        assert_eq!(next(50, Some(Token::new(40).unwrap())).unwrap().get(), 51);
        assert_eq!(next(Token::MAX, None), None);
    }

    #[test]
    fn one_request_cannot_use_up_the_tokens() {
        let ceiling = min_token_ceiling(34, EPOCH_2025_MS + 1_000);
        assert_eq!(ceiling, 1_000_000 + LIFT_SLACK);
        assert!(min_token_ceiling(Token::MAX, 0) < Token::MAX);
    }
}
