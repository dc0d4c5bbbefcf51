//! Verdict on a story: pure rules over the replies.
//!
//! The structs are the `facts` of the JSON document.

use serde::Serialize;

/// A story's end in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) ok: bool,
    pub(super) text: String,
}

/// The ends of gc-stall, lease-overlap and delayed-write: an old holder's write comes late.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct LateWrite {
    pub(super) old_token: u64,
    pub(super) new_token: u64,
    /// Reply to the late write: a status over HTTP, an error's code if it was refused.
    pub(super) late_taken: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) late_status: Option<u16>,
    pub(super) late_code: Option<String>,
    /// The mark that it met, as the refusal says.
    pub(super) late_mark: Option<u64>,
    pub(super) new_taken: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) new_status: Option<u16>,
    pub(super) old_update: String,
    pub(super) new_update: String,
    /// The document at the end.
    pub(super) final_balance: i64,
    pub(super) final_log: Vec<String>,
}

impl LateWrite {
    fn has(&self, update: &str) -> bool {
        self.final_log.iter().any(|entry| entry == update)
    }

    fn tokens_rose(&self) -> bool {
        self.old_token > 0 && self.new_token > self.old_token
    }

    fn end(&self) -> String {
        format!("balance {} ({})", self.final_balance, self.final_log.join(", "))
    }

    /// The late write was refused because of its token: 412 `stale-token`, `-FENCED` of the Redis
    /// port, or SQLSTATE FE412 of the PostgreSQL port, and by the mark of the newer one.
    fn is_stale(&self) -> bool {
        let said = matches!(
            (self.late_status, self.late_code.as_deref()),
            (Some(412), Some("stale-token")) | (None, Some("FENCED" | "FE412"))
        );
        !self.late_taken && said && self.late_mark == Some(self.new_token)
    }

    /// The late write is taken, and the newer update is gone.
    pub(super) fn lost(&self) -> Verdict {
        let taken = self.late_taken && self.new_taken;
        let lost = self.has(&self.old_update) && !self.has(&self.new_update);
        let text = if lost {
            format!("\"{}\" was acknowledged and is lost: {}", self.new_update, self.end())
        } else {
            format!("\"{}\" should be lost, and is not: {}", self.new_update, self.end())
        };
        Verdict { ok: taken && lost && self.tokens_rose(), text }
    }

    /// The late write is refused as stale, and only the newer update is there.
    pub(super) fn refused(&self) -> Verdict {
        let refused = self.is_stale();
        let kept = self.new_taken && self.has(&self.new_update) && !self.has(&self.old_update);
        let text = if refused {
            format!(
                "token {} was refused because {} had been seen, and \"{}\" is kept: {}",
                self.old_token,
                self.new_token,
                self.new_update,
                self.end()
            )
        } else {
            let said = self.late_code.as_deref().unwrap_or("success");
            let end = self.end();
            format!("the late write should be refused as stale, and was answered {said}: {end}")
        };
        Verdict { ok: refused && kept && self.tokens_rose(), text }
    }

    /// The older write landed first, and the newer one is built on it.
    pub(super) fn in_order(&self, new_was_held_back: bool) -> Verdict {
        let taken = self.late_taken && self.new_taken;
        let both = self.final_log.ends_with(&[self.old_update.clone(), self.new_update.clone()]);
        let text = format!(
            "token {} was answered before {} was let through; the last word is {}'s: {}",
            self.old_token,
            self.new_token,
            self.new_token,
            self.end()
        );
        Verdict { ok: taken && both && new_was_held_back && self.tokens_rose(), text }
    }
}

/// Facts of redis-amnesia.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Amnesia {
    /// Tokens before Redis was emptied, and the one after.
    pub(super) tokens_before: Vec<u64>,
    pub(super) token_after: u64,
    /// The guard's replies to the new and to the old holder.
    pub(super) new_status: u16,
    pub(super) old_status: u16,
}

impl Amnesia {
    fn last(&self) -> u64 {
        self.tokens_before.iter().copied().max().unwrap_or(0)
    }

    /// The counter starts again: the guard takes the old holder for the new one.
    pub(super) fn forgot(&self) -> Verdict {
        self.verdict(self.token_after <= self.last(), (self.old_status, self.new_status))
    }

    /// Tokens rise all the same.
    pub(super) fn rose(&self) -> Verdict {
        self.verdict(self.token_after > self.last(), (self.new_status, self.old_status))
    }

    fn verdict(&self, tokens: bool, (taken, refused): (u16, u16)) -> Verdict {
        let text = format!(
            "after token {} came {}: the reply to the new holder was {}, and to the one that had \
             lost the lock {}",
            self.last(),
            self.token_after,
            self.new_status,
            self.old_status
        );
        let statuses = (200..300).contains(&taken) && refused == 412;
        Verdict { ok: self.last() > 0 && tokens && statuses, text }
    }
}

/// The end of stampede.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Stampede {
    pub(super) workers: usize,
    pub(super) processes: usize,
    /// Number of successful writes.
    pub(super) acknowledged: usize,
    /// The number before and after.
    pub(super) started_at: i64,
    pub(super) ended_at: i64,
    /// Number of workers that were granted the lock in queue order.
    pub(super) served_in_order: usize,
}

impl Stampede {
    fn missing(&self) -> i64 {
        let acknowledged = i64::try_from(self.acknowledged).unwrap_or(i64::MAX);
        acknowledged - (self.started_at - self.ended_at)
    }

    fn counts(&self) -> String {
        format!(
            "{} acknowledged decrements took the number from {} to {}",
            self.acknowledged, self.started_at, self.ended_at
        )
    }

    /// Without a lock some are lost.
    pub(super) fn lost(&self) -> Verdict {
        let missing = self.missing();
        let ok = self.acknowledged == self.workers && missing > 0;
        Verdict { ok, text: format!("{}: {missing} are lost", self.counts()) }
    }

    /// Under the lock none is, and all are served in the order in which they came.
    pub(super) fn exact(&self) -> Verdict {
        let ok = self.acknowledged == self.workers
            && self.missing() == 0
            && self.served_in_order == self.workers;
        let text = format!(
            "{}: {} are lost; {} of {} were served in the order of the queue",
            self.counts(),
            self.missing(),
            self.served_in_order,
            self.workers
        );
        Verdict { ok, text }
    }
}

#[cfg(test)]
#[path = "verdict/tests.rs"]
mod tests;
