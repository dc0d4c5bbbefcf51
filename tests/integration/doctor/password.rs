//! A Redis that wants a password: without a login nothing can be judged.

use fence_tests::redis_server::Redis;

use super::{User, about, doctor, redis_command, well};

#[tokio::test]
async fn a_missing_password_is_one_failure() {
    let redis = Redis::start().await;
    let _: () = redis_command(&redis, "CONFIG SET requirepass x").await;
    let (code, checks) = doctor(&["--redis", &redis.url()]).await;
    assert_eq!(code, 69, "{checks:?}");
    let [(verdict, about, text)] = &checks[..] else { panic!("several findings: {checks:?}") };
    assert_eq!((verdict.as_str(), about.as_str()), ("failing", "redis"));
    for word in ["wants a password", "--redis-user", "--redis-password-file"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("--store"), "{text}");
}

#[tokio::test]
async fn a_wrong_password_is_one_failure_and_a_right_one_is_well() {
    let redis = Redis::start().await;
    let _: () = redis_command(&redis, "CONFIG SET requirepass x").await;
    let user = |password| User { redis: &redis, name: "default", password };
    let (code, checks) = doctor(&["--redis", &user("wrong").url()]).await;
    assert_eq!(code, 69, "{checks:?}");
    let [(verdict, about_it, text)] = &checks[..] else { panic!("several findings: {checks:?}") };
    assert_eq!((verdict.as_str(), about_it.as_str()), ("failing", "redis"));
    assert!(text.contains("WRONGPASS") && text.contains("--redis-password-file"), "{text}");

    let checks = well(&["--redis", &user("x").url(), "--strict"]).await;
    for what in ["redis rights", "redis rights of lock-server"] {
        assert_eq!(about(&checks, what).0, "ok", "{checks:?}");
    }
}
