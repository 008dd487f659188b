//! Steps on a rectangle of cells, numbered row by row.

#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Left,
    Down,
    Right,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) rows: u16,
    pub(super) columns: u16,
}

impl Grid {
    pub(super) fn cells(self) -> u16 {
        self.rows * self.columns
    }

    /// Returns column and row of a cell.
    pub(super) fn place(self, cell: u16) -> [f64; 2] {
        [cell % self.columns, cell / self.columns].map(f64::from)
    }

    /// Returns the neighbour in a direction; at the edge the cell itself.
    pub(super) fn neighbour(self, cell: u16, direction: Direction) -> u16 {
        let (row, column) = (cell / self.columns, cell % self.columns);
        match direction {
            Direction::Left if column > 0 => cell - 1,
            Direction::Right if column + 1 < self.columns => cell + 1,
            Direction::Up if row > 0 => cell - self.columns,
            Direction::Down if row + 1 < self.rows => cell + self.columns,
            _ => cell,
        }
    }
}
