//! The schemas in the OpenAPI documents, from the wire types.
//!
//! A document's paths, its object keys and its problem are written by hand: the test replaces every
//! other schema.

use std::collections::BTreeSet;

use fence_protocol::wire::event::{Event, ExplainedLock, RefusalsReport};
use fence_protocol::wire::fence::{
    FencePage, FenceReply, FloorReply, FloorRequest, SealReply, StoresReply, WriteOutcome,
};
use fence_protocol::wire::guards::GuardsReply;
use fence_protocol::wire::lane::{LanePage, QuarantineRequest};
use fence_protocol::wire::lock::{
    AcquireRequest, EndedReply, HolderInfo, LeaseReply, LockPage, ReleaseRequest, RenewRequest,
    RevokeRequest, RevokedReply,
};
use fence_protocol::wire::lock_set::{AcquireAllRequest, LeasesReply};
use fence_protocol::wire::principal::PrincipalReply;
use fence_protocol::wire::session::{
    BlockRequest, SessionEndedReply, SessionPage, SessionReply, SessionRequest,
};
use fence_protocol::wire::version::VersionReply;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value};

use super::super::docs::ROOT;

/// Schemas that no wire type has.
const BY_HAND: [&str; 2] = ["ObjectKey", "Problem"];

/// The schemas of requests and replies, which differ in the members that may be absent.
struct Schemas {
    requests: SchemaGenerator,
    replies: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        Self {
            requests: settings.clone().for_deserialize().into_generator(),
            replies: settings.for_serialize().into_generator(),
        }
    }

    fn request<T: JsonSchema>(mut self) -> Self {
        self.requests.subschema_for::<T>();
        self
    }

    fn reply<T: JsonSchema>(mut self) -> Self {
        self.replies.subschema_for::<T>();
        self
    }

    fn made(mut self) -> Map<String, Value> {
        let mut schemas = self.requests.take_definitions(true);
        schemas.append(&mut self.replies.take_definitions(true));
        schemas.values_mut().for_each(tidy);
        schemas
    }
}

/// Drops what means nothing outside Rust: links in descriptions, names of integer types, and the
/// null of a member that is absent instead.
fn tidy(schema: &mut Value) {
    if let Value::Array(items) = schema {
        items.iter_mut().for_each(tidy);
    }
    let Value::Object(members) = schema else { return };
    if members.get("type") == Some(&"integer".into()) {
        members.remove("format");
    }
    if let Some(Value::String(text)) = members.get_mut("description") {
        *text = text.replace("[`", "`").replace("`]", "`").replace('\n', " ");
    }
    let required = members.get("required").cloned().unwrap_or_default();
    let required: BTreeSet<&str> =
        required.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        let optional = properties.iter_mut().filter(|(name, _)| !required.contains(name.as_str()));
        optional.for_each(|(_, property)| without_null(property));
    }
    members.values_mut().for_each(tidy);
}

fn without_null(property: &mut Value) {
    let Value::Object(members) = property else { return };
    if let Some(Value::Array(types)) = members.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            members.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = members.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            members.remove("anyOf");
            members.extend(only);
        }
    }
}

/// The path of a document in the repository, and its schemas.
fn documents() -> [(&'static str, Map<String, Value>); 2] {
    let lock_server = Schemas::new()
        .request::<AcquireRequest>()
        .request::<AcquireAllRequest>()
        .request::<RenewRequest>()
        .request::<ReleaseRequest>()
        .request::<RevokeRequest>()
        .request::<SessionRequest>()
        .request::<BlockRequest>()
        .request::<RefusalsReport>()
        .reply::<LeaseReply>()
        .reply::<EndedReply>()
        .reply::<HolderInfo>()
        .reply::<LeasesReply>()
        .reply::<RevokedReply>()
        .reply::<ExplainedLock>()
        .reply::<LockPage>()
        .reply::<SessionReply>()
        .reply::<SessionEndedReply>()
        .reply::<SessionPage>()
        .reply::<GuardsReply>()
        .reply::<FloorReply>()
        .reply::<PrincipalReply>()
        .reply::<Event>()
        .reply::<VersionReply>();
    let guard = Schemas::new()
        .request::<FloorRequest>()
        .request::<QuarantineRequest>()
        .reply::<FloorReply>()
        .reply::<SealReply>()
        .reply::<FenceReply>()
        .reply::<FencePage>()
        .reply::<LanePage>()
        .reply::<StoresReply>()
        .reply::<WriteOutcome>()
        .reply::<VersionReply>();
    [
        ("lock-server/src/api/openapi.json", lock_server.made()),
        ("fenced-store/src/doors/objects/openapi.json", guard.made()),
    ]
}

#[test]
fn openapi_has_the_schemas_of_the_code() {
    for (path, mut schemas) in documents() {
        let file = std::path::Path::new(ROOT).join(path);
        let written = std::fs::read_to_string(&file).unwrap();
        let mut document: Value = serde_json::from_str(&written).unwrap();
        for name in BY_HAND {
            if let Some(kept) = document["components"]["schemas"].get(name) {
                schemas.insert(name.to_owned(), kept.clone());
            }
        }
        document["components"]["schemas"] = schemas.into();
        let made = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
        if made != written && super::regenerates() {
            std::fs::write(&file, made).unwrap();
        } else {
            let differs = made.lines().zip(written.lines()).find(|(made, read)| made != read);
            assert!(made == written, "{path}, first at {differs:?}\nrun {}", super::REGENERATE);
        }
        references_resolve(&document, &document);
    }
}

fn references_resolve(value: &Value, document: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get("$ref") {
                let pointer = reference.trim_start_matches('#');
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            members.values().for_each(|member| references_resolve(member, document));
        }
        Value::Array(items) => items.iter().for_each(|item| references_resolve(item, document)),
        _ => {}
    }
}
