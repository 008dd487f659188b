//! Maps of frozen lakes.

use super::grid::{Direction, Grid};
use crate::{prelude::*, rng::Rng};

/// The kind of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tile {
    Start,
    Frozen,
    Hole,
    Goal,
}

impl Tile {
    fn of(letter: char) -> Option<Self> {
        match letter {
            'S' => Some(Self::Start),
            'F' => Some(Self::Frozen),
            'H' => Some(Self::Hole),
            'G' => Some(Self::Goal),
            _ => None,
        }
    }

    pub(super) fn is_terminal(self) -> bool {
        matches!(self, Self::Hole | Self::Goal)
    }
}

/// A rectangle of tiles: start (`S`), frozen (`F`), hole (`H`), goal (`G`). Has at least one start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenLakeMap {
    grid: Grid,
    /// Tiles, row by row.
    tiles: Vec<Tile>,
}

/// The reason why a map is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The rows differ in length.
    #[error("row {row} has {found} tiles, the first row has {wanted}")]
    Ragged {
        /// Index of the row.
        row: usize,
        /// Number of its tiles.
        found: usize,
        /// Number of tiles of the first row.
        wanted: usize,
    },
    /// A letter is no tile.
    #[error("row {row} has the tile '{letter}'; tiles are S (start), F (frozen), H (hole) and G (goal)")]
    UnknownTile {
        /// Index of the row.
        row: usize,
        /// The letter.
        letter: char,
    },
    /// There is no start.
    #[error("the map has no start (S)")]
    NoStart,
    /// There are more tiles than state numbers.
    #[error("{rows} rows of {columns} tiles are too many: a map has at most {}", FrozenLakeMap::MAX_TILES)]
    TooLarge {
        /// Number of rows.
        rows: usize,
        /// Number of tiles per row.
        columns: usize,
    },
    /// No random map had a way to the goal.
    #[error("{attempts} random maps had no way to the goal: freeze more tiles")]
    NoWay {
        /// Number of maps drawn.
        attempts: u32,
    },
}

impl FrozenLakeMap {
    /// Most tiles of a map.
    pub const MAX_TILES: usize = 65_535;

    /// Random maps drawn before giving up.
    const ATTEMPTS: u32 = 1000;

    /// Creates a map from rows, top to bottom.
    ///
    /// # Errors
    /// [`MapError`], but never `NoWay`: a goal is not required.
    pub fn new(rows: &[&str]) -> Result<Self, MapError> {
        let columns = rows.first().map_or(0, |row| row.chars().count());
        let grid = Self::checked_grid(rows.len(), columns)?;
        let mut tiles = Vec::with_capacity(usize::from(grid.cells()));
        for (row, letters) in rows.iter().enumerate() {
            let found = letters.chars().count();
            if found != columns {
                return Err(MapError::Ragged { row, found, wanted: columns });
            }
            for letter in letters.chars() {
                tiles.push(Tile::of(letter).ok_or(MapError::UnknownTile { row, letter })?);
            }
        }
        if !tiles.contains(&Tile::Start) {
            return Err(MapError::NoStart);
        }
        Ok(Self { grid, tiles })
    }

    /// Returns Gymnasium's small map.
    #[must_use]
    #[doc(alias = "4x4")]
    pub fn small() -> Self {
        Self::square(4, "SFFF FHFH FFFH HFFG")
    }

    /// Returns Gymnasium's large map.
    #[must_use]
    #[doc(alias = "8x8")]
    pub fn large() -> Self {
        Self::square(8, "SFFFFFFF FFFFFFFF FFFHFFFF FFFFFHFF FFFHFFFF FHHFFFHF FHFFHFHF FFFHFFFG")
    }

    /// Draws a square map with the start and the goal in opposite corners and a way between them. Each other tile is frozen
    /// with the given probability, else a hole.
    ///
    /// # Errors
    /// [`MapError::NoStart`] for size 0, [`MapError::TooLarge`], and [`MapError::NoWay`] if none is found.
    #[doc(alias = "generate_random_map")]
    pub fn random(size: usize, frozen: f64, rng: &mut Rng) -> Result<Self, MapError> {
        let grid = Self::checked_grid(size, size)?;
        let last = grid.cells() - 1;
        for _ in 0..Self::ATTEMPTS {
            let tile = |cell| match cell {
                0 => Tile::Start,
                _ if cell == last => Tile::Goal,
                _ if rng.uniform_f64() < frozen => Tile::Frozen,
                _ => Tile::Hole,
            };
            let map = Self { grid, tiles: (0..=last).map(tile).collect() };
            if map.has_way_from(0) {
                return Ok(map);
            }
        }
        Err(MapError::NoWay { attempts: Self::ATTEMPTS })
    }

    pub(super) fn grid(&self) -> Grid {
        self.grid
    }

    pub(super) fn tile(&self, cell: u16) -> Tile {
        self.tiles[usize::from(cell)]
    }

    pub(super) fn starts(&self) -> Vec<u16> {
        (0..self.grid.cells()).filter(|cell| self.tile(*cell) == Tile::Start).collect()
    }

    fn square(size: u16, letters: &str) -> Self {
        Self { grid: Grid { rows: size, columns: size }, tiles: letters.chars().filter_map(Tile::of).collect() }
    }

    fn checked_grid(rows: usize, columns: usize) -> Result<Grid, MapError> {
        match rows.checked_mul(columns) {
            Some(0) => Err(MapError::NoStart),
            // At least one of each, so neither exceeds the product.
            Some(tiles) if tiles <= Self::MAX_TILES => Ok(Grid { rows: rows as u16, columns: columns as u16 }),
            _ => Err(MapError::TooLarge { rows, columns }),
        }
    }

    fn has_way_from(&self, start: u16) -> bool {
        let mut seen = vec![false; self.tiles.len()];
        let mut open = vec![start];
        while let Some(cell) = open.pop() {
            match self.tile(cell) {
                Tile::Goal => return true,
                Tile::Hole => continue,
                Tile::Start | Tile::Frozen => {}
            }
            if !core::mem::replace(&mut seen[usize::from(cell)], true) {
                let all = [Direction::Left, Direction::Down, Direction::Right, Direction::Up];
                open.extend(all.map(|direction| self.grid.neighbour(cell, direction)));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let error = |rows: &[&str]| FrozenLakeMap::new(rows).unwrap_err();
        assert_eq!(error(&[]), MapError::NoStart);
        assert_eq!(error(&["", ""]), MapError::NoStart);
        assert_eq!(error(&["FG"]), MapError::NoStart);
        assert_eq!(error(&["SF", "F"]), MapError::Ragged { row: 1, found: 1, wanted: 2 });
        assert_eq!(error(&["SF", "FX"]), MapError::UnknownTile { row: 1, letter: 'X' });
        let row = "S".repeat(65_536);
        assert_eq!(error(&[&row]), MapError::TooLarge { rows: 1, columns: 65_536 });
        assert!(FrozenLakeMap::new(&[&row[1..]]).is_ok());
    }

    #[test]
    fn random_maps_have_a_way_or_are_an_error() {
        let streams = Streams::new(1, Purpose::Reset);
        let random = |size, frozen| FrozenLakeMap::random(size, frozen, &mut streams.at(SlotId(0), 0, 0, 0));
        let map = random(8, 0.8).unwrap();
        assert!(map.has_way_from(0) && map.tiles.contains(&Tile::Hole));
        assert_eq!((map.starts(), map.tile(63)), (vec![0], Tile::Goal));
        assert_eq!(random(4, 0.0).unwrap_err(), MapError::NoWay { attempts: 1000 });
        assert_eq!(random(4, f64::NAN).unwrap_err(), MapError::NoWay { attempts: 1000 });
        assert_eq!(random(0, 0.8).unwrap_err(), MapError::NoStart);
        assert_eq!(random(256, 0.8).unwrap_err(), MapError::TooLarge { rows: 256, columns: 256 });
        assert_eq!(random(usize::MAX, 0.8).unwrap_err(), MapError::TooLarge { rows: usize::MAX, columns: usize::MAX });
        assert!(FrozenLakeMap::small().has_way_from(0) && FrozenLakeMap::large().has_way_from(0));
        assert!(!FrozenLakeMap::new(&["SHG"]).unwrap().has_way_from(0));
    }
}
