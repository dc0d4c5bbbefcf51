use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;

use super::*;

#[derive(Debug, Parser, PartialEq)]
#[command(name = "server", version = "1.2.3")]
struct Args {
    #[arg(long, default_value = "127.0.0.1:7420")]
    listen: std::net::SocketAddr,
    #[arg(long)]
    store: String,
    #[arg(long, default_value_t = 15_000)]
    ttl_max_ms: u64,
    #[arg(long)]
    rule: Vec<String>,
    #[arg(long, conflicts_with = "token_key_file")]
    unsigned: bool,
    #[arg(long)]
    token_key_file: Option<PathBuf>,
    #[arg(long, alias = "secret")]
    token: Option<u32>,
    #[arg(long, value_enum, default_value_t)]
    log_format: crate::telemetry::LogFormat,
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Sub>,
}

#[derive(Debug, clap::Subcommand, PartialEq)]
enum Sub {
    Init {
        #[arg(long)]
        fresh: bool,
    },
}

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (format!("SRV_{name}"), (*value).to_owned())).collect()
}

fn parse_words(words: &str, env: &dyn Env) -> Result<Args, ConfigError> {
    let args = std::iter::once("server").chain(words.split_whitespace()).map(OsString::from);
    parse("SRV", args, env)
}

fn errors(words: &str, env: &dyn Env) -> Vec<String> {
    let error = parse_words(words, env).unwrap_err();
    assert_eq!(error.exit_code(), USAGE_EXIT_CODE);
    error.errors()
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("server.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

#[test]
fn the_highest_layer_wins() {
    let text = "store = 'file'\nttl_max_ms = 1\nlisten = '127.0.0.1:1'\nlog-format = 'json'";
    let (_dir, path) = file(text);
    let env = env(&[("CONFIG", &path), ("TTL_MAX_MS", "2"), ("LISTEN", "127.0.0.1:2")]);
    let args = parse_words("--listen 127.0.0.1:3", &env).unwrap();
    assert_eq!(args.listen.port(), 3, "flag over variable");
    assert_eq!(args.ttl_max_ms, 2, "variable over file");
    assert_eq!(args.store, "file", "file over nothing");
    assert_eq!(args.log_format, crate::telemetry::LogFormat::Json, "file over default");
    assert!(!args.unsigned);
    // The flag wins even when it says what the default says.
    let args = parse_words("--ttl-max-ms 15000", &env).unwrap();
    assert_eq!(args.ttl_max_ms, 15_000);
}

#[test]
fn lists_and_switches_come_from_every_layer() {
    let (_dir, path) = file("store = 's'\nrule = ['a=b', 'c=d']\nunsigned = true");
    let flag = format!("--config {path}");
    let args = parse_words(&flag, &env(&[])).unwrap();
    assert_eq!((args.rule, args.unsigned), (vec!["a=b".to_owned(), "c=d".to_owned()], true));
    let higher = env(&[("RULE", "x=y; z=;"), ("UNSIGNED", "false")]);
    let args = parse_words(&flag, &higher).unwrap();
    assert_eq!((args.rule, args.unsigned), (vec!["x=y".to_owned(), "z=".to_owned()], false));
    let args = parse_words(&format!("{flag} --rule q"), &higher).unwrap();
    assert_eq!(args.rule, ["q"], "layers replace each other, they do not mix");
}

#[test]
fn every_wrong_setting_is_reported_with_its_origin() {
    let (_dir, path) = file("rule = 'one'\nlog-format = 'xml'\nunsinged = true\n[table]\nx = 1");
    let env = env(&[("TTL_MAX_MS", "soon"), ("UNSIGNED", "maybe"), ("TOKEN", "-1")]);
    let found = errors(&format!("--listen nowhere --config {path}"), &env);
    for part in [
        "command line: \"nowhere\" is not valid for --listen: invalid socket address syntax",
        "variable SRV_TTL_MAX_MS: \"soon\" is not valid for --ttl-max-ms: invalid digit",
        "variable SRV_UNSIGNED: \"maybe\" is not valid for --unsigned: write true or false",
        "variable SRV_TOKEN: \"-1\" is not valid for --token",
        &format!(
            "file {path}, key log-format: \"xml\" is not valid for --log-format: write text or json"
        ),
        &format!("file {path}, key unsinged: there is no such setting; did you mean unsigned?"),
        &format!("file {path}, key table: there is no such setting; --help lists them all"),
        "--store is missing: give the flag, the variable SRV_STORE, or the key store",
    ] {
        assert!(found.iter().any(|error| error.contains(part)), "{part}\nis not in\n{found:#?}");
    }
    assert_eq!(found.len(), 8, "{found:#?}");
}

#[test]
fn a_file_named_by_a_variable_holds_the_value() {
    let (_dir, path) = file("42\n");
    let args = parse_words("--store s", &env(&[("TOKEN_FILE", &path)])).unwrap();
    assert_eq!(args.token, Some(42));
    let both = errors("--store s", &env(&[("TOKEN_FILE", &path), ("TOKEN", "1")]));
    assert_eq!(both, ["variables SRV_TOKEN and SRV_TOKEN_FILE are both set; unset one of them"]);
    let gone = errors("--store s", &env(&[("TOKEN_FILE", "/nowhere/secret")]));
    assert!(gone[0].starts_with("variable SRV_TOKEN_FILE: file /nowhere/secret cannot be read"));
    let (_dir, secret) = file("hunter2");
    let wrong = errors("--store s", &env(&[("TOKEN_FILE", &secret)]));
    assert!(wrong[0].contains("its content is not valid for --token"), "{wrong:?}");
    assert!(!wrong[0].contains("hunter2"), "a secret is not repeated: {wrong:?}");
}

#[test]
fn a_former_name_is_read_in_every_layer() {
    let (_dir, path) = file("secret = 3");
    for (words, variables) in [
        ("--store s --secret 3", env(&[])),
        ("--store s", env(&[("SECRET", "3")])),
        ("--store s", env(&[("SECRET", "3"), ("TOKEN", "3")])),
        ("--store s", env(&[("CONFIG", &path)])),
    ] {
        assert_eq!(parse_words(words, &variables).unwrap().token, Some(3), "{words}");
        assert!(unknown_variables::<Args>("SRV", &[], &variables).is_empty());
    }
    let (_dir, twice) = file("secret = 3\ntoken = 3");
    assert!(errors("--store s", &env(&[("CONFIG", &twice)]))[0].contains("another key"));
    let both = errors("--store s", &env(&[("SECRET", "4"), ("TOKEN", "3")]));
    assert!(both[0].contains("variable SRV_TOKEN and variable SRV_SECRET"), "{both:?}");
}

#[test]
fn a_flag_whose_name_ends_in_file_keeps_its_variable() {
    let args = parse_words("--store s", &env(&[("TOKEN_KEY_FILE", "/etc/keys")])).unwrap();
    assert_eq!(args.token_key_file, Some(PathBuf::from("/etc/keys")));
    assert_eq!(args.token, None);
}

#[test]
fn settings_that_exclude_each_other_are_reported_with_origins() {
    let env_ = env(&[("TOKEN_KEY_FILE", "/etc/keys")]);
    let found = errors("--store s --unsigned", &env_);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("cannot be used with"), "{found:?}");
    assert!(
        found[0].contains("--token-key-file comes from variable SRV_TOKEN_KEY_FILE"),
        "{found:?}"
    );
    let both = env(&[("TOKEN_KEY_FILE", "/etc/keys"), ("TTL_MAX_MS", "x")]);
    assert_eq!(errors("--store s --unsigned", &both).len(), 2);
}

#[test]
fn files_that_cannot_be_used_are_reported() {
    let gone = errors("--store s --config /nowhere/server.toml", &env(&[]));
    assert!(gone[0].starts_with("file /nowhere/server.toml cannot be read: No such"), "{gone:?}");
    let (_dir, path) = file("store = ");
    let broken = errors(&format!("--store s --config {path}"), &env(&[]));
    assert!(broken[0].contains("is not TOML"), "{broken:?}");
    let (_dir, path) = file("store = 's'\nttl-max-ms = 1\nttl_max_ms = 2\nconfig = 'x'");
    let twice = errors(&format!("--config {path}"), &env(&[]));
    assert_eq!(twice.len(), 2, "{twice:?}");
    let (_dir, path) = file("store = ['s']\nrule = [['a']]");
    let shapes = errors(&format!("--config {path}"), &env(&[]));
    assert!(shapes.iter().any(|e| e.contains("key store: takes one value, not an array")));
    assert!(shapes.iter().any(|e| e.contains("key rule: takes no array inside an array")));
}

#[test]
fn empty_variables_are_not_set_and_unknown_ones_are_listed() {
    let env = env(&[("TTL_MAX_MS", ""), ("TTL_MAKS", "1"), ("TOKEN_FILE", ""), ("STORE", "s")]);
    assert_eq!(parse_words("", &env).unwrap().ttl_max_ms, 15_000);
    assert_eq!(unknown_variables::<Args>("SRV", &[], &env), ["SRV_TTL_MAKS"]);
}

#[test]
fn the_layers_reach_the_top_when_a_subcommand_is_given() {
    let args = parse_words("--ttl-max-ms 7 init --fresh", &env(&[("STORE", "s")])).unwrap();
    assert_eq!((args.store.as_str(), args.ttl_max_ms), ("s", 7));
    assert_eq!(args.command, Some(Sub::Init { fresh: true }));
}

#[test]
fn help_and_version_pass_and_unknown_flags_do_not() {
    for words in ["--help", "--version", "init --help"] {
        assert_eq!(parse_words(words, &env(&[])).unwrap_err().exit_code(), 0, "{words}");
    }
    let found = errors("--stoer s", &env(&[]));
    assert!(found[0].contains("unexpected argument '--stoer'"), "{found:?}");
    assert!(found[0].contains("--store"), "{found:?}");
}

#[derive(Debug, Parser, PartialEq)]
#[command(name = "tool")]
struct Tool {
    #[arg(long)]
    output: Option<String>,
    #[arg(long, global = true)]
    depth: Option<u8>,
    #[command(subcommand)]
    command: ToolCommand,
}

#[derive(Debug, clap::Subcommand, PartialEq)]
enum ToolCommand {
    Serve {
        #[arg(long)]
        dir: Option<String>,
        #[arg(long)]
        port: u16,
    },
    Show {
        name: String,
    },
}

#[test]
fn the_flags_may_belong_to_a_subcommand() {
    let parse = |words: &str, env: &BTreeMap<String, String>| {
        let args = words.split_whitespace().map(OsString::from);
        parse_at::<Tool>("SRV", &["serve"], args, env)
    };
    let env = env(&[("DIR", "d"), ("PORT", "7"), ("OUTPUT", "ignored")]);
    let want = |dir: &str, port| ToolCommand::Serve { dir: Some(dir.to_owned()), port };
    // A value that reads like the subcommand is not taken for it.
    let tool = parse("tool --output serve serve --port 8", &env).unwrap();
    let output = Some("serve".to_owned());
    assert_eq!(tool, Tool { output, depth: None, command: want("d", 8) });
    assert_eq!(parse("tool serve --dir x", &env).unwrap().command, want("x", 7));
    let show = parse("tool show serve", &env).unwrap();
    assert_eq!(show.command, ToolCommand::Show { name: "serve".to_owned() });
    let error = parse("tool serve", &BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("--port is missing"), "{error}");
    assert_eq!(parse("tool", &env).unwrap_err().exit_code(), USAGE_EXIT_CODE);
}

#[test]
fn a_global_flag_has_layers_below_its_command() {
    let parse = |words: &str, depth: &str| {
        let args = words.split_whitespace().map(OsString::from);
        parse_at::<Tool>("SRV", &["serve"], args, &env(&[("PORT", "7"), ("DEPTH", depth)]))
    };
    let wrong = parse("tool serve --dir d", "deep").unwrap_err().errors();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].starts_with("variable SRV_DEPTH: \"deep\" is not valid for --depth"));
    for words in ["tool serve --depth 2", "tool --depth 2 serve"] {
        assert_eq!(parse(words, "deep").unwrap().depth, Some(2), "flag over variable: {words}");
    }
    assert_eq!(parse("tool serve", "3").unwrap().depth, Some(3));
}

/// Variables of which one sets nothing, though a flag has its name.
struct EnvWithout(&'static str);

impl Env for EnvWithout {
    fn get(&self, _name: &str) -> Option<String> {
        None
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn sets(&self, name: &str) -> bool {
        name != self.0
    }
}

#[test]
fn a_variable_that_sets_nothing_is_not_recommended() {
    let missing = errors("", &EnvWithout("SRV_STORE"));
    let shown =
        "--store is missing: give the flag, or the key store in the file that --config names";
    assert_eq!(missing, [shown]);
}

#[test]
fn a_configuration_file_by_the_wrong_variable_is_not_shown() {
    let (_dir, path) = file("store = \"redis://u:hunter2@host\"");
    let found = errors("", &env(&[("CONFIG_FILE", &path)]));
    assert!(
        found[0].contains("SRV_CONFIG_FILE") && found[0].ends_with("by SRV_CONFIG"),
        "{found:?}"
    );
    assert!(!found.concat().contains("hunter2"), "{found:?}");
}
