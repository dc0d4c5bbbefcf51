mod first_version;
mod methods;
mod properties;
mod spec;

use super::*;

fn rules(texts: &[&str]) -> Rules {
    Rules::new(texts.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
}

/// Returns the protection of `key` as a word: the lock (with a `+` for unfenced reads), @open or
/// @deny.
fn word(rules: &Rules, key: impl AsRef<[u8]>) -> Result<String, String> {
    let mut scratch = "left over".to_owned();
    let resolved = rules.resolve(key.as_ref(), &mut scratch).map_err(|error| error.to_string())?;
    Ok(match resolved.protection {
        Protects::Lock(name) if resolved.unfenced_reads => format!("{name}+"),
        Protects::Lock(name) => name.to_owned(),
        Protects::Open => "@open".to_owned(),
        Protects::Deny => "@deny".to_owned(),
    })
}

#[test]
fn the_first_match_decides_and_the_key_is_the_default() {
    let rules = rules(&[
        "orders/{id}/**=orders/{id}",
        "a/{x}/{y}=swap:{y}.{x}",
        "public/**=@open",
        "one/*/three=fixed",
        "public/secret=never-reached",
    ]);
    for (key, expected) in [
        ("orders/42", "orders/42"),
        ("orders/42/items/7", "orders/42"),
        ("orders", "orders"),
        ("ordersx/42/a", "ordersx/42/a"),
        ("a/1/2", "swap:2.1"),
        ("a/1/2/3", "a/1/2/3"),
        ("public/readme", "@open"),
        ("public/secret", "@open"),
        ("public", "@open"),
        ("one/2/three", "fixed"),
        ("one/2/four", "one/2/four"),
    ] {
        assert_eq!(word(&rules, key).unwrap(), expected, "{key}");
    }
}

#[test]
fn the_locks_of_everything_are_few_or_unknown() {
    for (texts, default, expected) in [
        (&["a:**=x", "b:*=y", "c:**=@open"][..], DefaultRule::Open, Some(&["x", "y"][..])),
        (&[], DefaultRule::Open, Some(&[])),
        (&[], DefaultRule::Fenced, None),
        (&["a:**=x"], DefaultRule::Deny, None),
        (&["a:**=x", "**=y", "b:**=@deny"], DefaultRule::Deny, Some(&["x", "y"])),
        (&["a:**=@deny", "**=y"], DefaultRule::Open, None),
        (&["a:{id}:**=x/{id}"], DefaultRule::Open, None),
        (&["a:{id}=x"], DefaultRule::Open, None),
        (&["a:{id}=@open"], DefaultRule::Open, None),
    ] {
        let rules = rules(texts).with_default(default);
        let locks = rules.locks_of_everything();
        assert_eq!(locks.as_deref().ok(), expected, "{texts:?}: {locks:?}");
    }
}

#[test]
fn keys_as_they_are_usual_in_redis() {
    let rules = rules(&[
        "%7Borders:{id}%7D:**=orders/{id}",
        "orders:{id}:**=orders/{id},unfenced-reads",
        "cache::{name}=caches/{name}",
        "user-{id}.json=users/{id}",
        "mixed:{a}/{b}=mixed/{a}/{b}",
        "tmp-*:**=@open",
        "%00%ff*=binary",
        "queue:=queue",
        "secrets:**=@deny",
        "a%2F%2Fb=slashes",
        "c%3Ad/{id}=c/{id}",
        "c:d/{id}=d/{id}",
    ]);
    for (key, expected) in [
        ("{orders:42}:items", "orders/42"),
        ("{orders:42}", "orders/42"),
        ("orders:42", "orders/42+"),
        ("orders:42:", "orders/42+"),
        ("orders:42:items:\u{fffd}", "orders/42+"),
        ("orders:42/items", "orders/42/items+"),
        ("orders", "orders"),
        ("cache::x", "caches/x"),
        ("user-7.json", "users/7"),
        ("mixed:1/2", "mixed/1/2"),
        ("mixed:1:2", "mixed:1:2"),
        ("tmp-:a", "@open"),
        ("tmp-", "@open"),
        ("queue:", "queue"),
        ("secrets:x", "@deny"),
        ("secrets", "@deny"),
        ("secretsx", "secretsx"),
        ("a//b", "slashes"),
        ("c:d/4:2", "c/4:2"),
    ] {
        assert_eq!(word(&rules, key).unwrap(), expected, "{key}");
    }
    assert_eq!(word(&rules, b"\0\xff and \xfe").unwrap(), "binary");
}

#[test]
fn what_makes_no_lock_is_refused_with_the_way_out() {
    let rules = rules(&["orders:{id}:**=orders/{id}", "orders:**=@open", "{a}/{b}={a}{a}{b}"]);
    let long = format!("{}/x", "a".repeat(200));
    for (key, reason) in [
        (&b"orders::x"[..], "must not be empty"),
        (b"orders:..", "has a segment \"..\""),
        (b"orders:\xff:x", "falls under rule orders:{id}:**=orders/{id}"),
        (b"orders:4 2", "contains ' '"),
        (b"orders:/etc", "empty segment"),
        (b"", "Add a rule"),
        (b"two words", "Add a rule"),
        (b"\xff", "Add a rule"),
        (&[b'a'; 257], "it has 257 bytes"),
        (&[b'a'; 1 << 20], "it has 1048576 bytes"),
        (long.as_bytes(), "it has 401 bytes"),
    ] {
        let error = word(&rules, key).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert!(error.len() < 700, "{error}");
    }
}

#[test]
fn bad_rules_are_refused_with_their_text() {
    for (text, reason) in [
        ("", "has no \"=\""),
        ("orders/**", "has no \"=\""),
        ("=a", "empty pattern"),
        ("a=", "makes no lock name"),
        ("a/**/b=c", "** anywhere but at the end"),
        ("a**=c", "** anywhere but at the end"),
        ("***=c", "** anywhere but at the end"),
        ("a//b=c", "empty segment"),
        ("/a=c", "empty segment"),
        ("a/=c", "empty segment"),
        ("/**=c", "empty segment"),
        ("a/../b=c", "segment \"..\""),
        ("..=c", "segment \"..\""),
        ("a/{id=c", "{name}"),
        ("a/{}=c", "{name}"),
        ("a/i}=c", "{name}"),
        ("a:{a b}=c", "{name}"),
        ("a:{x}{y}=c", "two wildcards in a segment"),
        ("a:*-{y}=c", "two wildcards in a segment"),
        ("a:{x}}=c", "two wildcards in a segment"),
        ("a/{id}/{id}=c", "catches {id} twice"),
        ("a/*={id}", "does not catch"),
        ("a/{id}={id", "without its"),
        ("a=b c", "makes no lock name"),
        ("a=@closed", "unknown word"),
        ("a b=c", "in a pattern write a space as %20"),
        ("get a=c", "\"get\" before a space, where methods stand; there are GET, HEAD"),
        ("GET,COPY a=c", "\"COPY\""),
        ("GET, HEAD a=c", "\"\""),
        ("GET,GET a=c", "method GET twice"),
        (" a=c", "contains ' '; write it as %20"),
        ("GET  a=c", "contains ' '; write it as %20"),
        ("GET a b=c", "contains ' '; write it as %20"),
        ("GET =c", "empty pattern"),
        ("a=b,reads", "which needs methods"),
        ("POST,PUT a=b,reads", "PUT always changes something"),
        ("POST a=b,reads,writes", "more than one"),
        ("POST a=@open,reads", "which needs a lock"),
        ("ä=c", "write it as %C3%A4"),
        ("a%2=c", "two hexadecimal digits"),
        ("a%+f=c", "two hexadecimal digits"),
        ("a%=c", "two hexadecimal digits"),
        ("a%2ä=c", "two hexadecimal digits"),
        ("a:{x}%3a=c", "would never match"),
        ("a=b,", "unknown option \"\""),
        ("a=b,fast", "unknown option \"fast\""),
        ("a=b,unfenced-reads,unfenced-reads", "twice"),
        ("a=@open,unfenced-reads", "which needs a lock"),
        ("a=@deny,unfenced-reads", "which needs a lock"),
    ] {
        let error = text.parse::<Rule>().expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(error.starts_with(&format!("rule \"{text}\"")), "{error}");
    }
}

#[test]
fn the_default_rule_is_what_an_operator_says() {
    let fenced = rules(&["orders/{id}/**=orders/{id}"]);
    assert_eq!(word(&fenced, "a").unwrap(), "a");
    let open = fenced.clone().with_default(DefaultRule::Open);
    assert_eq!(word(&open, "a").unwrap(), "@open");
    assert_eq!(word(&open, "orders/1/x").unwrap(), "orders/1");
    assert!(word(&open, "orders/\u{0}").is_err(), "a match that makes no lock is not open");
    let deny = fenced.with_default(DefaultRule::Deny);
    assert_eq!(word(&deny, "a").unwrap(), "@deny");
    assert_eq!(word(&deny, "orders/1/x").unwrap(), "orders/1");
}

#[test]
fn a_lock_without_captures_is_made_once() {
    let rules = rules(&["orders:**=orders", "users:{id}=users/{id}"]);
    let mut scratch = String::new();
    let mut address = || match rules.resolve(b"orders:42", &mut scratch).unwrap().protection {
        Protects::Lock(name) => name.as_ptr(),
        other => panic!("{other:?}"),
    };
    assert_eq!(address(), address());
    assert_eq!(scratch.capacity(), 0);
    rules.resolve(b"users:0123456789", &mut scratch).unwrap();
    let address = scratch.as_ptr();
    let capacity = scratch.capacity();
    rules.resolve(b"users:42", &mut scratch).unwrap();
    assert_eq!((scratch.as_ptr(), scratch.capacity()), (address, capacity));
    assert_eq!(scratch, "users/42");
}

#[test]
fn objects_have_the_same_rules() {
    let rules = rules(&["orders/{id}/**=orders/{id},unfenced-reads", "public/**=@open"])
        .with_default(DefaultRule::Deny);
    let protection = |key| rules.protection(&ObjectKey::new(key).unwrap()).unwrap();
    let lock = LockName::new("orders/42").unwrap();
    assert_eq!(protection("orders/42/x"), Protection::Lock { lock, unfenced_reads: true });
    assert_eq!(protection("public/x"), Protection::Open);
    assert_eq!(protection("other"), Protection::Deny);
}
