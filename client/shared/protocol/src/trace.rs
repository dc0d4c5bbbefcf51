//! The `traceparent` header of W3C Trace Context: the trace that a request belongs to.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use crate::Invalid;

/// Name of the header, and in capitals of the variable.
pub const TRACEPARENT: &str = "traceparent";

/// Length of a header of version 00, in bytes.
const BYTES: usize = 55;
const SAMPLED: u8 = 1;
/// The flags that are passed on: sampled, and that the trace id is random.
const FLAGS: u8 = 3;

/// Position in a trace: its id, and the caller's span in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace: NonZeroU128,
    span: NonZeroU64,
    flags: u8,
}

impl TraceContext {
    /// The first span of a new trace, which is to be recorded.
    pub fn root(trace: NonZeroU128, span: NonZeroU64) -> Self {
        Self { trace, span, flags: FLAGS }
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: NonZeroU64) -> Self {
        Self { span, ..self }
    }

    /// The trace's id, as 32 hexadecimal digits.
    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The span's id, as 16 hexadecimal digits.
    pub fn span_id(self) -> String {
        format!("{:016x}", self.span)
    }

    /// `true` if the caller records this trace, and wants it to be recorded.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl FromStr for TraceContext {
    type Err = Invalid;

    /// Reads version 00, and of later versions the part that they have in common with it.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let read = || {
            let head = text.get(..BYTES)?;
            let mut parts = head.split('-');
            let version = hex(parts.next()?, 2)?;
            let trace = NonZeroU128::new(hex(parts.next()?, 32)?)?;
            let span = NonZeroU64::new(u64::try_from(hex(parts.next()?, 16)?).ok()?)?;
            let flags = u8::try_from(hex(parts.next()?, 2)?).ok()? & FLAGS;
            let rest = &text[BYTES..];
            let is_whole = match version {
                0 => rest.is_empty(),
                0xff => false,
                _ => rest.is_empty() || rest.starts_with('-'),
            };
            (is_whole && parts.next().is_none()).then_some(Self { trace, span, flags })
        };
        read().ok_or_else(|| {
            Invalid::new(TRACEPARENT, text, "is not VERSION-TRACE-SPAN-FLAGS (W3C Trace Context)")
        })
    }
}

/// A number of exactly so many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let is_number = text.len() == digits && text.bytes().all(is_digit);
    is_number.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_is_read_and_written() {
        let context: TraceContext = GOOD.parse().unwrap();
        assert_eq!(context.to_string(), GOOD);
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id(), "00f067aa0ba902b7");
        assert!(context.is_sampled());
        let child = context.with_span(NonZeroU64::MIN);
        assert_eq!(child.to_string(), "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01");
        let other: TraceContext = GOOD.replace("-01", "-fe").parse().unwrap();
        assert!(!other.is_sampled());
        assert!(other.to_string().ends_with("-02"), "unknown flags are not passed on: {other}");
    }

    #[test]
    fn a_later_version_may_have_more() {
        for later in [GOOD.replacen("00", "cc", 1), format!("cc{}-what-else", &GOOD[2..])] {
            assert_eq!(later.parse::<TraceContext>().unwrap().to_string(), GOOD);
        }
    }

    #[test]
    fn what_is_no_traceparent_is_refused() {
        let zero_trace = GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
        let zero_span = GOOD.replace("00f067aa0ba902b7", &"0".repeat(16));
        let long = format!("{GOOD}-more");
        let cut = &GOOD[..54];
        let upper = GOOD.to_ascii_uppercase();
        let later = format!("cc{}.more", &GOOD[2..]);
        let version = GOOD.replacen("00", "ff", 1);
        let hyphen = GOOD.replace("4bf9", "4b-9");
        let plus = GOOD.replace("4bf9", "+bf9");
        let wide = GOOD.replace("-01", "-é");
        for bad in [
            "",
            "00",
            cut,
            &zero_trace,
            &zero_span,
            &long,
            &upper,
            &later,
            &version,
            &hyphen,
            &plus,
            &wide,
        ] {
            assert!(bad.parse::<TraceContext>().is_err(), "{bad:?}");
        }
    }
}
