//! Permission to forward one operation, with the duty to report its end.

use std::sync::Weak;

use fence_protocol::LockName;

use super::lane::Kind;

/// Receiver of the ends of forwarded operations.
pub(super) trait OperationEnds: std::fmt::Debug + Send + Sync {
    /// The upstream has replied, or was certainly not reached.
    fn ended(&self, lock: &LockName, kind: Kind);

    /// A forwarded write has no reply, so it may still take effect.
    fn unanswered(&self, lock: &LockName, kind: Kind);
}

/// One admitted operation. A write whose ticket is dropped without a report counts as unanswered.
#[derive(Debug)]
pub(super) struct Ticket {
    lanes: Weak<dyn OperationEnds>,
    lock: LockName,
    kind: Kind,
    is_settled: bool,
}

impl Ticket {
    pub(super) fn new(lanes: Weak<dyn OperationEnds>, lock: LockName, kind: Kind) -> Self {
        Self { lanes, lock, kind, is_settled: false }
    }

    /// Its form.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Reports that the upstream has replied, or was certainly not reached.
    pub(super) fn ended(mut self) {
        self.settle(false);
    }

    /// Notes that a conditional write may take effect whatever the version is.
    pub(super) fn lose_condition(&mut self) {
        self.kind = Kind::Write;
    }

    /// Reports an unknown outcome.
    pub(super) fn unanswered(mut self) {
        self.settle(true);
    }

    fn settle(&mut self, is_unknown: bool) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let Some(lanes) = self.lanes.upgrade() else { return };
        match self.kind {
            Kind::Seal => {}
            kind if kind.is_write() && is_unknown => lanes.unanswered(&self.lock, kind),
            kind => lanes.ended(&self.lock, kind),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Debug, Default)]
    struct Ends(Mutex<Vec<(&'static str, Kind)>>);

    impl OperationEnds for Ends {
        fn ended(&self, _: &LockName, kind: Kind) {
            self.0.lock().unwrap().push(("ended", kind));
        }

        fn unanswered(&self, _: &LockName, kind: Kind) {
            self.0.lock().unwrap().push(("unanswered", kind));
        }
    }

    /// As when its task panics. Each operation ends once.
    #[test]
    fn a_write_whose_ticket_is_dropped_has_an_unknown_outcome() {
        let ends = Arc::new(Ends::default());
        let ticket = |kind| {
            let lanes: Weak<dyn OperationEnds> = Arc::downgrade(&ends) as _;
            Ticket::new(lanes, LockName::new("a").unwrap(), kind)
        };
        drop(ticket(Kind::Write));
        drop(ticket(Kind::ConditionalPut));
        drop(ticket(Kind::Read));
        drop(ticket(Kind::Seal));
        ticket(Kind::Write).ended();
        ticket(Kind::Write).unanswered();
        assert_eq!(
            *ends.0.lock().unwrap(),
            [
                ("unanswered", Kind::Write),
                ("unanswered", Kind::ConditionalPut),
                ("ended", Kind::Read),
                ("ended", Kind::Write),
                ("unanswered", Kind::Write),
            ]
        );
    }
}
