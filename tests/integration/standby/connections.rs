//! Connections of a guard of several: TLS, rights, and what others see of it.

use fence_protocol::Code;
use fence_tests::api::Api;
use fence_tests::certificates::TlsRedis;
use fence_tests::key_file::text;
use fence_tests::process::{Process, command};
use fence_tests::servers::{Server, Setup};
use fence_tests::upstream::Upstream;
use fence_tests::wait::until_true;
use serde_json::Value;

use super::{Pair, put, setup};
use crate::access::Site;

async fn says(server: &Server, words: &str) {
    until_true(&format!("a guard to say {words:?}"), || async {
        let ready = Api::new(&server.base).get("/readyz?verbose").await;
        String::from_utf8_lossy(&ready.body).contains(words)
    })
    .await;
}

/// Redis and lock server speak TLS alone, and the lock server knows its clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_speaks_tls_and_has_a_bearer_token() {
    let redis = TlsRedis::start().await;
    let site = Site::new();
    let certificates = &redis.certificates;
    let locks = site.arm(Setup::lock_server("memory:"));
    let locks = certificates.listener().iter().fold(locks, |setup, flag| setup.arg(flag));
    let locks = locks.start().await;
    assert!(locks.base.starts_with("https://"), "{}", locks.base);
    let upstream = Upstream::start().await;
    let guard = Setup::bare("fenced-store")
        .args(&["--unsigned", "--proxy-listen", "127.0.0.1:0", "--upstream", upstream.base()])
        .args(&["--max-request-lifetime", "1s", "--upstream-timeout", "1s"])
        .args(&["--state", &redis.url(), "--leader-server", &locks.base])
        .args(&["--leader-lock", "team/guards", "--leader-ttl", "6s"]);
    let guard = redis.flags().iter().fold(guard, |setup, flag| setup.arg(flag));
    let trusting = guard.clone().args(&["--peer-ca", &certificates.text("ca.pem")]);
    let auth_of =
        |name: &str| ["--leader-auth-file".to_owned(), text(&site.secret_file(name)).into()];
    let with = |setup: &Setup, name: &str| {
        auth_of(name).iter().fold(setup.clone(), |setup, flag| setup.arg(flag))
    };
    let server = with(&guard, "team").start().await;
    says(&server, "a CA that this system does not know").await;
    drop(server);
    let server = trusting.start().await;
    says(&server, "the leader is unknown: ").await;
    drop(server);
    let server = with(&trusting, "other").start().await;
    says(&server, "the leader is unknown: ").await;
    drop(server);
    let mut server = with(&trusting, "team").start().await;
    says(&server, "[+]leader this guard leads with token").await;
    let api = Api::new(&server.proxy().await);
    until_true("a write", || async {
        let reply = put(&api, "a", "doc", 33, "one").await.unwrap();
        assert!(matches!(reply.status, 204 | 503 | 504), "{reply:?}");
        reply.status == 204
    })
    .await;
}

/// A standby is as it should be: only its own guard's failure is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_a_standby_well() {
    let pair = Pair::with_ttl(super::LASTING_TTL).await;
    let leader = pair.leader().await;
    let [leads, waits] = [&pair.members[leader], &pair.members[1 - leader]];
    let words = format!("{} leads", leads.name);
    says(&waits.server, &words).await;
    for member in [leads, waits] {
        let mut command = command(fence_tests::binaries::path("fence"));
        command.args(["doctor", "--store", &member.server.base, "--output", "json"]);
        let output = Process::spawn("fence doctor", command).ended().await;
        assert_eq!(output.code, 0, "{output:?}");
        let checks: Vec<Value> = serde_json::from_str(&output.stdout).unwrap();
        let about = |about: &str| {
            let of = |check: &&Value| check["about"] == format!("fenced-store {about}");
            let check = checks.iter().find(of).unwrap_or_else(|| panic!("{about}: {checks:?}"));
            (check["verdict"].as_str().unwrap(), check["text"].as_str().unwrap())
        };
        if std::ptr::eq(member, waits) {
            assert_eq!(about("leader"), ("note", words.as_str()));
            assert_eq!(about("readiness").0, "note");
        } else {
            assert_eq!(about("readiness").0, "ok");
        }
    }
}

/// Its marks would stop the leader's next commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_observes_records_no_mark() {
    let pair = Pair::with_ttl(super::LASTING_TTL).await;
    let leader = pair.leader().await;
    let setting = &pair.setting;
    let observer = setup("c", setting, super::LASTING_TTL, &pair.members[leader].to_locks);
    let mut observer = observer.args(&["--mode", "observe"]).start().await;
    let api = Api::new(&observer.proxy().await);
    put(&api, "c", "doc", 99, "late").await.unwrap().problem(Code::NotLeader);
    assert_eq!(pair.members[leader].server.guard().fence("doc").await.mark, None);
    pair.written_through(leader, "doc", 34, "one").await;
}
