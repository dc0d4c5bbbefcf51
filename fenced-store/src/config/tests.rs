//! Tests of settings that are checked together.

use clap::Parser as _;

use super::*;
use crate::rules::Protection;

const POSTGRES_PORT: &str = "--unsigned --postgres-listen 127.0.0.1:0 \
                             --postgres-upstream postgres://guard@127.0.0.1/shop --postgres-writer w";

fn settings(args: &str) -> Result<Settings, String> {
    // An & stands for a space in a value.
    let args = args.split_whitespace().map(|arg| arg.replace('&', " "));
    let args = std::iter::once("fenced-store".to_owned()).chain(args);
    let config = Config::try_parse_from(args).map_err(|error| error.to_string())?;
    config.settings().map_err(|error| error.to_string())
}

#[test]
fn the_usual_ways_to_start() {
    assert!(settings("--store memory: --unsigned").is_ok());
    assert!(settings("--store embedded:x --unsigned --rule a/**=a --rule b/*=@open").is_ok());
    let proxy = "--proxy-listen 127.0.0.1:0 --upstream http://127.0.0.1:9 --unsigned \
                 --max-request-lifetime 30s --state s";
    assert!(settings(proxy).is_ok(), "{:?}", settings(proxy));
    let both =
        settings(&format!("--store postgres://guard@127.0.0.1/shop --floor 9 {POSTGRES_PORT}"));
    let both = both.unwrap();
    assert!(matches!(both.backend, Backend::Store(_)));
    // The floor is for both doors.
    assert_eq!(both.redis.floor, both.postgres_port.unwrap().floor);
    assert!(matches!(settings(POSTGRES_PORT).unwrap().backend, Backend::Postgres));
}

#[test]
fn the_default_rule_reaches_the_rules() {
    let key = crate::key::ObjectKey::new("a").unwrap();
    let default = |flag: &str| {
        let settings = settings(&format!("--store memory: --unsigned {flag}")).unwrap();
        settings.rules.protection(&key).unwrap()
    };
    assert_eq!(default("--default-rule deny"), Protection::Deny);
    assert_eq!(default("--default-rule open"), Protection::Open);
    assert_eq!(default(""), default("--default-rule fenced"));
}

#[test]
fn bad_settings_are_refused_with_the_value() {
    for (args, reason) in [
        ("--unsigned", "--store is missing"),
        ("--store memory:", "--token-key-file is missing"),
        ("--store memory: --unsigned --token-key-file x", "exclude each other"),
        ("--store memory: --token-key-file /nonexistent/keys", "/nonexistent/keys"),
        ("--store memory: --token-key-file /dev/zero", "/dev/zero is longer than 65536 bytes"),
        ("--store memory: --unsigned --max-object-bytes 0", "\"0\" is out of range: at least 1"),
        ("--store memory: --unsigned --max-body-bytes-in-all 0", "out of range: at least 1"),
        ("--store memory: --unsigned --max-command-bytes 0", "out of range: at least 1"),
        ("--store memory: --unsigned --listen 0.0.0.0:1", "0.0.0.0:1"),
        ("--store memory: --unsigned --rule a/**/b=c", "a/**/b=c"),
        ("--store memory: --unsigned --rule a=b,fast", "unknown option \"fast\""),
        ("--store memory: --unsigned --rule GET,PUT&a=b", "only the reverse proxy"),
        ("--store memory: --unsigned --rule a/**=b --rule a/c=d", "\"a/c=d\" never decides"),
        ("--store memory: --unsigned --default-rule closed", "closed"),
        ("--store mysql://x --unsigned", "mysql://x"),
        (&format!("--store memory: {POSTGRES_PORT}"), "any --store but the same"),
        (&format!("--store redis://127.0.0.1:1 {POSTGRES_PORT}"), "any --store but the same"),
        (&format!("--proxy-listen 127.0.0.1:1 {POSTGRES_PORT}"), "excludes --proxy-listen"),
        (&format!("{POSTGRES_PORT} --postgres-reader w"), "must be a role of its own"),
        (&format!("{POSTGRES_PORT} --postgres-threads 65"), "not in 1 to 64"),
        (&format!("{POSTGRES_PORT} --mode observe"), "not offered at the PostgreSQL port"),
        (&format!("{POSTGRES_PORT} --marks-from postgres://127.0.0.1/b"), "name the new store"),
        (&format!("{POSTGRES_PORT} --redis-listen 127.0.0.1:0"), "needs the Redis behind it"),
        ("--store postgres://127.0.0.1/b --unsigned --postgres-writer w", "set --postgres-listen"),
        (
            "--unsigned --postgres-listen 127.0.0.1:0 --postgres-upstream postgres://127.0.0.1",
            "needs the database behind it",
        ),
        ("--store memory: --unsigned --proxy-listen 127.0.0.1:1", "exclude each other"),
        ("--proxy-listen 127.0.0.1:1 --unsigned", "--max-request-lifetime is missing"),
        ("--store memory: --unsigned --drain-wait 30", "as in 30s"),
        ("--store memory: --unsigned --marks-from redis-cluster://a", "in each slot"),
        ("--upstream ftp://x --unsigned", "ftp://x"),
        ("--store memory: --unsigned --redis-listen 127.0.0.1:0", "needs the Redis behind it"),
        (
            "--store redis://127.0.0.1:1 --unsigned --redis-listen 127.0.0.1:0 \
             --max-command-bytes 999999999",
            "above 537919488",
        ),
        (
            "--store redis://127.0.0.1:1 --unsigned --redis-listen 127.0.0.1:0 \
             --max-command-bytes 400000000 --redis-threads 2",
            "does not fit",
        ),
        (
            "--store redis://127.0.0.1:1 --unsigned --redis-listen 127.0.0.1:0 \
             --redis-password-file /nonexistent/p",
            "stands in for the password",
        ),
        ("--store memory: --unsigned --redis-password-file p", "set --redis-listen"),
        ("--store memory: --unsigned --fail-at nowhere=stop", "no point"),
        ("--store memory: --unsigned --report-to redis://x", "must begin with http://"),
        (
            "--store memory: --unsigned --report-to http://x --report-auth-file /nonexistent/r",
            "/nonexistent/r cannot be",
        ),
        ("--store memory: --unsigned --mode watch", "must be enforce or observe"),
        ("--store memory: --unsigned --access-file /nonexistent/a", "/nonexistent/a: cannot be"),
    ] {
        let error = settings(args).unwrap_err();
        assert!(error.contains(reason), "{args}: {error}");
    }
}
