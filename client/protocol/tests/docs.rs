//! The table of errors in the documentation says what the code does.

use fence_protocol::Code;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");

/// The rows of the table of codes: code, status, retryable.
fn rows(page: &str) -> Vec<[&str; 3]> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| {
        let (code, rest) = row.split_once("` | ")?;
        let mut cells = rest.split(" | ");
        let (status, retryable) = (cells.next()?, cells.next()?);
        status.parse::<u16>().is_ok().then_some([code, status, retryable])
    })
    .collect()
}

#[test]
fn errors_page_lists_every_code_as_it_is() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let expected: Vec<[String; 3]> = Code::ALL
        .iter()
        .map(|code| {
            let retryable = if code.retryable() { "yes" } else { "no" };
            [code.as_str().to_owned(), code.status().to_string(), retryable.to_owned()]
        })
        .collect();
    assert_eq!(rows(&page), expected, "docs/reference/errors.md, in the order of Code::ALL");
}
