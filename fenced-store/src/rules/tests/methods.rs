//! Rules with methods, and rules that can never decide.

use proptest::prelude::*;

use super::super::reach::{Reach, reach};
use super::*;

/// Returns the lock, @open or @deny, and whether the request reads.
fn decided(rules: &Rules, method: &str, key: &str) -> (String, Intent) {
    let key = ObjectKey::new(key).unwrap();
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let resource = Resource { key: key.as_str().as_bytes(), method: Some(&method) };
    let word = match rules.protection(resource).unwrap() {
        Protection::Lock { lock, unfenced_reads: false } => lock.to_string(),
        Protection::Lock { lock, .. } => format!("{lock}+"),
        Protection::Open => "@open".to_owned(),
        Protection::Deny => "@deny".to_owned(),
    };
    (word, rules.intent(resource))
}

#[test]
fn a_rule_decides_over_its_methods_only() {
    let rules = rules(&[
        "GET,HEAD pages/**=@open",
        "POST orders/{id}/search=orders/{id},unfenced-reads,reads",
        "GET jobs/{id}/next=jobs/{id},writes",
        "DELETE **=@deny",
        "orders/{id}/**=orders/{id}",
    ]);
    for (method, key, word, intent) in [
        ("GET", "pages/a", "@open", Intent::Read),
        ("HEAD", "pages/a", "@open", Intent::Read),
        ("OPTIONS", "pages/a", "pages/a", Intent::Read),
        ("PUT", "pages/a", "pages/a", Intent::Write),
        ("POST", "orders/1/search", "orders/1+", Intent::Read),
        ("PUT", "orders/1/search", "orders/1", Intent::Write),
        ("GET", "jobs/1/next", "jobs/1", Intent::Write),
        ("DELETE", "orders/1/x", "@deny", Intent::Write),
        ("GET", "orders/1/x", "orders/1", Intent::Read),
    ] {
        assert_eq!(decided(&rules, method, key), (word.to_owned(), intent), "{method} {key}");
    }
    // A request without a method is none of theirs.
    assert_eq!(word(&rules, "pages/a").unwrap(), "pages/a");
    assert_eq!(rules.label(b"pages/a"), "default");
}

#[test]
fn rules_that_can_never_decide_are_found() {
    for (texts, expected) in [
        (&["a/**=x", "a/b=y"][..], &["a/b=y"][..]),
        (&["a/b=y", "a/**=x"], &[]),
        (&["**=@open", "GET a=x"], &["GET a=x"]),
        (&["GET a=x", "a=x", "POST a=x"], &["POST a=x"]),
        (&["GET,PUT a=x", "POST a=x", "GET,POST a=x"], &["GET,POST a=x"]),
        (&["GET,PUT a=x", "POST a=x", "GET,POST,HEAD a=x"], &[]),
        (&["a/{x}=x", "a/*-b=y"], &["a/*-b=y"]),
        (&["a/*-b=y", "a/{x}=x"], &[]),
        (&["a:{x}=x", "a:*/b=y"], &["a:*/b=y"]),
        (&["a/*=x", "a/*/**=y", "a/**=z"], &[]),
        (&["a=w", "a/*=x", "a/*/**=y", "a/**=z"], &["a/**=z"]),
    ] {
        let rules = rules(texts);
        let found: Vec<String> = rules.unreachable().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{texts:?}");
    }
}

/// A rule over few texts, so that rules often match the same keys.
fn rule_text() -> impl Strategy<Value = String> {
    let methods = prop::sample::select(&["", "", "", "GET ", "GET,PUT ", "PUT,POST "][..]);
    let segment = prop::sample::select(&["a", "b", "*", "{x}", "a*", "*b", "a*b"][..]);
    let separator = prop::sample::select(&["/", "/", ":"][..]);
    let tail = prop::sample::select(&["", "", "/**", ":**"][..]);
    let segments = prop::collection::vec((segment, separator), 1..4);
    (methods, segments, tail, prop::bool::weighted(0.05)).prop_map(
        |(methods, segments, tail, is_all)| {
            if is_all {
                return format!("{methods}**=l");
            }
            let mut names = 0;
            let mut pattern = String::new();
            for (index, (segment, separator)) in segments.iter().enumerate() {
                if index > 0 {
                    pattern.push_str(separator);
                }
                names += 1;
                pattern.push_str(&segment.replace('x', &format!("n{names}")));
            }
            format!("{methods}{pattern}{tail}=l")
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The search finds a key that its rule decides over, or there is none: no short key is one.
    #[test]
    fn a_rule_decides_over_a_key_unless_it_never_can(
        texts in prop::collection::vec(rule_text(), 1..6),
        keys in prop::collection::vec("[ab]{0,2}([/:][ab]{0,2}){0,3}", 40),
    ) {
        let rules: Vec<Rule> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let (last, earlier) = rules.split_last().unwrap();
        let decides = |key: &[u8]| METHODS.into_iter().any(|method| {
            last.matches(key, Some(method))
                && !earlier.iter().any(|rule| rule.matches(key, Some(method)))
        });
        match reach(last, earlier) {
            Reach::Key(key) => prop_assert!(decides(&key), "{:?} {}", texts, key.escape_ascii()),
            Reach::Nothing => {
                for key in keys {
                    prop_assert!(!decides(key.as_bytes()), "{:?} {}", texts, key);
                }
            }
            Reach::Unknown => prop_assert!(false, "{:?} needs too many steps", texts),
        }
    }
}
