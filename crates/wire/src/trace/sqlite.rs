//! Tables of an SQLite database, read from its bytes.
//!
//! Only what an export needs: the schema, and all rows of a table by column. SQLite itself (rusqlite, bundled) was the
//! alternative: a C library in the release build, a file instead of bytes, and a second language that parses what comes from
//! outside, for three full scans. What it would do and this does not is refused by name: UTF-16 text, tables without row
//! ids, changes that are still in a `-wal` file beside the database (those nobody can see in these bytes).
//! Format: <https://www.sqlite.org/fileformat2.html>.

use std::borrow::Cow;

use super::TraceError;

/// What a database begins with.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";

/// One value of a row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Cell<'a> {
    Null,
    Int(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Blob,
}

impl Cell<'_> {
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Cell::Int(n) => Some(*n),
            Cell::Real(n) => Some(*n as i64),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Cell::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A table as the schema has it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Table {
    pub name: String,
    root: u32,
    columns: Vec<String>,
    /// The column that is the row id itself, and is stored as null.
    row_id: Option<usize>,
    has_row_ids: bool,
}

impl Table {
    /// Is there a column of this name?
    pub(crate) fn has(&self, column: &str) -> bool {
        self.place(column).is_some()
    }

    fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|name| name.eq_ignore_ascii_case(column))
    }
}

/// A database whose head makes sense.
pub(crate) struct Database<'a> {
    bytes: &'a [u8],
    page_bytes: usize,
    /// Of a page, without what is reserved at its end.
    usable: usize,
}

fn broken(what: impl Into<String>) -> TraceError {
    TraceError::Sqlite { what: what.into() }
}

impl<'a> Database<'a> {
    /// Looks at the head.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Database<'a>, TraceError> {
        let head = bytes.get(..100).filter(|head| head.starts_with(MAGIC));
        let head = head.ok_or_else(|| broken("expected a head of 100 bytes"))?;
        let page_bytes = match u16::from_be_bytes([head[16], head[17]]) {
            1 => 65_536,
            bytes if bytes >= 512 && bytes.is_power_of_two() => usize::from(bytes),
            bytes => return Err(broken(format!("a page of {bytes} bytes"))),
        };
        match u32::from_be_bytes([head[56], head[57], head[58], head[59]]) {
            0 | 1 => {}
            _ => return Err(broken("its text is UTF-16; export it as UTF-8")),
        }
        let usable = page_bytes - usize::from(head[20]);
        if usable < 480 {
            return Err(broken("pages with too little room"));
        }
        Ok(Database { bytes, page_bytes, usable })
    }

    /// The tables of the schema.
    pub(crate) fn tables(&self) -> Result<Vec<Table>, TraceError> {
        let schema = Table {
            name: "sqlite_schema".into(),
            root: 1,
            columns: ["type", "name", "tbl_name", "rootpage", "sql"].map(str::to_owned).to_vec(),
            row_id: None,
            has_row_ids: true,
        };
        let mut tables = Vec::new();
        self.rows(&schema, &["type", "name", "rootpage", "sql"], |row| {
            let [kind, name, root, sql] = row else { return };
            let (Some("table"), Some(name), Some(sql)) = (kind.text(), name.text(), sql.text()) else {
                return;
            };
            let root = root.int().and_then(|root| u32::try_from(root).ok()).unwrap_or(0);
            let (columns, row_id, has_row_ids) = columns(sql);
            tables.push(Table { name: name.to_owned(), root, columns, row_id, has_row_ids });
        })?;
        Ok(tables)
    }

    /// Hands every row to `each`, with the columns asked for; null where the table lacks one.
    pub(crate) fn rows(
        &self,
        table: &Table,
        wanted: &[&str],
        mut each: impl FnMut(&[Cell<'_>]),
    ) -> Result<(), TraceError> {
        if !table.has_row_ids {
            return Err(broken(format!("table {} has no row ids, which is not read", table.name)));
        }
        let places: Vec<Option<usize>> = wanted.iter().map(|column| table.place(column)).collect();
        let mut pages = vec![table.root];
        // A page belongs to one place of one tree: more than there are is a loop.
        let mut left = self.bytes.len() / self.page_bytes + 1;
        while let Some(number) = pages.pop() {
            left = left
                .checked_sub(1)
                .ok_or_else(|| broken(format!("table {}: pages in a loop", table.name)))?;
            let page = self.page(number)?;
            let from = if number == 1 { 100 } else { 0 };
            let kind = *page.get(from).unwrap_or(&0);
            let cells = usize::from(short(page, from + 3)?);
            match kind {
                0x0d => {
                    for at in 0..cells {
                        let cell = usize::from(short(page, from + 8 + 2 * at)?);
                        self.leaf(page, cell, table, &places, &mut each)?;
                    }
                }
                0x05 => {
                    // The stack turns the order round: the last child first.
                    pages.push(long(page, from + 8)?);
                    for at in (0..cells).rev() {
                        let cell = usize::from(short(page, from + 12 + 2 * at)?);
                        pages.push(long(page, cell)?);
                    }
                }
                other => return Err(broken(format!("table {}: a page of kind {other}", table.name))),
            }
        }
        Ok(())
    }

    fn page(&self, number: u32) -> Result<&'a [u8], TraceError> {
        let from = (number as usize).checked_sub(1).and_then(|n| n.checked_mul(self.page_bytes));
        let page = from.and_then(|from| self.bytes.get(from..from + self.page_bytes));
        page.ok_or_else(|| broken(format!("page {number} is not there; the file is cut off")))
    }

    fn leaf(
        &self,
        page: &'a [u8],
        cell: usize,
        table: &Table,
        places: &[Option<usize>],
        each: &mut impl FnMut(&[Cell<'_>]),
    ) -> Result<(), TraceError> {
        let mut bytes = page.get(cell..).ok_or_else(|| broken("a cell outside its page"))?;
        let size = usize::try_from(varint(&mut bytes)?).map_err(|_| broken("a row's size"))?;
        let row_id = varint(&mut bytes)? as i64;
        let payload = self.payload(bytes, size)?;
        let row = record(&payload, places, table.row_id.map(|column| (column, row_id)))?;
        each(&row);
        Ok(())
    }

    /// The payload of a cell: all of it here, or its head here and the rest on a chain of pages.
    fn payload(&self, bytes: &'a [u8], size: usize) -> Result<Cow<'a, [u8]>, TraceError> {
        let most = self.usable - 35;
        if size <= most {
            return bytes.get(..size).map(Cow::Borrowed).ok_or_else(|| broken("a row outside its page"));
        }
        if size > self.bytes.len() {
            return Err(broken("a row larger than the file"));
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let local = least + (size - least) % (self.usable - 4);
        let local = if local <= most { local } else { least };
        let here = bytes.get(..local).ok_or_else(|| broken("a row outside its page"))?;
        let mut whole = Vec::with_capacity(size);
        whole.extend_from_slice(here);
        let mut next = long(bytes, local)?;
        while whole.len() < size {
            let page = self.page(next)?;
            let room = (size - whole.len()).min(self.usable - 4);
            whole.extend_from_slice(&page[4..4 + room]);
            next = long(page, 0)?;
        }
        Ok(Cow::Owned(whole))
    }
}

fn short(bytes: &[u8], at: usize) -> Result<u16, TraceError> {
    let two = bytes.get(at..at + 2).ok_or_else(|| broken("a number outside its page"))?;
    Ok(u16::from_be_bytes([two[0], two[1]]))
}

fn long(bytes: &[u8], at: usize) -> Result<u32, TraceError> {
    let four = bytes.get(at..at + 4).ok_or_else(|| broken("a number outside its page"))?;
    Ok(u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
}

/// SQLite's varint: big-endian, seven bits a byte, eight in the ninth.
fn varint(bytes: &mut &[u8]) -> Result<u64, TraceError> {
    let mut value = 0u64;
    for place in 0..9 {
        let (byte, rest) = bytes.split_first().ok_or_else(|| broken("a number that ends early"))?;
        *bytes = rest;
        if place == 8 {
            return Ok(value << 8 | u64::from(*byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if *byte < 0x80 {
            break;
        }
    }
    Ok(value)
}

/// The columns asked for of one record.
fn record<'p>(
    payload: &'p [u8],
    places: &[Option<usize>],
    row_id: Option<(usize, i64)>,
) -> Result<Vec<Cell<'p>>, TraceError> {
    let mut row = vec![Cell::Null; places.len()];
    let mut head = payload;
    let head_len = varint(&mut head)?;
    let head_len = usize::try_from(head_len).ok().filter(|len| *len <= payload.len());
    let head_len = head_len.ok_or_else(|| broken("a record's head outside the record"))?;
    let mut types = head.get(..head_len.saturating_sub(payload.len() - head.len())).unwrap_or_default();
    let mut values = &payload[head_len..];
    let mut column = 0;
    while !types.is_empty() {
        let kind = varint(&mut types)?;
        let len = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return Err(broken("a value of a reserved kind")),
            text_or_blob => usize::try_from((text_or_blob - 12) / 2).unwrap_or(usize::MAX),
        };
        let (bytes, rest) =
            values.split_at_checked(len).ok_or_else(|| broken("a value outside its record"))?;
        values = rest;
        for (cell, _) in row.iter_mut().zip(places).filter(|(_, place)| **place == Some(column)) {
            *cell = value(kind, bytes);
        }
        column += 1;
    }
    if let Some((column, id)) = row_id {
        for (cell, _) in row.iter_mut().zip(places).filter(|(_, place)| **place == Some(column)) {
            *cell = Cell::Int(id);
        }
    }
    Ok(row)
}

fn value(kind: u64, bytes: &[u8]) -> Cell<'_> {
    match kind {
        0 => Cell::Null,
        8 => Cell::Int(0),
        9 => Cell::Int(1),
        7 => Cell::Real(f64::from_be_bytes(bytes.try_into().unwrap_or_default())),
        1..=6 => {
            let sign = bytes.first().map_or(0, |first| if *first >= 0x80 { -1i64 } else { 0 });
            Cell::Int(bytes.iter().fold(sign, |value, byte| value << 8 | i64::from(*byte)))
        }
        odd if odd % 2 == 1 => Cell::Text(String::from_utf8_lossy(bytes)),
        _ => Cell::Blob,
    }
}

/// Names of the columns of a `CREATE TABLE`, which of them is the row id, and whether the table has row ids at all.
fn columns(sql: &str) -> (Vec<String>, Option<usize>, bool) {
    let (Some(from), Some(to)) = (sql.find('('), sql.rfind(')')) else { return (Vec::new(), None, true) };
    let has_row_ids = !sql[to..].to_ascii_uppercase().contains("WITHOUT ROWID");
    let (mut columns, mut row_id) = (Vec::new(), None);
    for part in parts(sql.get(from + 1..to).unwrap_or_default()) {
        let part = part.trim();
        let (name, rest) = name(part);
        let is_constraint = ["PRIMARY", "FOREIGN", "UNIQUE", "CHECK", "CONSTRAINT"];
        if !part.starts_with(['"', '[', '`'])
            && is_constraint.iter().any(|word| name.eq_ignore_ascii_case(word))
        {
            continue;
        }
        let words: Vec<String> = rest.split_whitespace().map(str::to_ascii_uppercase).collect();
        if words.first().is_some_and(|kind| kind == "INTEGER")
            && words.windows(2).any(|two| two == ["PRIMARY", "KEY"])
        {
            row_id = Some(columns.len());
        }
        columns.push(name.to_owned());
    }
    (columns, row_id, has_row_ids)
}

/// What stands between commas outside parentheses and quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut from, mut depth, mut quote) = (Vec::new(), 0, 0usize, None);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'' | '`') => quote = Some(letter),
            (None, '[') => quote = Some(']'),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// The name that a definition begins with, without its quotes, and the rest.
fn name(part: &str) -> (&str, &str) {
    let close = match part.chars().next() {
        Some(quote @ ('"' | '`')) => Some(quote),
        Some('[') => Some(']'),
        _ => None,
    };
    match close {
        Some(close) => part[1..].split_once(close).unwrap_or((&part[1..], "")),
        None => part.split_once(char::is_whitespace).unwrap_or((part, "")),
    }
}
