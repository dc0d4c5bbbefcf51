//! The scripts, each with what all of them begin with.

use service_kit::redis_link::Script;

macro_rules! script {
    ($file:literal) => {
        Script::new($file, concat!(include_str!("common.lua"), include_str!($file)))
    };
}

/// Every script that is loaded.
#[derive(Clone, Debug)]
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) revoke: Script,
    pub(super) abandon: Script,
    pub(super) withdraw: Script,
    pub(super) show: Script,
    pub(super) sweep: Script,
    pub(super) session: Script,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            acquire: script!("acquire.lua"),
            renew: script!("renew.lua"),
            release: script!("release.lua"),
            revoke: script!("revoke.lua"),
            abandon: script!("abandon.lua"),
            withdraw: script!("withdraw.lua"),
            show: script!("show.lua"),
            sweep: script!("sweep.lua"),
            session: script!("session.lua"),
        }
    }

    pub(super) fn all(&self) -> [&Script; 9] {
        [
            &self.acquire,
            &self.renew,
            &self.release,
            &self.revoke,
            &self.abandon,
            &self.withdraw,
            &self.show,
            &self.sweep,
            &self.session,
        ]
    }
}

/// The script that runs before the others may be loaded.
pub(super) fn lineage() -> Script {
    Script::new("lineage.lua", include_str!("lineage.lua"))
}
