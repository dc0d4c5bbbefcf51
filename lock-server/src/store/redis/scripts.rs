//! The scripts, each with what all of them begin with.
//!
//! `common.lua` refuses a Redis that is not the one that was verified, `bonds.lua` knows sessions,
//! `record.lua` reads and writes the record of a lock, and `queue.lua` hands locks over. `clear.lua`
//! is for those that end sessions.

use service_kit::redis_link::Script;

macro_rules! script {
    ($($file:literal),+) => {
        Script::new(
            [$($file),+][[$($file),+].len() - 1],
            concat!(
                include_str!("common.lua"),
                include_str!("bonds.lua"),
                include_str!("record.lua"),
                include_str!("queue.lua"),
                $(include_str!($file)),+
            ),
        )
    };
}

/// Every script that is loaded.
#[derive(Clone, Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) acquire_all: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) revoke: Script,
    pub(super) abandon: Script,
    pub(super) withdraw: Script,
    pub(super) take_back: Script,
    pub(super) show: Script,
    pub(super) sweep: Script,
    pub(super) session: Script,
    pub(super) mint: Script,
    pub(super) clock: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire: script!("acquire.lua"),
            acquire_all: script!("acquire_all.lua"),
            renew: script!("renew.lua"),
            release: script!("release.lua"),
            revoke: script!("revoke.lua"),
            abandon: script!("abandon.lua"),
            withdraw: script!("withdraw.lua"),
            take_back: script!("take_back.lua"),
            show: script!("show.lua"),
            sweep: script!("clear.lua", "sweep.lua"),
            session: script!("clear.lua", "session.lua"),
            mint: script!("mint.lua"),
            clock: Script::new(
                "clock.lua",
                concat!(include_str!("pause.lua"), include_str!("clock.lua")),
            ),
        }
    }

    pub(super) fn all(&self) -> [&Script; 13] {
        [
            &self.acquire,
            &self.acquire_all,
            &self.renew,
            &self.release,
            &self.revoke,
            &self.abandon,
            &self.withdraw,
            &self.take_back,
            &self.show,
            &self.sweep,
            &self.session,
            &self.mint,
            &self.clock,
        ]
    }
}

/// The script that runs before the others may be loaded.
pub(super) fn lineage() -> Script {
    Script::new("lineage.lua", concat!(include_str!("pause.lua"), include_str!("lineage.lua")))
}
