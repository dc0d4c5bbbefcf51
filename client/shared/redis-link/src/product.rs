//! Name and version of a server that speaks the protocol of Redis.

use std::fmt;

use super::info_field;

/// Newest versions that the tests run, each with its major and minor number.
const TESTED: [(&str, u32, u32); 2] = [("redis", 8, 2), ("valkey", 9, 1)];

/// Name and version that a server gives itself: `valkey 9.1.2`. Its `redis_version` is only that of
/// the Redis which it is compatible with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    name: String,
    version: String,
}

impl Product {
    /// Reads a reply to INFO; `None` without a version.
    pub fn from_info(info: &str) -> Option<Self> {
        let compatible = info_field(info, "redis_version")?;
        let name = info_field(info, "server_name").unwrap_or("redis");
        let version = info_field(info, &format!("{name}_version")).unwrap_or(compatible);
        Some(Self { name: name.to_owned(), version: version.to_owned() })
    }

    /// Returns a sentence if it is another server than the tests run, or a newer one.
    pub fn untested(&self) -> Option<String> {
        let Some((name, major, minor)) = TESTED.iter().find(|(name, ..)| *name == self.name) else {
            let tested: Vec<String> = TESTED.iter().map(shown).collect();
            return Some(format!(
                "the server is {self}, which Fencepost is not tested with: it is with {} and \
                 older; run your own programs against it before you rely on it",
                tested.join(", ")
            ));
        };
        let mut numbers = self.version.split('.').map_while(|number| number.parse::<u32>().ok());
        let found = numbers.next().zip(numbers.next());
        let is_tested = found.is_some_and(|found| found <= (*major, *minor));
        (!is_tested).then(|| {
            format!(
                "the server is {self}, and the newest that this Fencepost is tested with is \
                 {name} {major}.{minor}; look for a newer Fencepost, or run your own programs \
                 against it before you rely on it"
            )
        })
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

fn shown((name, major, minor): &(&str, u32, u32)) -> String {
    format!("{name} {major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(info: &str) -> Product {
        Product::from_info(info).unwrap()
    }

    #[test]
    fn a_server_has_the_name_that_it_gives_itself() {
        assert_eq!(product("redis_version:8.2.3\r\n").to_string(), "redis 8.2.3");
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n";
        assert_eq!(product(valkey).to_string(), "valkey 9.1.2");
        let other = "redis_version:7.4.0\r\nserver_name:other\r\n";
        assert_eq!(product(other).to_string(), "other 7.4.0");
        assert_eq!(Product::from_info("server_name:valkey\r\n"), None);
    }

    #[test]
    fn newer_and_other_servers_have_a_warning() {
        let untested = |name: &str, version: &str| {
            let info = format!("redis_version:{version}\r\nserver_name:{name}\r\n");
            product(&info).untested()
        };
        for (name, version) in
            [("redis", "7.0.15"), ("redis", "8.2.9"), ("valkey", "8.0.1"), ("valkey", "9.1.2")]
        {
            assert_eq!(untested(name, version), None);
        }
        for (name, version, words) in [
            ("redis", "8.4.0", "redis 8.4.0, and the newest that this Fencepost is tested with is"),
            ("redis", "10.0.0", "redis 8.2"),
            ("redis", "x", "redis 8.2"),
            ("valkey", "9.2.0", "valkey 9.1"),
            ("other", "7.2.0", "with redis 8.2, valkey 9.1 and older"),
        ] {
            let text = untested(name, version).unwrap();
            assert!(text.contains(words), "{text}");
        }
    }
}
