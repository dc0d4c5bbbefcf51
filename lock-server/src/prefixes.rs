//! Settings by lock prefix. Pure.
//!
//! A setting is written `PREFIX=VALUE`, and of several that match, the one with the longest prefix
//! wins. A prefix is plain text: `orders` is also the beginning of `orders2`, so a prefix that
//! stands for a folder of names ends in its separator. `*` alone stands for every lock.

use std::str::FromStr;

use fence_protocol::LockName;

/// Largest number of prefixes of one setting.
pub const PREFIXES_MAX: usize = 256;
/// The longest prefix, in bytes: no lock has a longer name.
const PREFIX_BYTES_MAX: usize = 256;
/// Prefix that matches every lock.
const EVERY: &str = "*";

/// Value for the locks whose names begin with a prefix: `PREFIX=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixed<T> {
    prefix: String,
    value: T,
}

impl<T> Prefixed<T> {
    /// Converts the value.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Prefixed<U> {
        Prefixed { prefix: self.prefix, value: convert(self.value) }
    }
}

impl<T: FromStr<Err: ToString>> FromStr for Prefixed<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((prefix, value)) = text.rsplit_once('=') else {
            return Err(format!("{text:?} has no =; write PREFIX=VALUE, as in orders/=…"));
        };
        let prefix = prefix_of(prefix)?.to_owned();
        let value = value.parse().map_err(|error: T::Err| error.to_string())?;
        Ok(Self { prefix, value })
    }
}

/// Checked prefix; empty for every lock.
fn prefix_of(text: &str) -> Result<&str, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    match text {
        EVERY => Ok(""),
        "" => Err("the prefix is empty; write * for every lock".to_owned()),
        _ if text.contains('*') => {
            Err(format!("prefix {text:?} has a *; what follows a prefix is any text already"))
        }
        _ if !text.bytes().all(is_allowed) => {
            Err(format!("prefix {text:?} begins no lock name: those have A-Z a-z 0-9 . _ : / -"))
        }
        _ if text.len() > PREFIX_BYTES_MAX => {
            Err(format!("the prefix has {} bytes; at most {PREFIX_BYTES_MAX}", text.len()))
        }
        _ => Ok(text),
    }
}

/// Values by lock prefix; the longest prefix wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes<T> {
    /// The longest prefix first.
    rules: Vec<Prefixed<T>>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self { rules: Vec::new() }
    }
}

impl<T: Copy> Prefixes<T> {
    /// A table of these rules.
    ///
    /// # Errors
    /// A sentence where there are too many, or two for one prefix.
    pub fn new(mut rules: Vec<Prefixed<T>>) -> Result<Self, String> {
        if rules.len() > PREFIXES_MAX {
            return Err(format!("{} prefixes are named; at most {PREFIXES_MAX}", rules.len()));
        }
        rules.sort_by(|a, b| (b.prefix.len(), &a.prefix).cmp(&(a.prefix.len(), &b.prefix)));
        if let Some(twice) = rules.windows(2).find(|pair| pair[0].prefix == pair[1].prefix) {
            let prefix = if twice[0].prefix.is_empty() { EVERY } else { &twice[0].prefix };
            return Err(format!("prefix {prefix} is named twice"));
        }
        Ok(Self { rules })
    }

    /// Value of the longest prefix that the name of `lock` begins with.
    pub fn value_for(&self, lock: &LockName) -> Option<T> {
        let matching = self.rules.iter().find(|rule| lock.as_str().starts_with(&rule.prefix));
        matching.map(|rule| rule.value)
    }

    /// Every value.
    pub fn values(&self) -> impl Iterator<Item = T> {
        self.rules.iter().map(|rule| rule.value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(rules: &[&str]) -> Result<Prefixes<u32>, String> {
        let rules: Result<Vec<_>, _> = rules.iter().map(|rule| rule.parse()).collect();
        Prefixes::new(rules?)
    }

    fn value_for(table: &Prefixes<u32>, lock: &str) -> Option<u32> {
        table.value_for(&LockName::new(lock).unwrap())
    }

    #[test]
    fn the_longest_prefix_wins_in_whatever_order_they_are_named() {
        let table = table(&["*=1", "orders/=2", "orders/eu/=3", "orders/eu/42=4"]).unwrap();
        assert_eq!(value_for(&table, "jobs"), Some(1));
        assert_eq!(value_for(&table, "orders"), Some(1), "orders/ is no beginning of orders");
        assert_eq!(value_for(&table, "orders/us/1"), Some(2));
        assert_eq!(value_for(&table, "orders/eu/1"), Some(3));
        assert_eq!(value_for(&table, "orders/eu/420"), Some(4));
        assert_eq!(value_for(&Prefixes::default(), "jobs"), None);
    }

    #[test]
    fn mistakes_are_refused_with_the_value() {
        for (rules, reason) in [
            (&["orders/"][..], "has no ="),
            (&["=1"], "write * for every lock"),
            (&["orders/*=1"], "has a *"),
            (&["orders /=1"], "begins no lock name"),
            (&["a=b=1"], "begins no lock name"),
            (&["orders/="], "cannot parse integer"),
            (&["orders/=x"], "invalid digit"),
            (&["a=1", "b=1", "a=2"], "prefix a is named twice"),
            (&["*=1", "*=1"], "prefix * is named twice"),
        ] {
            let error = table(rules).unwrap_err();
            assert!(error.contains(reason), "{rules:?}: {error}");
        }
        let long = format!("{}=1", "a".repeat(257));
        assert!(table(&[&long]).unwrap_err().contains("257 bytes"));
        let many: Vec<String> = (0..=PREFIXES_MAX).map(|number| format!("p{number}/=1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(table(&many).unwrap_err().contains("257 prefixes"));
    }

    proptest! {
        /// The same as by looking at all of them.
        #[test]
        fn the_longest_of_all_that_match_is_found(
            prefixes in proptest::collection::btree_set("[ab/]{1,5}|\\*", 0..12),
            lock in "[ab]{1,3}(/[ab]{1,3}){0,2}",
        ) {
            let rules: Vec<String> =
                prefixes.iter().enumerate().map(|(number, prefix)| format!("{prefix}={number}")).collect();
            let table = table(&rules.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            let matching = prefixes.iter().enumerate().filter(|(_, prefix)| {
                *prefix == "*" || lock.starts_with(prefix.as_str())
            });
            let longest = matching.max_by_key(|(_, prefix)| {
                if *prefix == "*" { 0 } else { prefix.len() }
            });
            prop_assert_eq!(value_for(&table, &lock), longest.map(|(number, _)| number as u32));
        }

        /// Any text is read or refused, and none panics.
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z*=/0-9 ]{0,12}|\\PC{0,12}") {
            if let Ok(rule) = text.parse::<Prefixed<u32>>() {
                let prefix = if rule.prefix.is_empty() { EVERY } else { &rule.prefix };
                let rest = text.strip_prefix(prefix);
                prop_assert!(rest.is_some_and(|rest| rest.starts_with('=')));
            }
        }
    }
}
