//! Versions of the protocol that the port speaks, with clients and with the server. Until 3.2 a key
//! for cancel requests has four bytes.

pub(super) const OLDEST: u32 = 3 << 16;
pub(super) const NEWEST: u32 = (3 << 16) | 2;

/// Code of a cancel request, in place of a version.
pub(super) const CANCEL: u32 = 80_877_102;
/// The longest key of a cancel request.
pub(super) const CANCEL_KEY_MAX: usize = 256;
