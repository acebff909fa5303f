//! A table of results, for a terminal or for a document.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// The heading.
    pub name: String,
    /// Whether it holds numbers, which are aligned to the right.
    pub is_numeric: bool,
}

impl TableColumn {
    /// Returns a column. Numbers are aligned to the right, and texts to the left.
    pub fn new(name: impl Into<String>, is_numeric: bool) -> Self {
        Self { name: name.into(), is_numeric }
    }
}

/// The contents of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableData {
    /// The columns from left to right.
    pub columns: Vec<TableColumn>,
    /// The texts of the cells, with one cell for each column in a row.
    pub rows: Vec<Vec<String>>,
}

impl TableData {
    /// Formats the data as a table for a terminal. Where standard output is a terminal that is too
    /// narrow, the longest texts continue on further lines.
    pub fn table(self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        // A terminal without a size, as under `script`, says that it has no columns.
        if table.width() != Some(0) {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        table.set_header(self.columns.iter().map(|column| &column.name));

        for row in self.rows {
            table.add_row(row);
        }

        for (index, _) in self.columns.iter().enumerate().filter(|(_, column)| column.is_numeric) {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }

        table
    }

    /// Formats the data as a Markdown table: the names of the columns, a line of delimiters that
    /// also align the columns, and the rows.
    pub fn markdown(self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let delimiter = |column: &TableColumn| if column.is_numeric { "--:" } else { "---" }.to_owned();
        let names = self.columns.iter().map(|column| column.name.clone()).collect();
        let delimiters = self.columns.iter().map(delimiter).collect();

        let mut text = line(names);
        text.push_str(&line(delimiters));

        for row in self.rows {
            text.push_str(&line(row));
        }

        text
    }
}
