//! Facts of the server behind the port, as it gives them in its reply to HELLO.

use std::collections::HashMap;

use bytes::BytesMut;
use redis::{FromRedisValue, Value, from_redis_value};
use serde::Serialize;
use serde_json::json;

use super::resp::{Protocol, encode};

/// Facts of the process that was verified last.
#[derive(Clone, Debug)]
pub(super) struct ServerFacts {
    /// `redis` or `valkey`.
    pub(super) server: String,
    /// Drivers choose commands by it.
    pub(super) version: String,
    modules: Vec<ServerModule>,
    /// Rule (`db=0,2`) of a user that may enter the databases of the guard's user, and no others.
    pub(super) databases: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct ServerModule {
    name: String,
    ver: i64,
    path: String,
    args: Vec<String>,
}

impl Default for ServerFacts {
    fn default() -> Self {
        let server = "redis".to_owned();
        Self { server, version: "7.0.0".to_owned(), modules: Vec::new(), databases: None }
    }
}

impl ServerFacts {
    /// Reads a reply to HELLO, in RESP2 or RESP3.
    pub(super) fn from_hello(reply: Value) -> Option<Self> {
        let mut fields = fields(reply)?;
        let modules: Vec<Value> = read(fields.remove("modules")?)?;
        Some(Self {
            server: read(fields.remove("server")?)?,
            version: read(fields.remove("version")?)?,
            modules: modules.into_iter().map(ServerModule::read).collect::<Option<_>>()?,
            databases: None,
        })
    }

    /// Encodes the modules, as in the replies to HELLO and MODULE LIST.
    pub(super) fn encode_modules(&self, out: &mut BytesMut, protocol: Protocol) {
        encode::array(out, self.modules.len());
        for ServerModule { name, ver, path, args } in &self.modules {
            encode::map(out, 4, protocol);
            encode::bulk(out, b"name");
            encode::bulk(out, name.as_bytes());
            encode::bulk(out, b"ver");
            encode::integer(out, *ver);
            encode::bulk(out, b"path");
            encode::bulk(out, path.as_bytes());
            encode::bulk(out, b"args");
            encode::array(out, args.len());
            args.iter().for_each(|arg| encode::bulk(out, arg.as_bytes()));
        }
    }

    /// Returns the modules as JSON that a script replies after `cjson.decode`.
    pub(super) fn modules_for_script(&self, protocol: Protocol) -> Vec<u8> {
        let module = |module: &ServerModule| match protocol {
            Protocol::Resp2 => {
                let ServerModule { name, ver, path, args } = module;
                json!(["name", name, "ver", ver, "path", path, "args", args])
            }
            Protocol::Resp3 => json!({"map": module}),
        };
        let modules: Vec<serde_json::Value> = self.modules.iter().map(module).collect();
        json!(modules).to_string().into_bytes()
    }
}

impl ServerModule {
    fn read(value: Value) -> Option<Self> {
        let mut fields = fields(value)?;
        Some(Self {
            name: read(fields.remove("name")?)?,
            ver: read(fields.remove("ver")?)?,
            path: read(fields.remove("path")?)?,
            args: read(fields.remove("args")?)?,
        })
    }
}

fn fields(value: Value) -> Option<HashMap<String, Value>> {
    read(value)
}

fn read<T: FromRedisValue>(value: Value) -> Option<T> {
    from_redis_value(value).ok()
}
