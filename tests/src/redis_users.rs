//! The Redis user with the least rights that lock-server needs, as docs/operating/redis.md makes
//! it.

use crate::redis_server::Redis;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/redis.md"));

/// Redis user with the keys that it may touch.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    /// `USER`.
    pub name: &'a str,
    /// `SECRET`.
    pub password: &'a str,
    /// `PREFIX`, empty for none.
    pub prefix: &'a str,
    /// Namespace in place of `NAMESPACE`.
    pub namespace: &'a str,
}

impl User<'_> {
    /// The commands of the page, each in its words.
    ///
    /// # Panics
    /// If the page has none.
    pub fn commands(&self) -> Vec<Vec<String>> {
        self.commands_of(PAGE)
    }

    /// The commands of another page that makes a user in the same way.
    ///
    /// # Panics
    /// If the page has none.
    pub fn commands_of(&self, page: &str) -> Vec<Vec<String>> {
        let places = [
            ("USER", self.name),
            ("SECRET", self.password),
            ("PREFIX", self.prefix),
            ("NAMESPACE", self.namespace),
        ];
        let word = |word: &str| {
            // SETUSER itself holds the name of a place.
            if word == "SETUSER" {
                return word.to_owned();
            }
            places.iter().fold(word.to_owned(), |word, (place, text)| word.replace(place, text))
        };
        let lines = page.lines().filter(|line| line.starts_with("ACL SETUSER USER "));
        let commands: Vec<Vec<String>> =
            lines.map(|line| line.split(' ').map(word).collect()).collect();
        assert!(commands.len() > 2, "the page makes no user: {commands:?}");
        commands
    }

    /// The rights to commands that the page gives, as `+get`.
    pub fn rights(&self) -> Vec<String> {
        self.commands().into_iter().flatten().filter(|word| word.starts_with('+')).collect()
    }

    /// Makes the user.
    pub async fn make(&self, redis: &Redis) {
        self.make_as(&self.commands(), redis).await;
    }

    /// Makes the user by these commands.
    pub async fn make_as(&self, commands: &[Vec<String>], redis: &Redis) {
        for command in commands {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let _: () = redis.run(&words).await;
        }
    }

    /// Changes what it may do, as in `-get`.
    pub async fn change(&self, redis: &Redis, rights: &[&str]) {
        let _: () = redis.run(&[&["ACL", "SETUSER", self.name], rights].concat()).await;
    }

    /// `redis://NAME:PASSWORD@HOST:PORT`.
    pub fn url(&self, redis: &Redis) -> String {
        format!("redis://{}:{}@{}", self.name, self.password, redis.address())
    }
}
