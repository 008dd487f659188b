//! Reads the rows of an uncompressed column.

use rollmesh_core::column::{BytesColumn, BytesKind, Column, ColumnData, Element, RowShape};

use super::{RecordError, scan::Scanner};

/// Maximum nesting: the rows, and the dimensions of a row.
const MAX_DIMS: usize = RowShape::MAX_DIMS + 1;

/// Reads nested lists of numbers or booleans, or a list of other values, which stays JSON. Other columns have `rows` rows.
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
    // Expects as many values as other columns suggest, or otherwise the upper bound, which requires another scan.
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

/// Capacity for values.
#[derive(Clone, Copy)]
struct Room {
    values: usize,
    /// True if the column is read only with exactly this number of values.
    exactly: bool,
}

/// Reads `infos`, where each row is any value.
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
        // JSON cannot represent a non-finite number.
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

/// Reads whole numbers, and switches to floats at the first other number.
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

/// Number of repeated bytes of a value before a longer repetition is searched for.
const REPEATED: usize = 16;

/// The reason why reading of values stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// The outermost list has ended.
    End,
    /// The next value has another type.
    Type,
    /// There is no capacity for the next value.
    Room,
}

/// Nested lists during their conversion to a column.
struct Rows<T> {
    values: Vec<T>,
    room: Room,
    /// Number of items of a list at each depth, known once one has ended.
    dims: [Option<u32>; MAX_DIMS],
    /// Number of items so far of each open list.
    open: [u32; MAX_DIMS],
    depth: usize,
    /// Depth of the values.
    leaves: Option<usize>,
    /// True if an item has just been read, so a comma or the list's end must follow.
    after_item: bool,
}

impl<T: Element> Rows<T> {
    fn new(room: Room) -> Self {
        let (dims, open) = ([None; MAX_DIMS], [0; MAX_DIMS]);
        let values = Vec::with_capacity(room.values);
        Self { values, room, dims, open, depth: 0, leaves: None, after_item: false }
    }

    /// Converts the rows to another type. If it has the same size, the buffer is reused.
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

    /// Reads until the outermost list ends, the capacity is exhausted, or `value` returns none for the next value.
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

    /// Returns the remaining capacity in values.
    fn left(&self) -> usize {
        self.room.values.saturating_sub(self.values.len())
    }

    /// Reads the values of a list from its first one on, and of the following lists with the same structure, without
    /// updating the state for each value.
    #[inline]
    fn leaves(
        &mut self,
        scanner: &mut Scanner<'_>,
        value: &impl Fn(&mut Scanner<'_>) -> Result<Option<T>, RecordError>,
    ) -> Result<Option<Stop>, RecordError> {
        // Number of values of this list, and number of repetitions of the last one.
        let (mut items, mut same, mut last) = (0, 0, None);
        loop {
            if self.left() == 0 {
                self.count(items);
                return Ok(Some(Stop::Room));
            }
            let from = scanner.at;
            // The only call site, so that the compiler inlines it into this loop.
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

    /// Ends a list with the expected length, where the next one begins with a number.
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

    /// Begins a list.
    fn begin(&mut self, name: &str) -> Result<(), RecordError> {
        if self.leaves.is_some_and(|leaves| self.depth >= leaves) {
            return Err(ragged(name, "a list where others have a number"));
        }
        let open = self.open.get_mut(self.depth).ok_or_else(|| ragged(name, "more than six dimensions"))?;
        *open = 0;
        self.depth += 1;
        Ok(())
    }

    /// Ends a list; returns true for the outermost one.
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

    /// Begins the values of a list.
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

    /// Adds items to the open list.
    fn count(&mut self, more: usize) {
        if let Some(items) = self.depth.checked_sub(1).and_then(|at| self.open.get_mut(at)) {
            *items = items.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        }
        self.after_item = true;
    }

    /// Returns the column; none if the number of values differs from the expected one.
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
