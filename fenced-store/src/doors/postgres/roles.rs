//! Roles of clients: a writer that could act on the fence, or leave work behind that outlives its
//! session, is none.

use super::PortSettings;
use super::server::{Row, ServerError};
use crate::stores::postgres::pack::RISKS;

/// Makes the query of each role, with a risk of it and another writer that it is a member of.
pub(super) fn query(settings: &PortSettings) -> String {
    let writers: Vec<String> =
        settings.writers.iter().map(|writer| literal(&writer.user)).collect();
    let reader = settings.reader.as_deref().map(literal);
    let all: Vec<String> = reader.into_iter().chain(writers.iter().cloned()).collect();
    let [all, writers] = [all, writers].map(|roles| roles.join(","));
    format!(
        "SELECT n.role, r.oid IS NOT NULL, string_agg(DISTINCT k.reason, ' and ' ORDER BY \
         k.reason), min(w.rolname) FROM unnest(ARRAY[{all}]) n(role) \
         LEFT JOIN pg_roles r ON r.rolname = n.role LEFT JOIN ({RISKS}) k ON k.role = r.oid \
         LEFT JOIN pg_roles w ON w.rolname = ANY(ARRAY[{writers}]) AND w.oid <> r.oid \
         AND pg_has_role(r.oid, w.oid, 'MEMBER') GROUP BY n.role, r.oid ORDER BY n.role"
    )
}

/// Returns a name as a text of SQL.
fn literal(name: &str) -> String {
    format!("'{}'", name.replace('\'', "''"))
}

/// Checks the rows of the [`query`].
///
/// # Errors
/// A role that may not be a client's, with the remedy.
pub(super) fn judge(rows: &[Row]) -> Result<(), ServerError> {
    for row in rows {
        let text = |index: usize| row.get(index).and_then(Option::as_deref);
        let role = text(0).unwrap_or_default();
        let flaw = match (text(1), text(2), text(3)) {
            (Some("t"), None, None) => continue,
            (Some("t"), Some(reasons), _) => format!(
                "role {role} could act on the fence: it {reasons}; revoke that, or name another \
                 role"
            ),
            (Some("t"), None, Some(other)) => {
                format!("role {role} is a member of {other}, and could write without its token")
            }
            _ => format!("role {role} does not exist"),
        };
        return Err(ServerError::Broken(flaw));
    }
    Ok(())
}
