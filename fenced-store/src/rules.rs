//! Rules: the locks that protect resources.
//!
//! A rule is `PATTERN=LOCK`, `PATTERN=@open` or `PATTERN=@deny`; the first that matches decides.
//! `METHOD,… PATTERN=…` matches requests of these methods only, at the reverse proxy.
//!
//! ```text
//! orders/{id}/**=orders/{id}     everything below orders/42 needs the token of lock orders/42
//! orders:{id}:**=orders/{id}     the same for keys as they are usual in Redis
//! public/**=@open                anyone may read and write, no token
//! GET,HEAD pages/**=@open        anyone may read
//! secrets:**=@deny               refused, with or without a token
//! ```
//!
//! A pattern is matched against all of a key, which may be of any bytes. Its segments end at the
//! separators that it is written with: `/`, `:` or both. A segment may have one wildcard with
//! literal text around it: `*` for any bytes, or `{name}` for text that the lock is made from.
//! Behind the last separator `**` stands for any rest, also none; alone it matches every key.
//! `%` and two hexadecimal digits stand for a byte that is no letter, digit or one of `._:/-`.
//!
//! Text caught by `{name}` must itself be a lock name. If it is not, the resource is refused: no
//! later rule applies, and it is never open. Options follow the lock: with
//! `PATTERN=LOCK,unfenced-reads` reads need no token. With methods, `reads` and `writes` say
//! whether they change the resource.
//!
//! If no rule matches, the [`DefaultRule`] decides. By default the key itself is the lock, so that
//! nothing is open by accident.
//!
//! A changed rule gives a resource another lock, whose mark has not seen the first one's tokens:
//! change rules only while no lease is held on either.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use fence_protocol::{Invalid, LockName};
use http::Method;

use crate::key::ObjectKey;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod key_patterns;
mod methods;
mod pattern;
mod reach;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use key_patterns::{KeyPatterns, escaped, is_expressible};
use methods::Methods;
pub(crate) use methods::{METHODS, is_safe};
use pattern::Pattern;
use target::{Part, Target};

/// Access that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Reads the resource.
    Read,
    /// Changes the resource.
    Write,
}

/// Object of a request.
#[derive(Clone, Copy, Debug)]
pub struct Resource<'a> {
    /// Its key, any bytes.
    pub key: &'a [u8],
    /// Method of the request, at the reverse proxy.
    pub method: Option<&'a Method>,
}

impl<'a> From<&'a ObjectKey> for Resource<'a> {
    fn from(key: &'a ObjectKey) -> Self {
        Self { key: key.as_str().as_bytes(), method: None }
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(self.key))
    }
}

/// Protection of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Operations need a token of this lock.
    Lock {
        /// Lock whose token is needed.
        lock: LockName,
        /// Reads need no token.
        unfenced_reads: bool,
    },
    /// Declared open: no token is needed, and none is compared.
    Open,
    /// Refused, whatever the token.
    Deny,
}

/// Protection of a key, borrowed from the rules or from the caller's scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved<'a> {
    /// The lock, or none.
    pub(crate) protection: Protects<'a>,
    /// Reads need no token, by the rule.
    pub(crate) unfenced_reads: bool,
}

/// [`Protection`] that borrows the lock's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protects<'a> {
    /// Operations need a token of the lock of this name, which is valid.
    Lock(&'a str),
    /// No token is needed.
    Open,
    /// Refused.
    Deny,
}

/// Protection of keys that no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DefaultRule {
    /// The key itself is the lock; a key that is not a lock name is refused.
    #[default]
    Fenced,
    /// No token is needed.
    Open,
    /// Refused.
    Deny,
}

/// Rules in the order of the settings, and the default for other keys.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    default: DefaultRule,
}

impl Rules {
    /// At most this many rules.
    pub const MAX: usize = 256;

    /// Makes rules that are tried in this order; without a match the key itself is the lock.
    ///
    /// # Errors
    /// [`Invalid`] for more than [`Rules::MAX`].
    pub fn new(rules: Vec<Rule>) -> Result<Self, Invalid> {
        if rules.len() > Self::MAX {
            let count = rules.len().to_string();
            return Err(Invalid::new("number of rules", count, "is too large; at most 256"));
        }
        Ok(Self { rules, default: DefaultRule::default() })
    }

    /// Sets the protection of keys that no rule matches.
    #[must_use]
    pub fn with_default(self, default: DefaultRule) -> Self {
        Self { default, ..self }
    }

    /// Returns the protection of an object.
    ///
    /// # Errors
    /// [`Invalid`] if the matching rule makes no lock name: no lock that could exist protects the
    /// object, and it must not be touched.
    pub fn protection<'a>(&self, resource: impl Into<Resource<'a>>) -> Result<Protection, Invalid> {
        let resource = resource.into();
        let key = resource.key;
        let mut scratch = String::new();
        let resolved = match self.find(resource) {
            Some(rule) => rule.resolve(key, &mut scratch),
            None => self.default.resolve(key, &mut scratch),
        };
        let Resolved { protection, unfenced_reads } = resolved?;
        Ok(match protection {
            Protects::Lock(name) => Protection::Lock { lock: LockName::new(name)?, unfenced_reads },
            Protects::Open => Protection::Open,
            Protects::Deny => Protection::Deny,
        })
    }

    /// Returns the protection of `key`, any bytes. A lock name that has to be made is written into
    /// `scratch`, which is cleared first; nothing else is allocated.
    ///
    /// # Errors
    /// [`Invalid`] if the matching rule, or the key itself, makes no lock name: the key must not be
    /// touched.
    pub(crate) fn resolve<'a>(
        &'a self,
        key: &[u8],
        scratch: &'a mut String,
    ) -> Result<Resolved<'a>, Invalid> {
        match self.rules.iter().find(|rule| rule.matches(key, None)) {
            Some(rule) => rule.resolve(key, scratch),
            None => self.default.resolve(key, scratch),
        }
    }

    /// Returns `true` if every key that is not denied needs a token.
    pub(crate) fn need_tokens(&self) -> bool {
        let needs = |rule: &Rule| !rule.unfenced_reads && !matches!(rule.target, Target::Open);
        self.default != DefaultRule::Open && self.rules.iter().all(needs)
    }

    /// Decides [`FencingPolicy::protects_reads`](crate::fencing::FencingPolicy::protects_reads) by
    /// the rules alone.
    pub(crate) fn protect_reads(&self) -> bool {
        let protects = |rule: &Rule| !rule.unfenced_reads && !matches!(rule.target, Target::Open);
        self.default != DefaultRule::Open || self.rules.iter().any(protects)
    }

    /// Returns the locks of all possible keys.
    ///
    /// # Errors
    /// The rule, or the default, under which keys are denied or have more locks than can be listed.
    pub(crate) fn locks_of_everything(&self) -> Result<Vec<&str>, String> {
        let mut locks = Vec::new();
        for rule in &self.rules {
            match &rule.target {
                // A key whose caught text is no lock name is denied.
                _ if rule.pattern.has_names() || rule.methods.is_some() => {
                    return Err(format!("rule {rule}"));
                }
                Target::Open => {}
                Target::Fixed(lock) => locks.push(lock.as_str()),
                Target::Deny | Target::Built(_) => return Err(format!("rule {rule}")),
            }
            if rule.pattern.matches_everything() {
                return Ok(locks);
            }
        }
        match self.default {
            DefaultRule::Open => Ok(locks),
            DefaultRule::Fenced => Err("--default-rule fenced".to_owned()),
            DefaultRule::Deny => Err("--default-rule deny".to_owned()),
        }
    }

    /// Returns the text of the rule that decides over `key`; `default` if none matches.
    pub(crate) fn label(&self, key: &[u8]) -> &str {
        let rule = self.rules.iter().find(|rule| rule.matches(key, None));
        rule.map_or("default", |rule| rule.text.as_str())
    }

    /// Returns the text of the rule that decides over an object; `default` if none matches.
    pub(crate) fn label_of(&self, resource: Resource<'_>) -> &str {
        self.find(resource).map_or("default", |rule| rule.text.as_str())
    }

    /// Returns the effect of a request, by the rule that decides over it or else by its method.
    pub(crate) fn intent(&self, resource: Resource<'_>) -> Intent {
        let by_method = match resource.method {
            Some(method) if is_safe(method) => Intent::Read,
            _ => Intent::Write,
        };
        self.find(resource).and_then(|rule| rule.intent).unwrap_or(by_method)
    }

    /// Returns the first rule that names methods.
    pub(crate) fn with_methods(&self) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.methods.is_some())
    }

    fn find(&self, resource: Resource<'_>) -> Option<&Rule> {
        let key = resource.key;
        let method = resource.method.map(Method::as_str);
        self.rules.iter().find(|rule| rule.matches(key, method))
    }
}

impl DefaultRule {
    fn resolve<'a>(self, key: &[u8], scratch: &'a mut String) -> Result<Resolved<'a>, Invalid> {
        let protection = match self {
            Self::Open => Protects::Open,
            Self::Deny => Protects::Deny,
            Self::Fenced => {
                scratch.clear();
                Protects::Lock(append_name(scratch, key).ok_or_else(|| no_lock_itself(key))?)
            }
        };
        Ok(Resolved { protection, unfenced_reads: false })
    }
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    text: String,
    /// Methods that it is for; `None` for all.
    methods: Option<Methods>,
    pattern: Pattern,
    target: Target,
    unfenced_reads: bool,
    /// Effect of the methods, if it is not the usual one.
    intent: Option<Intent>,
}

impl Rule {
    fn matches(&self, key: &[u8], method: Option<&str>) -> bool {
        self.has_method(method) && self.pattern.matches(key)
    }

    /// Returns `true` if the rule is for requests of `method`. One with methods is for none of the
    /// requests that have no method.
    fn has_method(&self, method: Option<&str>) -> bool {
        match (self.methods, method) {
            (None, _) => true,
            (Some(methods), method) => method.is_some_and(|method| methods.contains(method)),
        }
    }

    /// Returns the protection of `key`, which matches.
    fn resolve<'a>(&'a self, key: &[u8], scratch: &'a mut String) -> Result<Resolved<'a>, Invalid> {
        for (name, caught) in self.pattern.caught(key) {
            if let Some(name) = name
                && !LockName::is_valid(caught)
            {
                return Err(self.refusal(key, &format!("whose {{{name}}} catches what"), caught));
            }
        }
        let protection = match &self.target {
            Target::Open => Protects::Open,
            Target::Deny => Protects::Deny,
            Target::Fixed(lock) => Protects::Lock(lock.as_str()),
            Target::Built(parts) => Protects::Lock(self.build(parts, key, scratch)?),
        };
        Ok(Resolved { protection, unfenced_reads: self.unfenced_reads })
    }

    fn build<'a>(
        &self,
        parts: &[Part],
        key: &[u8],
        scratch: &'a mut String,
    ) -> Result<&'a str, Invalid> {
        scratch.clear();
        for part in parts {
            match part {
                Part::Text(text) => scratch.push_str(text),
                Part::Capture(index) => {
                    let caught = self.pattern.caught(key).nth(*index);
                    let text = caught.and_then(|(_, caught)| std::str::from_utf8(caught).ok());
                    // Checked above: a missing text would make another lock's name.
                    scratch
                        .push_str(text.ok_or_else(|| self.refusal(key, "which makes what", b""))?);
                }
            }
        }
        if LockName::is_valid(scratch.as_bytes()) {
            Ok(scratch)
        } else {
            Err(self.refusal(key, "which makes what", scratch.as_bytes()))
        }
    }

    fn refusal(&self, key: &[u8], who: &str, name: &[u8]) -> Invalid {
        let why = why_no_lock(name);
        Invalid::new("key", shown(key), format!("falls under rule {self}, {who} is no lock: {why}"))
    }
}

/// Returns `name` as text, appended to `scratch`, if it is a lock name.
fn append_name<'a>(scratch: &'a mut String, name: &[u8]) -> Option<&'a str> {
    let text = std::str::from_utf8(name).ok().filter(|_| LockName::is_valid(name))?;
    scratch.push_str(text);
    Some(scratch)
}

fn no_lock_itself(key: &[u8]) -> Invalid {
    let why = why_no_lock(key);
    let rule = format!(
        "matches no rule, and is no lock name itself: {why}. Add a rule that names the lock \
         protects it"
    );
    Invalid::new("key", shown(key), rule)
}

fn why_no_lock(name: &[u8]) -> String {
    if name.len() > LockName::MAX_BYTES {
        return format!("it has {} bytes; at most {} are allowed", name.len(), LockName::MAX_BYTES);
    }
    LockName::new(&String::from_utf8_lossy(name))
        .err()
        .map_or_else(|| "it is not ASCII".to_owned(), |error| error.to_string())
}

/// Returns the beginning of a key, for an error: keys may be megabytes.
fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(&key[..key.len().min(LockName::MAX_BYTES)]).into_owned()
}

impl FromStr for Rule {
    type Err = Invalid;

    /// Parses `PATTERN=LOCK`, `PATTERN=@open` or `PATTERN=@deny`, and options behind a lock.
    ///
    /// # Errors
    /// [`Invalid`] with the rule and its fault.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse(text).map_err(|problem| Invalid::new("rule", text, problem))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let (left, target) = text.split_once('=').ok_or(
        "has no \"=\"; write PATTERN=LOCK, PATTERN=@open or PATTERN=@deny, as in \
         orders/{id}/**=orders/{id}",
    )?;
    let (methods, pattern) = match left.split_once(' ') {
        Some((words, pattern)) if Methods::may_be(words) => (Some(Methods::parse(words)?), pattern),
        _ => (None, left),
    };
    let mut words = target.split(',');
    let pattern = Pattern::parse(pattern)?;
    let target = Target::parse(words.next().unwrap_or_default(), &pattern)?;
    let mut unfenced_reads = false;
    let mut intent = None;
    for option in words {
        match option {
            _ if matches!(target, Target::Open | Target::Deny) => {
                return Err(format!("has option \"{option}\", which needs a lock"));
            }
            "unfenced-reads" if unfenced_reads => {
                return Err("has option unfenced-reads twice".to_owned());
            }
            "unfenced-reads" => unfenced_reads = true,
            "reads" | "writes" => {
                if intent.is_some() {
                    return Err("has more than one of reads and writes".to_owned());
                }
                intent = Some(effect(option, methods)?);
            }
            _ => {
                let known = "there are unfenced-reads, reads and writes";
                return Err(format!("has an unknown option \"{option}\"; {known}"));
            }
        }
    }
    Ok(Rule { text: text.to_owned(), methods, pattern, target, unfenced_reads, intent })
}

/// Returns the effect that option `reads` or `writes` gives to the methods of its rule.
fn effect(option: &str, methods: Option<Methods>) -> Result<Intent, String> {
    let methods = methods.ok_or_else(|| {
        format!("has option {option}, which needs methods, as in POST a/search=a,{option}")
    })?;
    if option == "writes" {
        return Ok(Intent::Write);
    }
    match methods.changing() {
        Some(method) => Err(format!("has option reads, and {method} always changes something")),
        None => Ok(Intent::Read),
    }
}
