//! The file that `FENCE_CONFIG` names: settings that all commands of `fence` have, in TOML.

use std::collections::HashMap;
use std::path::Path;

use toml::{Table, Value};

use crate::Error;

/// Longest file, in bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Keys, with the variables that stand for them.
const KEYS: [(&str, &str); 9] = [
    ("server", "FENCE_SERVER"),
    ("guard", "FENCE_GUARD"),
    ("owner", "FENCE_OWNER"),
    ("incarnation", "FENCE_INCARNATION"),
    ("auth-file", "FENCE_AUTH_FILE"),
    ("ca-file", "FENCE_CA_FILE"),
    ("client-cert", "FENCE_CLIENT_CERT"),
    ("client-key", "FENCE_CLIENT_KEY"),
    ("insecure-http", "FENCE_INSECURE_HTTP"),
];
/// Keys for the commands alone.
const OF_COMMANDS: [&str; 3] = ["log", "color", "output"];

/// Values by the names of their variables; none without a file.
pub(crate) fn named_by(path: Option<String>) -> Result<HashMap<&'static str, String>, Error> {
    let Some(path) = path else { return Ok(HashMap::new()) };
    let refuse = |why: String| Error::invalid(format!("file {path} (FENCE_CONFIG): {why}"));
    let bytes = https_client::read_bounded(Path::new(&path), BYTES_MAX).map_err(refuse)?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("is not UTF-8".to_owned()))?;
    values(&text).map_err(refuse)
}

fn values(text: &str) -> Result<HashMap<&'static str, String>, String> {
    // The error's own text repeats the line, which may hold a password.
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| format!("is not TOML: {}", error.message()))?;
    let mut values = HashMap::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        if OF_COMMANDS.contains(&name.as_str()) {
            continue;
        }
        let Some((_, variable)) = KEYS.iter().find(|(known, _)| *known == name) else {
            let known = KEYS.map(|(known, _)| known).join(", ");
            return Err(format!("key {key}: there is no such setting; the settings are {known}"));
        };
        let value = match value {
            Value::String(text) => text,
            Value::Boolean(is_set) => is_set.to_string(),
            _ => return Err(format!("key {key}: must be a text in quotes, true or false")),
        };
        if values.insert(*variable, value).is_some() {
            return Err(format!("key {key}: another key sets it already"));
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_all_commands() {
        let read = values(
            "server = \"http://a\"\nauth_file = \"t\"\ninsecure-http = true\nlog = \"info\"",
        );
        let read = read.unwrap();
        assert_eq!(
            (read["FENCE_SERVER"].as_str(), read["FENCE_AUTH_FILE"].as_str()),
            ("http://a", "t")
        );
        assert_eq!((read["FENCE_INSECURE_HTTP"].as_str(), read.len()), ("true", 3));
        for (bad, why) in [
            (
                "sever = \"x\"",
                "key sever: there is no such setting; the settings are server, guard",
            ),
            ("owner = 7", "key owner: must be a text"),
            ("auth_file = \"a\"\nauth-file = \"b\"", "another key sets it already"),
            ("server = http://secret@a", "is not TOML"),
        ] {
            let error = values(bad).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{bad}: {error}");
        }
    }
}
