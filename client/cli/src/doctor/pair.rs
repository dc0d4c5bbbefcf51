//! Comparison of a lock server and a guard: namespace and keys of the tokens. Pure.

use fence_protocol::wire::version::{KeyDigest, VersionReply};

use super::check::Check;

/// Compares what the two servers say of themselves.
pub(super) fn check(lock_server: &VersionReply, guard: &VersionReply) -> Vec<Check> {
    vec![namespaces(lock_server, guard), keys(&lock_server.keys, &guard.keys)]
}

fn namespaces(lock_server: &VersionReply, guard: &VersionReply) -> Check {
    let about = "namespace";
    let ours = &lock_server.namespace;
    let theirs = &guard.namespace;
    if ours == theirs {
        return Check::ok(about, format!("both servers are of {ours}"));
    }
    let text = format!(
        "the lock server is of {ours} and the guard of {theirs}: the guard refuses every write; \
         start both with the same --namespace, or check the addresses"
    );
    Check::failing(about, text)
}

fn keys(signing: &[KeyDigest], verifying: &[KeyDigest]) -> Check {
    let about = "keys";
    let Some((first, others)) = signing.split_first() else {
        return unsigned(verifying);
    };
    let kid = &first.kid;
    if verifying.is_empty() {
        let text = format!(
            "the lock server signs with key {kid}, and the guard verifies nothing (--unsigned): \
             any client that reaches it can make a token; start it with the lock server's \
             --token-key-file"
        );
        return Check::warning(about, text);
    }
    let found = |wanted: &KeyDigest| verifying.iter().find(|key| key.kid == wanted.kid);
    match found(first) {
        None => Check::failing(
            about,
            format!(
                "the lock server signs with key {kid}, which the guard does not have (it has {}): \
                 the guard refuses every write; give both the same --token-key-file and restart them",
                names(verifying)
            ),
        ),
        Some(key) if key.digest != first.digest => Check::failing(
            about,
            format!(
                "both servers have a key {kid}, and the two keys differ ({} and {}): the guard \
                 refuses every write; give both the same --token-key-file and restart them",
                first.digest, key.digest
            ),
        ),
        Some(_) => spare(first, others, found),
    }
}

/// Judges the keys that do not sign yet, or no longer.
fn spare<'a>(
    first: &KeyDigest,
    others: &[KeyDigest],
    found: impl Fn(&KeyDigest) -> Option<&'a KeyDigest>,
) -> Check {
    let about = "keys";
    let differs = |key: &&KeyDigest| found(key).is_some_and(|theirs| theirs.digest != key.digest);
    if let Some(key) = others.iter().find(differs) {
        let text = format!(
            "both servers have a key {}, and the two keys differ: once it signs, the guard refuses \
             every write; give both the same --token-key-file",
            key.kid
        );
        return Check::warning(about, text);
    }
    if let Some(key) = others.iter().find(|key| found(key).is_none()) {
        let text = format!(
            "key {} signs and the guard has it; it does not have {}, and must before that one signs",
            first.kid, key.kid
        );
        return Check::information(about, text);
    }
    Check::ok(about, format!("key {} signs, and the guard has the same one", first.kid))
}

fn unsigned(verifying: &[KeyDigest]) -> Check {
    let about = "keys";
    if verifying.is_empty() {
        let text = "tokens are unsigned: any client that reaches the guard can make one; start both \
                    servers with the same --token-key-file";
        return Check::information(about, text);
    }
    let text = format!(
        "the lock server does not sign (--unsigned), and the guard verifies with {}: it refuses \
         every write; start both with the same --token-key-file",
        names(verifying)
    );
    Check::failing(about, text)
}

fn names(keys: &[KeyDigest]) -> String {
    keys.iter().map(|key| key.kid.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    fn ring(keys: &[(&str, &str)]) -> Vec<KeyDigest> {
        let key = |(kid, digest): &(&str, &str)| KeyDigest {
            kid: fence_protocol::KeyId::new(*kid).unwrap(),
            digest: (*digest).to_owned(),
        };
        keys.iter().map(key).collect()
    }

    #[test]
    fn the_signing_key_decides_and_the_others_warn() {
        use Verdict::{Failing, Note, Ok, Warning};
        let a = ("a", "01");
        let b = ("b", "02");
        let other_b = ("b", "03");
        for (signing, verifying, expected) in [
            (&[][..], &[][..], Note),
            (&[], &[a], Failing),
            (&[a], &[], Warning),
            (&[a], &[a], Ok),
            (&[a], &[b, a], Ok),
            (&[b], &[a], Failing),
            (&[b], &[other_b], Failing),
            (&[a, b], &[a, other_b], Warning),
            (&[a, b], &[a], Note),
        ] {
            let check = keys(&ring(signing), &ring(verifying));
            assert_eq!(check.verdict, expected, "{check:?}");
        }
    }
}
