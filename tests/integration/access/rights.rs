//! Rights of principals.

use fence_protocol::Code;
use fence_tests::api::Api;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use http::Method;
use serde_json::json;

use super::{As, Site, assert_unknown, exists};

#[tokio::test]
async fn nothing_but_liveness_is_for_everybody() {
    let site = Site::new();
    for server in [site.lock_server().await, site.guard().await] {
        let anonymous = server.api();
        let stranger = As::new(&server, "stranger");
        let routes = [
            "/v1/locks",
            "/v1/locks/a",
            "/v1/fences",
            "/v1/lanes",
            "/v1/objects/a",
            "/v1/stores",
            "/v1/fences/a",
        ];
        for path in ["/version", "/metrics", "/openapi.json"].iter().chain(&routes) {
            if anonymous.get(path).await.status == 404 {
                continue;
            }
            assert_unknown(&anonymous.get(path).await);
            assert_unknown(&stranger.get(path).await);
        }
        for path in ["/version", "/metrics", "/openapi.json"] {
            As::new(&server, "team").get(path).await.expect(200);
        }
        for path in ["/livez", "/readyz"] {
            anonymous.get(path).await.expect(200);
        }
    }
}

#[tokio::test]
async fn locks_end_where_the_right_ends() {
    let site = Site::new();
    let server = site.lock_server().await;
    let (team, eye, ops) =
        (As::new(&server, "team"), As::new(&server, "eye"), As::new(&server, "ops"));
    let lease = team.acquire("team/a").await.lease();
    for other in ["other", "team", "teams/a", "other/team/a"] {
        let problem = team.acquire(other).await.problem(Code::Forbidden);
        assert!(problem.hint.contains(&format!("acquire {other}")), "{problem:?}");
        assert_eq!(eye.get("/v1/locks").await.json()["locks"].as_array().unwrap().len(), 1);
    }
    let body = json!({"lease_id": lease.lease_id});
    eye.lock("team/a", "release", &body).await.problem(Code::Forbidden);
    eye.lock("team/a", "renew", &body).await.problem(Code::Forbidden);
    ops.lock("team/a", "renew", &body).await.problem(Code::Forbidden);
    team.lock("team/a", "renew", &body).await.expect(200);
    team.lock("team/a", "revoke", &json!({"reason": "mine"})).await.problem(Code::Forbidden);

    team.get("/v1/locks").await.problem(Code::Forbidden);
    team.get("/v1/locks?prefix=team").await.problem(Code::Forbidden);
    team.get("/v1/locks?prefix=team/").await.expect(200);
    team.get("/v1/locks/team%2Fa").await.expect(200);
    team.get("/v1/locks/other").await.problem(Code::Forbidden);

    ops.lock("team/a", "revoke", &json!({"reason": "deploy"})).await.expect(200);
    team.lock("team/a", "renew", &body).await.problem(Code::LeaseLost);
}

#[tokio::test]
async fn objects_belong_to_their_lock_and_the_floor_to_administration() {
    let site = Site::new();
    let setup = Setup::fenced_store("memory:").args(&["--rule", "data/{id}/**=team/{id}"]);
    let server = site.arm(setup).in_process().await;
    let (team, eye, ops) =
        (As::new(&server, "team"), As::new(&server, "eye"), As::new(&server, "ops"));
    let token = "1;lock=\"team/7\";lease=\"67e55044-10b1-426f-9247-bb680e5fe0c8\"";
    let write = async |who: &As, key: &str| {
        let headers = [("authorization", who.bearer.as_str()), ("fencing-token", token)];
        who.api.send(Method::PUT, &format!("/v1/objects/{key}"), &headers, "x").await
    };
    eye_cannot_write(&write(&eye, "data/7/a").await);
    write(&team, "data/7/a").await.expect(201);
    // A right does not stand in for the fencing token, nor the token for the right.
    team.send(Method::PUT, "/v1/objects/data/7/a", "x").await.problem(Code::TokenRequired);
    team.send(Method::DELETE, "/v1/objects/other", "").await.problem(Code::Forbidden);
    write(&team, "team7").await.problem(Code::Forbidden);
    team.get("/v1/fences/team/7").await.expect(200);
    team.get("/v1/fences/other").await.problem(Code::Forbidden);
    team.get("/v1/fences").await.problem(Code::Forbidden);
    team.get("/v1/stores").await.problem(Code::Forbidden);
    eye.get("/v1/stores").await.expect(200);
    team.send(Method::POST, "/v1/floor", "{\"floor\":5}").await.problem(Code::Forbidden);
    eye.send(Method::POST, "/v1/floor", "{\"floor\":5}").await.problem(Code::Forbidden);
    // It may ask; this store takes no floor.
    ops.send(Method::POST, "/v1/floor", "{\"floor\":5}").await.problem(Code::NotOffered);
    assert!(exists(&site.audit_path()));
}

fn eye_cannot_write(reply: &fence_tests::api::Reply) {
    let problem = reply.problem(Code::Forbidden);
    assert!(problem.detail.contains("eye has no right to write team/7"), "{problem:?}");
}

#[tokio::test]
async fn a_lock_server_asks_its_guards_with_its_own_bearer_token() {
    let site = Site::new();
    let guard = site.arm(Setup::fenced_store("memory:")).start().await;
    let eye = site.secret_file("eye");
    let setup = || Setup::lock_server("memory:").args(&["--guard", &guard.base]);
    let known = setup().args(&["--guard-auth-file", eye.to_str().unwrap()]).start().await;
    ready_says(&known.api(), &["[+]guards ok"]).await;
    let unknown = setup().in_process().await;
    ready_says(&unknown.api(), &["[!]guards", "--guard-auth-file"]).await;
}

/// Waits until readiness says all of this: a guard that answers late is retried.
async fn ready_says(api: &Api, parts: &[&str]) {
    until_true(&format!("readiness with {parts:?}"), || async {
        let ready = api.get("/readyz?verbose").await;
        let text = String::from_utf8_lossy(&ready.body);
        parts.iter().all(|part| text.contains(part))
    })
    .await;
}
