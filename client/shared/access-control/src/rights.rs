//! Rights: verbs over patterns of names. Pure.

use std::fmt;
use std::str::FromStr;

/// Longest name in a pattern, in bytes; no lock has a longer one.
const NAME_BYTES_MAX: usize = 256;

/// Kind of action that a right allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read locks, marks and objects.
    Read,
    /// Acquire, renew and release; sessions.
    Acquire,
    /// Change objects, and seal.
    Write,
    /// Report a guard's refusals to a lock server. For guards.
    Report,
    /// End the leases of other principals. For administrators.
    Revoke,
    /// Block a session. For administrators.
    Block,
    /// Set the first token that a guard admits. For administrators.
    Floor,
    /// End or extend the quarantine of a guard's lane. For administrators.
    Quarantine,
}

impl Verb {
    /// All verbs, those of administrators last.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Acquire,
        Self::Write,
        Self::Report,
        Self::Revoke,
        Self::Block,
        Self::Floor,
        Self::Quarantine,
    ];

    /// The word in the access file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Acquire => "acquire",
            Self::Write => "write",
            Self::Report => "report",
            Self::Revoke => "revoke",
            Self::Block => "block",
            Self::Floor => "floor",
            Self::Quarantine => "quarantine",
        }
    }

    /// Returns `true` for verbs that affect other principals: audited, and never part of `use`.
    pub fn is_admin(self) -> bool {
        matches!(self, Self::Revoke | Self::Block | Self::Floor | Self::Quarantine)
    }

    /// Returns `true` for verbs that concern the whole server.
    fn is_whole(self) -> bool {
        matches!(self, Self::Block | Self::Floor)
    }

    /// Returns `true` for the verbs of `use`: those of clients that use locks and objects.
    fn is_use(self) -> bool {
        matches!(self, Self::Read | Self::Acquire | Self::Write)
    }

    /// Parses a word of the access file: a verb, or `use` for several.
    fn named(word: &str) -> Option<Vec<Self>> {
        if word == "use" {
            return Some(Self::ALL.into_iter().filter(|verb| verb.is_use()).collect());
        }
        Self::ALL.into_iter().find(|verb| verb.as_str() == word).map(|verb| vec![verb])
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names that a right covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One name.
    Exact(String),
    /// All names with this prefix; empty for every name.
    Prefix(String),
}

/// Names that a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// One name.
    Name(&'a [u8]),
    /// All names with this prefix; empty for the whole server.
    Under(&'a [u8]),
    /// Any name: a right on at least one name suffices.
    Somewhere,
}

impl Pattern {
    /// Returns `true` if the pattern covers all of `scope`.
    pub fn covers(&self, scope: Scope<'_>) -> bool {
        match (self, scope) {
            (_, Scope::Somewhere) => true,
            (Self::Exact(own), Scope::Name(name)) => own.as_bytes() == name,
            (Self::Exact(_), Scope::Under(_)) => false,
            (Self::Prefix(own), Scope::Name(name) | Scope::Under(name)) => {
                name.starts_with(own.as_bytes())
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// `jobs/nightly` is one name, `jobs/*` every name behind that slash, `*` every name.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) => (prefix, true),
            None => (text, false),
        };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
            return Err(
                "a name has at most 256 of A-Z a-z 0-9 . _ : / -, and a * at its end alone"
                    .to_owned(),
            );
        }
        if !is_prefix {
            let no_name = || "names no lock; write * for all".to_owned();
            return if name.is_empty() { Err(no_name()) } else { Ok(Self::Exact(name.to_owned())) };
        }
        // team-a* would also cover the names of team-ab.
        if name.bytes().last().is_some_and(|last| last.is_ascii_alphanumeric()) {
            return Err(format!(
                "{name}* would also match longer words; end the prefix at a separator, as in {name}/*"
            ));
        }
        Ok(Self::Prefix(name.to_owned()))
    }
}

/// A right: `read,acquire jobs/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    verbs: Vec<Verb>,
    pattern: Pattern,
}

impl Grant {
    /// Returns `true` if this right allows `verb` on all of `scope`.
    pub fn allows(&self, verb: Verb, scope: Scope<'_>) -> bool {
        self.verbs.contains(&verb) && self.pattern.covers(scope)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<&str> = self.verbs.iter().map(|verb| verb.as_str()).collect();
        write!(f, "{} {}", verbs.join(","), self.pattern)
    }
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let (Some(verbs), Some(pattern), None) = (words.next(), words.next(), words.next()) else {
            return Err("is not VERBS PATTERN, as in \"read,acquire jobs/*\"".to_owned());
        };
        let pattern: Pattern = pattern.parse()?;
        let mut found: Vec<Verb> = Vec::new();
        for word in verbs.split(',') {
            let Some(named) = Verb::named(word) else {
                let known: Vec<&str> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
                return Err(format!("{word:?} is no verb; use {}, or use", known.join(", ")));
            };
            for verb in named {
                if verb.is_whole() && pattern != Pattern::Prefix(String::new()) {
                    return Err(format!("{verb} concerns the whole server; write {verb} *"));
                }
                if found.contains(&verb) {
                    return Err(format!("has the verb {verb} twice"));
                }
                found.push(verb);
            }
        }
        Ok(Self { verbs: found, pattern })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allows(grant: &str, verb: Verb, scope: Scope<'_>) -> bool {
        grant.parse::<Grant>().unwrap().allows(verb, scope)
    }

    #[test]
    fn rights_end_where_they_say() {
        let jobs = "read,acquire jobs/*";
        for (name, expected) in
            [("jobs/a", true), ("jobs/a/b", true), ("jobs", false), ("jobsx/a", false), ("", false)]
        {
            assert_eq!(
                allows(jobs, Verb::Acquire, Scope::Name(name.as_bytes())),
                expected,
                "{name}"
            );
            assert!(!allows(jobs, Verb::Revoke, Scope::Name(name.as_bytes())), "{name}");
        }
        assert!(allows(jobs, Verb::Read, Scope::Under(b"jobs/")));
        assert!(allows(jobs, Verb::Read, Scope::Under(b"jobs/a")));
        assert!(!allows(jobs, Verb::Read, Scope::Under(b"jobs")), "jobsx would be listed");
        assert!(!allows(jobs, Verb::Read, Scope::Under(b"")));
        assert!(allows("read *", Verb::Read, Scope::Under(b"")));
        assert!(!allows("read jobs", Verb::Read, Scope::Under(b"jobs")));
        assert!(allows("read jobs", Verb::Read, Scope::Somewhere));
        assert!(!allows("read jobs", Verb::Acquire, Scope::Somewhere));
    }

    #[test]
    fn use_has_no_verb_of_administrators() {
        for verb in Verb::ALL {
            assert_eq!(allows("use *", verb, Scope::Name(b"a")), verb.is_use(), "{verb}");
        }
    }

    #[test]
    fn bad_rights_are_refused_with_what_to_write() {
        for (text, reason) in [
            ("", "VERBS PATTERN"),
            ("read", "VERBS PATTERN"),
            ("read a b", "VERBS PATTERN"),
            ("steal *", "\"steal\" is no verb"),
            ("read, *", "\"\" is no verb"),
            ("Read *", "\"Read\" is no verb"),
            ("read,read *", "twice"),
            ("use,write *", "twice"),
            ("read jobs*", "as in jobs/*"),
            ("read jobs/*/a", "at its end alone"),
            ("read jo bs", "VERBS PATTERN"),
            ("read ä", "at most 256"),
            ("floor jobs/*", "write floor *"),
            ("revoke,block a", "write block *"),
        ] {
            let error = text.parse::<Grant>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(format!("read {}", "a".repeat(257)).parse::<Grant>().is_err());
    }

    proptest! {
        /// Written rights are read back unchanged.
        #[test]
        fn rights_come_back_as_they_were(
            verbs in proptest::sample::subsequence(vec!["read", "acquire", "write", "revoke"], 1..=4),
            name in "[A-Za-z0-9._:/-]{0,20}[._:/-]",
            star: bool,
        ) {
            let text = format!("{} {name}{}", verbs.join(","), if star { "*" } else { "" });
            let grant: Grant = text.parse().unwrap();
            prop_assert_eq!(grant.to_string(), text);
        }

        /// Any text is read or refused; none panics, and none gives a right that it does not name.
        #[test]
        fn no_text_gives_more_than_it_names(text in "[a-z,* /.:-]{0,30}|\\PC{0,30}") {
            if let Ok(grant) = text.parse::<Grant>() {
                for verb in Verb::ALL {
                    let named = text.contains(verb.as_str())
                        || (text.contains("use") && verb.is_use());
                    prop_assert!(named || !grant.allows(verb, Scope::Somewhere), "{} {}", text, verb);
                }
            }
        }

        /// A listing that is allowed shows no name that is not.
        #[test]
        fn what_is_under_an_allowed_prefix_is_allowed(
            pattern in "([ab/]{0,3}/)?\\*|[ab/]{1,4}",
            prefix in "[ab/]{0,4}",
            rest in "[ab/]{0,4}",
        ) {
            let grant: Grant = format!("read {pattern}").parse().unwrap();
            if grant.allows(Verb::Read, Scope::Under(prefix.as_bytes())) {
                let name = format!("{prefix}{rest}");
                prop_assert!(grant.allows(Verb::Read, Scope::Name(name.as_bytes())));
            }
        }
    }
}
