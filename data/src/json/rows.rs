//! Rows of a column that is written out.

use rollmesh_core::column::{BytesColumn, BytesKind, Column, ColumnData, Element, RowShape};

use super::{RecordError, scan::Scanner};

/// Rows, and the dimensions that a row may have.
const MAX_DIMS: usize = RowShape::MAX_DIMS + 1;

/// Reads nested lists of numbers or truth values, or a list of anything else, which stays JSON. Other columns have so
/// many rows.
pub(super) fn column(scanner: &mut Scanner<'_>, name: &str, rows: Option<usize>) -> Result<Column, RecordError> {
    let mut ahead = scanner.clone();
    let mut depth = 0;
    while ahead.eat(b'[') {
        depth += 1;
    }
    let read = match ahead.peek() {
        Some(b'{' | b'"' | b'n') if depth == 1 => return texts(scanner, name),
        Some(b'{' | b'"' | b'n') => return Err(ragged(name, "lists of what are no numbers")),
        Some(b't' | b'f') => flags,
        // Lists without numbers do not show their type: they are floats, as in NumPy.
        Some(b']') => empty,
        _ => numbers,
    };
    // As many values as other columns let expect, or else as many as can come, which takes another look to see.
    let expected = rows.and_then(|rows| rows.checked_mul(ahead.width(depth)?));
    if let Some(expected) = expected.filter(|expected| *expected <= scanner.rest().len() / 2) {
        let start = scanner.at;
        if let Some(column) = read(scanner, name, Room { values: expected, exactly: true })? {
            return Ok(column);
        }
        scanner.at = start;
    }
    let room = Room { values: scanner.most_values(), exactly: false };
    read(scanner, name, room)?.ok_or_else(|| ragged(name, "more numbers than commas"))
}

/// Room for values.
#[derive(Clone, Copy)]
struct Room {
    values: usize,
    /// There are so many of them, or the column is not read.
    exactly: bool,
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
fn numbers(scanner: &mut Scanner<'_>, name: &str, room: Room) -> Result<Option<Column>, RecordError> {
    let mut rows = Rows::<i64>::new(room);
    match rows.fill(scanner, name, |scanner| Ok(scanner.whole()))? {
        Stop::End => rows.column(name),
        Stop::Room => Ok(None),
        Stop::Type => floats(rows.map(|number| number as f64), scanner, name),
    }
}

fn flags(scanner: &mut Scanner<'_>, name: &str, room: Room) -> Result<Option<Column>, RecordError> {
    let mut rows = Rows::<bool>::new(room);
    let stop = rows.fill(scanner, name, |scanner| {
        if scanner.eat_word(b"true") {
            Ok(Some(true))
        } else if scanner.eat_word(b"false") {
            Ok(Some(false))
        } else {
            Err(scanner.error("'true' or 'false'"))
        }
    })?;
    if stop == Stop::End { rows.column(name) } else { Ok(None) }
}

fn empty(scanner: &mut Scanner<'_>, name: &str, room: Room) -> Result<Option<Column>, RecordError> {
    floats(Rows::new(room), scanner, name)
}

fn floats(mut rows: Rows<f64>, scanner: &mut Scanner<'_>, name: &str) -> Result<Option<Column>, RecordError> {
    let stop = rows.fill(scanner, name, |scanner| match scanner.float() {
        Ok(value) => Ok(Some(value)),
        Err(error) => scanner.non_finite().map(Some).ok_or(error),
    })?;
    if stop == Stop::End { rows.column(name) } else { Ok(None) }
}

fn ragged(name: &str, what: &'static str) -> RecordError {
    RecordError::Ragged { column: name.chars().take(64).collect(), what }
}

/// Bytes that a value must have come again in before more of it are looked for.
const REPEATED: usize = 16;

/// Why no more values are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The outermost list has ended.
    End,
    /// A value of another type comes next.
    Type,
    /// There is no room for what comes next.
    Room,
}

/// Nested lists on their way into a column.
struct Rows<T> {
    values: Vec<T>,
    room: Room,
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
    fn new(room: Room) -> Self {
        let (dims, open) = ([None; MAX_DIMS], [0; MAX_DIMS]);
        let values = Vec::with_capacity(room.values);
        Self { values, room, dims, open, depth: 0, leaves: None, after_item: false }
    }

    /// The same rows of another type. Where it has the same size, the values stay where they are.
    fn map<U: Element>(self, convert: impl Fn(T) -> U) -> Rows<U> {
        Rows {
            values: self.values.into_iter().map(convert).collect(),
            room: self.room,
            dims: self.dims,
            open: self.open,
            depth: self.depth,
            leaves: self.leaves,
            after_item: self.after_item,
        }
    }

    /// Reads on until the outermost list ends, there is no more room, or `value` has none for what comes next.
    fn fill(
        &mut self,
        scanner: &mut Scanner<'_>,
        name: &str,
        value: impl Fn(&mut Scanner<'_>) -> Result<Option<T>, RecordError>,
    ) -> Result<Stop, RecordError> {
        loop {
            if self.after_item {
                if scanner.eat(b']') {
                    if self.close(name)? {
                        return Ok(Stop::End);
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
                        return Ok(Stop::End);
                    }
                }
                Some(b'"' | b'{' | b'n') => return Err(ragged(name, "values among numbers that are none")),
                Some(_) => {
                    self.begin_leaves(name)?;
                    if let Some(stop) = self.leaves(scanner, &value)? {
                        self.after_item = false;
                        return Ok(stop);
                    }
                }
                None => return Err(scanner.error("a value")),
            }
        }
    }

    /// Values that there is room for.
    fn left(&self) -> usize {
        self.room.values.saturating_sub(self.values.len())
    }

    /// The values of a list, the first of which comes next, and of the next lists for as long as they are like it, without
    /// looking at what is known of them.
    #[inline]
    fn leaves(
        &mut self,
        scanner: &mut Scanner<'_>,
        value: &impl Fn(&mut Scanner<'_>) -> Result<Option<T>, RecordError>,
    ) -> Result<Option<Stop>, RecordError> {
        // Values of this list, and how many times the last one has come again.
        let (mut items, mut same, mut last) = (0, 0, None);
        loop {
            if self.left() == 0 {
                self.count(items);
                return Ok(Some(Stop::Room));
            }
            let from = scanner.at;
            // The only place where it is called, so that it becomes a part of this loop.
            let Some(next) = value(scanner)? else {
                self.count(items);
                return Ok(Some(Stop::Type));
            };
            self.values.push(next);
            items += 1;
            same = if last == Some(next) { same + 1 } else { 0 };
            last = Some(next);
            if scanner.eat_comma() {
                let len = scanner.at - from;
                if same * len >= REPEATED {
                    let more = scanner.repeats(from).min(self.left());
                    self.values.extend(std::iter::repeat_n(next, more));
                    scanner.at += more * len;
                    (items, same) = (items + more, 0);
                }
                continue;
            }
            self.count(items);
            if !self.next_list(scanner) {
                return Ok(None);
            }
            (items, last) = (0, None);
        }
    }

    /// A list ends that is as long as others, and the next one begins with a number.
    #[inline]
    fn next_list(&mut self, scanner: &mut Scanner<'_>) -> bool {
        let Some(outer) = self.depth.checked_sub(2) else { return false };
        let (Some([before, items]), Some(dim)) = (self.open.get_mut(outer..=outer + 1), self.dims.get(outer + 1))
        else {
            return false;
        };
        if *dim != Some(*items) || !scanner.eat_border() {
            return false;
        }
        (*before, *items) = (before.saturating_add(1), 0);
        true
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

    /// A value comes next.
    fn begin_leaves(&mut self, name: &str) -> Result<(), RecordError> {
        match self.leaves {
            Some(leaves) if leaves == self.depth => Ok(()),
            None if self.dims.get(self.depth).is_some_and(Option::is_none) => {
                self.leaves = Some(self.depth);
                Ok(())
            }
            _ => Err(ragged(name, "a number where others have a list")),
        }
    }

    /// More items of the list that is open.
    fn count(&mut self, more: usize) {
        if let Some(items) = self.depth.checked_sub(1).and_then(|at| self.open.get_mut(at)) {
            *items = items.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        }
        self.after_item = true;
    }

    /// None if there are not as many values as was said.
    fn column(self, name: &str) -> Result<Option<Column>, RecordError> {
        if self.room.exactly && self.left() > 0 {
            return Ok(None);
        }
        let dims: Vec<u32> = self.dims.iter().map_while(|dim| *dim).collect();
        let shape = RowShape::new(dims.get(1..).unwrap_or_default());
        let data = shape.and_then(|shape| ColumnData::new(self.values, shape));
        data.map(|data| Some(Column::from_typed(data))).map_err(|_| ragged(name, "rows without elements"))
    }
}
