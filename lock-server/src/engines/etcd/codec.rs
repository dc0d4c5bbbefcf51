//! A record as etcd keeps it: what the engine has to know of it, and then the value.
//!
//! The version comes first, so that a transaction can compare it alone.

use crate::engines::contract::Version;

/// Length of the header, in bytes.
const LENGTH: usize = 36;

/// Header of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: Version,
    /// The offset of the tokens at the write; with the revision of the write it gives
    /// [`Snapshot::base`](crate::engines::contract::Snapshot::base).
    pub(super) offset: u64,
    /// The process that wrote it, whose clock the moments in the value are of.
    pub(super) writer: u32,
    /// That clock at the write, in milliseconds.
    pub(super) at_ms: u64,
    /// After so many milliseconds the record may be forgotten; `None` where that is not known.
    pub(super) lives_ms: Option<u64>,
}

impl Header {
    /// The record as it is stored.
    pub(super) fn with(&self, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LENGTH + value.len());
        bytes.extend_from_slice(&self.version.0.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        bytes.extend_from_slice(&self.writer.to_be_bytes());
        bytes.extend_from_slice(&self.at_ms.to_be_bytes());
        bytes.extend_from_slice(&self.lives_ms.unwrap_or(u64::MAX).to_be_bytes());
        bytes.extend_from_slice(value);
        bytes
    }

    /// Decodes the header and the value; `None` if no lock server has written it.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (version, rest) = number(bytes)?;
        let (offset, rest) = number(rest)?;
        let (writer, rest) = rest.split_first_chunk()?;
        let (at_ms, rest) = number(rest)?;
        let (lives_ms, value) = number(rest)?;
        let header = Self {
            version: Version(version),
            offset,
            writer: u32::from_be_bytes(*writer),
            at_ms,
            lives_ms: (lives_ms != u64::MAX).then_some(lives_ms),
        };
        (header.version != Version::ABSENT).then_some((header, value))
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_were_written() {
        for lives_ms in [None, Some(0), Some(7)] {
            let version = Version(1 << 60);
            let offset = 3;
            let writer = u32::MAX;
            let at_ms = 9;
            let header = Header { version, offset, writer, at_ms, lives_ms };
            let bytes = header.with(b"value");
            assert_eq!(Header::read(&bytes), Some((header, &b"value"[..])));
            assert_eq!(bytes.len(), LENGTH + 5);
            assert_eq!(Header::read(&bytes[..LENGTH - 1]), None);
        }
        assert_eq!(Header::read(&[0; LENGTH]), None);
    }
}
