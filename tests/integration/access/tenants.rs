//! Attempts of one tenant to learn of another, or to harm it, by every trick there is.

use fence_protocol::wire::event::EventKind;
use fence_protocol::wire::fence::FencePage;
use fence_protocol::wire::lock::LockPage;
use fence_protocol::{Code, SessionId};
use fence_tests::event_stream::EventStream;
use fence_tests::key_file::{lease_id, unsigned};
use fence_tests::servers::Setup;
use fence_tests::wait::{soon, until_true};
use serde_json::json;

use super::{As, Site};

/// A path as a well-behaved client would not send it, which the router gets as it is.
async fn raw(who: &As, line: &str, more: &[(&str, &str)], body: &str) -> u16 {
    let (method, path) = line.split_once(' ').unwrap();
    let method = http::Method::from_bytes(method.as_bytes()).unwrap();
    let own = [("authorization", who.bearer.as_str()), ("content-type", "application/json")];
    let headers = [&own, more].concat();
    who.api.send(method, path, &headers, body.to_owned()).await.status
}

/// Spellings that lead out of `team/` where two readers of a path disagree, or where a prefix is
/// taken for more than it is.
const SPELLINGS: [&str; 20] = [
    "other/a",
    "other%2Fa",
    "team/../other/a",
    "team%2F..%2Fother%2Fa",
    "team/%2e%2e/other/a",
    "team%2f%2E%2E%2fother%2fa",
    "team/b/../../other/a",
    "team%2F%2Fother%2Fa",
    "team//../other/a",
    "/other/a",
    "%2Fother%2Fa",
    "team%252F..%252Fother%252Fa",
    "team%5C..%5Cother%5Ca",
    "team%00/../other/a",
    "TEAM/a",
    "team",
    "teams/a",
    "team-a",
    "team%2",
    "team%C0%AF..%C0%AFother",
];

#[tokio::test]
async fn no_spelling_of_a_path_leads_out_of_ones_names() {
    let site = Site::new();
    let server = site.lock_server().await;
    let guard = site.guard().await;
    let team = As::new(&server, "team");
    let held = team.acquire("team/held").await.lease();
    let other = As::new(&server, "other");
    let witness = other.acquire("other/a").await.lease();
    let lease = json!({"lease_id": witness.lease_id}).to_string();
    let token = unsigned(99, "other/a", lease_id());
    let token = [("fencing-token", token.as_str())];
    let at_guard = As::new(&guard, "team");
    for name in SPELLINGS {
        for (verb, body) in [("acquire", "{}"), ("renew", &lease), ("release", &lease)] {
            let line = format!("POST /v1/locks/{name}/{verb}");
            let status = raw(&team, &line, &[], body).await;
            assert!(matches!(status, 400 | 403 | 404), "{line}: {status}");
        }
        for (method, end, body) in [("GET", "", ""), ("POST", "/revoke", "{\"reason\":\"x\"}")] {
            let line = format!("{method} /v1/locks/{name}{end}");
            let status = raw(&team, &line, &[], body).await;
            assert!(matches!(status, 400 | 403 | 404), "{line}: {status}");
        }
        for (method, path, body) in [
            ("PUT", "objects", "x"),
            ("GET", "objects", ""),
            ("HEAD", "objects", ""),
            ("DELETE", "objects", ""),
            ("GET", "fences", ""),
        ] {
            let line = format!("{method} /v1/{path}/{name}");
            let status = raw(&at_guard, &line, &token, body).await;
            assert!(matches!(status, 400 | 403 | 404), "{line}: {status}");
        }
        for end in [format!("fences/{name}/seal"), format!("lanes/{name}/quarantine")] {
            let line = format!("POST /v1/{end}");
            let status = raw(&at_guard, &line, &token, "").await;
            assert!(matches!(status, 400 | 403 | 404), "{line}: {status}");
        }
    }
    let eye = As::new(&server, "eye");
    let page: LockPage = eye.get("/v1/locks").await.expect(200).read();
    let names: Vec<&str> = page.locks.iter().map(|line| line.lock.as_str()).collect();
    assert_eq!(names, ["other/a", "team/held"]);
    let marks: FencePage = As::new(&guard, "eye").get("/v1/fences").await.expect(200).read();
    assert_eq!(marks.fences, [], "a mark was raised");
    // Nothing was lost either.
    let own = json!({"lease_id": witness.lease_id});
    assert_eq!(other.lock("other/a", "renew", &own).await.lease().token, witness.token);
    let own = json!({"lease_id": held.lease_id});
    assert_eq!(team.lock("team/held", "renew", &own).await.lease().token, held.token);
}

#[tokio::test]
async fn no_listing_goes_beyond_its_prefix() {
    let site = Site::new();
    let server = site.lock_server().await;
    let guard = site.guard().await;
    for (server, paths) in
        [(&server, &["/v1/locks", "/v1/events"][..]), (&guard, &["/v1/fences", "/v1/lanes"][..])]
    {
        let team = As::new(server, "team");
        for path in paths {
            for query in [
                "",
                "?",
                "?prefix",
                "?prefix=",
                "?prefix=t",
                "?prefix=team",
                "?prefix=teams/",
                "?prefix=other/",
                "?prefix=%20team/",
                "?PREFIX=team/",
                "?after=team/a",
                "?prefix=team/&prefix=",
                "?prefix=&prefix=team/",
                "?prefix=other/&prefix=team/",
                "?prefix=team/&prefix=team/",
                "?prefix[]=team/",
                "?x=&%70refix=other/",
            ] {
                team.get(&format!("{path}{query}")).await.problem(Code::Forbidden);
            }
            // It begins with team/, so no name of another begins with it.
            // This guard has no lanes to list.
            if ["/v1/events", "/v1/lanes"].contains(path) {
                continue;
            }
            let odd = team.get(&format!("{path}?prefix=team/../other/")).await;
            assert!(odd.status == 200 || odd.status == 400, "{odd:?}");
        }
    }
}

/// One lock's events take the right to it; two ways to say which are not one more than is allowed.
#[tokio::test]
async fn no_stream_is_of_another_lock() {
    let site = Site::new();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    for query in [
        "?lock=",
        "?lock=other/a",
        "?lock=team",
        "?lock=team/a&lock=other/a",
        "?lock=other/a&lock=team/a",
        "?lock=other/a&prefix=team/",
        "?prefix=team/&%6Cock=other/a",
    ] {
        team.get(&format!("/v1/events{query}")).await.problem(Code::Forbidden);
    }
    for query in ["?lock=team/a&prefix=other/", "?lock=team/../other/a", "?lock=team%2F%2Fa"] {
        team.get(&format!("/v1/events{query}")).await.problem(Code::InvalidRequest);
    }
}

/// A reader of a part receives the events of that part, and neither those of other locks nor of
/// others' sessions.
#[tokio::test(start_paused = true)]
async fn events_of_others_are_not_sent() {
    let site = Site::new();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let other = As::new(&server, "other");
    let mut live = EventStream::open_as(&server, "?prefix=team/", "", &team.bearer).await;
    let begin = live.last_id.clone();
    let session: SessionId = other.begin(60_000).await.session_id;
    let a = other.lock("other/a", "acquire", &json!({"session_id": session})).await.lease();
    other.lock("other/a", "acquire", &json!({"wait_ms": 10_000})).await.problem(Code::LockHeld);
    other.lock("other/b", "acquire", &json!({"ttl_ms": 15_000})).await.lease();
    other.lock("other/a", "release", &json!({"lease_id": a.lease_id})).await.expect(200);
    other.end(session).await.expect(200);
    let ops = As::new(&server, "ops");
    other.acquire("other/c").await.lease();
    ops.lock("other/c", "revoke", &json!({"reason": "secret reason"})).await.expect(200);
    // Its own session is not in its stream here either: sessions are for those who read everything.
    let own = team.begin(60_000).await.session_id;
    team.end(own).await.expect(200);
    let marker = team.acquire("team/z").await.lease();
    let mut resumed = EventStream::open_as(&server, "?prefix=team/", &begin, &team.bearer).await;
    for stream in [&mut live, &mut resumed] {
        let event = stream.next().await;
        assert_eq!(
            (event.kind, event.token),
            (EventKind::Granted, Some(marker.token)),
            "{event:?}"
        );
    }
    let eye = As::new(&server, "eye");
    let mut whole = EventStream::open_as(&server, "", &begin, &eye.bearer).await;
    assert_eq!(whole.next().await.kind, EventKind::SessionBegun);
}

/// A stream has no end of its own; the right to it has.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_the_right_to_it() {
    let site = Site::new();
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let rival = As::new(&server, "rival");
    let mut stream = EventStream::open_as(&server, "?prefix=team/", "", &team.bearer).await;
    let mut kept = EventStream::open_as(&server, "?prefix=team/", "", &rival.bearer).await;
    rival.acquire("team/before").await.lease();
    assert_eq!(stream.next().await.kind, EventKind::Granted);
    assert_eq!(kept.next().await.kind, EventKind::Granted);
    site.write(&Site::file("").replacen("use team/*", "acquire team/*", 1));
    until_true("the right to be gone", || async {
        team.get("/v1/locks/team%2Fbefore").await.status == 403
    })
    .await;
    let after = rival.acquire("team/after").await.lease();
    assert_eq!(soon("the end of the stream", stream.next_or_end()).await, None);
    assert_eq!(kept.next().await.token, Some(after.token));
}

/// The places for readers are for all; no principal takes more than its own waiters.
#[tokio::test]
async fn streams_are_limited_as_waiters_are() {
    let site = Site::with("max-waiters = 1");
    let server = site.lock_server().await;
    let team = As::new(&server, "team");
    let rival = As::new(&server, "rival");
    let stream = EventStream::open_as(&server, "?prefix=team/", "", &team.bearer).await;
    let full = team.get("/v1/events?prefix=team/").await;
    assert!(full.problem(Code::LimitReached).detail.contains("team: "), "{full:?}");
    let held = rival.acquire("team/a").await.lease();
    team.lock("team/a", "acquire", &json!({"wait_ms": 1_000})).await.problem(Code::LimitReached);
    drop(EventStream::open_as(&server, "?prefix=team/", "", &rival.bearer).await);
    drop(stream);
    rival.lock("team/a", "release", &json!({"lease_id": held.lease_id})).await.expect(200);
    until_true("the place to be free", || async {
        let ask = json!({"wait_ms": 1});
        team.lock("team/a", "acquire", &ask).await.status != 429
    })
    .await;
}

#[tokio::test]
async fn figures_and_readiness_name_no_principal() {
    let site = Site::new();
    let server = site.lock_server().await;
    let guard = site.guard().await;
    let other = As::new(&server, "other");
    let session = other.begin(60_000).await.session_id;
    other.lock("other/hidden", "acquire", &json!({"session_id": session})).await.lease();
    let at_guard = As::new(&guard, "other");
    let fencing = unsigned(77, "other/hidden", lease_id());
    let headers = [("authorization", at_guard.bearer.as_str()), ("fencing-token", &fencing)];
    for token in [headers, headers] {
        let path = "/v1/objects/other/hidden";
        let reply = at_guard.api.send(http::Method::PUT, path, &token, "x").await;
        assert!(matches!(reply.status, 200 | 201 | 204), "{reply:?}");
    }
    for server in [&server, &guard] {
        let team = As::new(server, "team");
        for path in ["/metrics", "/readyz?verbose", "/version"] {
            let text = String::from_utf8_lossy(&team.get(path).await.expect(200).body).into_owned();
            for word in ["hidden", "rival", &session.to_string()] {
                assert!(!text.contains(word), "{path}: {word}: {text}");
            }
        }
        let anonymous = server.api();
        for path in ["/readyz?verbose", "/readyz?verbose=1", "/readyz?a=b&verbose"] {
            super::assert_unknown(&anonymous.get(path).await);
        }
        assert_eq!(&anonymous.get("/readyz").await.expect(200).body[..], b"ok\n");
    }
}

/// The highest mark is of the whole namespace, so it is for those who may read that.
#[tokio::test]
async fn marks_of_others_are_not_shown() {
    let site = Site::new();
    let guard = site.guard().await;
    let (team, other, eye) =
        (As::new(&guard, "team"), As::new(&guard, "other"), As::new(&guard, "eye"));
    for (who, lock, token) in [(&team, "team/a", 5), (&other, "other/a", 90)] {
        let fencing = unsigned(token, lock, lease_id());
        let headers = [("authorization", who.bearer.as_str()), ("fencing-token", &fencing)];
        let path = format!("/v1/fences/{lock}/seal");
        who.api.send(http::Method::POST, &path, &headers, "").await.expect(200);
    }
    let page = async |who: &As, query: &str| -> FencePage {
        who.get(&format!("/v1/fences{query}")).await.expect(200).read()
    };
    let own = page(&team, "?prefix=team/").await;
    assert_eq!((own.fences.len(), own.highest_mark), (1, None));
    for query in ["", "?prefix=team/"] {
        assert_eq!(page(&eye, query).await.highest_mark.map(|mark| mark.get()), Some(90));
    }
    team.get("/v1/fences/other/a").await.problem(Code::Forbidden);
}

/// Refusals that a guard could not report are a gap for the readers of every lock; so reporting
/// them takes the right to all.
#[tokio::test]
async fn a_part_of_the_guards_cannot_disturb_all_readers() {
    let site = Site::new();
    let entry = |name: &str, allow: &str| {
        let hash = access_control::secret::SecretHash::from_secret(&format!("secret-of-{name}"));
        format!("[principals.{name}]\ntokens = [\"{hash}\"]\nallow = [\"{allow}\"]\n")
    };
    site.write(&format!(
        "{}{}{}",
        Site::file(""),
        entry("part", "report team/*"),
        entry("guard", "report *")
    ));
    let server = site.arm(Setup::lock_server("memory:")).in_process().await;
    let mut stream = {
        let other = As::new(&server, "other");
        EventStream::open_as(&server, "?prefix=other/", "", &other.bearer).await
    };
    let report = async |name: &str, lock: &str, dropped: u64| {
        let refusal = json!({"lock": lock, "token": 7, "lease_id": lease_id(), "mark": 9,
                             "operation": "PUT a: stale-token"});
        let body = json!({"refusals": [refusal], "dropped": dropped}).to_string();
        As::new(&server, name).send(http::Method::POST, "/v1/refusals", &body).await
    };
    report("part", "team/a", 3).await.problem(Code::Forbidden);
    report("part", "other/a", 0).await.problem(Code::Forbidden);
    report("team", "team/a", 0).await.problem(Code::Forbidden);
    report("part", "team/a", 0).await.expect(200);
    report("guard", "other/a", 0).await.expect(200);
    assert_eq!(stream.next().await.kind, EventKind::Refused, "and no gap before");
    report("guard", "team/a", 3).await.expect(200);
    assert_eq!(stream.next().await.kind, EventKind::Gap);
}
