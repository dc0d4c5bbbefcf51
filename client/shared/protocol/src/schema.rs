//! JSON schemas of the types that check their own text, for the OpenAPI documents.
//!
//! Only with the feature `schema`, which the test that writes these documents turns on.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{KeyId, LeaseId, LockName, Namespace, Owner, SessionId, Token, Ttl};

macro_rules! schema {
    ($($name:ident: $schema:tt;)*) => {
        $(impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        })*
    };
}

schema! {
    LeaseId: { "type": "string", "format": "uuid", "description": "Not the nil UUID." };
    SessionId: { "type": "string", "format": "uuid", "description": "Not the nil UUID." };
    Token: { "type": "integer", "minimum": 1, "maximum": Token::MAX };
    Owner: { "type": "string", "minLength": 1, "maxLength": Owner::MAX_BYTES };
    Namespace: { "type": "string", "minLength": 1, "maxLength": Namespace::MAX_BYTES };
    KeyId: { "type": "string", "minLength": 1, "maxLength": KeyId::MAX_BYTES };
    LockName: {
        "type": "string", "minLength": 1, "maxLength": LockName::MAX_BYTES,
        "pattern": "^[A-Za-z0-9._:/-]+$",
        "description": "No empty, '.' or '..' segment between slashes.",
    };
    Ttl: {
        "type": "integer", "minimum": 1, "maximum": Ttl::MAX_MS,
        "description": "Milliseconds; a server's range may be narrower.",
    };
}
