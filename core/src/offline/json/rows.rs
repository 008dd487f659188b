//! Rows of a column that is written out.

use super::{RecordError, scan::Scanner};
use crate::{
    column::{BytesColumn, BytesKind, Column, ColumnData, Element, RowShape},
    prelude::*,
};

/// Rows, and the dimensions that a row may have.
const MAX_DIMS: usize = RowShape::MAX_DIMS + 1;

/// Reads nested lists of numbers or truth values, or a list of anything else, which stays JSON.
pub(super) fn column(scanner: &mut Scanner<'_>, name: &str) -> Result<Column, RecordError> {
    let mut ahead = scanner.clone();
    let mut depth = 0;
    while ahead.eat(b'[') {
        depth += 1;
    }
    match ahead.peek() {
        Some(b'{' | b'"' | b'n') if depth == 1 => texts(scanner, name),
        Some(b'{' | b'"' | b'n') => Err(ragged(name, "lists of what are no numbers")),
        Some(b't' | b'f') => flags(scanner, name),
        // Lists without numbers, whose type nobody knows, are floats, as NumPy takes them.
        Some(b']') => floats(Rows::with(Vec::new()), scanner, name),
        _ => numbers(scanner, name),
    }
}

/// `infos`, where each row is any value.
pub(super) fn texts(scanner: &mut Scanner<'_>, name: &str) -> Result<Column, RecordError> {
    let mut ahead = scanner.clone();
    let (mut rows, mut bytes) = (0usize, 0usize);
    each_text(&mut ahead, name, |text| {
        rows += 1;
        bytes += text.len();
    })?;
    let (mut all, mut offsets) = (Vec::with_capacity(bytes), Vec::with_capacity(rows + 1));
    offsets.push(0);
    each_text(scanner, name, |text| {
        all.extend_from_slice(text);
        offsets.push(all.len());
    })?;
    let column = BytesColumn::from_offsets(BytesKind::Json, all, offsets);
    column.map(Column::from).map_err(|_| ragged(name, "no text"))
}

fn each_text(scanner: &mut Scanner<'_>, name: &str, mut take: impl FnMut(&[u8])) -> Result<(), RecordError> {
    scanner.expect(b'[', "'['")?;
    if scanner.eat(b']') {
        return Ok(());
    }
    loop {
        if !matches!(scanner.peek(), Some(b'{' | b'[' | b'"' | b'n')) {
            return Err(ragged(name, "single numbers among objects and texts"));
        }
        let start = scanner.at;
        // There is no JSON for what is no number.
        match scanner.skip()? {
            false => take(scanner.since(start)),
            true => take(b"null"),
        }
        if scanner.eat(b']') {
            return Ok(());
        }
        scanner.expect(b',', "',' or ']'")?;
    }
}

/// Whole numbers, as long as there are only such; then floats.
fn numbers(scanner: &mut Scanner<'_>, name: &str) -> Result<Column, RecordError> {
    let mut rows = Rows::<i64>::new(scanner);
    let whole = rows.fill(scanner, name, |scanner| Ok(scanner.whole()))?;
    if whole {
        return rows.column(name);
    }
    floats(rows.map(|number| number as f64), scanner, name)
}

fn flags(scanner: &mut Scanner<'_>, name: &str) -> Result<Column, RecordError> {
    let mut rows = Rows::<bool>::new(scanner);
    rows.fill(scanner, name, |scanner| {
        if scanner.eat_word(b"true") {
            Ok(Some(true))
        } else if scanner.eat_word(b"false") {
            Ok(Some(false))
        } else {
            Err(scanner.error("'true' or 'false'"))
        }
    })?;
    rows.column(name)
}

fn floats(mut rows: Rows<f64>, scanner: &mut Scanner<'_>, name: &str) -> Result<Column, RecordError> {
    rows.fill(scanner, name, |scanner| match scanner.rest() {
        [b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => scanner.float().map(Some),
        _ => scanner.non_finite().map_or_else(|| scanner.float(), Ok).map(Some),
    })?;
    rows.column(name)
}

fn ragged(name: &str, what: &'static str) -> RecordError {
    RecordError::Ragged { column: name.chars().take(64).collect(), what }
}

/// Nested lists on their way into a column.
struct Rows<T> {
    values: Vec<T>,
    /// Items of a list at each depth, as soon as one has ended.
    dims: [Option<u32>; MAX_DIMS],
    /// Items so far of each list that is open.
    open: [u32; MAX_DIMS],
    depth: usize,
    /// At which depth the values are.
    leaves: Option<usize>,
    /// An item has just been read, so a comma or the list's end comes next.
    after_item: bool,
}

impl<T: Element> Rows<T> {
    /// Room for as many values as can come: lists of numbers hold neither strings nor objects, and no value takes less
    /// than two bytes.
    fn new(scanner: &Scanner<'_>) -> Self {
        let rest = scanner.rest();
        let extent = memchr::memchr2(b'"', b'}', rest).unwrap_or(rest.len());
        let commas = rest.get(..extent).unwrap_or_default().iter().filter(|byte| **byte == b',').count();
        Self::with(Vec::with_capacity((commas + 1).min(extent / 2 + 1)))
    }

    fn with(values: Vec<T>) -> Self {
        let (dims, open) = ([None; MAX_DIMS], [0; MAX_DIMS]);
        Self { values, dims, open, depth: 0, leaves: None, after_item: false }
    }

    /// The same rows of another type. Where it has the same size, the values stay where they are.
    fn map<U: Element>(self, convert: impl Fn(T) -> U) -> Rows<U> {
        Rows {
            values: self.values.into_iter().map(convert).collect(),
            dims: self.dims,
            open: self.open,
            depth: self.depth,
            leaves: self.leaves,
            after_item: self.after_item,
        }
    }

    /// Reads on until the outermost list ends, or until `value` has none for what comes next: then false.
    fn fill(
        &mut self,
        scanner: &mut Scanner<'_>,
        name: &str,
        value: impl Fn(&mut Scanner<'_>) -> Result<Option<T>, RecordError>,
    ) -> Result<bool, RecordError> {
        loop {
            if self.after_item {
                if scanner.eat(b']') {
                    if self.close(name)? {
                        return Ok(true);
                    }
                    continue;
                }
                scanner.expect(b',', "',' or ']'")?;
                self.after_item = false;
            }
            match scanner.peek() {
                Some(b'[') => {
                    scanner.at += 1;
                    self.begin(name)?;
                    if scanner.eat(b']') && self.close(name)? {
                        return Ok(true);
                    }
                }
                Some(b'"' | b'{' | b'n') => return Err(ragged(name, "values among numbers that are none")),
                Some(_) => {
                    let Some(first) = value(scanner)? else { return Ok(false) };
                    self.leaf(first, name)?;
                    // The rest of the same list, without looking at what is known of it.
                    let mut items = 0;
                    while scanner.eat_comma() {
                        let Some(next) = value(scanner)? else {
                            self.count(items);
                            self.after_item = false;
                            return Ok(false);
                        };
                        self.values.push(next);
                        items += 1;
                    }
                    self.count(items);
                }
                None => return Err(scanner.error("a value")),
            }
        }
    }

    /// A list begins.
    fn begin(&mut self, name: &str) -> Result<(), RecordError> {
        if self.leaves.is_some_and(|leaves| self.depth >= leaves) {
            return Err(ragged(name, "a list where others have a number"));
        }
        let open = self.open.get_mut(self.depth).ok_or_else(|| ragged(name, "more than six dimensions"))?;
        *open = 0;
        self.depth += 1;
        Ok(())
    }

    /// A list ends; true if it is the outermost one.
    fn close(&mut self, name: &str) -> Result<bool, RecordError> {
        let at = self.depth.saturating_sub(1);
        let items = self.open.get(at).copied().unwrap_or_default();
        let Some(dim) = self.dims.get_mut(at) else { return Err(ragged(name, "more than six dimensions")) };
        if *dim.get_or_insert(items) != items {
            return Err(ragged(name, "lists of unequal length"));
        }
        self.depth = at;
        self.count(1);
        Ok(at == 0)
    }

    fn leaf(&mut self, value: T, name: &str) -> Result<(), RecordError> {
        match self.leaves {
            Some(leaves) if leaves == self.depth => {}
            None if self.dims.get(self.depth).is_some_and(Option::is_none) => self.leaves = Some(self.depth),
            _ => return Err(ragged(name, "a number where others have a list")),
        }
        self.values.push(value);
        self.count(1);
        Ok(())
    }

    /// More items of the list that is open.
    fn count(&mut self, more: u32) {
        if let Some(items) = self.depth.checked_sub(1).and_then(|at| self.open.get_mut(at)) {
            *items = items.saturating_add(more);
        }
        self.after_item = true;
    }

    fn column(self, name: &str) -> Result<Column, RecordError> {
        let dims: Vec<u32> = self.dims.iter().map_while(|dim| *dim).collect();
        let shape = RowShape::new(dims.get(1..).unwrap_or_default());
        let data = shape.and_then(|shape| ColumnData::new(self.values, shape));
        data.map(Column::from_typed).map_err(|_| ragged(name, "rows without elements"))
    }
}
