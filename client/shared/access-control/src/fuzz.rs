//! Fuzz target: the access file.

use crate::list::AccessList;
use crate::rights::{Grant, Scope, Verb};
use crate::secret::SecretHash;

/// Stands for a bearer token that was written where its hash belongs.
const SECRET: &str = "hunter2";

/// An access file, and each of its lines as a right. What is read has one meaning; whatever is
/// wrong, no text beside `tokens` is repeated.
fn file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match AccessList::parse(text) {
        Ok(list) => {
            assert!(!list.is_empty());
            for principal in list.principals() {
                assert!(!principal.name.is_empty() && !principal.grants.is_empty());
            }
        }
        Err(error) => {
            let mut with_secret = text.lines().filter(|line| line.contains(SECRET));
            let is_token = |line: &str| line.starts_with("tokens = [\"hunter2");
            let is_plain = !text.contains("\"\"\"") && !text.contains("'''");
            if is_plain && with_secret.all(is_token) {
                assert!(!error.to_string().contains(SECRET), "{error}");
            }
        }
    }
    for line in text.lines() {
        if let Ok(hash) = line.parse::<SecretHash>() {
            assert_eq!(line.to_ascii_lowercase().parse(), Ok(hash));
        }
        let Ok(grant) = line.parse::<Grant>() else { continue };
        assert_eq!(grant.to_string().parse::<Grant>().as_ref(), Ok(&grant), "{line}");
        for verb in Verb::ALL {
            // A right to all that begins alike is one to each of them.
            let under = grant.allows(verb, Scope::Under(b"jobs/"));
            assert!(!under || grant.allows(verb, Scope::Name(b"jobs/nightly")), "{line}");
        }
    }
}

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[("access-file", file)];

#[cfg(test)]
mod tests {
    use super::TARGETS;

    #[test]
    fn every_target_holds_in_a_short_run() {
        for (name, target) in TARGETS {
            fence_fuzz::short_run(name, *target, 10_000);
        }
    }
}
