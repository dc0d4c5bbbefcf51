//! Properties of rules and keys, on random ones.

use proptest::prelude::*;

use super::*;

const DEFAULTS: [DefaultRule; 3] = [DefaultRule::Fenced, DefaultRule::Open, DefaultRule::Deny];

fn default_rule() -> impl Strategy<Value = DefaultRule> {
    prop::sample::select(&DEFAULTS[..])
}

/// A valid rule of the first version, without a colon in its pattern.
fn first_version_rule() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(&["a", "b", "orders", "*", "{x}", "{y}", "a.b"][..]);
    let target = prop::sample::select(&["l", "l/{x}", "{y}", "{x}:{x}", "@open", "{x}/{y}"][..]);
    let segments = prop::collection::vec(segment, 1..4);
    (segments, any::<bool>(), prop::bool::weighted(0.1), target).prop_map(
        |(segments, open_ended, everything, target)| {
            let pattern = if everything { "**".to_owned() } else { segments.join("/") };
            let rest = if open_ended && !everything { "/**" } else { "" };
            format!("{pattern}{rest}={target}")
        },
    )
}

/// A pattern, and a key near to it: wildcards are filled with bytes of all kinds, and then a byte
/// may be changed, added or cut off.
fn pattern_and_key() -> impl Strategy<Value = (String, Vec<u8>)> {
    let separator = prop::sample::select(&["/", ":", ":", "::"][..]);
    let wild = prop::sample::select(&["", "*", "{n}"][..]);
    let around = || prop::sample::select(&["a", "b-", "%7B", "%FFx", "", "a"][..]);
    let filling = prop_oneof![
        "[a-c.]{0,3}".prop_map(String::into_bytes),
        "[a-c.:/]{0,4}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..3),
    ];
    let segment = (around(), wild, around(), filling, separator);
    let change = (0..4u8, any::<prop::sample::Index>(), any::<u8>());
    (prop::collection::vec(segment, 1..4), prop::bool::ANY, change).prop_map(
        |(segments, open_ended, (change, at, byte))| {
            let mut pattern = String::new();
            let mut key = Vec::new();
            let count = segments.len();
            for (index, (before, wild, after, filling, separator)) in
                segments.into_iter().enumerate()
            {
                let wild = wild.replace('n', &format!("n{index}"));
                pattern.push_str(&format!("{before}{wild}{after}"));
                key.extend(percent_encoding::percent_decode_str(before));
                if !wild.is_empty() {
                    key.extend(filling);
                }
                key.extend(percent_encoding::percent_decode_str(after));
                if index + 1 < count || open_ended {
                    pattern.push_str(separator);
                    key.extend(separator.bytes());
                }
            }
            if open_ended {
                pattern.push_str("**");
            }
            match change {
                1 => key.insert(at.index(key.len() + 1), byte),
                2 if !key.is_empty() => drop(key.remove(at.index(key.len()))),
                3 => key.truncate(at.index(key.len() + 1)),
                _ => {}
            }
            (pattern, key)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Rules without a colon in their pattern keep the meaning of the first version.
    #[test]
    fn slashes_mean_what_they_did(
        texts in prop::collection::vec(first_version_rule(), 1..4),
        key in "(a|b|orders|a\\.b|[a-z:]{1,3})(/(a|b|orders|a\\.b|[a-z:.]{1,3})){0,4}",
    ) {
        if ObjectKey::new(&key).is_err() {
            return Ok(());
        }
        let old: Vec<_> = texts.iter().map(|text| first_version::Rule::parse(text)).collect();
        let new: Vec<_> = texts.iter().map(|text| text.parse::<Rule>()).collect();
        for (text, (old, new)) in texts.iter().zip(old.iter().zip(&new)) {
            prop_assert_eq!(old.is_ok(), new.is_ok(), "{}", text);
        }
        let old = old.into_iter().flatten().find_map(|rule| rule.protection(&key));
        let expected = match old {
            Some(Ok(Some(lock))) => Ok(lock.to_string()),
            Some(Ok(None)) => Ok("@open".to_owned()),
            Some(Err(_)) => Err(()),
            None => Ok(key.clone()),
        };
        let rules = Rules::new(new.into_iter().flatten().collect()).unwrap();
        prop_assert_eq!(word(&rules, &key).map_err(|_| ()), expected, "{:?}", texts);
    }

    /// A rule of the first version, without a colon or a new word, is still one.
    #[test]
    fn a_rule_of_the_first_version_is_one_now(text in "[ab*{}x/.-]{1,6}(/\\*\\*)?=[ab{}x/@.]{1,5}") {
        if first_version::Rule::parse(&text).is_ok() {
            prop_assert!(text.parse::<Rule>().is_ok(), "{}", text);
        }
    }

    /// The matcher agrees with the documentation's second implementation.
    #[test]
    fn matches_what_the_documentation_says((pattern, key) in pattern_and_key()) {
        let Ok(rule) = format!("{pattern}=@open").parse::<Rule>() else {
            // Only an empty segment between slashes is forbidden.
            let forbidden = pattern.starts_with('/') || pattern.contains("//")
                || pattern.contains("/**/") || pattern.ends_with('/') || pattern.is_empty();
            prop_assert!(forbidden, "{}", pattern);
            return Ok(());
        };
        let expected = spec::caught(&pattern, &key);
        prop_assert_eq!(rule.pattern.matches(&key), expected.is_some(), "{} {:?}", pattern, key);
        if let Some(expected) = expected {
            let caught: Vec<_> = rule
                .pattern
                .caught(&key)
                .map(|(name, value)| (name.unwrap_or_default().to_owned(), value.to_vec()))
                .collect();
            prop_assert_eq!(caught, expected, "{} {:?}", pattern, key);
        }
    }

    /// A key is open only by a rule that matches and says so, or by the default; a key whose caught
    /// text is unsound is refused, whatever comes after.
    #[test]
    fn nothing_is_open_by_accident(
        (pattern, key) in pattern_and_key(),
        is_open in any::<bool>(),
        default in default_rule(),
    ) {
        let target = if is_open { "@open" } else { "fixed" };
        let Ok(rule) = format!("{pattern}={target}").parse::<Rule>() else { return Ok(()) };
        let rules = Rules::new(vec![rule, "**=@open".parse().unwrap()]).unwrap();
        let first = Rules::new(rules.rules[..1].to_vec()).unwrap().with_default(default);
        match spec::caught(&pattern, &key) {
            Some(caught) if !spec::is_sound(&caught) => {
                prop_assert!(word(&rules, &key).is_err() && word(&first, &key).is_err());
            }
            Some(_) => {
                prop_assert_eq!(word(&rules, &key).unwrap(), target);
                prop_assert_eq!(word(&first, &key).unwrap(), target);
            }
            None => {
                prop_assert_eq!(word(&rules, &key).unwrap(), "@open");
                let word = word(&first, &key);
                match default {
                    DefaultRule::Open => prop_assert_eq!(word.unwrap(), "@open"),
                    DefaultRule::Deny => prop_assert_eq!(word.unwrap(), "@deny"),
                    DefaultRule::Fenced => match std::str::from_utf8(&key) {
                        Ok(key) if LockName::new(key).is_ok() => {
                            prop_assert_eq!(word.unwrap(), key);
                        }
                        _ => prop_assert!(word.is_err()),
                    },
                }
            }
        }
    }

    /// A lock made from a key is a lock name, made as the rule says.
    #[test]
    fn what_is_made_is_a_lock((pattern, key) in pattern_and_key()) {
        let Ok(rule) = format!("{pattern}=l/{{n0}}.").parse::<Rule>() else { return Ok(()) };
        let rules = Rules::new(vec![rule]).unwrap().with_default(DefaultRule::Deny);
        let caught = spec::caught(&pattern, &key);
        match word(&rules, &key) {
            Ok(word) if word == "@deny" => prop_assert_eq!(caught, None),
            Ok(name) => {
                let caught = caught.unwrap();
                let value = caught.iter().find(|(name, _)| name == "n0").unwrap();
                let expected = format!("l/{}.", String::from_utf8(value.1.clone()).unwrap());
                prop_assert_eq!(&name, &expected);
                prop_assert!(LockName::new(&name).is_ok());
            }
            Err(_) => prop_assert!(!spec::is_sound(&caught.unwrap())),
        }
    }

    #[test]
    fn nothing_panics(
        text in "([ab{}*=@/.:,%0]|\\PC){0,14}(=(a|\\{a\\}|@open)(,unfenced-reads)?)?",
        keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..4),
        default in default_rule(),
    ) {
        let rules: Vec<Rule> = text.parse().into_iter().collect();
        let rules = Rules::new(rules).unwrap().with_default(default);
        for key in keys {
            let _ = word(&rules, key);
        }
    }
}
