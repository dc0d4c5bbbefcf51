//! The files of the console, and the routes that it reads.

use fence_protocol::Code;
use fence_protocol::wire::guards::GuardsReply;
use fence_protocol::wire::principal::PrincipalReply;
use fence_tests::api::Api;
use fence_tests::raw_http::{exchange, status};
use fence_tests::servers::Setup;
use fence_tests::wait::{until, until_true};
use http::Method;

use super::{Pair, granted};
use crate::access::{As, Site};

#[tokio::test]
async fn files_are_open_and_data_is_not() {
    let site = Site::new();
    let server = site.arm(Setup::lock_server("memory:")).start().await;
    let anonymous = Api::new(&server.base);
    for path in ["/ui/", "/ui/console.js", "/ui/style.css", "/docs/"] {
        let reply = anonymous.get(path).await.expect(200);
        let policy = reply.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    }
    assert_eq!(anonymous.get("/ui").await.expect(308).header("location"), "ui/");
    let browser = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")];
    let reply = anonymous.send(Method::GET, "/", &browser, "").await.expect(307);
    assert_eq!((reply.header("location"), reply.header("vary")), ("ui/", "accept"));
    anonymous.get("/").await.problem(Code::NotFound);
    let page = anonymous.get("/docs/guarantees.md").await.expect(200);
    assert!(page.body.starts_with(b"# Guarantees\n"), "{page:?}");
    for path in ["/v1/principal", "/v1/guards", "/openapi.json"] {
        anonymous.get(path).await.problem(Code::Unauthorized);
    }
    let of = async |name: &str| -> PrincipalReply {
        As::new(&server, name).get("/v1/principal").await.expect(200).read()
    };
    let team = of("team").await;
    assert_eq!(
        (team.principal.as_deref(), team.rights),
        (Some("team"), vec!["read,acquire,write team/*".to_owned()])
    );
    As::new(&server, "team").get("/v1/guards").await.problem(Code::Forbidden);
    As::new(&server, "team").get("/v1/guards?lock=team%2Fa").await.expect(200);
    As::new(&server, "team").get("/v1/guards?lock=other").await.problem(Code::Forbidden);

    let server = Setup::lock_server("memory:").arg("--no-ui").start().await;
    let api = Api::new(&server.base);
    for path in ["/ui", "/ui/", "/docs/"] {
        api.get(path).await.problem(Code::NotFound);
    }
    api.send(Method::GET, "/", &browser, "").await.problem(Code::NotFound);
    let open: PrincipalReply = api.get("/v1/principal").await.expect(200).read();
    assert_eq!(open, PrincipalReply::default());
}

/// A link may open the page, and nothing else of it or of the API.
#[tokio::test]
async fn links_open_the_page_alone() {
    let server = Setup::lock_server("memory:").start().await;
    let opened = "sec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    let framed = "sec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n";
    for (line, how, expected) in [
        ("GET /", opened, 404),
        ("GET /", &format!("accept: text/html\r\n{opened}"), 307),
        ("GET //v1/locks", opened, 404),
        ("GET /ui", opened, 308),
        ("GET /ui/", opened, 200),
        ("GET /docs/", opened, 200),
        ("GET /ui/", framed, 403),
        ("GET /ui/console.js", "sec-fetch-mode: no-cors\r\n", 403),
        ("POST /ui/", opened, 403),
        ("GET /uix", opened, 403),
        ("GET /v1/locks", opened, 403),
    ] {
        let head = format!("host: localhost\r\nsec-fetch-site: cross-site\r\n{how}");
        let request = format!("{line} HTTP/1.1\r\n{head}connection: close\r\n\r\n");
        let reply = exchange(&server.base, request.as_bytes()).await;
        assert_eq!(status(&reply), Some(expected), "{line} {how}: {reply}");
    }
}

#[tokio::test]
async fn guards_are_shown_with_their_marks_or_with_the_reason_why_not() {
    let mut pair = Pair::start().await;
    let lease = granted(&pair.server.locks(), "orders/42", "worker").await;
    pair.write(&lease, 201).await;
    let api = Api::new(&pair.server.base);
    let read = async |query: &str| -> GuardsReply {
        api.get(&format!("/v1/guards{query}")).await.expect(200).read()
    };
    let answered = async |query: &str| {
        until("a guard that replies in time", || async {
            let guard = read(query).await.guards.remove(0);
            guard.problem.is_none().then_some(guard)
        })
        .await
    };
    let all = answered("").await;
    assert_eq!(all.guard, pair.guard.base);
    assert_eq!(all.stores.unwrap().stores[0].kind, "memory");
    let marks = all.marks.unwrap();
    assert_eq!((marks.highest_mark, marks.fences[0].mark), (Some(lease.token), lease.token));
    assert!(answered("?prefix=jobs").await.marks.unwrap().fences.is_empty());
    let one = answered("?lock=orders%2F42").await;
    assert_eq!(one.fence.unwrap().mark, Some(lease.token));
    api.get("/v1/guards?lock=a&prefix=b").await.problem(Code::InvalidRequest);

    pair.guard.process.kill();
    until_true("the reason", || async {
        let problem = read("").await.guards.remove(0).problem;
        problem.expect("no guard replies").contains("refused")
    })
    .await;
}
