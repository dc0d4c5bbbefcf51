//! lock-server as the user that docs/operating/redis.md makes, with everything else refused.

use fence_protocol::Namespace;
use fence_protocol::wire::event::EventKind;
use fence_tests::conformance::lock_store;
use fence_tests::event_stream::EventStream;
use fence_tests::redis_server::Redis;
use fence_tests::redis_users::User;
use fence_tests::servers::Setup;
use fence_tests::wait::until_true;
use lock_server::engines::loss::{AfterLoss, LossOptions};
use lock_server::engines::options::StoreOptions;
use lock_server::store::LockStore;
use serde_json::json;
use service_kit::process::StartError;
use std::sync::Arc;

const USER: User<'_> = User { name: "locks", password: "s3cret", prefix: "", namespace: "default" };

async fn open(url: &str, namespace: &str) -> Result<Arc<dyn LockStore>, StartError> {
    let namespace: Namespace = namespace.parse().unwrap();
    // `loss.rs` tests the pause after a loss.
    let loss = LossOptions { after_loss: AfterLoss::Grant, ..LossOptions::default() };
    let options = StoreOptions { namespace, loss, ..fence_tests::store_options::patient() };
    lock_server::engines::open(&url.parse().unwrap(), &options, &service_kit::Kit::new("acl")).await
}

/// Number of commands that Redis has refused to a user; 0 if the user may do all that is done.
async fn refused(redis: &Redis) -> usize {
    redis.run::<Vec<redis::Value>>(&["ACL", "LOG"]).await.len()
}

/// Runs each case in a namespace of its own, as a user of its own.
macro_rules! run_as_least {
    ($redis:expr; $($case:ident)*) => {
        $({
            let name = stringify!($case);
            let user = User { name, namespace: name, ..USER };
            user.make($redis).await;
            let store = open(&user.url($redis), name).await.unwrap();
            lock_store::$case(&store).await;
            assert_eq!(refused($redis).await, 0, "{name}");
        })*
    };
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_least_rights_are_enough() {
    let redis = Redis::start().await;
    run_as_least!(&redis;
        what_is_shown_is_what_was_asked
        pages_are_complete_and_in_order
        an_expired_lease_is_gone_loudly
        a_renewal_replaces_the_time_and_keeps_the_token
        a_release_that_overtakes_its_acquire_wins
        waiters_are_served_in_order
        expiry_wakes_the_next_waiter
        an_undelivered_grant_is_rolled_back
        revoking_wakes_the_next_waiter
        minted_tokens_rise_with_the_granted
        a_guards_mark_is_exceeded
        a_new_life_takes_over_at_once
        shared_leases_are_bounded
        permits_never_exceed_the_size
        everything_is_revoked_oldest_first
        groups_and_single_waiters_get_on
        a_group_whose_session_ends_frees_those_behind_it
        a_delay_closes_the_lock_after_a_session
        a_heartbeat_keeps_every_lease
        an_expired_session_wakes_the_waiters
        sessions_hand_locks_to_each_other
        session_pages_are_complete_and_in_order
        a_large_session_ends_as_one
    );
}

/// Servers, events, the judgement of the settings, and a restart that begins a new lineage.
#[tokio::test]
async fn servers_work_as_the_least_user() {
    let mut redis = Redis::start().await;
    USER.make(&redis).await;
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "s3cret\n").unwrap();
    let setup = Setup::lock_server(&redis.url())
        .args(&["--after-loss", "grant", "--store-user", "locks", "--store-password-file"])
        .arg(password.to_str().unwrap());
    let one = setup.start().await;
    let two = setup.start().await;
    let mut stream = EventStream::open(&two.base, "", "").await;
    let held = one.locks().grant("a", 60_000).await;
    assert_eq!(stream.next().await.kind, EventKind::Granted, "sent by the other server");
    let waits = two.locks();
    let waiting = tokio::spawn(async move { waits.acquire("a", json!({"wait_ms": 20_000})).await });
    until_true("the waiter to have its place", || async {
        one.locks().show("a").await.queue_length == 1
    })
    .await;
    one.locks().release("a", held.lease_id).await.expect(200);
    let next = waiting.await.unwrap().lease();
    assert!(next.token > held.token);
    let ready = one.locks().0.get("/readyz?verbose").await.expect(200);
    let text = String::from_utf8_lossy(&ready.body).into_owned();
    assert!(text.contains("[+]redis ok"), "CONFIG GET may be asked: {text}");
    assert_eq!(refused(&redis).await, 0);

    // Users are in no file here, so they are gone with the process.
    redis.start_again().await;
    USER.make(&redis).await;
    until_true("a new lineage", || async {
        let reply = one.locks().acquire("b", json!({})).await;
        reply.status == 200 && reply.lease().token > next.token
    })
    .await;
}

/// Each right of the page is one that lock-server needs, and says when it is missing.
#[tokio::test]
async fn a_missing_right_is_named_at_start() {
    let redis = Redis::start().await;
    USER.make(&redis).await;
    let url = USER.url(&redis);
    drop(open(&url, "default").await.unwrap());
    for right in USER.rights() {
        if right == "+config|get" {
            continue;
        }
        USER.change(&redis, &[&right.replacen('+', "-", 1)]).await;
        let error = open(&url, "default").await.expect_err(&right).to_string();
        let named = format!("lacks rights that lock-server needs: {right}");
        assert!(error.contains(&named) && error.contains("ACL SETUSER locks"), "{right}: {error}");
        USER.change(&redis, &[&right]).await;
    }
    USER.change(&redis, &["-mget", "-xadd"]).await;
    let error = open(&url, "default").await.unwrap_err().to_string();
    assert!(error.ends_with("run ACL SETUSER locks +mget +xadd"), "{error}");
    drop(open(&USER.url(&redis), "other").await.expect_err("the keys of another namespace"));
    USER.change(&redis, &["+mget", "+xadd", "resetkeys"]).await;
    let error = open(&url, "default").await.unwrap_err().to_string();
    assert!(error.ends_with("locks ~{fence:default}:*"), "{error}");
    USER.change(&redis, &["~{fence:default}:*", "resetchannels"]).await;
    let error = open(&url, "default").await.unwrap_err().to_string();
    assert!(error.ends_with("locks &{fence:default}:c:*"), "{error}");
    USER.change(&redis, &["&{fence:default}:c:*", "-config|get"]).await;
    drop(open(&url, "default").await.expect("settings that cannot be read are a warning"));
}

/// Newer servers, and what they say of missing rights.
#[tokio::test]
async fn newer_servers_serve_the_least_user() {
    for engine in ["redis-8.2", "valkey-9.1"] {
        let redis = Redis::newer(engine).await;
        USER.make(&redis).await;
        let url = USER.url(&redis);
        for _ in 0..3 {
            let server = Setup::lock_server(&url).start().await;
            let held = server.locks().grant(engine, 60_000).await;
            let (_, said) = doctor(&["--redis", &url]).await;
            assert!(said.contains("this user may do all that lock-server needs"), "{said}");
            redis.run::<String>(&["PING"]).await;
            server.locks().release(engine, held.lease_id).await.expect(200);
        }
        // A user with all rights, and what the guard tries at its start.
        let (_, said) = doctor(&["--redis", &redis.url()]).await;
        assert!(said.contains("this user may end clients and make users"), "{said}");
        drop(crate::redis_port::port(&crate::redis_port::setup(&redis.url())).await);
        redis.run::<String>(&["PING"]).await;
        USER.change(&redis, &["-hset", "-subscribe", "-xadd"]).await;
        let error = open(&url, "default").await.unwrap_err().to_string();
        assert!(error.ends_with("run ACL SETUSER locks +hset +xadd +subscribe"), "{error}");
        USER.change(&redis, &["resetkeys", "resetchannels"]).await;
        let error = open(&url, "default").await.unwrap_err().to_string();
        assert!(error.contains("~{fence:default}:*"), "{error}");
        assert!(error.contains("&{fence:default}:c:*"), "{error}");
        redis.run::<String>(&["PING"]).await;
    }
}

/// `init --fresh` asks as well, and changes nothing.
#[tokio::test]
async fn init_names_a_missing_right() {
    let redis = Redis::start().await;
    USER.make(&redis).await;
    USER.change(&redis, &["-hset"]).await;
    let fresh = ["init", "--fresh", "--store", &USER.url(&redis)];
    let said = fence_tests::process::run("lock-server", &fresh).await;
    assert!(said.code == 1 && said.stderr.contains("needs: +hset;"), "{said:?}");
    assert_eq!(redis.run::<u64>(&["DBSIZE"]).await, 0);
    USER.change(&redis, &["+hset"]).await;
    let said = fence_tests::process::run("lock-server", &fresh).await;
    assert_eq!(said.code, 0, "{said:?}");
}

/// A right that is taken while the server runs: Redis' own words, and nothing is granted on a
/// guess.
#[tokio::test]
async fn a_right_that_is_taken_away_is_said() {
    let redis = Redis::start().await;
    USER.make(&redis).await;
    let server = Setup::lock_server(&USER.url(&redis)).start().await;
    server.locks().grant("a", 60_000).await;
    USER.change(&redis, &["-evalsha"]).await;
    let reply = server.locks().acquire("b", json!({})).await;
    let problem = reply.problem(fence_protocol::Code::StoreUnavailable);
    assert!(problem.detail.contains("NOPERM"), "{}", problem.detail);
    USER.change(&redis, &["+evalsha"]).await;
    server.locks().grant("b", 60_000).await;
}

/// A login that Redis does not take.
#[tokio::test]
async fn a_refused_login_is_one_sentence() {
    let redis = Redis::start().await;
    USER.make(&redis).await;
    let _: () = redis.run(&["CONFIG", "SET", "requirepass", "other"]).await;
    let plain = format!("redis://{}", redis.address());
    for (url, reason) in [
        (User { password: "wr0ng", ..USER }.url(&redis), "refuses the user \"locks\""),
        (User { name: "unknown", ..USER }.url(&redis), "refuses the user \"unknown\""),
        (format!("redis://:wr0ng@{}", redis.address()), "refuses the user \"default\""),
        (plain, "Redis wants a password; name the user with --store-user"),
    ] {
        let said = Setup::lock_server(&url).refused().await;
        assert_eq!(said.code, 1);
        assert!(said.stderr.contains(reason), "{url}: {}", said.stderr);
        assert!(!said.stderr.contains("wr0ng") && !said.stderr.contains("s3cret"), "{said:?}");
    }
}

/// Report of `fence doctor` about the rights of this user.
pub(crate) async fn doctor(args: &[&str]) -> (i32, String) {
    let args = [&["doctor", "--output", "json"], args].concat();
    let said = fence_tests::process::run("fence", &args).await;
    let checks: Vec<serde_json::Value> =
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let lines = checks.iter().map(|check| format!("{} {}", check["about"], check["text"]));
    (said.code, lines.collect::<Vec<_>>().join("\n"))
}

#[tokio::test]
async fn doctor_names_a_missing_right() {
    let redis = Redis::start().await;
    let user = User { prefix: "app1:", namespace: "orders", ..USER };
    user.make(&redis).await;
    let url = user.url(&redis);
    let keys = ["--redis-key-prefix", "app1:", "--redis-namespace", "orders"];
    let (code, said) = doctor(&[&["--redis", &url][..], &keys].concat()).await;
    assert_eq!(code, 0);
    assert!(said.contains("this user may do all that lock-server needs"), "{said}");
    let (_, said) = doctor(&["--redis", &url]).await;
    assert!(said.contains("~{fence:default}:*"), "{said}");
    user.change(&redis, &["-xadd", "-scan"]).await;
    let (_, said) = doctor(&[&["--redis", &url][..], &keys].concat()).await;
    assert!(said.contains("lacks rights that lock-server needs: +scan +xadd"), "{said}");
    user.change(&redis, &["-eval"]).await;
    let (_, said) = doctor(&[&["--redis", &url][..], &keys].concat()).await;
    assert!(said.contains("lacks rights that lock-server needs: +eval +scan"), "{said}");
    assert_eq!(redis.run::<u64>(&["DBSIZE"]).await, 0, "it changes nothing");
}

/// The same flags as lock-server's, with another beginning.
#[tokio::test]
async fn doctor_reaches_a_redis_over_tls() {
    let redis = fence_tests::certificates::TlsRedis::start().await;
    let flags = redis.flags().map(|flag| flag.replace("--store-", "--redis-"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let url = redis.url();
    let (code, said) = doctor(&[&["--redis", &url, "--strict"][..], &flags].concat()).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) = doctor(&["--redis", &url]).await;
    assert!(code != 0 && said.contains("name the file of that CA with --redis-ca"), "{said}");
    let (code, said) = doctor(&["--redis", &redis.redis.url(), "--redis-ca", flags[1]]).await;
    assert!(code != 0 && said.contains("write rediss:// in --redis, or leave"), "{said}");
}
