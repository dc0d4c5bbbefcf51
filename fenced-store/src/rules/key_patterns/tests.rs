//! Key patterns, compared with the rules that they are made from.

use proptest::prelude::*;

use super::*;

fn rules(texts: &[&str], default: DefaultRule) -> Rules {
    let rules = texts.iter().map(|text| text.parse().unwrap()).collect();
    Rules::new(rules).unwrap().with_default(default)
}

fn globs(patterns: &KeyPatterns) -> Vec<String> {
    patterns.acl_rules().map(|rule| String::from_utf8(rule).unwrap()).collect()
}

/// Matches as Redis does (stringmatchlen), as a second implementation.
fn redis_matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut pattern = pattern;
    let mut text = text;
    while let (Some(&sign), Some(&byte)) = (pattern.first(), text.first()) {
        match sign {
            b'*' => {
                return (0..=text.len()).any(|at| {
                    let rest = &pattern[1..];
                    redis_matches(rest, &text[at..]) || (rest.is_empty() && at == text.len())
                });
            }
            b'?' => pattern = &pattern[1..],
            b'[' => {
                let Some(behind) = class(&pattern[1..], byte) else { return false };
                pattern = behind;
            }
            b'\\' if pattern.len() >= 2 => {
                if pattern[1] != byte {
                    return false;
                }
                pattern = &pattern[2..];
            }
            _ if sign == byte => pattern = &pattern[1..],
            _ => return false,
        }
        text = &text[1..];
        if text.is_empty() {
            while pattern.first() == Some(&b'*') {
                pattern = &pattern[1..];
            }
        }
    }
    pattern.is_empty() && text.is_empty()
}

/// Returns the pattern behind a class that contains this byte.
fn class(mut class: &[u8], byte: u8) -> Option<&[u8]> {
    let is_not = class.first() == Some(&b'^');
    class = &class[usize::from(is_not)..];
    let mut is_in = false;
    loop {
        match class {
            [b'\\', sign, behind @ ..] => {
                is_in |= *sign == byte;
                class = behind;
            }
            [b']', behind @ ..] => return (is_in != is_not).then_some(behind),
            [from, b'-', to, behind @ ..] => {
                is_in |= (from.min(to)..=from.max(to)).contains(&&byte);
                class = behind;
            }
            [sign, behind @ ..] => {
                is_in |= *sign == byte;
                class = behind;
            }
            [] => return (is_in != is_not).then_some(class),
        }
    }
}

/// Decides by the rules alone if a connection may write and may read `key`.
fn allowed(rules: &Rules, locks: &[&str], unfenced_reads: bool, key: &[u8]) -> (bool, bool) {
    let mut scratch = String::new();
    let Ok(resolved) = rules.resolve(key, &mut scratch) else { return (false, false) };
    match resolved.protection {
        Protects::Open => (true, true),
        Protects::Deny => (false, false),
        Protects::Lock(lock) if locks.contains(&lock) => (true, true),
        Protects::Lock(_) => (false, resolved.unfenced_reads || unfenced_reads),
    }
}

#[test]
fn a_lock_s_keys_are_a_pattern_of_its_name() {
    let bench = rules(&["k:{id}:**=bench/{id}"], DefaultRule::Fenced);
    assert_eq!(globs(&bench.key_patterns(&["bench/42"], false)), ["~k:42", "~k:42:*", "~bench/42"]);
    assert_eq!(globs(&bench.key_patterns(&["other"], false)), ["~other"]);
    let two = bench.with_default(DefaultRule::Deny);
    let both = globs(&two.key_patterns(&["bench/1", "bench/2"], false));
    assert_eq!(both, ["~k:1", "~k:1:*", "~k:2", "~k:2:*"]);
    let slashes = rules(&["jobs/{a}/{b}/**=j/{b}.{a}"], DefaultRule::Deny);
    let patterns = globs(&slashes.key_patterns(&["j/x.y"], false));
    assert_eq!(patterns, ["~jobs/y/x", "~jobs/y/x/*"]);
}

#[test]
fn open_keys_are_all_but_the_protected_and_fencepost_s_own() {
    let open = rules(&["k:{id}:**=bench/{id}"], DefaultRule::Open);
    let patterns = open.key_patterns(&["bench/42"], false);
    for key in ["k:42", "k:42:a b\0c", "k:42:*", "", "k", "kx", "bull:{q}:id", "{", "{fence", "\0 "]
    {
        assert!(patterns.cover(key.as_bytes(), true), "{key:?}");
    }
    for key in ["k:", "k:43", "k:421", "{fence:default}:guard:marks", "{fence:"] {
        assert!(!patterns.cover(key.as_bytes(), false), "{key:?}");
    }
    assert!(KeyPatterns::everything().cover(b"k:43", true));
    assert!(!KeyPatterns::everything().cover(b"{fence:x}:token", false));
    let all = rules(&["**=all"], DefaultRule::Fenced).key_patterns(&["all"], false);
    assert!(all.cover(b"x", true) && !all.cover(b"{fence:x}:token", false));
    for default in [DefaultRule::Deny, DefaultRule::Open] {
        let app = rules(&["app1:**=@open"], default).key_patterns(&[], false);
        assert!(app.cover(b"app1:{q}:x", true));
        assert!(!app.cover(b"app1:{fence:default}:token", false));
        let denied = rules(&["app1:%7Bfence:**=@deny", "{app}:**={app}"], default);
        let denied = denied.key_patterns(&["app1"], false);
        assert!(denied.cover(b"app1:{q}:x", true) && denied.cover(b"app1", true));
        assert!(!denied.cover(b"app1:{fence:default}:token", false));
    }
}

#[test]
fn rules_that_no_pattern_expresses_have_none() {
    for (rule, lock) in [
        ("a:*=l", "l"),
        ("a:*:x:**=l", "l"),
        ("a:{id}:**=@open", "l"),
        ("a:{id}:**=l", "l"),
        ("a:b%20c:**=l", "l"),
        ("a:{x}:{y}:**=l/{x}", "l/1"),
        ("a:{x}:**=l/{x}", "l/a:b"),
    ] {
        let patterns = rules(&[rule], DefaultRule::Deny).key_patterns(&[lock], true);
        assert_eq!(globs(&patterns), [""; 0], "{rule}");
    }
    let first = rules(&["{t}:x:**=@deny", "a:{id}:**=l/{id}"], DefaultRule::Deny);
    assert_eq!(globs(&first.key_patterns(&["l/1"], false)), ["~a:1", "~a:1:*"]);
    let first = rules(&["a:{id}:x:**=@deny", "a:{id}:**=l/{id}"], DefaultRule::Deny);
    let patterns = first.key_patterns(&["l/1"], false);
    assert!(patterns.cover(b"a:1:xy", true) && patterns.cover(b"a:1:y:x", true));
    assert!(!patterns.cover(b"a:1:x", true) && !patterns.cover(b"a:1:x:z", true));
}

#[test]
fn many_rules_make_few_patterns() {
    let texts: Vec<String> = (0..Rules::MAX)
        .map(|n| format!("long-prefix-{n}-of-a-rule:{{id}}:**=r{n}/{{id}}"))
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let patterns = rules(&texts, DefaultRule::Open).key_patterns(&["r7/x"], false);
    let count = globs(&patterns).len();
    assert!((3..=PATTERNS_MAX).contains(&count), "{count}");
    assert!(
        patterns.cover(b"long-prefix-7-of-a-rule:x:a", true) && patterns.cover(b"bull:a", true)
    );
    assert!(!patterns.cover(b"long-prefix-7-of-a-rule:y:a", false));
}

/// A name that does not end as the rule requires has n^4 splits, for n bytes.
#[test]
fn splitting_a_name_is_bounded() {
    let rule: Rule = "p:{a}:{b}:{c}:{d}:**={a}{b}{c}{d}/z".parse().unwrap();
    let name = "y".repeat(256);
    let steps_left = &Cell::new(STEPS_MAX);
    let locks = &[name.as_str()][..];
    let holder = Holder { locks, purpose: Purpose::Write, unfenced_reads: false, steps_left };
    assert!(rule.regions(holder).is_empty() && steps_left.get() == 0);
}

/// Generates a rule over few bytes, so that rules and keys meet often.
fn rule() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(
        &[
            "a", "b", "", "{x}", "{y}", "a{x}", "{x}b", "*", "a*", "%7B", "%7Bfence", "%20",
            "%5D%5E",
        ][..],
    );
    let target = prop::sample::select(
        &["l", "l/{x}", "{x}{y}", "{y}:{x}", "{x}", "@open", "@deny", "l,unfenced-reads"][..],
    );
    let separator = prop::sample::select(&[":", ":", "/"][..]);
    let segments = prop::collection::vec((segment, separator), 1..4);
    (segments, 0..5u8, target).prop_map(|(segments, tail, target)| {
        let mut pattern = String::new();
        let count = segments.len();
        for (index, (segment, separator)) in segments.into_iter().enumerate() {
            pattern.push_str(segment);
            if index + 1 < count || tail > 1 {
                pattern.push_str(separator);
            }
        }
        if tail > 1 {
            pattern.push_str("**");
        }
        if pattern.is_empty() || tail == 1 && count == 1 {
            pattern = "**".to_owned();
        }
        format!("{pattern}={target}")
    })
}

/// Generates texts that are often behind a pattern's beginning.
fn filling() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[ab:/{}]{0,4}".prop_map(String::into_bytes),
        "[ab:]{0,3}\\{fence:?[ab]{0,2}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The rules allow every key that the patterns allow in Redis, and none of these is Fencepost's
    /// own.
    #[test]
    fn patterns_allow_nothing_that_the_rules_refuse(
        texts in prop::collection::vec(rule(), 0..5),
        locks in prop::collection::vec(prop::sample::select(
            &["l", "l/a", "l/b", "ab", "a", "b:a", "a:b", "aab"][..]), 0..4),
        default in prop::sample::select(
            &[DefaultRule::Fenced, DefaultRule::Open, DefaultRule::Deny][..]),
        unfenced_reads in prop::bool::weighted(0.2),
        fillings in prop::collection::vec(filling(), 1..24),
    ) {
        let parsed: Vec<Rule> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        let rules = Rules::new(parsed).unwrap().with_default(default);
        let patterns = rules.key_patterns(&locks, unfenced_reads);
        let globs: Vec<Vec<u8>> = patterns.acl_rules().collect();
        prop_assert!(globs.iter().flatten().all(|byte| is_expressible(*byte)));
        let leads = patterns.write.iter().chain(&patterns.read).map(|pattern| &pattern.lead);
        let keys = leads.take(40).flat_map(|lead| {
            fillings.iter().map(move |filling| [lead.as_slice(), filling].concat())
        });
        let texts: Vec<&[u8]> = vec![b"a:", b"b:a", b"a/b", b""];
        let others = texts.iter().flat_map(|text| {
            fillings.iter().map(move |filling| [*text, filling].concat())
        });
        for key in keys.chain(others) {
            let matched = |sign: &[u8]| {
                globs.iter().any(|glob| {
                    glob.strip_prefix(sign).is_some_and(|glob| redis_matches(glob, &key))
                })
            };
            let writes = matched(b"~");
            let reads = writes || matched(b"%R~");
            prop_assert_eq!(patterns.cover(&key, true), writes, "{:?}", key);
            prop_assert_eq!(patterns.cover(&key, false), reads, "{:?}", key);
            prop_assert!(!(reads && key.starts_with(OWN_NAMES)), "{:?}", key);
            let (may_write, may_read) = allowed(&rules, &locks, unfenced_reads, &key);
            prop_assert!(may_write || !writes, "{:?} {:?}", key, globs);
            prop_assert!(may_read || !reads, "{:?} {:?}", key, globs);
        }
    }
}
