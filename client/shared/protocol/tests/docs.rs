//! The vectors of credentials in the documentation are what the code makes and reads.

use fence_protocol::{FencingToken, credential};

const TOKEN_PAGE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/fencing-token.md");

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
