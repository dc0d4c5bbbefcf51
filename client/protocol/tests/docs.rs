//! The table of errors and the vectors of credentials in the documentation say what the code does.

use fence_protocol::{Code, FencingToken, credential};

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

const TOKEN_PAGE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/fencing-token.md");

#[test]
fn published_credentials_are_what_the_code_makes_and_reads() {
    let page = std::fs::read_to_string(TOKEN_PAGE).unwrap();
    let (_, section) = page.split_once("## As a credential").unwrap();
    let (_, section) = section.split_once("### Vectors").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let blocks: Vec<Vec<&str>> =
        section.split("```").skip(1).step_by(2).map(|b| b.lines().skip(1).collect()).collect();

    let mut tokens = Vec::new();
    for block in blocks.iter().filter(|block| block.len() == 2) {
        let token: FencingToken = block[0].parse().unwrap();
        assert_eq!(token.to_string(), block[0]);
        assert_eq!(token.credential(), block[1]);
        assert_eq!(credential::parse(block[1]).as_deref(), Ok(std::slice::from_ref(&token)));
        assert_eq!(credential::parse(block[0]).as_deref(), Ok(std::slice::from_ref(&token)));
        tokens.push(token);
    }
    let joined = blocks.iter().find(|block| block.len() == 1).unwrap()[0];
    assert_eq!((tokens.len(), credential::parse(joined).unwrap()), (2, tokens));

    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let mut refused = 0;
    for (text, reason) in rows.map(|row| row.split_once("` | ").unwrap()) {
        let error = credential::parse(text).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
        refused += 1;
    }
    assert!(refused >= 5, "{refused} rows of what is refused");
}
