//! Bytes of the files: a header, then frames. Numbers are little-endian.
//!
//! | part | bytes |
//! | --- | --- |
//! | header | `FENCELOG`, format u32, kind u32, index u64, salt u64, CRC-32 of these |
//! | frame | mark u32, payload length u32, sequence number u64, CRC-32, payload |
//! | payload | changes: for each key length u32, value length u32, key, value |
//!
//! The frame's CRC-32 covers the salt and all other bytes of the frame. The value length `u32::MAX`
//! removes the key.
//!
//! A frame carries the whole batches that one write made durable, so that a crash leaves all of it
//! or none. The salt is random for each file: bytes that a client chose, inside a value, cannot
//! pass for a frame.

/// Version of the layout. A file of another version is refused; the header keeps its layout.
pub(super) const FORMAT: u32 = 1;
/// Length of the header.
pub(super) const HEADER_BYTES: usize = 36;
/// Length of a frame without its payload.
pub(super) const FRAME_BYTES: usize = 20;
/// Length of a change without its key and value.
pub(super) const CHANGE_BYTES: usize = 8;
/// Sequence number of the frame that completes a snapshot.
pub(super) const END: u64 = u64::MAX;

const MAGIC: [u8; 8] = *b"FENCELOG";
const REMOVED: u32 = u32::MAX;
/// Offset of the frame's CRC.
const CRC_AT: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Segment,
    Snapshot,
}

/// First bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Number of the segment; of a snapshot, that of the last segment that it replaces.
    pub(super) index: u64,
    pub(super) salt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    Damaged,
    /// A whole header of another version.
    Format(u32),
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind: u32 = match self.kind {
            Kind::Segment => 1,
            Kind::Snapshot => 2,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&kind.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.index.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..32]);
        bytes[32..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderFault::Damaged);
        };
        let mut rest = bytes.as_slice();
        let magic = take(&mut rest);
        let format = take(&mut rest).map(u32::from_le_bytes);
        let kind = take(&mut rest).map(u32::from_le_bytes);
        let index = take(&mut rest).map(u64::from_le_bytes);
        let salt = take(&mut rest).map(u64::from_le_bytes);
        let crc = take(&mut rest).map(u32::from_le_bytes);
        if magic != Some(MAGIC) || crc != Some(crc32fast::hash(&bytes[..32])) {
            return Err(HeaderFault::Damaged);
        }
        let (Some(format), Some(index), Some(salt)) = (format, index, salt) else {
            return Err(HeaderFault::Damaged);
        };
        if format != FORMAT {
            return Err(HeaderFault::Format(format));
        }
        let kind = match kind {
            Some(1) => Kind::Segment,
            Some(2) => Kind::Snapshot,
            _ => return Err(HeaderFault::Damaged),
        };
        Ok(Self { kind, index, salt })
    }
}

/// First bytes of every frame of a file; never zero, so that unused space is no frame.
pub(super) fn frame_mark(salt: u64) -> [u8; 4] {
    let low = u32::try_from(salt & u64::from(u32::MAX)).unwrap_or_default();
    (low | 1).to_le_bytes()
}

/// Completes a frame whose payload stands behind [`FRAME_BYTES`] blank bytes. The payload is
/// shorter than 4 GiB, which the limit on waiting bytes ensures.
pub(super) fn seal_frame(frame: &mut [u8], salt: u64, sequence: u64) {
    let payload = u32::try_from(frame.len().saturating_sub(FRAME_BYTES)).unwrap_or(u32::MAX);
    frame[..4].copy_from_slice(&frame_mark(salt));
    frame[4..8].copy_from_slice(&payload.to_le_bytes());
    frame[8..16].copy_from_slice(&sequence.to_le_bytes());
    let crc = frame_crc(frame, salt);
    frame[CRC_AT..FRAME_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// Length of the frame that begins here, as it says itself; `None` where no frame begins.
pub(super) fn frame_len(bytes: &[u8], salt: u64) -> Option<usize> {
    let mut rest = bytes;
    if take(&mut rest)? != frame_mark(salt) {
        return None;
    }
    let payload = u32::from_le_bytes(take(&mut rest)?);
    usize::try_from(payload).ok()?.checked_add(FRAME_BYTES)
}

/// Sequence number of the frame that begins here, where it is whole and its CRC is right.
pub(super) fn check_frame(bytes: &[u8], salt: u64) -> Option<u64> {
    let frame = bytes.get(..frame_len(bytes, salt)?)?;
    let mut rest = &frame[8..];
    let sequence = u64::from_le_bytes(take(&mut rest)?);
    let crc = u32::from_le_bytes(take(&mut rest)?);
    (crc == frame_crc(frame, salt)).then_some(sequence)
}

fn frame_crc(frame: &[u8], salt: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&frame[..CRC_AT]);
    crc.update(&frame[FRAME_BYTES..]);
    crc.finalize()
}

/// Length without the zeros at the end.
pub(super) fn used_len(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut used = bytes;
    // Slices are compared many bytes at a time, and most of a segment may be unused.
    while let Some((head, last)) = used.split_last_chunk::<{ ZEROS.len() }>() {
        if *last != ZEROS {
            break;
        }
        used = head;
    }
    used.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Offset of the first whole frame in `bytes`, wherever it begins.
pub(super) fn find_frame(bytes: &[u8], salt: u64) -> Option<usize> {
    let mark = frame_mark(salt);
    let mut at = 0;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == mark[0])?;
        if bytes[at..].starts_with(&mark) && check_frame(&bytes[at..], salt).is_some() {
            return Some(at);
        }
        at += 1;
    }
}

/// Appends a change to a payload. Key and value are shorter than 4 GiB.
pub(super) fn encode_change(payload: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    payload.extend_from_slice(&len(key).to_le_bytes());
    payload.extend_from_slice(&value.map_or(REMOVED, len).to_le_bytes());
    payload.extend_from_slice(key);
    payload.extend_from_slice(value.unwrap_or_default());
}

/// A key with its new value, `None` where it is removed.
pub(super) type ChangeRef<'p> = (&'p [u8], Option<&'p [u8]>);

/// The changes of a payload in their order; `None` where it is malformed.
pub(super) fn parse_changes(mut payload: &[u8]) -> Option<Vec<ChangeRef<'_>>> {
    let mut changes = Vec::new();
    while !payload.is_empty() {
        let key_len = u32::from_le_bytes(take(&mut payload)?);
        let value_len = u32::from_le_bytes(take(&mut payload)?);
        let key = take_slice(&mut payload, key_len)?;
        let value = match value_len {
            REMOVED => None,
            len => Some(take_slice(&mut payload, len)?),
        };
        changes.push((key, value));
    }
    Some(changes)
}

/// Payload of the frame that completes a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SnapshotEnd {
    /// Sequence number of the last frame of the log that the snapshot contains.
    pub(super) sequence: u64,
    pub(super) entries: u64,
}

impl SnapshotEnd {
    pub(super) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..].copy_from_slice(&self.entries.to_le_bytes());
        bytes
    }

    pub(super) fn parse(mut payload: &[u8]) -> Option<Self> {
        let sequence = u64::from_le_bytes(take(&mut payload)?);
        let entries = u64::from_le_bytes(take(&mut payload)?);
        payload.is_empty().then_some(Self { sequence, entries })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn take_slice<'p>(rest: &mut &'p [u8], len: u32) -> Option<&'p [u8]> {
    let (head, tail) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = tail;
    Some(head)
}
