//! Accepted and refused settings.

use super::*;

fn settings(args: &str) -> Result<Settings, String> {
    let args = std::iter::once("lock-server").chain(args.split_whitespace());
    let config = Config::try_parse_from(args).map_err(|error| error.to_string())?;
    config.settings().map_err(|error| error.to_string())
}

#[test]
fn the_usual_ways_to_start() {
    assert!(settings("--store memory: --unsigned").is_ok());
    assert!(settings("--store redis://127.0.0.1 --unsigned --ttl-max 5m").is_ok());
    let init = "lock-server init --fresh --store redis://127.0.0.1";
    let config = Config::try_parse_from(init.split_whitespace()).unwrap();
    assert_eq!(config.command, Some(Command::Init { fresh: true }));
    assert!(config.store.is_some());
}

#[test]
fn http_threads_are_as_many_as_cores_or_as_said() {
    let chosen = settings("--store memory: --unsigned --http-threads 3").unwrap();
    assert_eq!(chosen.http_threads.get(), 3);
    let usual = settings("--store memory: --unsigned").unwrap();
    assert!((1..=8).contains(&usual.http_threads.get()));
    let redis = settings("--store redis://127.0.0.1 --unsigned").unwrap();
    assert!(redis.http_threads <= usual.http_threads);
}

#[test]
fn seals_and_delays_go_by_prefix() {
    let args = "--store memory: --unsigned --guard http://127.0.0.1:7421 --seal *=lazy \
                --seal pay/=required --seal pay/test/=off --lock-delay jobs/=15s \
                --lock-delay jobs/quick/=0s --revoke-unsealed refuse";
    let settings = settings(args).unwrap();
    let lock = |name: &str| fence_protocol::LockName::new(name).unwrap();
    assert_eq!(settings.seal.value_for(&lock("pay/1")), Some(SealMode::Required));
    assert_eq!(settings.seal.value_for(&lock("pay/test/1")), Some(SealMode::Off));
    assert_eq!(settings.seal.value_for(&lock("jobs/1")), Some(SealMode::Lazy));
    assert_eq!(settings.lock_delays.value_for(&lock("jobs/1")), Some(15_000));
    assert_eq!(settings.lock_delays.value_for(&lock("jobs/quick/1")), Some(0));
    assert_eq!(settings.lock_delays.value_for(&lock("pay/1")), None);
    assert_eq!(settings.flags.revoke_unsealed, Unsealed::Refuse);
}

#[test]
fn bad_settings_are_refused_with_the_value() {
    for (args, reason) in [
        ("--unsigned", "--store is missing"),
        ("--store memory:", "--token-key-file is missing"),
        ("--store memory: --unsigned --token-key-file x", "exclude each other"),
        ("--store memory: --token-key-file /nonexistent/keys", "/nonexistent/keys"),
        ("--store memory: --unsigned --listen 0.0.0.0:1", "0.0.0.0:1"),
        ("--store mysql://x --unsigned", "is no store"),
        ("--store memory: --unsigned --http-threads 0", "\"0\" is out of range: 1 to 256"),
        ("--store memory: --unsigned --max-locks 0", "\"0\" is out of range: at least 1"),
        ("--store memory: --unsigned --max-session-leases 0", "\"0\" is out of range: at least 1"),
        ("--store memory: --unsigned --max-connections 0", "\"0\" is out of range: at least 1"),
        ("--store memory: --unsigned --http-threads 257", "\"257\" is out of range: 1 to 256"),
        ("--store memory: --unsigned --http-threads two", "\"two\" is out of range: 1 to 256"),
        ("--store memory: --unsigned --store-key x", "name its file with --store-cert"),
        ("--store memory: --unsigned --key-prefix a:", "is for keys in Redis"),
        ("--store redis://a --unsigned --key-prefix a{b}", "is no key prefix"),
        ("--store redis://a --unsigned --store-user a", "there is a user and no password"),
        ("--store memory: --unsigned --store-user a", "behind a network"),
        ("--store redis://a --unsigned --store-ca /nonexistent/ca", "/nonexistent/ca cannot"),
        ("--store rediss://a --unsigned --store-cert x", "needs its private key"),
        ("--store memory: --unsigned --guard-auth-file /nonexistent/g", "/nonexistent/g cannot be"),
        ("--store memory: --unsigned --guard redis://x", "must begin with http://"),
        ("--store memory: --unsigned --seal *=required", "--guard names none"),
        ("--store memory: --unsigned --seal a/=lazy --seal b/=off", "--guard names none"),
        ("--store memory: --unsigned --seal a/=often", "none of required, lazy and off"),
        ("--store memory: --unsigned --seal required", "has no ="),
        ("--store memory: --unsigned --seal a/=off --seal a/=off", "a/ is named twice"),
        ("--store memory: --unsigned --lock-delay *=6m", "at most 5m"),
        ("--store memory: --unsigned --lock-delay *=15", "with its unit"),
        ("--store memory: --unsigned --lock-delay *=1s --lock-delay *=2s", "* is named twice"),
        ("--store memory: --unsigned --revoke-unsealed maybe", "none of report and refuse"),
        ("--store memory: --unsigned --wait-replicas 1", "this store has none"),
        ("--store redis://a --unsigned --wait-replicas -1", "\"-1\" is out of range: 0 to 64"),
        ("--store redis://a --unsigned --wait-replicas 65", "out of range"),
        ("--store redis://a --unsigned --wait-timeout 0s", "more than zero"),
        ("--store redis://a --unsigned --wait-timeout 2m", "at most 1m"),
        ("--store memory: --unsigned --after-loss maybe", "none of wait and grant"),
        ("--store memory: --unsigned --clock-pause maybe", "none of on and off"),
        ("--store memory: --unsigned --clock-jump-limit 0s", "more than zero"),
        ("--store memory: --unsigned --ttl-min 2h", "is above --ttl-max"),
        ("--store memory: --unsigned --ttl-max 0s", "more than zero"),
        ("--store memory: --unsigned --ttl-max 48h", "--ttl-max 2days must be from 1ms to 1day"),
        ("--store memory: --unsigned --access-file /nonexistent/a", "/nonexistent/a: cannot be"),
        ("--store memory: --unsigned --audit-log /nonexistent/b", "/nonexistent/b cannot be"),
        ("--store etcd://u:p@x --unsigned", "--store-password-file"),
        ("--store postgres://db.example/x --unsigned", "add ?sslmode=verify-full"),
        ("--store postgres://localhost:port/x --unsigned", "is no host:port"),
        ("--store postgres://localhost/x?sslmode=prefer --unsigned", "disable and verify-full"),
        ("--store postgres://u:p@localhost/x --unsigned --store-password-file x", "x"),
        ("--store postgres://localhost/x --unsigned --key-prefix a:", "is for keys in Redis"),
        ("--store postgres://localhost/x --unsigned --wait-replicas 1", "this store has none"),
    ] {
        let error = settings(args).unwrap_err();
        assert!(error.contains(reason), "{args}: {error}");
    }
}
