//! Flags of the guard's own store, and of marks.

use clap::Args;
use fence_protocol::Token;
use service_kit::flags::StoreLoginFlags;

use crate::fail_points::{FailAt, FailPoints};
use crate::stores::open::StoreUrl;
use crate::stores::redis::{LostMarks, RedisOptions};

/// Store of objects and marks, and what the guard does when it has lost marks.
#[derive(Clone, Debug, Args)]
pub struct StoreFlags {
    /// Store of objects and marks. It is memory:, embedded:DIR, redis://HOST:PORT,
    /// redis-sentinel://HOST:PORT/MASTER, redis-cluster://HOST:PORT,HOST:PORT or
    /// postgres://USER@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    pub store: Option<StoreUrl>,
    /// Earlier store of this guard, for a change of --store: its marks are carried over before
    /// anything is served. Stop its guards first. Objects are not copied.
    #[arg(long, value_name = "URL")]
    pub marks_from: Option<StoreUrl>,
    /// Login of the guard at the store.
    #[command(flatten)]
    pub login: StoreLoginFlags,
    /// After Redis lost marks: refuse until the first token to be admitted is known, or accept.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = LostMarks::Refuse)]
    pub lost_marks: LostMarks,
    /// First token to be admitted, after Redis or PostgreSQL lost marks. As POST /v1/floor states
    /// it to a guard that runs. A higher floor that is in force stays.
    #[arg(long, value_name = "TOKEN")]
    pub floor: Option<Token>,
    /// Point at which a test makes the guard stop or end; only in builds with debug assertions.
    #[arg(long, value_name = "POINT=stop|kill", hide = true)]
    pub fail_at: Option<FailAt>,
}

impl StoreFlags {
    /// The store with the guard's login; `None` if no store is given.
    pub(super) fn url(&self) -> Result<Option<StoreUrl>, String> {
        let Some(store) = &self.store else { return Ok(None) };
        self.login.login().and_then(|login| store.clone().with_login(&login)).map(Some)
    }

    /// The options of the Redis behind the guard.
    pub(super) fn redis_options(&self) -> RedisOptions {
        RedisOptions {
            lost_marks: self.lost_marks,
            floor: self.floor,
            fail_points: FailPoints::new(self.fail_at),
            outlives_data: false,
        }
    }

    /// Problem with `--marks-from`. In a cluster a lock has a mark in each slot, and a list shows
    /// one of them.
    pub(super) fn unusable_marks_from(&self) -> Option<String> {
        let text = match (self.marks_from.as_ref()?, &self.store) {
            (StoreUrl::Cluster(_), _) | (_, Some(StoreUrl::Cluster(_))) => {
                "--marks-from carries no marks from or to a Redis Cluster: they are in each slot; \
                 copy the cluster's data with its marks"
            }
            (_, None) => "--marks-from is for a change of --store; name the new store",
            (_, Some(_)) => return None,
        };
        Some(text.to_owned())
    }
}
