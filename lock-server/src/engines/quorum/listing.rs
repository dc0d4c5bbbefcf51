//! Pages of the held locks.

use std::collections::BTreeSet;
use std::time::Duration;

use fence_protocol::LockName;
use fence_protocol::wire::lock::{LeaseMode, LockLine, LockPage};
use futures_util::stream::{self, FuturesUnordered, StreamExt};

use super::QuorumStore;
use super::nodes::Node;
use super::replies::read_names;
use super::round::{reasons_text, refusal_text};
use super::rules::{Addressee, majority};
use crate::store::{ListQuery, StoreError};

/// Keys that a node examines in one step of a scan.
const SCAN: usize = 500;
/// Names that are examined for one page: if most of their locks are free by now, the page is short,
/// and the next continues behind it.
const EXAMINED_MAX: usize = 1_000;
/// Names that are examined concurrently.
const AT_ONCE: usize = 64;
/// After this a page is as long as it is: a node that hangs delays every page.
const PAGE_TIME: Duration = Duration::from_secs(2);

impl QuorumStore {
    /// A page of the held locks; it may be shorter than it could be.
    pub(super) async fn list_locks(&self, query: ListQuery) -> Result<LockPage, StoreError> {
        let began_ms = self.now_ms();
        let mut names = self.names(&query).await?;
        let mut is_more = names.len() > EXAMINED_MAX;
        if is_more {
            names.pop_last();
        }
        let mut left = names.len();
        let probe = async |lock: LockName| (self.read_lock(&lock).await, lock);
        let mut probes = stream::iter(names).map(probe).buffered(AT_ONCE.min(query.limit.max(1)));
        let mut locks = Vec::new();
        let mut last = None;
        while let Some((view, lock)) = probes.next().await {
            left -= 1;
            // A record may be of a lock that is free by now.
            if let Some(live) = view?.live() {
                let (queue_length, _) = self.queues().shown(&lock, self.now_ms());
                locks.push(LockLine {
                    lock: lock.clone(),
                    holder: Some(live.info),
                    queue_length,
                    mode: LeaseMode::Exclusive,
                    lease_count: 1,
                    size: None,
                    refusals: 0,
                });
            }
            last = Some(lock);
            let spent = Duration::from_millis(self.now_ms().saturating_sub(began_ms));
            if locks.len() >= query.limit || spent > PAGE_TIME {
                break;
            }
        }
        is_more |= left > 0;
        Ok(LockPage { locks, next_after: last.filter(|_| is_more) })
    }

    /// The first names after the query's that a majority of the nodes has records of, so that no
    /// held lock is missing; one more than are examined, where there are more.
    async fn names(&self, query: &ListQuery) -> Result<BTreeSet<LockName>, StoreError> {
        let current = self.current()?;
        let nodes =
            self.inner.nodes.iter().filter_map(|node| Some((node, current.addressee(node.index)?)));
        let mut scans: FuturesUnordered<_> =
            nodes.map(|(node, to)| self.names_of(node, to, query)).collect();
        let mut reasons = self.absent(&current);
        let mut names = BTreeSet::new();
        let mut answered = 0;
        // Nodes that are slower than a majority are not awaited.
        while answered < majority(self.inner.nodes.len()) {
            match scans.next().await {
                Some(Ok(found)) => {
                    answered += 1;
                    names.extend(found);
                }
                Some(Err(reason)) => reasons.push(reason),
                None => return Err(StoreError::Unavailable(reasons_text("answer", &reasons))),
            }
        }
        while names.len() > EXAMINED_MAX + 1 {
            names.pop_last();
        }
        Ok(names)
    }

    async fn names_of(
        &self,
        node: &Node,
        to: Addressee<'_>,
        query: &ListQuery,
    ) -> Result<BTreeSet<LockName>, String> {
        let mut found = BTreeSet::new();
        let mut cursor = 0;
        loop {
            let command = self.inner.scripts.names(to, &query.prefix, cursor, SCAN);
            let value = node.link.call(&command).await.map_err(|error| error.to_string())?;
            let names = read_names(value).map_err(|error| error.to_string())?;
            let names = names.map_err(|refusal| refusal_text(&refusal))?;
            for name in names.names.into_iter().filter(|name| query.after.as_ref() < Some(name)) {
                found.insert(name);
                if found.len() > EXAMINED_MAX + 1 {
                    found.pop_last();
                }
            }
            cursor = names.cursor;
            if cursor == 0 {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fence_protocol::Namespace;

    use crate::engines::quorum::rules::view::{Addressee, View};
    use crate::engines::quorum::scripts::{Keys, Scripts};
    use crate::engines::redis::key_prefix::KeyPrefix;

    /// Nodes send the names that are asked for, not all that they have.
    #[test]
    fn the_prefix_goes_to_the_nodes() {
        let scripts = Scripts::new(Keys::new(&KeyPrefix::default(), &Namespace::default()));
        let view = View::default();
        let node = "n".parse().unwrap();
        let to = Addressee { view: &view, node: &node };
        let sent = scripts.names(to, "jobs/", 0, 5).get_packed_command();
        let sent = String::from_utf8(sent).unwrap();
        assert!(sent.contains("{fence:default}:q:l:jobs/*"), "{sent}");
    }
}
