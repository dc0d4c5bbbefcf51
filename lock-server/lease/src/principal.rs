//! Principals of the access file: a lease belongs to the one that acquired it.

/// Returns `true` if `caller` may not retry, renew, release or take over what `principal` acquired.
///
/// A lease without a principal was acquired without an access file, or at a server of an earlier
/// version: it is open to every client. A caller without one passes: there is no access file, or
/// the server itself acts, or the caller may revoke the lease.
pub fn is_anothers(principal: Option<&str>, caller: Option<&str>) -> bool {
    principal.zip(caller).is_some_and(|(theirs, own)| theirs != own)
}
