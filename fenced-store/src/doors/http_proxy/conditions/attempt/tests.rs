//! Steps of a conditional write, reply by reply.

use proptest::prelude::*;

use super::*;

fn tag(text: &str) -> ETag {
    ETag::from_stored(text)
}

fn at(text: &str) -> Version {
    Version::Tag(tag(text))
}

fn under(text: &str) -> AttemptStep {
    AttemptStep::Send(Precondition::Match(tag(text)))
}

fn put(client: Condition, known: Option<Version>) -> Attempt {
    Attempt::new(false, client, known, true)
}

fn delete(known: Option<Version>) -> Attempt {
    Attempt::new(true, Condition::None, known, true)
}

#[test]
fn a_write_goes_under_the_version_that_was_seen() {
    let mut attempt = put(Condition::None, None);
    assert_eq!(attempt.step(), AttemptStep::Look);
    attempt.looked(Seen::Version(at("1")));
    assert_eq!(attempt.step(), under("1"));
    attempt.replied(Written::Applied(Some(tag("2"))));
    assert_eq!(attempt.step(), AttemptStep::End(End::Replied));
    assert_eq!(attempt.doubt(), None);
    assert_eq!(attempt.version(), Some(at("2")));
    assert_eq!(
        put(Condition::None, Some(Version::Absent)).step(),
        AttemptStep::Send(Precondition::Absent)
    );
}

#[test]
fn a_refused_write_is_sent_again_under_the_version_that_is_there() {
    let mut attempt = put(Condition::None, Some(at("1")));
    for number in 2..=SENDS {
        attempt.replied(Written::Refused);
        assert_eq!(attempt.step(), AttemptStep::Look);
        attempt.looked(Seen::Version(at(&number.to_string())));
        assert_eq!(attempt.step(), under(&number.to_string()));
    }
    attempt.replied(Written::Refused);
    attempt.looked(Seen::Version(at("9")));
    assert_eq!(attempt.step(), AttemptStep::End(End::Contended));
}

/// The client's condition is checked on the version that the upstream checks, and on a current one
/// before it fails.
#[test]
fn a_client_condition_is_never_weakened() {
    let client = || Condition::AnyOf(vec![tag("1")]);
    assert_eq!(put(client(), Some(at("1"))).step(), under("1"));
    let mut attempt = put(client(), Some(at("2")));
    assert_eq!(attempt.step(), AttemptStep::Look);
    attempt.looked(Seen::Version(at("2")));
    assert_eq!(attempt.step(), AttemptStep::End(End::Failed { current: Some(tag("2")) }));
    // It held when the write was sent, and not any more.
    let mut attempt = put(client(), Some(at("1")));
    attempt.replied(Written::Refused);
    attempt.looked(Seen::Version(at("2")));
    assert_eq!(attempt.step(), AttemptStep::End(End::Failed { current: Some(tag("2")) }));
    let mut attempt = put(Condition::Absent, Some(Version::Absent));
    assert_eq!(attempt.step(), AttemptStep::Send(Precondition::Absent));
    attempt.replied(Written::Refused);
    attempt.looked(Seen::Version(at("2")));
    assert_eq!(attempt.step(), AttemptStep::End(End::Failed { current: Some(tag("2")) }));
}

#[test]
fn an_unknown_outcome_is_settled_by_the_same_write() {
    let unknown = || {
        let mut attempt = put(Condition::None, Some(at("1")));
        attempt.replied(Written::Unknown);
        assert_eq!(attempt.step(), under("1"));
        attempt
    };
    let mut attempt = unknown();
    attempt.replied(Written::Applied(Some(tag("2"))));
    assert_eq!(attempt.step(), AttemptStep::End(End::Replied));
    for (seen, end) in [
        (Seen::Version(at("2")), End::Settled),
        (Seen::Version(Version::Absent), End::Settled),
        // It was refused for another reason than the tag.
        (Seen::Version(at("1")), End::Unsettled),
        (Seen::Untagged, End::Unsettled),
        (Seen::Refused, End::Unsettled),
        (Seen::Nothing, End::Unsettled),
    ] {
        let mut attempt = unknown();
        attempt.replied(Written::Refused);
        assert_eq!(attempt.step(), AttemptStep::Look);
        attempt.looked(seen.clone());
        assert_eq!(attempt.step(), AttemptStep::End(end), "{seen:?}");
    }
    // A tag that stays shows that the first one is not dead.
    let mut attempt = unknown();
    attempt.replied(Written::Applied(Some(tag("1"))));
    assert_eq!(attempt.step(), AttemptStep::End(End::Unsettled));
    assert_eq!(attempt.doubt(), Some(Doubt::Reused));
    // None of these shows that the tag has changed.
    for written in [Written::Unknown, Written::Other, Written::Missing] {
        let mut attempt = unknown();
        for _ in 0..RESENDS {
            assert_eq!(attempt.step(), under("1"));
            attempt.replied(written.clone());
        }
        assert_eq!(attempt.step(), AttemptStep::End(End::Unsettled), "{written:?}");
    }
    let mut attempt = delete(Some(at("1")));
    attempt.replied(Written::Unknown);
    attempt.replied(Written::Missing);
    assert_eq!(attempt.step(), under("1"), "a gateway may have replied 404");
    attempt.replied(Written::Refused);
    attempt.looked(Seen::Version(Version::Absent));
    assert_eq!(attempt.step(), AttemptStep::End(End::Settled));
}

/// Its condition is checked when it is accepted, and it is applied later: one more would be too.
#[test]
fn a_deferred_write_is_never_sent_again_nor_settled() {
    for is_unknown in [false, true] {
        let mut attempt = put(Condition::None, Some(at("1")));
        if is_unknown {
            attempt.replied(Written::Unknown);
        }
        attempt.replied(Written::Deferred);
        assert_eq!(attempt.step(), AttemptStep::End(End::Unsettled));
        assert_eq!(attempt.doubt(), Some(Doubt::Deferred));
    }
    let accepted = Written::from_reply(StatusCode::ACCEPTED, &HeaderMap::new());
    assert_eq!(accepted, Written::Deferred);
}

/// Some upstreams reply 404 to a condition on a resource that was removed.
#[test]
fn a_resource_that_was_removed_is_made_again() {
    let mut attempt = put(Condition::None, Some(at("1")));
    attempt.replied(Written::Missing);
    assert_eq!(attempt.step(), AttemptStep::Look);
    attempt.looked(Seen::Version(Version::Absent));
    assert_eq!(attempt.step(), AttemptStep::Send(Precondition::Absent));
}

#[test]
fn a_creation_of_unknown_outcome_is_never_settled() {
    let mut attempt = put(Condition::None, Some(Version::Absent));
    attempt.replied(Written::Unknown);
    assert_eq!(attempt.step(), AttemptStep::End(End::Unsettled));
}

#[test]
fn a_body_that_can_be_sent_once_is_sent_once() {
    let once = |known| Attempt::new(false, Condition::None, known, false);
    let mut attempt = once(Some(at("1")));
    assert_eq!(attempt.step(), AttemptStep::Look, "the version is read for it");
    attempt.looked(Seen::Version(at("1")));
    attempt.replied(Written::Refused);
    attempt.looked(Seen::Version(at("2")));
    assert_eq!(attempt.step(), AttemptStep::End(End::Contended));
    let mut attempt = once(None);
    attempt.looked(Seen::Version(at("1")));
    attempt.replied(Written::Unknown);
    assert_eq!(attempt.step(), AttemptStep::End(End::Unsettled));
    // Its body is gone, so that nothing may be sent without a condition either.
    for seen in [Seen::Untagged, Seen::Version(at("1"))] {
        let mut attempt = once(None);
        attempt.looked(Seen::Version(at("1")));
        attempt.replied(Written::Refused);
        attempt.looked(seen);
        assert_eq!(attempt.step(), AttemptStep::End(End::Contended));
    }
}

/// A read may be outdated, and absence is no version to delete under.
#[test]
fn a_missing_resource_is_deleted_without_a_condition() {
    let mut attempt = delete(Some(Version::Absent));
    assert_eq!(attempt.step(), AttemptStep::Look);
    attempt.looked(Seen::Version(Version::Absent));
    assert_eq!(attempt.step(), AttemptStep::End(End::Unconditional));
    assert_eq!(attempt.doubt(), None);
}

#[test]
fn an_upstream_that_breaks_its_promise_is_noticed() {
    let doubted = |attempt: Attempt, doubt| {
        assert_eq!(attempt.step(), AttemptStep::End(End::Unconditional));
        assert_eq!(attempt.doubt(), Some(doubt));
    };
    for (seen, doubt) in [(Seen::Untagged, Doubt::Untagged), (Seen::Refused, Doubt::Unreadable)] {
        let mut attempt = put(Condition::None, None);
        attempt.looked(seen);
        doubted(attempt, doubt);
    }
    for version in [at("1"), Version::Absent] {
        let mut attempt = put(Condition::None, Some(version.clone()));
        attempt.replied(Written::Refused);
        attempt.looked(Seen::Version(version));
        doubted(attempt, Doubt::Contradiction);
    }
    let mut attempt = put(Condition::None, Some(at("1")));
    attempt.replied(Written::Applied(Some(tag("1"))));
    assert_eq!(attempt.doubt(), Some(Doubt::Reused));
    // Some upstreams show the tag of what they deleted.
    let mut attempt = delete(Some(at("1")));
    attempt.replied(Written::Applied(Some(tag("1"))));
    assert_eq!(attempt.doubt(), None);
}

#[test]
fn replies_are_read_with_care() {
    let headers = |tags: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for tag in tags {
            headers.append(header::ETAG, HeaderValue::from_static(tag));
        }
        headers
    };
    let seen = |status: u16, tags: &[&'static str]| {
        Seen::from_reply(StatusCode::from_u16(status).unwrap(), &headers(tags))
    };
    assert_eq!(seen(200, &["\"1\""]), Seen::Version(at("1")));
    assert_eq!(seen(404, &["\"1\""]), Seen::Version(Version::Absent));
    for tags in [&[][..], &["W/\"1\""], &["\"1\"", "\"2\""]] {
        assert_eq!(seen(200, tags), Seen::Untagged, "{tags:?}");
    }
    for status in [405, 501] {
        assert_eq!(seen(status, &["\"1\""]), Seen::Refused, "{status}");
    }
    for status in [301, 401, 403, 500, 503] {
        assert_eq!(seen(status, &["\"1\""]), Seen::Nothing, "{status}");
    }
    let mut own = headers(&[]);
    own.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"9\""));
    Precondition::Match(tag("1")).apply(&mut own);
    assert_eq!(own["if-match"], "\"1\"");
    assert!(!own.contains_key("if-none-match"));
}

fn written() -> impl Strategy<Value = Written> {
    prop_oneof![
        Just(Written::Unknown),
        Just(Written::Deferred),
        Just(Written::Applied(None)),
        Just(Written::Applied(Some(tag("2")))),
        Just(Written::Refused),
        Just(Written::Missing),
        Just(Written::Other),
    ]
}

fn seen() -> impl Strategy<Value = Seen> {
    prop_oneof![
        Just(Seen::Version(Version::Absent)),
        Just(Seen::Version(at("1"))),
        Just(Seen::Version(at("2"))),
        Just(Seen::Untagged),
        Just(Seen::Refused),
        Just(Seen::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the upstream replies, a write ends, is not sent again under another condition once
    /// an outcome is unknown, and is said to be without effect only if it certainly is.
    #[test]
    fn a_write_ends_and_its_end_is_true(
        is_delete: bool,
        is_repeatable: bool,
        written in prop::collection::vec(written(), 16),
        seen in prop::collection::vec(seen(), 16),
    ) {
        let mut attempt = Attempt::new(is_delete, Condition::None, None, is_repeatable);
        let mut written = written.into_iter();
        let mut seen = seen.into_iter();
        let mut unknown: Option<Precondition> = None;
        let mut sends = 0;
        let mut is_shown_dead = false;
        let end = loop {
            match attempt.step() {
                AttemptStep::Look => {
                    let version = seen.next().expect("it ends");
                    if let Some(unknown) = &unknown {
                        is_shown_dead = matches!(&version, Seen::Version(version)
                            if version.precondition() != *unknown);
                    }
                    attempt.looked(version);
                }
                AttemptStep::Send(sent) => {
                    sends += 1;
                    prop_assert!(is_repeatable || sends == 1);
                    prop_assert!(unknown.as_ref().is_none_or(|unknown| *unknown == sent));
                    let reply = written.next().expect("it ends");
                    if matches!(reply, Written::Unknown | Written::Deferred) {
                        unknown = Some(sent);
                    }
                    attempt.replied(reply);
                }
                AttemptStep::End(end) => break end,
            }
        };
        let is_unknown = matches!(end, End::Settled | End::Unsettled);
        prop_assert_eq!(is_unknown, unknown.is_some() && end != End::Replied);
        if end == End::Settled {
            prop_assert!(matches!(unknown, Some(Precondition::Match(_))) && is_shown_dead);
        }
    }
}
