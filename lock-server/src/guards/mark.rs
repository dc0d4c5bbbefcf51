//! Reads the highest mark of one guard.

use fence_protocol::{Namespace, Token};
use serde::Deserialize;
use service_kit::tls::ServerUrl;

use super::GUARD_TIMEOUT;
use super::http::{self, GuardClient};

/// The fields that are read of `GET /v1/stores`.
#[derive(Debug, Deserialize)]
struct Stores {
    namespace: Namespace,
}

/// The fields that are read of `GET /v1/fences`.
#[derive(Debug, Deserialize)]
struct Fences {
    fences: Vec<Line>,
    highest_mark: Option<Token>,
}

#[derive(Debug, Deserialize)]
struct Line {
    mark: Token,
}

/// Returns the highest mark of the guard at `url`; `None` if it has seen no token.
///
/// # Errors
/// A sentence if it does not reply in time, or the reply is not one of a guard of `namespace`.
pub(super) async fn highest(
    client: &GuardClient,
    url: &ServerUrl,
    namespace: &Namespace,
) -> Result<Option<Token>, String> {
    tokio::time::timeout(GUARD_TIMEOUT, highest_mark(client, url, namespace))
        .await
        .unwrap_or_else(|_| Err(format!("no reply within {} ms", GUARD_TIMEOUT.as_millis())))
}

async fn highest_mark(
    client: &GuardClient,
    url: &ServerUrl,
    namespace: &Namespace,
) -> Result<Option<Token>, String> {
    let stores: Stores = http::get(client, url, "/v1/stores").await?;
    if stores.namespace != *namespace {
        return Err(format!(
            "it guards namespace {}, but this server issues tokens for {namespace}; name a guard \
             of {namespace}",
            stores.namespace
        ));
    }
    let page: Fences = http::get(client, url, "/v1/fences?limit=1").await?;
    check(&page)
}

/// Checks that the highest mark is at least every listed one.
fn check(page: &Fences) -> Result<Option<Token>, String> {
    match page.fences.iter().map(|line| line.mark).max() {
        Some(listed) if Some(listed) > page.highest_mark => {
            Err(format!("it lists the mark {listed}, which is above its highest_mark"))
        }
        _ => Ok(page.highest_mark),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(json: &str) -> Result<Option<Token>, String> {
        let page = serde_json::from_str(json).map_err(|_| "shape".to_owned())?;
        check(&page)
    }

    #[test]
    fn contradictory_replies_are_refused() {
        let line = r#"{"lock":"a","mark":34,"lease_id":"67e55044-10b1-426f-9247-bb680e5fe0c8"}"#;
        let with = |highest: &str| page(&format!(r#"{{"fences":[{line}]{highest}}}"#));
        assert_eq!(with(r#","highest_mark":34"#), Ok(Token::new(34).ok()));
        assert_eq!(with(r#","highest_mark":90,"more":1"#), Ok(Token::new(90).ok()));
        assert!(with(r#","highest_mark":33"#).is_err());
        assert!(with("").is_err());
        assert_eq!(page(r#"{"fences":[]}"#), Ok(None));
        for garbage in [
            "{}",
            "[]",
            "null",
            r#"{"fences":[],"highest_mark":-1}"#,
            r#"{"fences":[],"highest_mark":"9"}"#,
        ] {
            assert_eq!(page(garbage), Err("shape".to_owned()), "{garbage}");
        }
    }
}
