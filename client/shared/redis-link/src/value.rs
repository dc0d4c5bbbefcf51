//! Reading replies.

use redis::Value;

/// The elements of an array reply as texts: strings as they are, integers in decimal, nil as empty.
/// Anything else, and anything that is no UTF-8, is `None`.
pub fn text_fields(value: Value) -> Option<Vec<String>> {
    let Value::Array(items) = value else {
        return None;
    };
    items
        .into_iter()
        .map(|item| match item {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            Value::SimpleString(text) => Some(text),
            Value::Int(number) => Some(number.to_string()),
            Value::Okay => Some("OK".to_owned()),
            Value::Nil => Some(String::new()),
            _ => None,
        })
        .collect()
}

/// A field of an `INFO` reply.
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_info() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n";
        assert_eq!(info_field(info, "run_id"), Some("abc"));
        assert_eq!(info_field(info, "run"), None);
    }
}
