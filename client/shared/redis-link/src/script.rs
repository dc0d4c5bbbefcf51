//! Lua scripts that Redis runs as one atomic step.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, cmd};

/// A script, known to Redis by the SHA-1 of its text.
#[derive(Clone, Debug)]
pub struct Script {
    name: &'static str,
    text: &'static str,
    sha1: String,
}

impl Script {
    /// A script from its text; `name` is for people.
    pub fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, sha1: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Source that Redis loads.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// The SHA-1 of the text, by which Redis knows it.
    pub fn sha1(&self) -> &str {
        &self.sha1
    }

    /// An `EVALSHA` to which `keys` (as many as are given) and then arguments can be added.
    pub fn call(&self, keys: &[&str]) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(&self.sha1).arg(keys.len());
        for key in keys {
            command.arg(*key);
        }
        command
    }

    /// As [`Script::call`], for keys of any bytes.
    pub fn call_bytes<'k>(&self, keys: impl ExactSizeIterator<Item = &'k [u8]>) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(&self.sha1).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        command
    }

    /// An `EVAL`, for the one script that runs before the others may be loaded.
    pub fn call_once(&self, keys: &[&str]) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(self.text).arg(keys.len());
        for key in keys {
            command.arg(*key);
        }
        command
    }
}

/// Loads scripts, each with its own time for the reply; only a [`Verifier`](super::Verifier) that
/// has approved of the process calls it.
///
/// # Errors
/// A sentence with the script's name where Redis refuses it or does not reply.
pub async fn load_scripts(
    connection: &mut MultiplexedConnection,
    scripts: &[&Script],
) -> Result<(), String> {
    for script in scripts {
        let loaded = cmd("SCRIPT").arg("LOAD").arg(script.text).query_async(connection).await;
        let sha1: String = loaded.map_err(|error| {
            format!("Redis did not take the script {}: {}", script.name, plain(&error))
        })?;
        debug_assert_eq!(sha1, script.sha1, "{}", script.name);
    }
    Ok(())
}

/// The text of an error, and of a question that was not answered in time.
pub fn plain(error: &RedisError) -> String {
    if error.is_timeout() { "no reply in time".to_owned() } else { error.to_string() }
}
