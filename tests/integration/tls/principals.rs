//! Clients' certificates: required, optional, and as principals of the access file.

use access_control::secret::SecretHash;
use fence_protocol::Code;
use fence_tests::api::{Api, Locks};
use fence_tests::certificates::Certificates;
use fence_tests::servers::Setup;
use http::Method;
use serde_json::{Value, json};

use super::{api, lock_server};

fn mutual(made: &Certificates, auth: &str) -> Setup {
    let ca = made.text("ca.pem");
    lock_server(made).args(&["--tls-client-ca", &ca, "--tls-client-auth", auth])
}

/// Sends a request; `Err` with the error of the connection.
async fn reach(api: &Api) -> Result<u16, String> {
    let reply = api.attempt(Method::GET, "/livez", &[], "".into()).await;
    reply.map(|reply| reply.status)
}

#[tokio::test]
async fn a_client_certificate_is_required_or_optional() {
    let made = Certificates::new();
    // Of another CA, under the name that the server's CA has too.
    let others = Certificates::new();
    made.write("foreign.pem", &others.read("client.pem"));
    made.write("foreign.key", &others.read("client.key"));
    made.issue_for("expired", &["worker"], -1);
    for (auth, none) in [("required", false), ("optional", true)] {
        let server = mutual(&made, auth).start().await;
        let reached = async |client| reach(&api(&server, &made, client)).await;
        assert_eq!(reached(Some("client")).await, Ok(200));
        assert_eq!(reached(None).await.is_ok(), none, "{auth}");
        for bad in ["foreign", "expired"] {
            assert!(reached(Some(bad)).await.is_err(), "{auth}: {bad}");
        }
    }
}

/// DNS names and URIs; a bearer token wins; the audit log names the principal.
#[tokio::test]
async fn a_client_certificate_is_a_principal() {
    let made = Certificates::new();
    made.issue("worker", &["Worker-1.example.org"]);
    made.issue("spiffe", &["spiffe://example.org/worker"]);
    made.issue("both", &["worker-1.example.org", "spiffe://example.org/ops"]);
    made.issue("stranger", &["stranger.example.org"]);
    // A CA whose constraints allow no DNS name may sign any URI.
    made.issue("disguised", &["URI:worker-1.example.org"]);
    let hash = SecretHash::from_secret("secret");
    made.write(
        "access.toml",
        &format!(
            "[principals.worker]\nallow = [\"use jobs/*\"]\ncertificates = \
             [\"worker-1.example.org\", \"spiffe://example.org/worker\"]\n\
             [principals.ops]\nallow = [\"use ops/*\"]\ntokens = [\"{hash}\"]\n\
             certificates = [\"spiffe://example.org/ops\"]\n"
        ),
    );
    let [access, audit] = ["access.toml", "audit"].map(|name| made.text(name));
    let setup = mutual(&made, "optional");
    let setup = setup.args(&["--access-file", &access, "--audit-log", &audit]);
    let server = setup.start().await;
    let locks = |client| Locks(api(&server, &made, client));
    for client in ["worker", "spiffe"] {
        locks(Some(client)).grant(&format!("jobs/{client}"), 60_000).await;
        let refused = locks(Some(client)).acquire("ops/a", json!({})).await;
        assert!(refused.problem(Code::Forbidden).detail.contains("worker has no right"));
    }
    let refused = async |client| {
        let reply = locks(client).acquire("jobs/a", json!({})).await;
        reply.problem(Code::Unauthorized).detail
    };
    assert!(refused(None).await.contains("no bearer token"));
    assert!(refused(Some("stranger")).await.contains("stranger.example.org"));
    let disguised = refused(Some("disguised")).await;
    assert!(!disguised.contains("worker-1"), "{disguised}");
    let two = refused(Some("both")).await;
    assert!(two.contains("two principals, worker and ops"), "{two}");

    let as_ops = |token: &'static str| {
        let api = locks(Some("worker")).0;
        async move {
            let headers = [("authorization", token), ("content-type", "application/json")];
            api.send(Method::POST, "/v1/locks/ops%2Fa/acquire", &headers, "{}").await
        }
    };
    as_ops("Bearer secret").await.expect(200);
    as_ops("Bearer wrong").await.problem(Code::Unauthorized);

    let lines: Vec<Value> =
        made.read("audit").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_worker = lines.iter().filter(|line| line["principal"] == "worker");
    assert_eq!(of_worker.count(), 2, "{lines:?}");
}
