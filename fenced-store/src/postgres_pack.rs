//! The command `fenced-store postgres`: installs, removes and shows the SQL pack.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the terminal is the interface")]

use std::process::ExitCode;

use fence_protocol::{KeyId, Keyring};
use postgres_link::{ConnectOptions, PostgresConnection, PostgresTarget};
use service_kit::Kit;
use service_kit::config::USAGE_EXIT_CODE;
use tokio_postgres::SimpleQueryMessage;

use crate::config::{Config, DatabaseFlags, InstallFlags, PackAction};
use crate::stores::postgres::pack;
use crate::stores::postgres::pack::{Installation, Secret};

/// Runs the command; returns its exit code.
pub(crate) fn run(config: &Config, action: &PackAction) -> ExitCode {
    let prepared = match action {
        PackAction::Install(flags) => {
            installation(config, flags).map(|made| (&flags.database, made.sql(true), made))
        }
        PackAction::Uninstall(flags) => Ok((flags, pack::uninstall_sql(), Installation::default())),
        PackAction::Status(flags) => {
            Ok((flags, "select * from fence.status();\n".to_owned(), Installation::default()))
        }
    };
    let (flags, statements, installation) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return usage(&error),
    };
    if flags.dry_run {
        match action {
            PackAction::Install(_) => print!("{}", installation.sql(false)),
            _ => print!("{statements}"),
        }
        return ExitCode::SUCCESS;
    }
    let target = match target(config, flags) {
        Ok(target) => target,
        Err(error) => return usage(&error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("the runtime cannot start: {error}")),
    };
    match runtime.block_on(execute(&target, &statements)) {
        Err(error) => failed(&error),
        Ok(rows) => report(action, &rows),
    }
}

fn report(action: &PackAction, rows: &[(String, String)]) -> ExitCode {
    match action {
        PackAction::Install(flags) => {
            let tables = flags.table.len();
            println!("the pack has version {} and guards {tables} more tables", pack::VERSION);
        }
        PackAction::Uninstall(_) => println!("the pack is removed, and its marks with it"),
        PackAction::Status(_) => {
            for (item, value) in rows {
                println!("{item}: {value}");
            }
            if rows.iter().any(|(item, _)| ["GAP", "BLOCKED"].contains(&item.as_str())) {
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn installation(config: &Config, flags: &InstallFlags) -> Result<Installation, String> {
    if flags.table.len() != flags.lock.len() {
        return Err("each --table needs its --lock, and each --lock its --table".to_owned());
    }
    let keys = match &config.keys.token_key_file {
        Some(_) => keys(config)?,
        None if flags.client.is_empty() || config.keys.unsigned => Vec::new(),
        None => {
            return Err("--client needs --token-key-file, or --unsigned, before the word \
                        postgres"
                .to_owned());
        }
    };
    let tables = flags.table.iter().cloned().zip(flags.lock.iter().cloned());
    Ok(Installation {
        tables: tables.collect(),
        namespace: config.namespace.clone(),
        clients: flags.client.clone(),
        guards: flags.guard.clone(),
        keys,
    })
}

/// Reads the keys; the file is checked as a guard checks it.
fn keys(config: &Config) -> Result<Vec<(KeyId, Secret)>, String> {
    config.keys.keys()?;
    let Some(file) = &config.keys.token_key_file else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    Keyring::parse(&text).map_err(|error| error.to_string())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once(':'));
    pairs
        .map(|(kid, key)| {
            let kid = KeyId::new(kid).map_err(|error| error.to_string())?;
            Ok((kid, Secret(key.to_owned())))
        })
        .collect()
}

fn target(config: &Config, flags: &DatabaseFlags) -> Result<PostgresTarget, String> {
    let target: PostgresTarget =
        flags.database.parse().map_err(|error| format!("--database cannot be used: {error}"))?;
    target.with_login(&config.store.login.login()?)
}

/// Runs statements; returns the rows of two columns.
async fn execute(
    target: &PostgresTarget,
    statements: &str,
) -> Result<Vec<(String, String)>, String> {
    let kit = Kit::new("fenced-store");
    let options = ConnectOptions::default();
    let connection: PostgresConnection = target.connect(&options, &kit.tasks).await?;
    let replies = connection.client().simple_query(statements).await;
    let replies = replies.map_err(|error| match error.as_db_error() {
        Some(refused) => {
            let hint = refused.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            format!("{} ({}){hint}", refused.message(), refused.code().code())
        }
        None => format!("{error}: nothing is certain; run the command again"),
    })?;
    let rows = replies.iter().filter_map(|reply| match reply {
        SimpleQueryMessage::Row(row) if row.len() == 2 => {
            Some((row.get(0)?.to_owned(), row.get(1)?.to_owned()))
        }
        _ => None,
    });
    Ok(rows.collect())
}

fn usage(error: &str) -> ExitCode {
    eprintln!("fenced-store: {error}\nSee fenced-store postgres --help.");
    ExitCode::from(USAGE_EXIT_CODE)
}

fn failed(error: &str) -> ExitCode {
    eprintln!("fenced-store: {error}");
    ExitCode::FAILURE
}
