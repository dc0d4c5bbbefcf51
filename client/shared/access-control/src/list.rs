//! The access file as values. Pure: text in, principals or every error out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use service_kit::tls::ClientNames;

use crate::rights::{Grant, Scope, Verb};
use crate::secret::{self, SecretHash};

/// Most principals in a file.
const PRINCIPALS_MAX: usize = 10_000;
/// Longest name of a principal, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Most tokens of a principal: the one in use, and its replacements.
const TOKENS_MAX: usize = 4;
/// Most names of certificates of a principal.
const CERTIFICATES_MAX: usize = 16;
/// Longest name of a certificate, in bytes.
const CERTIFICATE_BYTES_MAX: usize = 2048;
/// Most rights of a principal.
const GRANTS_MAX: usize = 64;
/// Most errors that are reported at once.
const ERRORS_MAX: usize = 20;

/// The principals of an access file. Immutable: a changed file becomes a new list.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    by_hash: HashMap<SecretHash, Arc<Principal>>,
    /// By a name in the client's certificate.
    by_certificate: HashMap<String, Arc<Principal>>,
    count: usize,
}

/// A named owner of bearer tokens and certificates, with its rights and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name in the file, which the audit log shows.
    pub name: String,
    /// The rights.
    pub grants: Vec<Grant>,
    /// Limits of requests, leases, sessions and events.
    pub limits: Limits,
}

/// Limits of a principal at one server. `None` means no limit but the server's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Most leases held at a time.
    pub locks: Option<u32>,
    /// Most requests that wait for a lock and streams of events at a time.
    pub waiters: Option<u32>,
    /// Most sessions at a time.
    pub sessions: Option<u32>,
    /// Most requests a second; a burst of the same number is admitted.
    pub requests_per_second: Option<u32>,
}

/// Errors of an access file, a sentence each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct ListError(Vec<String>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    principals: BTreeMap<String, PrincipalText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PrincipalText {
    #[serde(default)]
    tokens: Vec<String>,
    #[serde(default)]
    certificates: Vec<String>,
    allow: Vec<String>,
    max_locks: Option<u32>,
    max_waiters: Option<u32>,
    max_sessions: Option<u32>,
    max_requests_per_second: Option<u32>,
}

impl Principal {
    /// Returns `true` if a right allows this.
    pub fn may(&self, verb: Verb, scope: Scope<'_>) -> bool {
        self.grants.iter().any(|grant| grant.allows(verb, scope))
    }
}

impl AccessList {
    /// Parses the text of an access file.
    ///
    /// # Errors
    /// [`ListError`] with all errors, without any text that may be a bearer token.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        let file: FileText =
            toml::from_str(text).map_err(|error| ListError(vec![not_toml(text, &error)]))?;
        let mut errors = Vec::new();
        match file.principals.len() {
            // A file that is being written is empty for a moment; locking all out is never
            // intended.
            0 => errors.push("it names no principal, so every request would be refused".to_owned()),
            1..=PRINCIPALS_MAX => {}
            count => errors.push(format!("{count} principals; at most {PRINCIPALS_MAX}")),
        }
        let mut list = Self { count: file.principals.len(), ..Self::default() };
        for (name, text) in file.principals.into_iter().take(PRINCIPALS_MAX) {
            list.add(name, &text, &mut errors);
        }
        if errors.is_empty() {
            return Ok(list);
        }
        let more = errors.len().saturating_sub(ERRORS_MAX);
        errors.truncate(ERRORS_MAX);
        if more > 0 {
            errors.push(format!("and {more} more"));
        }
        Err(ListError(errors))
    }

    /// Returns the principal with a token of this hash.
    pub fn find(&self, hash: &SecretHash) -> Option<&Arc<Principal>> {
        self.by_hash.get(hash)
    }

    /// Returns the principal that has one of these names of a certificate.
    ///
    /// # Errors
    /// A sentence if none has, or if two have.
    pub fn find_by_certificate(&self, names: &ClientNames) -> Result<&Arc<Principal>, String> {
        let shown = || names.iter().take(3).collect::<Vec<_>>().join(", ");
        let mut found: Option<&Arc<Principal>> = None;
        for principal in names.iter().filter_map(|name| self.by_certificate.get(name)) {
            match found {
                Some(other) if other.name != principal.name => {
                    return Err(format!(
                        "the client certificate ({}) has names of two principals, {} and {}",
                        shown(),
                        other.name,
                        principal.name
                    ));
                }
                _ => found = Some(principal),
            }
        }
        found.ok_or_else(|| {
            format!(
                "no bearer token was sent, and no name of the client certificate ({}) is in the \
                 access file",
                shown()
            )
        })
    }

    /// Number of principals.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there is no principal; a parsed list has at least one.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the principals, each once for each of its tokens and certificates.
    pub(crate) fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.by_hash.values().chain(self.by_certificate.values()).map(AsRef::as_ref)
    }

    fn add(&mut self, name: String, text: &PrincipalText, errors: &mut Vec<String>) {
        let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
        let mut refuse = |what: String| errors.push(format!("principal {shown:?}: {what}"));
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_allowed) {
            refuse("a name has 1 to 64 of A-Z a-z 0-9 . _ -".to_owned());
        }
        // A principal is known by one of the two at least.
        let least_tokens = usize::from(text.certificates.is_empty());
        for (what, count, least, max) in [
            ("tokens", text.tokens.len(), least_tokens, TOKENS_MAX),
            ("certificates", text.certificates.len(), 0, CERTIFICATES_MAX),
            ("allow", text.allow.len(), 1, GRANTS_MAX),
        ] {
            if !(least..=max).contains(&count) {
                refuse(format!("{what} has {count} entries; {least} to {max} are allowed"));
            }
        }
        let mut grants = Vec::new();
        for right in text.allow.iter().take(GRANTS_MAX) {
            match right.parse() {
                Ok(grant) => grants.push(grant),
                Err(error) => {
                    let right: String = right.chars().take(80).collect();
                    refuse(format!("allow {right:?}: {error}"));
                }
            }
        }
        let limits = Limits {
            locks: text.max_locks,
            waiters: text.max_waiters,
            sessions: text.max_sessions,
            requests_per_second: text.max_requests_per_second,
        };
        if limits.requests_per_second == Some(0) {
            refuse(
                "max-requests-per-second 0 would refuse everything; remove its rights".to_owned(),
            );
        }
        let principal = Arc::new(Principal { name, grants, limits });
        for (at, certificate) in text.certificates.iter().take(CERTIFICATES_MAX).enumerate() {
            let Some(name) = certificate_name(certificate) else {
                refuse(format!("certificates[{at}] {NO_CERTIFICATE_NAME}"));
                continue;
            };
            let before = self.by_certificate.insert(name, Arc::clone(&principal));
            if let Some(other) = before.filter(|other| other.name != principal.name) {
                refuse(format!("certificates[{at}] is {}'s too", other.name));
            }
        }
        for (at, token) in text.tokens.iter().take(TOKENS_MAX).enumerate() {
            match token.parse() {
                Ok(hash) => {
                    if let Some(other) = self.by_hash.insert(hash, Arc::clone(&principal)) {
                        refuse(format!("tokens[{at}] is {}'s too; make one for each", other.name));
                    }
                }
                Err(error) => refuse(format!("tokens[{at}] {error}")),
            }
        }
    }
}

const NO_CERTIFICATE_NAME: &str = "is neither a DNS name (worker-1.example.org, without *) nor a \
                                   URI (spiffe://example.org/worker)";

/// A name of a certificate as [`ClientNames`] has it: a DNS name in lower case, or a URI. `None` if
/// it is neither, or could be a bearer token or its hash.
fn certificate_name(text: &str) -> Option<String> {
    let is_secret = text.starts_with(secret::PREFIX) || text.starts_with(secret::ALGORITHM);
    if is_secret || text.is_empty() || text.len() > CERTIFICATE_BYTES_MAX {
        return None;
    }
    let is_in_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if text.bytes().all(is_in_host) {
        return Some(text.to_ascii_lowercase());
    }
    let is_uri = text.contains(':') && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_uri.then(|| text.to_owned())
}

/// Formats a TOML error without the line, which may contain a bearer token by mistake.
fn not_toml(text: &str, error: &toml::de::Error) -> String {
    let line = error
        .span()
        .map_or(1, |span| 1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count());
    let message: String = error.message().chars().take(200).collect();
    format!("line {line}: {message}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(secret: &str) -> String {
        SecretHash::from_secret(secret).to_string()
    }

    fn file(tokens: &[&str], rest: &str) -> String {
        let tokens: Vec<String> = tokens.iter().map(|secret| hash(secret)).collect();
        format!("tokens = {tokens:?}\n{rest}\n")
    }

    #[test]
    fn a_certificate_names_one_principal() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<ClientNames>();
        let allow = "allow = [\"use *\"]";
        let text = format!(
            "[principals.a]\ncertificates = [\"A.Example\", \"spiffe://x/A\"]\n{allow}\n\
             [principals.b]\ncertificates = [\"b.example\"]\n{}",
            file(&["one"], allow)
        );
        let list = AccessList::parse(&text).unwrap();
        let found = |shown: &[&str]| list.find_by_certificate(&names(shown)).map(|p| &*p.name);
        assert_eq!(found(&["a.example"]), Ok("a"));
        assert_eq!(found(&["other", "spiffe://x/A", "a.example"]), Ok("a"));
        assert!(found(&["spiffe://x/a"]).unwrap_err().contains("is in the access file"));
        let two = found(&["b.example", "a.example"]).unwrap_err();
        assert!(two.contains("two principals, b and a"), "{two}");
        for (certificates, reason) in [
            ("\"A.example\"", "certificates[0] is a's too"),
            ("\"b\", \"*.example\"", "certificates[1] is neither"),
            ("\"fencepost_abc\"", "is neither"),
            ("\"sha256:abc\"", "is neither"),
            ("", "tokens has 0 entries; 1 to 4"),
        ] {
            let text = format!(
                "[principals.a]\ncertificates = [\"a.example\"]\n{allow}\n\
                 [principals.b]\ncertificates = [{certificates}]\n{allow}"
            );
            let error = AccessList::parse(&text).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("abc"), "{error}");
        }
    }

    #[test]
    fn principals_are_found_by_their_tokens() {
        let ci = file(
            &["one", "two"],
            "allow = [\"use ci/*\", \"read *\"]\nmax-locks = 5\nmax-sessions = 2",
        );
        let ops = file(&["three"], "allow = [\"revoke *\"]");
        let text = format!("# people\n[principals.ci]\n{ci}[principals.\"ops.eu\"]\n{ops}");
        let list = AccessList::parse(&text).unwrap();
        assert_eq!(list.len(), 2);
        let of = |secret: &str| {
            list.find(&SecretHash::from_secret(secret)).map(|found| found.name.as_str())
        };
        assert_eq!([of("one"), of("two"), of("three")], [Some("ci"), Some("ci"), Some("ops.eu")]);
        assert_eq!(of("four"), None);
        let ci = list.find(&SecretHash::from_secret("one")).unwrap();
        assert!(ci.may(Verb::Acquire, Scope::Name(b"ci/a")));
        assert!(!ci.may(Verb::Acquire, Scope::Name(b"cd/a")));
        assert!(ci.may(Verb::Read, Scope::Name(b"cd/a")));
        assert!(!ci.may(Verb::Revoke, Scope::Name(b"ci/a")));
        assert_eq!(ci.limits, Limits { locks: Some(5), sessions: Some(2), ..Limits::default() });
    }

    #[test]
    fn all_errors_are_reported_without_a_secret() {
        let secret = super::super::secret::generate();
        let allow = "allow = [\"use *\"]";
        let one = file(&["one"], allow);
        for (text, reason) in [
            (String::new(), "names no principal"),
            ("[principals]".to_owned(), "names no principal"),
            (format!("[principals.a]\n{one}x = 1"), "line 4: unknown field `x`"),
            (format!("[principal.a]\n{one}"), "unknown field `principal`"),
            (format!("[principals.a]\n{allow}"), "tokens has 0 entries"),
            (format!("[principals.a]\ntokens = {secret}\n{allow}"), "line 2"),
            (
                format!("[principals.a]\ntokens = [\"{secret}\"]\n{allow}"),
                "tokens[0] is not sha256:",
            ),
            (format!("[principals.a]\ntokens = []\n{allow}"), "tokens has 0 entries"),
            (format!("[principals.a]\n{}", file(&["1", "2", "3", "4", "5"], allow)), "5 entries"),
            (format!("[principals.a]\n{}", file(&["1"], "allow = []")), "allow has 0 entries"),
            (format!("[principals.a]\n{}", file(&["1", "1"], allow)), "tokens[1] is a's too"),
            (format!("[principals.a]\n{one}[principals.b]\n{one}"), "tokens[0] is a's too"),
            (format!("[principals.\"a b\"]\n{one}"), "a name has 1 to 64"),
            (format!("[principals.\"\"]\n{one}"), "a name has 1 to 64"),
            (format!("[principals.a]\n{one}max-locks = -1"), "line 4"),
            (format!("[principals.a]\n{one}max-requests-per-second = 0"), "refuse everything"),
            (format!("[principals.a]\n{}", file(&["1"], "allow = [\"own *\"]")), "is no verb"),
        ] {
            let error = AccessList::parse(&text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(!error.contains(&secret), "{error}");
        }
        let text = "[principals.a]\ntokens = [\"x\"]\nallow = [\"steal *\"]";
        let ListError(errors) = AccessList::parse(text).unwrap_err();
        assert_eq!(errors.len(), 2, "all errors at once: {errors:?}");
    }

    proptest! {
        /// Any text is a list or an error, and never a panic.
        #[test]
        fn any_text_is_judged(text in "[\\[\\]a-z.=\"\\n#* ,0-9-]{0,200}|\\PC{0,200}") {
            if let Ok(list) = AccessList::parse(&text) {
                prop_assert!(!list.is_empty());
            }
        }

        /// A valid file that is cut anywhere is refused or gives no principal more rights.
        #[test]
        fn a_file_that_is_cut_gives_no_more_rights(at in 0_usize..400) {
            let a = file(&["one"], "allow = [\"read a/*\", \"use b/*\"]");
            let b = file(&["two"], "allow = [\"revoke c/*\"]");
            let whole = format!("[principals.a]\n{a}[principals.b]\n{b}");
            let full = AccessList::parse(&whole).unwrap();
            let cut = &whole[..at.min(whole.len())];
            if let Ok(list) = AccessList::parse(cut) {
                for secret in ["one", "two"] {
                    let hash = SecretHash::from_secret(secret);
                    let Some(found) = list.find(&hash) else { continue };
                    prop_assert_eq!(found.grants.clone(), full.find(&hash).unwrap().grants.clone());
                }
            }
        }
    }
}
