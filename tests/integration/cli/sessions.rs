//! `fence session`, and leases that are bound to one.

use serde_json::{Value, json};

use super::Site;

async fn json_of(site: &Site, line: &str) -> Value {
    let args: Vec<&str> = line.split(' ').chain(["--output", "json"]).collect();
    let output = site.fence(&args).await;
    assert_eq!(output.code, 0, "{line}: {output:?}");
    serde_json::from_str(&output.stdout).unwrap()
}

async fn code_of(site: &Site, line: &str) -> (i32, String) {
    let output = site.fence(&line.split(' ').collect::<Vec<_>>()).await;
    (output.code, output.stderr)
}

/// The whole life, by commands alone.
#[tokio::test]
async fn a_session_from_its_beginning_to_its_end() {
    let site = Site::new().await;
    let begun =
        json_of(&site, "session create --owner web-1 --ttl 1m --metadata {\"pod\":7}").await;
    let id = begun["session_id"].as_str().unwrap();
    assert_eq!((&begun["owner"], &begun["metadata"]), (&json!("web-1"), &json!({"pod": 7})));
    let again = json_of(&site, &format!("session create --owner web-1 --id {id}")).await;
    assert_eq!(again["session_id"], id);
    // The lease has the owner of its session, though this command has another by default.
    let lease = json_of(&site, &format!("lock acquire s/a --session {id}")).await;
    assert_eq!(lease["owner"], "web-1");
    json_of(&site, &format!("lock acquire s/b --session {id} --owner web-1")).await;
    let (code, said) =
        code_of(&site, &format!("lock acquire s/c --session {id} --owner other")).await;
    assert_eq!(code, 64, "{said}");
    let beat = json_of(&site, &format!("session heartbeat {id}")).await;
    assert_eq!((&beat["heartbeats"], &beat["lease_count"]), (&json!(1), &json!(2)));
    let shown = json_of(&site, &format!("session show {id}")).await;
    assert_eq!(shown["leases"][0]["lock"], "s/a");
    let table = site.fence(&["session", "show", id]).await.stdout;
    assert!(table.contains("s/b") && table.contains("web-1"), "{table}");
    let list = site.fence(&["session", "list"]).await.stdout;
    assert!(list.contains(id) && list.contains("EXPIRES IN"), "{list}");
    let ended = json_of(&site, &format!("session end {id}")).await;
    assert_eq!((&ended["reason"], &ended["lease_count"]), (&json!("ended"), &json!(2)), "{ended}");
    assert_eq!(json_of(&site, "lock show s/a").await["state"], "free");
    for verb in ["end", "heartbeat", "show"] {
        let (code, said) = code_of(&site, &format!("session {verb} {id}")).await;
        assert_eq!(code, 76, "{verb}: {said}");
    }
    assert_eq!(code_of(&site, &format!("lock acquire s/a --session {id}")).await.0, 76);
}

#[tokio::test]
async fn a_blocked_session_is_refused_and_says_why() {
    let site = Site::new().await;
    let begun = json_of(&site, "session create --ttl 1m").await;
    let id = begun["session_id"].as_str().unwrap();
    let blocked = json_of(&site, &format!("session block {id} --reason runaway")).await;
    assert_eq!(blocked["blocked"], "runaway");
    let (code, said) = code_of(&site, &format!("session heartbeat {id}")).await;
    assert_eq!(code, 76, "{said}");
    assert!(said.contains("runaway"), "{said}");
}

#[tokio::test]
async fn bad_input_is_reported() {
    let site = Site::new().await;
    let unknown = fence_tests::key_file::session_id().to_string();
    let lease = fence_tests::key_file::lease_id();
    for (line, expected, shown) in [
        (format!("session show {unknown}"), 1, "session-unknown"),
        (format!("session heartbeat {unknown}"), 76, "session-unknown"),
        (format!("session end {unknown}"), 76, "session-unknown"),
        (format!("lock acquire a --session {unknown}"), 76, "session-unknown"),
        ("session show nope".to_owned(), 64, "nope"),
        ("session create --ttl 9d".to_owned(), 64, "9d"),
        ("session create --ttl 10ms".to_owned(), 64, "--ttl 10ms is out of range"),
        ("session create --metadata {".to_owned(), 64, "JSON"),
        ("session list --limit 0".to_owned(), 64, "limit"),
        (format!("session block {unknown}"), 64, "--reason"),
        (format!("session block {unknown} --reason x"), 1, "session-unknown"),
        ("session".to_owned(), 64, "create"),
        (format!("lock acquire a --takeover --takeover-of {lease}"), 64, "--takeover"),
    ] {
        let (code, said) = code_of(&site, &line).await;
        assert_eq!(code, expected, "{line}: {said}");
        assert!(said.contains(shown), "{line}: {said}");
    }
}

/// Takeover by hand: by incarnation, and by the lease that was seen to die.
#[tokio::test]
async fn a_lease_is_taken_over_by_hand() {
    let site = Site::new().await;
    let life = |n: u8| format!("lock acquire t --ttl 1m --owner svc --takeover --incarnation {n}");
    let first = json_of(&site, &life(1)).await;
    let second = json_of(&site, &life(2)).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
    let (code, said) = code_of(&site, &life(1)).await;
    assert_eq!(code, 75, "{said}");
    let old = first["lease_id"].as_str().unwrap();
    assert_eq!(code_of(&site, &format!("lock renew t {old}")).await.0, 76);
    let live = second["lease_id"].as_str().unwrap();
    let (code, said) = code_of(&site, &format!("lock acquire t --takeover-of {live}")).await;
    assert_eq!(code, 75, "another owner: {said}");
    let third = json_of(&site, &format!("lock acquire t --owner svc --takeover-of {live}")).await;
    assert!(third["token"].as_u64() > second["token"].as_u64());
}
