//! First packet of a client: version, user, database and settings. Pure.

use bytes::Bytes;

use super::refusal::{Refusal, sqlstate};
use super::version::{CANCEL, CANCEL_KEY_MAX, NEWEST};

/// The longest packet, as PostgreSQL has it.
pub(super) const PACKET_MAX: usize = 10_000;
/// The name of the setting that carries a credential.
const TOKEN_SETTING: &str = "fence.token";

const TLS: u32 = 80_877_103;
const GSS: u32 = 80_877_104;

/// First packet of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FirstPacket {
    /// The client asks for TLS.
    Tls,
    /// The client asks for encryption by GSSAPI.
    Gss,
    /// The client asks to cancel the statement under way of another connection.
    Cancel { pid: i32, secret: Bytes },
    /// A session begins.
    Startup(Startup),
}

/// Wishes of a client for its session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Startup {
    pub(super) user: String,
    pub(super) database: String,
    /// Credential, if it is not in the password.
    pub(super) credential: Option<String>,
    /// All other parameters, in order.
    pub(super) settings: Vec<(String, String)>,
    /// Version that the session has: the client's, or the port's if that is older.
    pub(super) version: u32,
    /// Reply to a client of a newer minor version: its extensions that the port does not know.
    pub(super) unknown: Option<Vec<String>>,
}

impl FirstPacket {
    /// Reads a packet behind its length.
    ///
    /// # Errors
    /// The error for the client.
    pub(super) fn read(body: &[u8]) -> Result<Self, Refusal> {
        let short = || Refusal::protocol("the startup packet is too short");
        let (code, rest) = body.split_first_chunk().ok_or_else(short)?;
        match u32::from_be_bytes(*code) {
            TLS => Ok(Self::Tls),
            GSS => Ok(Self::Gss),
            CANCEL => {
                let (pid, rest) = rest.split_first_chunk().ok_or_else(short)?;
                let pid = i32::from_be_bytes(*pid);
                match rest.len() {
                    0 => Err(short()),
                    1..=CANCEL_KEY_MAX => {
                        Ok(Self::Cancel { pid, secret: Bytes::copy_from_slice(rest) })
                    }
                    _ => Err(Refusal::protocol("the key of the cancel request is too long")),
                }
            }
            version if version >> 16 == 3 => Startup::read(rest, version).map(Self::Startup),
            version => Err(Refusal::new(
                sqlstate::NOT_SUPPORTED,
                format!(
                    "protocol version {}.{} is not supported; this port speaks 3.0 to 3.2",
                    version >> 16,
                    version & 0xffff
                ),
                "",
                "Use a driver of PostgreSQL 7.4 or later, and check that the client is one.",
            )),
        }
    }
}

impl Startup {
    fn read(rest: &[u8], version: u32) -> Result<Self, Refusal> {
        let mut startup = Self { version: version.min(NEWEST), ..Self::default() };
        let mut unknown = Vec::new();
        let layout = || Refusal::protocol("the startup packet is not pairs of texts");
        let texts = rest.strip_suffix(&[0, 0]).ok_or_else(layout)?;
        let mut texts = texts.split(|byte| *byte == 0).map(|text| {
            String::from_utf8(text.to_vec())
                .map_err(|_| Refusal::protocol("the startup packet is not UTF-8"))
        });
        while let Some(name) = texts.next() {
            let name = name?;
            let value = texts.next().ok_or_else(layout)??;
            match name.as_str() {
                "user" => startup.user = value,
                "database" => startup.database = value,
                "replication" => refuse_replication(&value)?,
                "options" => startup.take_options(&value)?,
                name if name.eq_ignore_ascii_case(TOKEN_SETTING) => startup.hold(&value)?,
                name if is_pinned(name) => return Err(pinned(name)),
                name if name.starts_with("_pq_.") => unknown.push(name.to_owned()),
                _ => startup.settings.push((name, value)),
            }
        }
        if startup.user.is_empty() {
            return Err(Refusal::new(
                sqlstate::NOT_AUTHORIZED,
                "no PostgreSQL user name specified in startup packet",
                "",
                "Name a user: postgres://USER:CREDENTIAL@host/database.",
            ));
        }
        if startup.database.is_empty() {
            startup.database.clone_from(&startup.user);
        }
        startup.unknown = (version > NEWEST || !unknown.is_empty()).then_some(unknown);
        Ok(startup)
    }

    /// Takes the token out of `options`, and passes the rest on.
    fn take_options(&mut self, options: &str) -> Result<(), Refusal> {
        let mut kept = Vec::new();
        let mut words = split(options).into_iter();
        while let Some(word) = words.next() {
            let (setting, raw) = match word.as_str() {
                "-c" | "--c" => {
                    let setting = words.next().unwrap_or_default();
                    let raw = vec![word, setting.clone()];
                    (setting, raw)
                }
                text => {
                    let setting = text.strip_prefix("--").or_else(|| text.strip_prefix("-c"));
                    (setting.unwrap_or_default().to_owned(), vec![word.clone()])
                }
            };
            let (name, value) = setting.split_once('=').unwrap_or((&setting, ""));
            let name = name.replace('-', "_");
            if name.eq_ignore_ascii_case(TOKEN_SETTING) {
                self.hold(value)?;
            } else if is_pinned(&name) {
                return Err(pinned(&name));
            } else {
                kept.extend(raw);
            }
        }
        if !kept.is_empty() {
            let kept: Vec<String> = kept.iter().map(|word| escape(word)).collect();
            self.settings.push(("options".to_owned(), kept.join(" ")));
        }
        Ok(())
    }

    fn hold(&mut self, credential: &str) -> Result<(), Refusal> {
        if self.credential.replace(credential.to_owned()).is_some() {
            return Err(Refusal::new(
                sqlstate::MALFORMED,
                "fence.token is set twice",
                "nothing was executed",
                "Join several tokens with a dot into one credential.",
            ));
        }
        Ok(())
    }
}

/// Returns `true` for settings of the guard.
fn is_pinned(name: &str) -> bool {
    name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("fence."))
}

fn pinned(name: &str) -> Refusal {
    let message = format!("the setting {name} belongs to the guard");
    Refusal::new(sqlstate::NOT_AUTHORIZED, message, "", "Leave it out; fence.token is the token.")
}

fn refuse_replication(value: &str) -> Result<(), Refusal> {
    if ["", "false", "off", "no", "0", "f", "n"].contains(&value.to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(Refusal::new(
        sqlstate::NOT_SUPPORTED,
        "replication connections do not pass through the guard",
        "",
        "Connect to PostgreSQL itself for replication and backups.",
    ))
}

/// Splits at blanks that no backslash precedes, as PostgreSQL does.
fn split(options: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_open = false;
    let mut chars = options.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                is_open = true;
                word.extend(chars.next());
            }
            char if char.is_ascii_whitespace() || char == '\x0b' => {
                if is_open {
                    words.push(std::mem::take(&mut word));
                }
                is_open = false;
            }
            char => {
                is_open = true;
                word.push(char);
            }
        }
    }
    if is_open {
        words.push(word);
    }
    words
}

fn escape(word: &str) -> String {
    let mut text = String::new();
    for char in word.chars() {
        if char == '\\' || char.is_ascii_whitespace() || char == '\x0b' {
            text.push('\\');
        }
        text.push(char);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(version: u32, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut body = version.to_be_bytes().to_vec();
        for (name, value) in pairs {
            body.extend(format!("{name}\0{value}\0").bytes());
        }
        body.push(0);
        body
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Startup, &'static str> {
        match FirstPacket::read(&packet(3 << 16, pairs)) {
            Ok(FirstPacket::Startup(startup)) => Ok(startup),
            Ok(_) => Err("no startup"),
            Err(Refusal::Own(fields)) => Err(fields.sqlstate),
            Err(Refusal::OfServer(_)) => Err("of the server"),
        }
    }

    #[test]
    fn the_token_is_taken_out_of_the_settings() {
        for options in
            ["-c fence.token=T", "-cfence.token=T", "--fence.token=T", "-c FENCE.Token=T"]
        {
            let startup = read(&[("user", "a"), ("options", options)]).unwrap();
            assert_eq!(startup.credential.as_deref(), Some("T"), "{options}");
            assert_eq!(startup.settings, [], "{options}");
            assert_eq!(startup.database, "a");
        }
        let options = r"-c search_path=a\ b --fence.token=T -c lock_timeout=1s";
        let startup = read(&[("user", "a"), ("options", options)]).unwrap();
        let kept = r"-c search_path=a\ b -c lock_timeout=1s".to_owned();
        assert_eq!(startup.settings, [("options".to_owned(), kept)]);
        let startup = read(&[("user", "a"), ("fence.token", "T"), ("x", "y")]).unwrap();
        assert_eq!(startup.credential.as_deref(), Some("T"));
    }

    #[test]
    fn each_wrong_startup_has_its_code() {
        for (pairs, code) in [
            (&[("database", "a")][..], "28000"),
            (&[("user", "a"), ("replication", "database")], "0A000"),
            (&[("user", "a"), ("replication", "1")], "0A000"),
            (&[("user", "a"), ("fence.lock", "1")], "28000"),
            (&[("user", "a"), ("options", "-c fence.lock=1")], "28000"),
            (&[("user", "a"), ("options", "-c fence.token=1"), ("fence.token", "1")], "FE400"),
        ] {
            assert_eq!(read(pairs), Err(code), "{pairs:?}");
        }
        assert!(read(&[("user", "a"), ("replication", "off")]).is_ok());
        for body in [&b""[..], b"\0\0", &packet(2 << 16, &[]), &(80_877_102_u32).to_be_bytes()] {
            assert!(FirstPacket::read(body).is_err(), "{body:?}");
        }
        let mut cut = packet(3 << 16, &[("user", "a")]);
        cut.pop();
        assert!(FirstPacket::read(&cut).is_err());
    }

    #[test]
    fn newer_minor_versions_are_negotiated() {
        let x = ("_pq_.x", "1");
        for (minor, pairs, version, unknown) in [
            (0, &[("user", "a")][..], 3 << 16, None),
            (0, &[("user", "a"), x], 3 << 16, Some(vec!["_pq_.x".to_owned()])),
            (2, &[("user", "a")], NEWEST, None),
            (2, &[("user", "a"), x], NEWEST, Some(vec!["_pq_.x".to_owned()])),
            (9999, &[("user", "a")], NEWEST, Some(Vec::new())),
        ] {
            let body = packet((3 << 16) | minor, pairs);
            let Ok(FirstPacket::Startup(startup)) = FirstPacket::read(&body) else { panic!() };
            assert_eq!((startup.version, startup.unknown), (version, unknown), "{minor}");
        }
    }

    #[test]
    fn keys_of_cancel_requests_have_any_length() {
        for (len, is_read) in [(0, false), (1, true), (4, true), (256, true), (257, false)] {
            let body = [&CANCEL.to_be_bytes()[..], &7_i32.to_be_bytes(), &vec![9; len]].concat();
            let secret = Bytes::from(vec![9; len]);
            let read = FirstPacket::read(&body);
            assert_eq!(read.is_ok(), is_read, "{len}");
            assert!(!is_read || read == Ok(FirstPacket::Cancel { pid: 7, secret }), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(body in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = FirstPacket::read(&body);
        }

        #[test]
        fn escaped_words_are_split_again(words in prop::collection::vec(r"[a-z \\=.]{1,8}", 0..6)) {
            let text: Vec<String> = words.iter().map(|word| escape(word)).collect();
            prop_assert_eq!(split(&text.join(" ")), words);
        }
    }
}
