//! Locks of the `http` backend of Terraform and OpenTofu.
//!
//! These programs make an id for each lock, and prove with it, instead of a token, that a state is
//! theirs. Lease ids are shown to others: to clients that are refused, and to readers of marks. So
//! the lease has the digest of that id.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid, Variant, Version};

use crate::{Invalid, LeaseId};

/// Separates this digest from others of the same bytes.
const DOMAIN: &[u8] = b"fencepost: the lock id of terraform\0";
/// The longest member of a lock's information, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Returns the lease of the lock that Terraform calls `id`.
///
/// # Errors
/// [`Invalid`] if it is no UUID.
pub fn lease_of_lock_id(id: &str) -> Result<LeaseId, Invalid> {
    // The value stays out of the error: it is a secret of its run.
    let id = Uuid::try_parse(id).map_err(|_| Invalid::new("ID", "…", "is not a UUID"))?;
    let digest = Sha256::new().chain_update(DOMAIN).chain_update(id.as_bytes()).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    let custom = Builder::from_bytes(bytes).with_version(Version::Custom);
    LeaseId::new(custom.with_variant(Variant::RFC4122).into_uuid())
}

/// Information that comes with a lock, and that Terraform shows to a run that is refused it.
///
/// Everything in it is a text of at most 256 bytes without control characters, and `Created` is a
/// time: Terraform cannot read a reply in which it is something else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
pub struct LockInfo {
    /// Id of the lock: of the run that requests it, or, shown to others, its lease id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The command that locks.
    pub operation: String,
    /// More about it.
    pub info: String,
    /// User and machine.
    pub who: String,
    /// Version of the program.
    pub version: String,
    /// Time of the request, in RFC 3339.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub created: String,
    /// Path of the state.
    pub path: String,
}

impl fmt::Debug for LockInfo {
    /// Without the id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockInfo").field("who", &self.who).finish_non_exhaustive()
    }
}

impl LockInfo {
    /// Checks every member but the id.
    ///
    /// # Errors
    /// [`Invalid`] with the member.
    pub fn check(&self) -> Result<(), Invalid> {
        let texts = [
            ("Operation", &self.operation),
            ("Info", &self.info),
            ("Who", &self.who),
            ("Version", &self.version),
            ("Path", &self.path),
        ];
        for (name, text) in texts {
            if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
                let rule = "must have at most 256 bytes, and no control characters";
                return Err(Invalid::new(name, text, rule));
            }
        }
        match self.created.as_str() {
            "" => Ok(()),
            time => match humantime::parse_rfc3339(time) {
                Ok(_) => Ok(()),
                Err(_) => Err(Invalid::new("Created", time, "is no time of RFC 3339 in UTC")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_the_same_for_every_spelling_of_an_id_and_shows_nothing_of_it() {
        let id = "9db590f1-b6fe-c5f2-2678-8804f089deba";
        let lease = lease_of_lock_id(id).unwrap();
        assert_eq!(lease, lease_of_lock_id(&id.to_uppercase()).unwrap());
        assert_ne!(lease.to_string(), id);
        assert_ne!(lease, lease_of_lock_id(&lease.to_string()).unwrap());
        // Servers of two versions must agree.
        assert_eq!(lease.to_string(), "e7b4ade7-53ad-888e-8bda-4fbbd6496ff4");
        for bad in ["", "1", "9db590f1"] {
            let refused = lease_of_lock_id(bad).unwrap_err().to_string();
            assert!(refused.contains("is not a UUID"), "{refused}");
        }
    }

    #[test]
    fn terraform_can_read_what_is_checked() {
        let info = |created: &str, who: &str| LockInfo {
            created: created.to_owned(),
            who: who.to_owned(),
            ..LockInfo::default()
        };
        for good in ["", "2026-11-23T20:00:00Z", "2026-11-23T20:00:00.123456789Z"] {
            assert!(info(good, "ann@desk").check().is_ok(), "{good}");
        }
        for bad in [
            "x",
            "2026-11-23",
            "2026-13-23T20:00:00Z",
            "2026-11-00T20:00:00Z",
            "2026-02-30T20:00:00Z",
            "2026-11-23T24:00:00Z",
            "2026-11-23T20:00:00",
            "2026-11-23T20:00:00.xZ",
            "2026-11-23T20:00:0éZ",
        ] {
            assert!(info(bad, "ann").check().is_err(), "{bad}");
        }
        assert!(info("", "a\u{1b}[2J").check().is_err());
        assert!(info("", &"x".repeat(257)).check().is_err());
        let text = serde_json::to_string(&info("", "ann")).unwrap();
        assert!(!text.contains("Created"), "an empty time is not one: {text}");
    }
}
