//! Writers whose tokens rise, and who go to whichever guard leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fence_protocol::LeaseId;
use fence_tests::api::Api;
use fence_tests::wait::until_true;
use tokio::task::JoinHandle;

use super::{PAUSE, Pair, put};

/// Writes with one token, before a writer gets the next.
const WRITES_A_TOKEN: u64 = 20;

/// Lease that owns a token, in all tests.
pub(super) fn lease_of(token: u64) -> LeaseId {
    format!("00000000-0000-4000-8000-{token:012}").parse().unwrap()
}

/// Several writers, each with a document of its own.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    writers: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    pub(super) fn start(pair: &Pair, writers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let guards = [0, 1].map(|at| (pair.members[at].name, pair.members[at].api.clone()));
        let writers = (0..writers)
            .map(|writer| {
                let count = Arc::clone(&acknowledged);
                tokio::spawn(write(
                    format!("doc{writer}"),
                    guards.clone(),
                    Arc::clone(&stop),
                    count,
                ))
            })
            .collect();
        Self { stop, acknowledged, writers }
    }

    /// Waits for so many more acknowledged writes.
    pub(super) async fn progress(&self, more: u64) {
        let goal = self.acknowledged.load(Ordering::Relaxed) + more;
        until_true("the load to progress", || async {
            self.acknowledged.load(Ordering::Relaxed) >= goal
        })
        .await;
    }

    /// Stops, and checks each document: tokens never fell, and each acknowledged write took effect.
    pub(super) async fn check(self, pair: &Pair) {
        self.stop.store(true, Ordering::Relaxed);
        for (writer, task) in self.writers.into_iter().enumerate() {
            let doc = format!("doc{writer}");
            let acknowledged = task.await.unwrap();
            pair.tokens_never_fell(&doc);
            let applied = pair.applied(&doc);
            for value in acknowledged {
                let is_there = applied.iter().any(|(_, _, applied)| *applied == value);
                assert!(is_there, "{value} was acknowledged and is lost");
            }
        }
    }
}

async fn write(
    doc: String,
    guards: [(&'static str, Api); 2],
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let mut at = 0;
    for write in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let token = 1 + write / WRITES_A_TOKEN;
        let value = format!("{token}-{write}");
        let (name, api) = &guards[at % 2];
        match put(api, name, &doc, token, &value).await {
            Ok(reply) if reply.status == 204 => {
                acknowledged.push(value);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(reply) if matches!(reply.status, 412 | 503 | 504) => {
                at += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Ok(reply) => panic!("{name}: {reply:?}"),
            // It is dead, or dies.
            Err(_) => {
                at += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    acknowledged
}
