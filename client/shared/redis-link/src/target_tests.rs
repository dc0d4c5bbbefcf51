//! Tests of reading a target and of its text.

use super::*;

#[test]
fn the_password_is_never_shown() {
    let target: RedisTarget = "redis://app:hunter2@127.0.0.1:6379/3".parse().unwrap();
    assert_eq!(target.to_string(), "redis://***@127.0.0.1:6379/3");
    assert!(!format!("{target:?}").contains("hunter2"));
    assert_eq!(target.credentials(), (Some("app"), Some("hunter2")));
    assert_eq!(target.db(), 3);
    let target: RedisTarget = "redis-sentinel://:s3cret@a,b:7/m/2".parse().unwrap();
    assert_eq!(target.to_string(), "redis-sentinel://***@a,b:7/m/2");
    assert!(!format!("{target:?}").contains("s3cret"));
}

#[test]
fn sentinels_have_names_ports_and_a_master() {
    let target: RedisTarget =
        "redis-sentinel://app:p%40ss@s1,s2:7000,[::1]:7001/orders/4".parse().unwrap();
    let Place::Sentinels(sentinels) = &target.place else { panic!("{target}") };
    let expected = [("s1", 26379), ("s2", 7000), ("::1", 7001)];
    assert_eq!(sentinels.addresses, expected.map(|(host, port)| (host.to_owned(), port)));
    assert_eq!(sentinels.master, "orders");
    assert_eq!(target.credentials(), (Some("app"), Some("p@ss")));
    assert_eq!((target.db(), target.is_sentinel()), (4, true));
}

/// The driver would take settings there, which a server then replies to in another form.
#[test]
fn a_url_has_no_query() {
    for url in ["redis://a?protocol=resp3", "redis://a/3?db=5", "redis-sentinel://s/m?x=1"] {
        let error = url.parse::<RedisTarget>().unwrap_err().to_string();
        assert!(error.contains("it has a ?"), "{error}");
    }
    let error = "redis://app:hun?ter2@a".parse::<RedisTarget>().unwrap_err().to_string();
    assert!(error.contains("%3F") && !error.contains("hun"), "{error}");
}

#[test]
fn tls_is_a_matter_of_the_scheme() {
    for (url, is_tls) in [
        ("redis://a", false),
        ("rediss://a:1/2", true),
        ("redis-sentinel://a/m", false),
        ("rediss-sentinel://u:p@a,b:7/m/2", true),
    ] {
        let target: RedisTarget = url.parse().unwrap();
        assert_eq!(target.is_tls(), is_tls, "{url}");
        assert_eq!(target.to_string(), url.replace("u:p", "***"));
    }
    let target: RedisTarget = "rediss-sentinel://s/m".parse().unwrap();
    let Place::Sentinels(sentinels) = &target.place else { panic!("{target}") };
    assert_eq!(sentinels.addresses, [("s".to_owned(), 26379)]);
}

fn login(user: Option<&str>, password: Option<&str>) -> StoreLogin {
    let user = user.map(str::to_owned);
    StoreLogin { user, password: password.map(Into::into), ..StoreLogin::default() }
}

#[test]
fn a_login_is_said_once() {
    let target = |url: &str| url.parse::<RedisTarget>().unwrap();
    for (url, login, credentials) in [
        ("redis://a", login(Some("app"), Some("x")), (Some("app"), Some("x"))),
        ("redis://a", login(None, Some("x")), (None, Some("x"))),
        ("redis://app@a", login(None, Some("x")), (Some("app"), Some("x"))),
        ("redis://app@a", login(Some("app"), Some("x")), (Some("app"), Some("x"))),
        ("redis://app:x@a", login(None, None), (Some("app"), Some("x"))),
        ("redis://app:x@a", login(Some("app"), None), (Some("app"), Some("x"))),
    ] {
        let target = target(url).with_login(&login).unwrap();
        assert_eq!(target.credentials(), credentials, "{url} {login:?}");
        assert!(!format!("{target} {target:?} {login:?}").contains('x'), "{target:?}");
    }
    for (url, login, reason) in [
        ("redis://b@a", login(Some("app"), Some("x")), "one user and --store-user another"),
        ("redis://:y@a", login(None, Some("x")), "leave the password out of the URL"),
        ("redis://b@a", login(None, None), "no password"),
        ("redis://a", login(Some("app"), None), "no password"),
    ] {
        let error = target(url).with_login(&login).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    let sentinel = StoreLogin { sentinel_password: Some("z".into()), ..login(None, None) };
    let error = target("redis://a").with_login(&sentinel).unwrap_err();
    assert!(error.contains("is for sentinels"), "{error}");
    assert!(target("redis-sentinel://a/m").with_login(&sentinel).is_ok());
}

#[test]
fn other_urls_are_refused_with_the_value() {
    for bad in [
        "",
        "http://a",
        "redis//x",
        "redis://",
        "rediss:/a",
        "rediss://a#insecure",
        "redis-cluster://a",
        "redis://a,b",
        "rediss://a,b",
        "redis://a/x",
        "redis://a/1/2",
        "redis-sentinel://a",
        "redis-sentinel://a/",
        "redis-sentinel:///m",
        "redis-sentinel://a,,b/m",
        "redis-sentinel://a:x/m",
        "redis-sentinel://a/m/x",
    ] {
        let error = bad.parse::<RedisTarget>().unwrap_err().to_string();
        assert!(error.contains("is no Redis URL"), "{error}");
    }
}

#[tokio::test]
async fn an_address_can_be_asked_for() {
    let timeout = Duration::from_secs(1);
    for (url, address) in [("redis://h", "h:6379"), ("redis://[::1]:7", "[::1]:7")] {
        let target: RedisTarget = url.parse().unwrap();
        assert_eq!(target.tcp_address(timeout).await.unwrap(), address);
    }
    let unanswered: RedisTarget = "redis-sentinel://127.0.0.1:1/m".parse().unwrap();
    let error = unanswered.tcp_address(timeout).await.unwrap_err();
    assert!(error.contains("no sentinel says") && error.contains("127.0.0.1:1"), "{error}");
}
