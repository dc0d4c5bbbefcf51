//! Replies against the OpenAPI documents of the services.
//!
//! [`crate::api::Api`] checks every reply that it receives: the route, the status, the content type
//! and the body, without members that the document does not name.

use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

use http::Method;
use serde_json::{Map, Value};

/// Statuses that any request may be answered with: the documents name them in their description.
const ANYWHERE: [u16; 10] = [401, 403, 404, 405, 408, 414, 421, 429, 431, 500];
/// Replies of a kind that are checked whole; of further ones every [`SAMPLE`]th is. A test under
/// load would wait for the checks otherwise.
const WHOLE: u64 = 500;
const SAMPLE: u64 = 50;

static LOCK_SERVER: LazyLock<Document> =
    LazyLock::new(|| Document::read("lock-server/src/api/openapi.json"));
static GUARD: LazyLock<Document> =
    LazyLock::new(|| Document::read("fenced-store/src/doors/objects/openapi.json"));
static SEEN: LazyLock<Mutex<HashMap<(String, u16), u64>>> = LazyLock::new(Mutex::default);

/// Checks a reply; one of a path that no service has under `/v1/` passes.
///
/// # Errors
/// What the document says otherwise.
pub fn check(
    method: &Method,
    path: &str,
    status: u16,
    content_type: &str,
    body: &[u8],
) -> Result<(), String> {
    let path = path.split('?').next().unwrap_or_default();
    let services = [&*LOCK_SERVER, &*GUARD];
    let routes = services.into_iter().filter_map(|service| Some((service, service.route(path)?)));
    let routes: Vec<_> = routes.collect();
    if !routes.first().is_some_and(|(_, route)| is_due(route, status)) {
        return Ok(());
    }
    let said = |why: String| format!("{method} {path} replied {status}: {why}");
    let checked = |(document, route): (&Document, _)| {
        document.check(method, route, status, content_type, body)
    };
    // A path of both services is fine as a reply of one.
    let results: Vec<_> = routes.into_iter().map(checked).collect();
    match results.iter().any(Result::is_ok) {
        true => Ok(()),
        false => results.into_iter().next().unwrap_or(Ok(())).map_err(said),
    }
}

fn is_due(route: &str, status: u16) -> bool {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = seen.entry((route.to_owned(), status)).or_default();
    *count += 1;
    *count <= WHOLE || count.is_multiple_of(SAMPLE)
}

/// A parsed OpenAPI document.
#[derive(Debug)]
struct Document(Value);

impl Document {
    /// The document at a path of this repository.
    fn read(path: &str) -> Self {
        let file = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read(file).expect("an OpenAPI document");
        Self(serde_json::from_slice(&text).expect("an OpenAPI document"))
    }

    /// Route under `/v1/` that the path belongs to; a name with slashes may be its last or middle
    /// segment.
    fn route(&self, path: &str) -> Option<&str> {
        let rest = path.strip_prefix("/v1/")?;
        let routes = self.0["paths"].as_object()?.keys().map(String::as_str);
        let matches = routes.filter(|route| {
            let Some(pattern) = route.strip_prefix("/v1/") else { return false };
            match (pattern.find('{'), pattern.find('}')) {
                (Some(open), Some(close)) => {
                    let before = &pattern[..open];
                    let after = &pattern[close + 1..];
                    rest.len() >= before.len() + after.len()
                        && rest.starts_with(before)
                        && rest.ends_with(after)
                }
                _ => pattern == rest,
            }
        });
        // `/v1/locks/{lock}/renew` is longer than `/v1/locks/{lock}`.
        matches.max_by_key(|route| (!route.contains('{'), route.len()))
    }

    fn check(
        &self,
        method: &Method,
        route: &str,
        status: u16,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), String> {
        // The document has no place for methods of WebDAV; these do the same.
        let method = match method.as_str() {
            "HEAD" => "get".to_owned(),
            "LOCK" => "put".to_owned(),
            "UNLOCK" => "delete".to_owned(),
            other => other.to_lowercase(),
        };
        let operation = &self.0["paths"][route][method];
        let response = &operation["responses"][status.to_string()];
        let response = match (response.is_null(), ANYWHERE.contains(&status)) {
            (true, true) => &self.0["components"]["responses"]["Problem"],
            (true, false) => return Err(format!("{route} has no such status")),
            (false, _) => self.resolved(response),
        };
        let Some(content) = response["content"].as_object() else { return Ok(()) };
        let own = content_type.split(';').next().unwrap_or_default().trim();
        let schema = match content.get(own).or_else(|| content.get("*/*")) {
            // HEAD, 204 and 304 have no body.
            None if body.is_empty() => return Ok(()),
            None => return Err(format!("{route} has no content type {own:?}")),
            Some(media) => &media["schema"],
        };
        let is_json = own == "application/json" || own.ends_with("+json");
        if schema.is_null() || !is_json || body.is_empty() {
            return Ok(());
        }
        let body = serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))?;
        let named = self.valid(schema, &body, "body")?;
        // A problem may have members of its code.
        if own == "application/json" { all_named(&body, &named) } else { Ok(()) }
    }

    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        let Some(reference) = value["$ref"].as_str() else { return value };
        let found = self.0.pointer(reference.trim_start_matches('#'));
        found.unwrap_or_else(|| panic!("{reference} leads nowhere"))
    }

    /// Checks a value, and returns the paths of the members that the schema names.
    fn valid(&self, schema: &Value, value: &Value, at: &str) -> Result<BTreeSet<String>, String> {
        let mut named = BTreeSet::new();
        let Some(rules) = schema.as_object() else { return Ok(named) };
        for (rule, wanted) in rules {
            match rule.as_str() {
                "$ref" => named.extend(self.valid(self.resolved(schema), value, at)?),
                "properties" => named.extend(self.members(wanted, value, at)?),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        named.extend(self.valid(wanted, item, &format!("{at}[{index}]"))?);
                    }
                }
                "oneOf" | "anyOf" => named.extend(self.one_of(wanted, value, at)?),
                "allOf" => {
                    for part in wanted.as_array().into_iter().flatten() {
                        named.extend(self.valid(part, value, at)?);
                    }
                }
                "required" => required(wanted, value, at)?,
                "additionalProperties"
                | "description"
                | "default"
                | "format"
                | "title"
                | "pattern" => {}
                _ => plain(rule, wanted, value).map_err(|why| format!("{at}: {why}"))?,
            }
        }
        // Any JSON: nothing below it is undocumented.
        if !["type", "$ref", "properties", "oneOf", "anyOf", "allOf", "const", "enum"]
            .iter()
            .any(|rule| rules.contains_key(*rule))
        {
            named.insert(format!("{at}*"));
        }
        Ok(named)
    }

    fn members(&self, wanted: &Value, value: &Value, at: &str) -> Result<BTreeSet<String>, String> {
        let mut named = BTreeSet::new();
        let empty = Map::new();
        let own = value.as_object().unwrap_or(&empty);
        for (name, schema) in wanted.as_object().into_iter().flatten() {
            if let Some(member) = own.get(name) {
                let at = format!("{at}.{name}");
                named.extend(self.valid(schema, member, &at)?);
                named.insert(at);
            }
        }
        Ok(named)
    }

    fn one_of(&self, wanted: &Value, value: &Value, at: &str) -> Result<BTreeSet<String>, String> {
        let mut named = BTreeSet::new();
        let mut errors = Vec::new();
        let mut is_valid = false;
        for choice in wanted.as_array().into_iter().flatten() {
            match self.valid(choice, value, at) {
                Ok(found) => {
                    is_valid = true;
                    named.extend(found);
                }
                Err(why) => errors.push(why),
            }
        }
        if is_valid { Ok(named) } else { Err(errors.join(" or ")) }
    }
}

fn required(wanted: &Value, value: &Value, at: &str) -> Result<(), String> {
    let missing = wanted
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|name| value.as_object().is_some_and(|members| !members.contains_key(*name)));
    missing.map_or(Ok(()), |name| Err(format!("{at} has no {name}")))
}

/// Rules that concern the value alone.
fn plain(rule: &str, wanted: &Value, value: &Value) -> Result<(), String> {
    let number = || wanted.as_f64().expect("a number");
    let length = |text: &str| text.chars().count() as f64;
    let holds = match rule {
        "type" => match wanted {
            Value::Array(types) => types.iter().any(|one| is_of_type(value, one)),
            one => is_of_type(value, one),
        },
        "const" => value == wanted,
        "enum" => wanted.as_array().is_some_and(|all| all.contains(value)),
        "minimum" => value.as_f64().is_none_or(|value| value >= number()),
        "maximum" => value.as_f64().is_none_or(|value| value <= number()),
        "minLength" => value.as_str().is_none_or(|text| length(text) >= number()),
        "maxLength" => value.as_str().is_none_or(|text| length(text) <= number()),
        "minItems" => value.as_array().is_none_or(|items| items.len() as f64 >= number()),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as f64 <= number()),
        _ => panic!("the check of replies does not know the rule {rule:?}; add it"),
    };
    if holds { Ok(()) } else { Err(format!("{value} is against {rule} {wanted}")) }
}

fn is_of_type(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("the name of a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no such type: {other}"),
    }
}

/// Refuses members that no schema names.
fn all_named(body: &Value, named: &BTreeSet<String>) -> Result<(), String> {
    fn walk(value: &Value, at: &str, named: &BTreeSet<String>) -> Result<(), String> {
        if named.contains(&format!("{at}*")) {
            return Ok(());
        }
        match value {
            Value::Object(members) => members.iter().try_for_each(|(name, member)| {
                let at = format!("{at}.{name}");
                if named.contains(&at) {
                    walk(member, &at, named)
                } else {
                    Err(format!("{at} is not in the document"))
                }
            }),
            Value::Array(items) => items
                .iter()
                .enumerate()
                .try_for_each(|(index, item)| walk(item, &format!("{at}[{index}]"), named)),
            _ => Ok(()),
        }
    }
    walk(body, "body", named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(path: &str, status: u16, body: &Value) -> Result<(), String> {
        let kind = if status < 400 { "application/json" } else { "application/problem+json" };
        check(&Method::GET, path, status, kind, body.to_string().as_bytes())
    }

    fn session() -> Value {
        let id = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        json!({
            "session_id": id, "owner": "a", "ttl_ms": 1, "expires_in_ms": 1, "age_ms": 1,
            "heartbeats": 0, "lease_count": 1, "metadata": {"any": [{"thing": 1}]},
            "leases": [{"lock": "a", "lease_id": id}],
        })
    }

    #[test]
    fn a_reply_as_documented_passes() {
        assert_eq!(checked("/v1/sessions/x", 200, &session()), Ok(()));
        assert_eq!(checked("/elsewhere", 299, &json!(1)), Ok(()));
    }

    #[test]
    fn a_reply_against_the_document_is_noticed() {
        for (change, why) in [
            (json!({"heartbeats": -1}), "minimum"),
            (json!({"heartbeats": "0"}), "type"),
            (json!({"owner": ""}), "minLength"),
            (json!({"more": 1}), "body.more is not in the document"),
            (json!({"leases": [{"lock": "a"}]}), "leases[0] has no lease_id"),
            (json!({"leases": [{"lock": "a", "lease_id": "b", "x": 1}]}), "leases[0].x is not"),
        ] {
            let mut body = session();
            body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let error = checked("/v1/sessions/x", 200, &body).unwrap_err();
            assert!(error.contains(why), "{change}: {error}");
        }
        let error = checked("/v1/sessions/x", 299, &session()).unwrap_err();
        assert!(error.contains("no such status"), "{error}");
        let problem = json!({"type": "urn:fencepost:x", "code": "x"});
        let error = checked("/v1/locks/a%2Fb", 404, &problem).unwrap_err();
        assert!(error.contains("has no "), "{error}");
    }

    #[test]
    fn a_path_belongs_to_its_longest_route() {
        let route = |path| LOCK_SERVER.route(path).or_else(|| GUARD.route(path));
        for (path, expected) in [
            ("/v1/locks", Some("/v1/locks")),
            ("/v1/locks/a/b/renew", Some("/v1/locks/{lock}/renew")),
            ("/v1/locks/a%2Fb", Some("/v1/locks/{lock}")),
            ("/v1/fences/a/b/seal", Some("/v1/fences/{lock}/seal")),
            ("/v1/objects/a/b", Some("/v1/objects/{key}")),
            ("/v2/x", None),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }
}
