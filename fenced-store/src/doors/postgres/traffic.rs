//! Requests that a session has under way, by the frames that pass. Pure.

use bytes::{Bytes, BytesMut};

use super::frames::{self, BadLength, FrameScanner, HEADER};
use super::server::ErrorFrame;

/// Longest error that is held back.
const ERROR_MAX: usize = 64 << 10;

/// Frames of both directions of one session.
#[derive(Debug)]
pub(super) struct Traffic {
    of_client: FrameScanner,
    of_server: ServerFrames,
    /// Requests that the server has not completed, or more.
    under_way: u64,
    /// `true` after an Execute that no Sync follows yet: the server executes it at once.
    executes: bool,
    /// Syncs behind the last Execute. If that begins a COPY from the client, the server ignores
    /// them.
    syncs: u64,
    /// `true` from CopyInResponse until the client ends the data or the server refuses it: the
    /// server ignores each Sync.
    copies: bool,
    /// Transaction status in the last ReadyForQuery: idle, in a transaction, in a failed one.
    status: u8,
}

/// Frames of the server. Begun frames that have to be read whole are held back.
#[derive(Debug, Default)]
struct ServerFrames {
    /// Bytes of the current frame that have not arrived, and are relayed as they come.
    passing: usize,
    held: BytesMut,
    fatal: Option<Bytes>,
}

impl Traffic {
    /// A session that the server has just declared ready.
    pub(super) fn new() -> Self {
        Self {
            of_client: FrameScanner::default(),
            of_server: ServerFrames::default(),
            under_way: 0,
            executes: false,
            syncs: 0,
            copies: false,
            status: b'I',
        }
    }

    /// Reads bytes of the client.
    ///
    /// # Errors
    /// [`BadLength`]: the client does not speak the protocol.
    pub(super) fn sent(&mut self, bytes: &[u8]) -> Result<(), BadLength> {
        // Query, FunctionCall and Sync: the server replies to each with ReadyForQuery, but not to
        // a Sync during COPY.
        let Self { of_client, under_way, executes, syncs, copies, .. } = self;
        of_client.scan(bytes, |tag| match tag {
            b'S' if *copies => {}
            b'Q' | b'F' | b'S' => {
                *under_way += 1;
                *executes = false;
                *syncs = if tag == b'S' { *syncs + 1 } else { 0 };
            }
            b'E' => {
                *executes = true;
                *syncs = 0;
            }
            // CopyDone, CopyFail.
            b'c' | b'f' => *copies = false,
            _ => {}
        })
    }

    /// Reads bytes of the server, and appends those for the client to `out`. A fatal error is kept:
    /// the end of the connection follows it.
    ///
    /// # Errors
    /// [`BadLength`]: the server does not speak the protocol.
    pub(super) fn received(&mut self, bytes: &[u8], out: &mut BytesMut) -> Result<(), BadLength> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.of_server.passing > 0 {
                let count = self.of_server.passing.min(rest.len());
                out.extend_from_slice(&rest[..count]);
                self.of_server.passing -= count;
                rest = &rest[count..];
                continue;
            }
            rest = self.begin(rest, out)?;
        }
        Ok(())
    }

    /// Reads the begin of a frame, and returns the bytes behind those it took.
    fn begin<'a>(&mut self, bytes: &'a [u8], out: &mut BytesMut) -> Result<&'a [u8], BadLength> {
        let held = &mut self.of_server.held;
        let wanted = match frames::header(held)? {
            Some((_, len)) => len,
            None => HEADER,
        };
        let (taken, rest) = bytes.split_at(bytes.len().min(wanted - held.len()));
        held.extend_from_slice(taken);
        let Some((tag, len)) = frames::header(held)? else { return Ok(rest) };
        self.copies &= tag != b'E';
        match tag {
            b'E' | b'Z' if len <= ERROR_MAX && held.len() < len => return Ok(rest),
            // CopyInResponse: the Syncs that the client sent behind that Execute complete nothing.
            // Behind a Query there are none.
            b'G' => {
                self.copies = true;
                self.executes |= self.syncs > 0;
                self.under_way = self.under_way.saturating_sub(std::mem::take(&mut self.syncs));
            }
            b'E' if len <= ERROR_MAX => {
                let error = ErrorFrame::read(held);
                if error.is_some_and(|error| error.is_fatal()) {
                    self.of_server.fatal = Some(held.split().freeze());
                    return Ok(rest);
                }
            }
            b'Z' if len <= ERROR_MAX => {
                self.status = held.get(HEADER).copied().unwrap_or(b'I');
                self.under_way = self.under_way.saturating_sub(1);
            }
            _ => {}
        }
        self.of_server.passing = len - held.len();
        out.extend_from_slice(held);
        held.clear();
        Ok(rest)
    }

    /// Returns `true` if a whole frame was relayed last.
    pub(super) fn is_at_boundary(&self) -> bool {
        self.of_server.passing == 0
    }

    /// Returns the error with which the server ends the session.
    pub(super) fn fatal(&self) -> Option<&Bytes> {
        self.of_server.fatal.as_ref()
    }

    /// Returns `true` if no request is under way, and no transaction open.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_unknown() && self.status == b'I'
    }

    /// Returns `true` if a request may have been executed whose reply did not come.
    pub(super) fn is_unknown(&self) -> bool {
        self.under_way > 0 || self.executes
    }
}

#[cfg(test)]
mod tests {
    use super::super::refusal::Refusal;
    use super::*;
    use proptest::prelude::*;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend(i32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn error(severity: &str) -> Vec<u8> {
        frame(b'E', format!("V{severity}\0C57P01\0Mends\0\0").as_bytes())
    }

    #[test]
    fn a_request_is_under_way_until_the_server_is_ready() {
        let mut traffic = Traffic::new();
        let mut out = BytesMut::new();
        assert!(traffic.is_idle());
        traffic.sent(&frame(b'Q', b"BEGIN\0")).unwrap();
        assert!(traffic.is_unknown());
        traffic.received(&frame(b'Z', b"T"), &mut out).unwrap();
        assert!(!traffic.is_idle() && !traffic.is_unknown());
        traffic.sent(&frame(b'P', b"")).unwrap();
        traffic.sent(&frame(b'S', b"")).unwrap();
        traffic.received(&frame(b'Z', b"I"), &mut out).unwrap();
        assert!(traffic.is_idle());
    }

    /// A COMMIT that is executed takes effect before its Sync.
    #[test]
    fn an_execute_is_under_way_before_its_sync() {
        let mut traffic = Traffic::new();
        let mut out = BytesMut::new();
        traffic.sent(&frame(b'E', b"\0\0\0\0\0")).unwrap();
        assert!(traffic.is_unknown() && !traffic.is_idle());
        traffic.sent(&frame(b'H', b"")).unwrap();
        traffic.received(&frame(b'C', b"COMMIT\0"), &mut out).unwrap();
        assert!(traffic.is_unknown() && !traffic.is_idle());
        traffic.sent(&frame(b'S', b"")).unwrap();
        traffic.received(&frame(b'Z', b"I"), &mut out).unwrap();
        assert!(traffic.is_idle() && !traffic.is_unknown());
    }

    /// The messages of libpq, with the Sync that it sends at once, of drivers that flush, and of a
    /// simple query.
    #[test]
    fn a_session_rests_after_a_copy() {
        let execute = frame(b'E', b"\0\0\0\0\0");
        let sync = frame(b'S', b"");
        for begin in [
            [execute.clone(), sync.clone()].concat(),
            [execute.clone(), frame(b'H', b"")].concat(),
            frame(b'Q', b"COPY t FROM STDIN\0"),
        ] {
            let is_simple = begin[0] == b'Q';
            for fails in [false, true] {
                let mut traffic = Traffic::new();
                let mut out = BytesMut::new();
                traffic.sent(&begin).unwrap();
                traffic.received(&frame(b'G', b"\0\0\0"), &mut out).unwrap();
                assert!(traffic.is_unknown() && !traffic.is_idle());
                traffic.sent(&frame(b'd', b"1\n")).unwrap();
                if fails {
                    traffic.received(&error("ERROR"), &mut out).unwrap();
                }
                traffic.sent(&sync).unwrap();
                assert!(traffic.is_unknown() && !traffic.is_idle());
                if !fails {
                    traffic.sent(&frame(b'c', b"")).unwrap();
                    if !is_simple {
                        traffic.sent(&sync).unwrap();
                    }
                    assert!(traffic.is_unknown() && !traffic.is_idle());
                    traffic.received(&frame(b'C', b"COPY 1\0"), &mut out).unwrap();
                } else if is_simple {
                    // The server replies to the Query, and to the Sync.
                    traffic.received(&frame(b'Z', b"I"), &mut out).unwrap();
                }
                assert!(traffic.is_unknown());
                traffic.received(&frame(b'Z', b"I"), &mut out).unwrap();
                assert!(traffic.is_idle() && !traffic.is_unknown(), "{begin:?} {fails}");
            }
        }
    }

    #[test]
    fn a_fatal_error_alone_is_held_back() {
        let mut traffic = Traffic::new();
        let mut out = BytesMut::new();
        traffic.received(&error("ERROR"), &mut out).unwrap();
        assert_eq!(out, error("ERROR"));
        assert_eq!(traffic.fatal(), None);
        let own = Refusal::protocol("x").frame();
        for fatal in [error("FATAL"), own.to_vec()] {
            let mut out = BytesMut::new();
            traffic.received(&fatal, &mut out).unwrap();
            assert_eq!(out, b""[..]);
            assert_eq!(traffic.fatal().map(|bytes| bytes.to_vec()), Some(fatal));
        }
        assert!(traffic.received(b"D\0\0\0\x01", &mut out).is_err());
    }

    proptest! {
        #[test]
        fn all_other_bytes_are_relayed_in_order(
            frames in prop::collection::vec(
                (prop::sample::select(b"DCZESNG".to_vec()), prop::collection::vec(any::<u8>(), 0..40)),
                0..20,
            ),
            cuts in prop::collection::vec(1_usize..30, 1..60),
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(tag, body)| frame(*tag, body)).collect();
            let mut traffic = Traffic::new();
            let mut out = BytesMut::new();
            let mut rest = &bytes[..];
            for cut in cuts.iter().cycle() {
                let (piece, later) = rest.split_at((*cut).min(rest.len()));
                traffic.received(piece, &mut out).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert!(traffic.is_at_boundary());
            prop_assert_eq!(out.to_vec(), bytes);
        }
    }
}
