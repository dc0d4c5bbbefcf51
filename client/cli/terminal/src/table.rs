//! Plain tables: columns as wide as their widest value, two spaces between.

use std::fmt::Display;

/// Lines of `name  value`.
#[derive(Debug, Default)]
pub struct Facts(Vec<(String, String)>);

impl Facts {
    /// A table without lines.
    pub fn new() -> Self {
        Self::default()
    }

    /// The table with one more line.
    pub fn fact(mut self, name: &str, value: impl ToString) -> Self {
        self.0.push((name.to_owned(), value.to_string()));
        self
    }

    /// The table with one more line, if there is a value for it.
    pub fn fact_if_some(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.fact(name, value),
            None => self,
        }
    }

    /// The lines, each ended by a newline.
    pub fn text(self) -> String {
        let rows = self.0.into_iter().map(|(name, value)| vec![name, value]).collect();
        aligned(rows)
    }
}

/// A table with a heading. Without rows it says so.
pub fn listing<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut all = vec![heading.map(str::to_owned).to_vec()];
    all.extend(rows.into_iter().map(|row| row.to_vec()));
    if all.len() == 1 { "(none)\n".to_owned() } else { aligned(all) }
}

/// A page of a listing, with the flag for the next page if there is one.
pub fn paged_listing<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    next_after: Option<&impl Display>,
) -> String {
    let more = next_after.map(|after| format!("more: --after {after}\n"));
    listing(heading, rows) + &more.unwrap_or_default()
}

/// The value, or a dash where there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn aligned(rows: Vec<Vec<String>>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = Facts::new().fact("lock", "a").fact("token", 34).text();
        assert_eq!(text, "lock   a\ntoken  34\n");
        let rows = [["orders/42".to_owned(), "7".to_owned()]];
        assert_eq!(listing(["LOCK", "TOKEN"], rows), "LOCK       TOKEN\norders/42  7\n");
        assert_eq!(listing(["LOCK"], []), "(none)\n");
    }

    #[test]
    fn a_value_that_is_missing_has_no_line_or_a_dash() {
        let mode: Option<&str> = None;
        assert_eq!(
            Facts::new().fact_if_some("mode", mode).fact_if_some("n", Some(7)).text(),
            "n  7\n"
        );
        assert_eq!((or_dash(mode), or_dash(Some(7))), ("-".to_owned(), "7".to_owned()));
    }

    #[test]
    fn a_page_names_the_next_one() {
        let rows = || [["a".to_owned()]];
        assert_eq!(paged_listing(["LOCK"], rows(), Some(&"a")), "LOCK\na\nmore: --after a\n");
        assert_eq!(paged_listing(["LOCK"], rows(), None::<&String>), "LOCK\na\n");
    }
}
