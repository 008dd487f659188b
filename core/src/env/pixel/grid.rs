//! Cells of a game's grid, as sets and as an observation.

use core::ops::Range;

use crate::{
    env::{EnvError, SnapshotReader},
    prelude::*,
};

/// Cells along each side of the grid.
pub const SIDE: i8 = 10;

/// Cells of the grid.
pub(super) const CELLS: usize = 100;

/// A set of cells: bit `x` of row `y`. Column 0 is on the left, row 0 on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits([u16; SIDE as usize]);

impl Bits {
    const ROW: u16 = (1 << SIDE) - 1;

    /// Returns the cells of a rectangle that are on the grid.
    #[must_use]
    pub fn rectangle(xs: Range<i8>, ys: Range<i8>) -> Self {
        let mut bits = Self::default();
        for y in ys {
            for x in xs.clone() {
                bits.insert(x, y);
            }
        }
        bits
    }

    /// Returns true for a cell of the set; false outside of the grid.
    #[must_use]
    pub fn contains(&self, x: i8, y: i8) -> bool {
        self.row(y) & column(x) != 0
    }

    /// Adds a cell. Ignored outside of the grid.
    pub fn insert(&mut self, x: i8, y: i8) {
        if let Some(row) = usize::try_from(y).ok().and_then(|y| self.0.get_mut(y)) {
            *row |= column(x);
        }
    }

    /// Removes a cell.
    pub fn remove(&mut self, x: i8, y: i8) {
        if let Some(row) = usize::try_from(y).ok().and_then(|y| self.0.get_mut(y)) {
            *row &= !column(x);
        }
    }

    /// Returns the bits of a row, 0 outside of the grid.
    #[must_use]
    pub fn row(&self, y: i8) -> u16 {
        usize::try_from(y).ok().and_then(|y| self.0.get(y)).copied().unwrap_or(0)
    }

    /// Returns the row of the lowest cell of a column.
    #[must_use]
    pub fn lowest(&self, x: i8) -> Option<i8> {
        (0..SIDE).rev().find(|&y| self.contains(x, y))
    }

    /// Returns true if a column has any cell of the set.
    #[must_use]
    pub fn has_column(&self, x: i8) -> bool {
        self.0.iter().fold(0, |all, row| all | row) & column(x) != 0
    }

    /// Returns the number of cells.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|row| row.count_ones()).sum()
    }

    /// Returns true without cells.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; SIDE as usize]
    }

    /// Returns all cells moved by whole cells; those that leave the grid are dropped.
    #[must_use]
    pub fn moved(&self, dx: i8, dy: i8) -> Self {
        let shift = u32::from(dx.unsigned_abs()).min(SIDE as u32);
        let mut moved = Self::default();
        for (y, row) in (0..).zip(&mut moved.0) {
            let from = u32::from(self.row(dy.saturating_neg().saturating_add(y)));
            *row = if dx < 0 { from >> shift } else { from << shift } as u16 & Self::ROW;
        }
        moved
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|y| self.0[y] & other.0[y]))
    }

    /// Returns the cells that are not in the other set.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|y| self.0[y] & !other.0[y]))
    }

    /// Appends the set to a snapshot.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.0.iter().flat_map(|row| row.to_le_bytes()));
    }

    /// Reads what [`put`](Self::put) has written.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    pub fn read(snapshot: &mut SnapshotReader<'_>) -> Result<Self, EnvError> {
        let mut bits = Self::default();
        for row in &mut bits.0 {
            *row = snapshot.u16()?;
            if *row > Self::ROW {
                return Err(snapshot.bad());
            }
        }
        Ok(bits)
    }
}

fn column(x: i8) -> u16 {
    if (0..SIDE).contains(&x) { 1 << x } else { 0 }
}

/// Reads a cell coordinate from a snapshot.
pub(super) fn read_coordinate(snapshot: &mut SnapshotReader<'_>) -> Result<i8, EnvError> {
    Ok(snapshot.below(SIDE as u8)? as i8)
}

/// The observation of a game being drawn: row-major cells, a 0 or 1 for every channel.
#[derive(Debug)]
pub struct Cells<'a> {
    obs: &'a mut [u8],
    channels: usize,
}

impl<'a> Cells<'a> {
    /// Clears the buffer of an observation to an empty grid.
    pub(super) fn clear(obs: &'a mut [u8], channels: usize) -> Self {
        obs.fill(0);
        Self { obs, channels }
    }

    /// Marks a cell. Ignored outside of the grid or for an unknown channel.
    pub fn mark(&mut self, x: i8, y: i8, channel: usize) {
        if !(0..SIDE).contains(&x) || !(0..SIDE).contains(&y) || channel >= self.channels {
            return;
        }
        let cell = y as usize * SIDE as usize + x as usize;
        if let Some(value) = self.obs.get_mut(cell * self.channels + channel) {
            *value = 1;
        }
    }

    /// Marks all cells of a set.
    pub fn mark_all(&mut self, bits: &Bits, channel: usize) {
        for (y, row) in (0..).zip(bits.0) {
            let mut rest = row;
            while rest != 0 {
                self.mark(rest.trailing_zeros() as i8, y, channel);
                rest &= rest - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_move_and_fall_off_the_edges() {
        let bits = Bits::rectangle(0..2, 8..10);
        assert_eq!(bits.count(), 4);
        assert_eq!(bits.moved(-1, 0), Bits::rectangle(0..1, 8..10));
        assert_eq!(bits.moved(0, 1), Bits::rectangle(0..2, 9..10));
        assert_eq!(bits.moved(8, -8), Bits::rectangle(8..10, 0..2));
        assert!(bits.moved(10, 0).is_empty() && bits.moved(0, -10).is_empty() && bits.moved(-128, 127).is_empty());
        assert_eq!(bits.lowest(1), Some(9));
        assert_eq!(bits.lowest(2), None);
        assert!(!bits.contains(-1, 9) && !bits.contains(0, 10) && bits.has_column(0));
    }

    #[test]
    fn cells_lie_row_by_row_with_their_channels_last() {
        let mut obs = [9; 300];
        let mut cells = Cells::clear(&mut obs, 3);
        cells.mark(2, 1, 1);
        cells.mark(10, 0, 0);
        cells.mark(0, -1, 0);
        cells.mark(0, 0, 3);
        assert_eq!(obs.iter().position(|&value| value == 1), Some((10 + 2) * 3 + 1));
        assert_eq!(obs.iter().filter(|&&value| value != 0).count(), 1);
    }

    #[test]
    fn bits_outside_of_the_grid_are_refused() {
        let mut bytes = Vec::new();
        let bits = Bits::rectangle(3..7, 2..4);
        bits.put(&mut bytes);
        assert_eq!(Bits::read(&mut SnapshotReader::new(&bytes)), Ok(bits));
        bytes[1] = 4;
        assert_eq!(Bits::read(&mut SnapshotReader::new(&bytes)), Err(EnvError::BadSnapshot(20)));
    }
}
