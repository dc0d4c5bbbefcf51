//! The codes of problems: docs/reference/errors.md.

use fence_protocol::Code;

use super::Table;

pub(super) fn tables() -> Vec<Table> {
    let rows = Code::ALL.iter().map(|code| {
        let status = code.status();
        format!("- `{code}` ({status}): {}\n", code.hint())
    });
    let rows: String = rows.collect();
    let retryable = Code::ALL.iter().filter(|code| code.retryable());
    let retryable: Vec<_> = retryable.map(|code| format!("`{code}`")).collect();
    let text = format!("{rows}\nRetryable: {}.", retryable.join(", "));
    vec![Table::new("errors", text)]
}
