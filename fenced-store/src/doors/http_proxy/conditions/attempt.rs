//! One conditional write: replies in, next step out, no I/O and no clock.

use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::Doubt;
use crate::etag::{Condition, ETag};

/// State of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// It does not exist.
    Absent,
    /// It exists with this tag.
    Tag(ETag),
}

impl Version {
    fn tag(&self) -> Option<&ETag> {
        match self {
            Self::Absent => None,
            Self::Tag(tag) => Some(tag),
        }
    }

    /// Returns the condition that holds for this version alone.
    fn precondition(&self) -> Precondition {
        match self {
            Self::Absent => Precondition::Absent,
            Self::Tag(tag) => Precondition::Match(tag.clone()),
        }
    }
}

/// Condition of a write at the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match`.
    Match(ETag),
}

impl Precondition {
    /// Puts the condition in the place of the client's own.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        headers.remove(header::IF_MATCH);
        headers.remove(header::IF_NONE_MATCH);
        match self {
            Self::Absent => {
                headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            Self::Match(tag) => {
                if let Ok(value) = HeaderValue::try_from(tag.to_string()) {
                    headers.insert(header::IF_MATCH, value);
                }
            }
        }
    }

    /// Returns `true` if the condition never holds again once it did not. A tag is never reused; a
    /// resource that exists can be missing again.
    fn is_once(&self) -> bool {
        matches!(self, Self::Match(_))
    }
}

/// Result of a read of the version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Version(Version),
    /// It exists, without a strong tag.
    Untagged,
    /// The upstream offers no such read.
    Refused,
    /// Something else: the upstream refuses the read, or has not replied.
    Nothing,
}

impl Seen {
    /// Reads the reply to a HEAD.
    pub(crate) fn from_reply(status: StatusCode, headers: &HeaderMap) -> Self {
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Self::Version(Version::Absent),
            status if status.is_success() => {
                strong_tag(headers).map_or(Self::Untagged, |tag| Self::Version(Version::Tag(tag)))
            }
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Self::Refused,
            _ => Self::Nothing,
        }
    }
}

/// Returns the strong tag of a reply, if it has exactly one.
pub(crate) fn strong_tag(headers: &HeaderMap) -> Option<ETag> {
    let mut tags = headers.get_all(header::ETAG).iter();
    let tag = tags.next().filter(|_| tags.next().is_none())?;
    ETag::parse_strong(tag.to_str().ok()?.trim())
}

/// Result of a write at the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// No reply, or one that leaves the outcome open.
    Unknown,
    /// 202: accepted, perhaps under its condition, to be applied later without a look at it.
    Deferred,
    /// 2xx, with the new tag if the reply has a strong one.
    Applied(Option<ETag>),
    /// 412: the condition did not hold.
    Refused,
    /// 404 or 410.
    Missing,
    /// Another final reply, or nothing was sent.
    Other,
}

impl Written {
    /// Reads the reply to a write that has a definite outcome.
    pub(crate) fn from_reply(status: StatusCode, headers: &HeaderMap) -> Self {
        match status {
            StatusCode::ACCEPTED => Self::Deferred,
            StatusCode::PRECONDITION_FAILED => Self::Refused,
            StatusCode::NOT_FOUND | StatusCode::GONE => Self::Missing,
            status if status.is_success() => Self::Applied(strong_tag(headers)),
            _ => Self::Other,
        }
    }
}

/// Next step of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptStep {
    /// Read the version.
    Look,
    /// Send the write under this condition.
    Send(Precondition),
    /// The write has ended.
    End(End),
}

/// End of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The last reply to the write is the outcome.
    Replied,
    /// The last reply to the read is the outcome: it was no read. Nothing was applied.
    Looked,
    /// The client's condition does not hold. Nothing was applied.
    Failed {
        /// Tag of the resource, if it exists.
        current: Option<ETag>,
    },
    /// Other writes came first each time. Nothing was applied.
    Contended,
    /// There is no version to name: the resource to delete is missing (by a read, which may be
    /// outdated), or the upstream does not keep its promise. Nothing was applied, and the request
    /// can be sent without a condition.
    Unconditional,
    /// The outcome is unknown, and the write can no longer take effect if it has not.
    Settled,
    /// The outcome is unknown, and the write may still take effect.
    Unsettled,
}

/// Number of times that a write is sent at most, as long as it is certainly not applied.
const SENDS: u32 = 4;
/// Number of times that a write with an unknown outcome is sent again at most: each can take the
/// whole time limit of a reply.
const RESENDS: u32 = 2;

/// A PUT or DELETE under a condition.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    is_delete: bool,
    /// The client's condition.
    client: Condition,
    /// The body can be sent more than once.
    is_repeatable: bool,
    /// Version that the last reply showed.
    version: Option<Version>,
    /// It was read for this write.
    is_fresh: bool,
    sent: Option<Precondition>,
    /// One of the writes that were sent has an unknown outcome.
    is_unknown: bool,
    /// That one was sent again, and refused.
    is_refused_again: bool,
    sends_left: u32,
    doubt: Option<Doubt>,
    end: Option<End>,
}

impl Attempt {
    /// Makes an attempt. `known` is the version that an earlier reply showed; a body that can be
    /// sent once alone does not rely on it.
    pub(crate) fn new(
        is_delete: bool,
        client: Condition,
        known: Option<Version>,
        is_repeatable: bool,
    ) -> Self {
        Self {
            is_delete,
            client,
            is_repeatable,
            version: known.filter(|_| is_repeatable),
            is_fresh: false,
            sent: None,
            is_unknown: false,
            is_refused_again: false,
            sends_left: if is_repeatable { SENDS } else { 1 },
            doubt: None,
            end: None,
        }
    }

    /// Returns the version that the write left, if it is known.
    pub(crate) fn version(self) -> Option<Version> {
        self.version
    }

    /// Returns the promise that the upstream did not keep, if any.
    pub(crate) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Returns `true` if one of the writes that were sent has an unknown outcome.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Returns the next step.
    pub(crate) fn step(&self) -> AttemptStep {
        if let Some(end) = &self.end {
            return AttemptStep::End(end.clone());
        }
        if self.is_unknown {
            return self.settle();
        }
        let Some(version) = &self.version else { return AttemptStep::Look };
        if !self.client.holds(version.tag()) {
            let current = version.tag().cloned();
            return self.if_fresh(End::Failed { current });
        }
        if self.is_delete && *version == Version::Absent {
            return self.if_fresh(End::Unconditional);
        }
        if self.sends_left == 0 {
            return AttemptStep::End(End::Contended);
        }
        AttemptStep::Send(version.precondition())
    }

    /// Ends the write, or reads the version first if it may be outdated.
    fn if_fresh(&self, end: End) -> AttemptStep {
        if self.is_fresh { AttemptStep::End(end) } else { AttemptStep::Look }
    }

    fn settle(&self) -> AttemptStep {
        match &self.sent {
            Some(_) if self.is_refused_again => AttemptStep::Look,
            Some(sent) if sent.is_once() && self.sends_left > 0 => AttemptStep::Send(sent.clone()),
            _ => AttemptStep::End(End::Unsettled),
        }
    }

    /// Handles the reply to [`AttemptStep::Look`].
    pub(crate) fn looked(&mut self, seen: Seen) {
        self.is_fresh = true;
        if self.is_unknown {
            self.looked_again(seen);
            return;
        }
        match seen {
            Seen::Nothing => self.end = Some(End::Looked),
            Seen::Untagged => self.distrust(Doubt::Untagged),
            Seen::Refused => self.distrust(Doubt::Unreadable),
            Seen::Version(version) if self.was_refused(&version) => {
                self.distrust(Doubt::Contradiction);
            }
            Seen::Version(version) => self.version = Some(version),
        }
    }

    /// Handles the version behind the 412 to a write that was sent again. Upstreams reply 412 for
    /// reasons of their own too (a lease on the object, say), while the tag stays and the first
    /// write may still find it.
    fn looked_again(&mut self, seen: Seen) {
        self.end = Some(match seen {
            Seen::Version(version) if !self.was_refused(&version) => {
                self.version = Some(version);
                End::Settled
            }
            _ => End::Unsettled,
        });
    }

    /// Returns `true` if the upstream refused a write under this version, and still shows it.
    fn was_refused(&self, version: &Version) -> bool {
        self.sent.as_ref() == Some(&version.precondition())
    }

    fn distrust(&mut self, doubt: Doubt) {
        let is_sendable = self.is_repeatable || self.sent.is_none();
        self.doubt = Some(doubt);
        self.end = Some(if is_sendable { End::Unconditional } else { End::Contended });
    }

    /// Handles the reply to [`AttemptStep::Send`].
    pub(crate) fn replied(&mut self, written: Written) {
        let AttemptStep::Send(sent) = self.step() else { return };
        self.version = None;
        self.is_fresh = false;
        self.sends_left -= 1;
        match written {
            Written::Unknown if self.is_unknown => {}
            Written::Unknown => {
                self.is_unknown = true;
                self.sends_left = if self.is_repeatable { RESENDS } else { 0 };
            }
            Written::Applied(tag) => {
                self.version =
                    if self.is_delete { Some(Version::Absent) } else { tag.map(Version::Tag) };
                let left = self.version.as_ref().map(Version::precondition);
                if left.as_ref() == Some(&sent) {
                    self.doubt = Some(Doubt::Reused);
                }
                // Only a new tag shows that the first one is dead.
                let is_open = self.is_unknown && self.doubt.is_some();
                self.end = Some(if is_open { End::Unsettled } else { End::Replied });
            }
            Written::Deferred => {
                self.is_unknown = true;
                self.doubt = Some(Doubt::Deferred);
                self.end = Some(End::Unsettled);
            }
            Written::Refused if self.is_unknown => self.is_refused_again = true,
            // Some upstreams reply 404 to a condition on what is missing.
            Written::Refused => {}
            Written::Missing if !self.is_unknown && !self.is_delete && sent.is_once() => {}
            // The one before may still take effect.
            Written::Missing | Written::Other if self.is_unknown => {}
            Written::Missing | Written::Other => self.end = Some(End::Replied),
        }
        self.sent = Some(sent);
    }
}

#[cfg(test)]
mod tests;
