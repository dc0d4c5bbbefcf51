//! The SQL pack: schema `fence` with the marks, in the database that it protects.
//!
//! Everything is text, so that the command and psql run the same statements.

use std::fmt::Write as _;

use fence_protocol::{KeyId, Namespace};

/// Version of the pack in this program, as in `fence.meta`.
pub const VERSION: i32 = 3;

/// Files of the pack, in their order. Each may be run again.
const FILES: [&str; 9] = [
    include_str!("pack/1-schema.sql"),
    include_str!("pack/2-fence.sql"),
    include_str!("pack/3-sessions.sql"),
    include_str!("pack/4-enter.sql"),
    include_str!("pack/5-triggers.sql"),
    concat!(
        "create or replace function fence.risks() returns table (role oid, reason text)\n\
         language sql stable set search_path = pg_catalog, pg_temp as $$\n",
        include_str!("pack/risks.sql"),
        "$$;\n"
    ),
    include_str!("pack/6-status.sql"),
    include_str!("pack/7-objects.sql"),
    include_str!("pack/9-rights.sql"),
];

/// Query for roles that could act on the fence, with a sentence's rest on each: by [`VERSION`], a
/// database may have none of the function.
pub(crate) const RISKS: &str = include_str!("pack/risks.sql");

/// Functions that clients call with a token as it is.
const UNSIGNED: &str = "fence.enter(text, bigint, uuid, text), \
                        fence.seal(text, bigint, uuid, text, integer)";
/// Functions that clients call with a signed header.
const SIGNED: &str = "fence.enter(text), fence.seal(text)";
/// Functions of a guard, which registers the sessions of its clients and keeps objects.
const GUARD: &str = "fence.register(text, text, bigint, uuid, integer), fence.close(), \
                     fence.abort(text, text, bigint), fence.settle(text, text), \
                     fence.set_floor(bigint), fence.status(), fence.await_seal(text, text), \
                     fence.admit_all(text, text[], bigint[], uuid[]), \
                     fence.lock_objects(text, text[]), \
                     fence.load_outcomes(text, text[], text[]), \
                     fence.store_objects(text, text[], text[], text[], text[], bytea[]), \
                     fence.store_outcomes(text, text[], text[], text[], integer[]), \
                     fence.forget_probe(text)";
/// Tables that a guard reads itself.
const READ_BY_GUARD: &str = "fence.meta, fence.marks, fence.seals, fence.objects";

/// Refuses clients without signatures where the database verifies them.
const REFUSE_UNSIGNED: &str = "do $$ begin
  if exists (select from fence.keys where kid <> '') then
    raise exception 'this database verifies signatures, and --unsigned would end that'
      using errcode = '55000', hint = 'Install with --token-key-file.';
  end if;
end $$;
";

/// Settings of an installation.
#[derive(Clone, Debug, Default)]
pub struct Installation {
    /// Tables and the patterns of their locks.
    pub tables: Vec<(String, String)>,
    /// Namespace of the tables' locks.
    pub namespace: Namespace,
    /// Roles that may enter fences.
    pub clients: Vec<String>,
    /// Roles that may register sessions.
    pub guards: Vec<String>,
    /// Keys that verify tokens, with their bytes in hexadecimal. None: unsigned.
    pub keys: Vec<(KeyId, Secret)>,
}

/// Key in hexadecimal; `Debug` hides it.
#[derive(Clone)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Returns the statements that install the pack or upgrade it, without any table, role or key.
#[must_use]
pub fn sql() -> String {
    Installation::default().sql(true)
}

/// Returns the same as a file for psql, which takes a client, a key and a table as variables.
#[must_use]
pub fn plain_file() -> String {
    let pack = sql();
    let pack = pack.strip_suffix("commit;\n").unwrap_or(&pack);
    format!(
        "-- Fencepost's pack for PostgreSQL, version {VERSION}: docs/guides/postgresql.md. Generated.
-- Run it as a superuser, or as the role that the guide describes; again, to upgrade or to add:
--   psql -f fence-pack.sql
--   psql -v client=app -v table=orders -v lock='orders/{{id}}' -f fence-pack.sql
-- Optional: namespace=default; kid=k1 and key=HEX, of the lock server's key file.
\\set ON_ERROR_STOP on
\\if :{{?namespace}} \\else
  \\set namespace default
\\endif
{pack}\\o /dev/null
\\if :{{?key}}
  select fence.set_key(:'kid', decode(:'key', 'hex'));
\\endif
\\if :{{?client}}
  select exists (select from fence.keys where kid <> '') as is_signed \\gset
  \\if :is_signed
    revoke execute on function {UNSIGNED} from :\"client\";
    grant execute on function {SIGNED} to :\"client\";
  \\else
    revoke execute on function {SIGNED} from :\"client\";
    grant execute on function {UNSIGNED} to :\"client\";
  \\endif
\\endif
\\if :{{?table}}
  select fence.guard(:'table', :'lock', :'namespace');
\\endif
\\o
commit;
"
    )
}

/// Returns the statements that remove the pack, its triggers and the marks.
#[must_use]
pub fn uninstall_sql() -> String {
    "begin;\n\
     select fence.unguard(relation) from fence.guarded;\n\
     drop schema fence cascade;\n\
     commit;\n"
        .to_owned()
}

impl Installation {
    /// Returns the statements, one transaction. Without `shows_keys`, keys are left out.
    #[must_use]
    pub fn sql(&self, shows_keys: bool) -> String {
        let mut text = String::from("begin;\nset local standard_conforming_strings = on;\n");
        text += "set local client_min_messages = warning;\n";
        text.extend(FILES);
        let mut add = |line: std::fmt::Arguments<'_>| {
            // A String takes all.
            let _ = text.write_fmt(line);
        };
        for (kid, Secret(key)) in &self.keys {
            let key = if shows_keys { key.as_str() } else { "KEY IN HEXADECIMAL" };
            add(format_args!("select fence.set_key('{kid}', '\\x{key}');\n"));
        }
        if self.keys.is_empty() && !self.clients.is_empty() {
            add(format_args!("{REFUSE_UNSIGNED}"));
        }
        for role in self.clients.iter().map(|role| name(role)) {
            let (granted, revoked) =
                if self.keys.is_empty() { (UNSIGNED, SIGNED) } else { (SIGNED, UNSIGNED) };
            add(format_args!("revoke execute on function {revoked} from {role};\n"));
            add(format_args!("grant execute on function {granted} to {role};\n"));
        }
        for role in self.guards.iter().map(|role| name(role)) {
            add(format_args!("grant execute on function {GUARD} to {role};\n"));
            add(format_args!("grant select on {READ_BY_GUARD} to {role};\n"));
            add(format_args!("grant execute on function {UNSIGNED} to {role};\n"));
        }
        for (table, lock) in &self.tables {
            let namespace = &self.namespace;
            let table = literal(table);
            let lock = literal(lock);
            add(format_args!("select fence.guard({table}, {lock}, '{namespace}');\n"));
        }
        text += "commit;\n";
        text
    }
}

/// Returns a text as SQL writes it, with `standard_conforming_strings`.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Returns a name as SQL writes it.
fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_cannot_leave_their_quotes() {
        let installation = Installation {
            tables: vec![("o'; drop table x; --".to_owned(), "a/{id}".to_owned())],
            clients: vec!["app\"; drop table x; --".to_owned()],
            ..Installation::default()
        };
        let text = installation.sql(true);
        assert!(text.contains("fence.guard('o''; drop table x; --', 'a/{id}', 'default')"));
        assert!(text.contains("to \"app\"\"; drop table x; --\";"));
    }

    #[test]
    fn a_dry_run_shows_no_key() {
        let keys = vec![("k1".parse().unwrap(), Secret("c0ffee".to_owned()))];
        let installation = Installation { keys, ..Installation::default() };
        assert!(installation.sql(true).contains("c0ffee"));
        assert!(!installation.sql(false).contains("c0ffee"));
        assert!(!format!("{installation:?}").contains("c0ffee"));
    }
}
