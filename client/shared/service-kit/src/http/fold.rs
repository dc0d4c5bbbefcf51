//! Names with plain slashes in paths.

use std::borrow::Cow;

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// Paths of the shape `{prefix}{name}` and `{prefix}{name}/{verb}`.
#[derive(Clone, Copy, Debug)]
pub struct Fold {
    /// Everything before the name, with both slashes: `/v1/locks/`.
    pub prefix: &'static str,
    /// The last segments that are not part of a name: `acquire`, `renew`, …
    pub verbs: &'static [&'static str],
}

/// The path with the slashes of its name percent-encoded, so that the name is one segment:
/// `/v1/locks/orders/42/acquire` becomes `/v1/locks/orders%2F42/acquire`.
///
/// Nothing is decoded and nothing removed: what the name is, and whether it is allowed, is decided
/// where it is read. A name whose last segment is a verb must be written in the encoded form. A
/// path without anything to fold is returned as it came, without work.
pub fn fold_name(fold: &Fold, uri: Uri) -> Uri {
    match folded(fold, uri.path()) {
        Cow::Borrowed(_) => uri,
        Cow::Owned(path) => with_path(uri, path),
    }
}

fn folded<'a>(fold: &Fold, path: &'a str) -> Cow<'a, str> {
    let Some(rest) = path.strip_prefix(fold.prefix) else {
        return Cow::Borrowed(path);
    };
    let (name, verb) = match rest.rsplit_once('/') {
        Some((name, verb)) if fold.verbs.contains(&verb) => (name, Some(verb)),
        _ => (rest, None),
    };
    if !name.contains('/') {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len() + 16);
    out.push_str(fold.prefix);
    for (at, segment) in name.split('/').enumerate() {
        out.push_str(if at == 0 { "" } else { "%2F" });
        out.push_str(segment);
    }
    if let Some(verb) = verb {
        out.push('/');
        out.push_str(verb);
    }
    Cow::Owned(out)
}

fn with_path(uri: Uri, mut path: String) -> Uri {
    if let Some(query) = uri.query() {
        path.push('?');
        path.push_str(query);
    }
    // The pieces come from a URI that was valid. Were the longer one refused, then the path stays
    // as it came and no route matches it.
    let Ok(path) = PathAndQuery::try_from(path) else {
        return uri;
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).unwrap_or(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: Fold = Fold { prefix: "/v1/locks/", verbs: &["acquire", "renew"] };

    fn fold(uri: &str) -> String {
        fold_name(&LOCKS, uri.parse().unwrap()).to_string()
    }

    #[test]
    fn slashes_of_a_name_are_encoded() {
        assert_eq!(fold("/v1/locks/orders/42/acquire"), "/v1/locks/orders%2F42/acquire");
        assert_eq!(fold("/v1/locks/a/b/c"), "/v1/locks/a%2Fb%2Fc");
        assert_eq!(fold("/v1/locks/a/b?x=1/2"), "/v1/locks/a%2Fb?x=1/2");
        assert_eq!(fold("/v1/locks/a/acquire/renew"), "/v1/locks/a%2Facquire/renew");
    }

    #[test]
    fn what_has_nothing_to_fold_stays() {
        for same in [
            "/v1/locks",
            "/v1/locks/",
            "/v1/locks/a",
            "/v1/locks/a/acquire",
            "/v1/locks/a%2Fb/renew?x",
            "/v1/lock/a/b",
            "/metrics",
        ] {
            assert_eq!(fold(same), same);
        }
    }

    #[test]
    fn tricks_stay_inside_the_name() {
        assert_eq!(fold("/v1/locks/../../metrics"), "/v1/locks/..%2F..%2Fmetrics");
        assert_eq!(fold("/v1/locks/%2e%2e/x/renew"), "/v1/locks/%2e%2e%2Fx/renew");
        assert_eq!(fold("/v1/locks//a"), "/v1/locks/%2Fa");
        assert_eq!(fold("/v1/locks/a//renew"), "/v1/locks/a%2F/renew");
        assert_eq!(fold("/v1/locks/a/"), "/v1/locks/a%2F");
    }
}
