//! Frames of the wire protocol: one byte of tag, four of length, and the body. Only tag and length
//! are read here.

use bytes::{BufMut as _, BytesMut};

/// Bytes of tag and length.
pub(super) const HEADER: usize = 5;

/// A length that no frame can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLength {
    pub(super) tag: u8,
    pub(super) len: i32,
}

/// Tag and whole length, tag included, of the frame at the beginning of `bytes`; `None` if its
/// header is not complete.
///
/// # Errors
/// [`BadLength`] for a length that does not even count itself.
pub(super) fn header(bytes: &[u8]) -> Result<Option<(u8, usize)>, BadLength> {
    let Some((tag, rest)) = bytes.split_first() else { return Ok(None) };
    let Some(len) = rest.first_chunk() else { return Ok(None) };
    let len = i32::from_be_bytes(*len);
    match usize::try_from(len) {
        Ok(body) if body >= 4 => Ok(Some((*tag, body + 1))),
        _ => Err(BadLength { tag: *tag, len }),
    }
}

/// Makes a frame. Its body is bounded by the limits of what a client may send.
pub(super) fn frame(tag: u8, body: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(HEADER + body.len());
    frame.put_u8(tag);
    frame.put_i32(i32::try_from(body.len() + 4).unwrap_or(i32::MAX));
    frame.extend_from_slice(body);
    frame
}

/// Position in a stream of frames whose bytes arrive in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct FrameScanner {
    /// Begin of a header that is not complete.
    begun: [u8; HEADER],
    have: usize,
    /// Bytes of the current frame that have not arrived.
    missing: usize,
}

impl FrameScanner {
    /// Calls `on` with the tag of each frame whose header is complete.
    ///
    /// # Errors
    /// [`BadLength`]: the stream has no frames any more.
    pub(super) fn scan(
        &mut self,
        mut bytes: &[u8],
        mut on: impl FnMut(u8),
    ) -> Result<(), BadLength> {
        loop {
            let passed = self.missing.min(bytes.len());
            self.missing -= passed;
            bytes = &bytes[passed..];
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = (HEADER - self.have).min(bytes.len());
            self.begun[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if let Some((tag, len)) = header(&self.begun[..self.have])? {
                self.have = 0;
                self.missing = len - HEADER;
                on(tag);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(i32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_length_below_its_own_size_is_refused() {
        for len in [3_i32, 0, -1, i32::MIN] {
            let mut bytes = vec![b'Q'];
            bytes.extend(len.to_be_bytes());
            assert_eq!(header(&bytes), Err(BadLength { tag: b'Q', len }));
            assert!(FrameScanner::default().scan(&bytes, |_| ()).is_err());
        }
        assert_eq!(header(b"Q\0\0\0"), Ok(None));
        assert_eq!(header(b"X\0\0\0\x04"), Ok(Some((b'X', 5))));
    }

    proptest! {
        #[test]
        fn frames_are_found_however_they_are_cut(
            frames in prop::collection::vec(
                (any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)),
                0..20,
            ),
            cuts in prop::collection::vec(1_usize..30, 1..60),
        ) {
            let bytes: Vec<u8> =
                frames.iter().flat_map(|(tag, body)| frame(*tag, body)).collect();
            let mut scanner = FrameScanner::default();
            let mut found = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let (piece, later) = rest.split_at((*cut).min(rest.len()));
                scanner.scan(piece, |tag| found.push(tag)).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            let tags: Vec<u8> = frames.iter().map(|(tag, _)| *tag).collect();
            prop_assert_eq!(found, tags);
        }

        #[test]
        fn any_bytes_are_scanned(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = FrameScanner::default().scan(&bytes, |_| ());
        }
    }
}
