//! What an answer that is no success means, for the fuzz target of etcd.

use super::verdict::{judge, shortened};

/// A body under some statuses.
pub(in crate::store::records::etcd) fn verdicts(body: &[u8]) {
    for status in [200, 400, 404, 503] {
        let _ = judge(status, body, None);
    }
    let line = shortened(&String::from_utf8_lossy(body));
    assert!(line.len() <= 200 && !line.contains(char::is_control), "{line:?}");
}
