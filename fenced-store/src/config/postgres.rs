//! Flags of `fenced-store postgres`.

use clap::{Args, Subcommand};

/// Action on the SQL pack of a PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum PackAction {
    /// Install the pack, or upgrade it in place. The flags --namespace, --token-key-file and
    /// --store-password-file stand before the word postgres.
    Install(InstallFlags),
    /// Remove the pack and its triggers. The marks are forgotten.
    Uninstall(DatabaseFlags),
    /// Print the version, the marks, the sessions and the guarded tables. Exit code 1 if a trigger
    /// is missing.
    Status(DatabaseFlags),
}

/// Login at the database as the owner of the pack.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct DatabaseFlags {
    /// Database, as the owner of the pack: postgres://USER@HOST:PORT/NAME.
    #[arg(long, value_name = "URL")]
    pub database: String,
    /// Print the statements and run nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Content of an installation.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct InstallFlags {
    /// Login at the database, and a dry run.
    #[command(flatten)]
    pub database: DatabaseFlags,
    /// Table whose changes need a token; repeatable, each with its --lock.
    #[arg(long, value_name = "NAME")]
    pub table: Vec<String>,
    /// Lock of the table, or by a column's value of each row: 'orders/{id}'.
    #[arg(long, value_name = "LOCK")]
    pub lock: Vec<String>,
    /// Role that may enter fences; repeatable. With --token-key-file by signed tokens alone.
    #[arg(long, value_name = "ROLE")]
    pub client: Vec<String>,
    /// Role of a guard, which registers its clients' sessions; repeatable.
    #[arg(long, value_name = "ROLE")]
    pub guard: Vec<String>,
}
