//! Heads that have begun and not ended. The library holds such a head without showing it.

/// Bytes before the payload of a frame (RFC 9113 section 4.1).
const FRAME_HEADER_BYTES: usize = 9;
/// Index of a frame's type in them.
const TYPE: usize = 3;
/// Index of a frame's flags in them.
const FLAGS: usize = 4;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Position within the frames that a client sends.
///
/// A head is a HEADERS frame and the CONTINUATION frames behind it, up to END_HEADERS. No other
/// frame may stand between them; one that does ends the connection, by the library.
#[derive(Debug)]
pub(crate) struct HeadWatch {
    header: [u8; FRAME_HEADER_BYTES],
    /// Bytes of `header` that have arrived.
    header_len: usize,
    /// Bytes of the payload that have not arrived.
    payload_left: usize,
    /// A head has begun in an earlier frame, or in this one.
    is_open: bool,
}

impl HeadWatch {
    /// At the start of a connection, whose preface has this length.
    pub(crate) fn new(preface_len: usize) -> Self {
        let header = [0; FRAME_HEADER_BYTES];
        Self { header, header_len: 0, payload_left: preface_len, is_open: false }
    }

    /// True from the type of a head's first frame until the last byte of its last frame.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Follows bytes of the client. Returns `true` if a head ended in them.
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_ended = false;
        while !bytes.is_empty() {
            let is_payload = self.payload_left > 0;
            let wanted = match is_payload {
                true => self.payload_left,
                false => FRAME_HEADER_BYTES - self.header_len,
            };
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if is_payload {
                self.payload_left -= taken.len();
            } else {
                self.follow_header(taken);
            }
            has_ended |= self.end_frame();
        }
        has_ended
    }

    fn follow_header(&mut self, bytes: &[u8]) {
        let end = self.header_len + bytes.len();
        self.header[self.header_len..end].copy_from_slice(bytes);
        self.header_len = end;
        self.is_open |= end > TYPE && self.header[TYPE] == HEADERS;
        if end == FRAME_HEADER_BYTES {
            let [high, middle, low, ..] = self.header;
            self.payload_left =
                usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        }
    }

    /// Awaits the next frame if this one is whole. Returns `true` if that was the end of a head.
    fn end_frame(&mut self) -> bool {
        let is_whole = self.payload_left == 0 && self.header_len == FRAME_HEADER_BYTES;
        if !is_whole {
            return false;
        }
        self.header_len = 0;
        let is_head = matches!(self.header[TYPE], HEADERS | CONTINUATION);
        let is_end = is_head && self.header[FLAGS] & END_HEADERS != 0;
        self.is_open &= !is_end;
        is_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE_LEN: usize = 24;
    const DATA: u8 = 0;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let header = [0, 0, length, kind, flags, 0, 0, 0, 1];
        [&header[..], &vec![HEADERS; usize::from(length)]].concat()
    }

    fn begun() -> HeadWatch {
        let mut watch = HeadWatch::new(PREFACE_LEN);
        assert!(!watch.follow(&[HEADERS; PREFACE_LEN]) && !watch.is_open());
        watch
    }

    #[test]
    fn a_head_is_open_from_its_type_to_its_last_byte() {
        let head = [
            frame(HEADERS, 0, 3),
            frame(CONTINUATION, 0, 0),
            frame(CONTINUATION, END_HEADERS, 200),
        ];
        let bytes = head.concat();
        let mut watch = begun();
        for (at, byte) in bytes.iter().enumerate() {
            let is_last = at + 1 == bytes.len();
            assert_eq!(watch.follow(&[*byte]), is_last, "{at}");
            assert_eq!(watch.is_open(), at >= TYPE && !is_last, "{at}");
        }
    }

    #[test]
    fn every_split_of_the_bytes_is_read_alike() {
        let frames = [
            frame(DATA, END_HEADERS, 30),
            frame(HEADERS, END_HEADERS, 0),
            frame(HEADERS, END_HEADERS, 7),
            frame(DATA, 0, 0),
            frame(HEADERS, 0, 4),
        ];
        let bytes = frames.concat();
        for split in 0..=bytes.len() {
            let mut watch = begun();
            let (first, second) = bytes.split_at(split);
            let ended = [watch.follow(first), watch.follow(second)];
            assert!(ended.contains(&true), "{split}");
            assert!(watch.is_open(), "{split}");
        }
    }

    #[test]
    fn other_frames_are_no_heads() {
        let mut watch = begun();
        for kind in (0..=u8::MAX).filter(|kind| *kind != HEADERS) {
            for part in frame(kind, 0, 20).chunks(7) {
                assert!(!watch.follow(part) && !watch.is_open(), "{kind}");
            }
        }
    }

    #[test]
    fn lengths_are_read_whole() {
        let mut watch = begun();
        let mut bytes = frame(DATA, 0, 0);
        bytes[..3].copy_from_slice(&[1, 2, 3]);
        bytes.extend(vec![HEADERS; 0x1_02_03]);
        assert!(!watch.follow(&bytes) && !watch.is_open());
        watch.follow(&frame(HEADERS, 0, 0));
        assert!(watch.is_open());
    }
}
