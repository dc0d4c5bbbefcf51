//! Plain tables: columns as wide as their widest value, two spaces between.

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
}
