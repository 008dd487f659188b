//! The streets: a square of junctions, with a street in both directions between neighbours.

/// Cells of a street between two junctions.
pub(super) const BLOCK: usize = 6;

/// The four directions: up, right, down, left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    North,
    East,
    South,
    West,
}

impl Heading {
    pub(super) const ALL: [Self; 4] = [Self::North, Self::East, Self::South, Self::West];

    pub(super) const fn is_vertical(self) -> bool {
        matches!(self, Self::North | Self::South)
    }
}

/// A street that leads to a junction, in one direction. It ends at the junction's stop line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Street {
    /// The junction, row by row.
    pub(super) junction: usize,
    pub(super) heading: Heading,
}

impl Street {
    /// Returns its index among all streets.
    pub(super) const fn index(self) -> usize {
        self.junction * 4 + self.heading as usize
    }
}

/// A square of `size` x `size` junctions. Streets from outside lead to those at the border, and none leads out.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreetMap {
    pub(super) size: usize,
}

impl StreetMap {
    pub(super) const fn junctions(self) -> usize {
        self.size * self.size
    }

    /// Returns the number of cells of all streets.
    pub(super) const fn cells(self) -> usize {
        self.junctions() * 4 * BLOCK
    }

    /// Returns row and column of a junction.
    pub(super) const fn place(self, junction: usize) -> (usize, usize) {
        (junction / self.size, junction % self.size)
    }

    /// Returns the streets on which a journey can begin: those that continue behind their junction.
    pub(super) fn beginnings(self) -> impl Iterator<Item = Street> {
        let streets =
            (0..self.junctions()).flat_map(|junction| Heading::ALL.map(|heading| Street { junction, heading }));
        streets.filter(move |street| self.ahead(*street) > 0)
    }

    /// Returns the number of junctions straight ahead behind the next one.
    pub(super) const fn ahead(self, street: Street) -> usize {
        let (row, column) = self.place(street.junction);
        match street.heading {
            Heading::North => row,
            Heading::East => self.size - 1 - column,
            Heading::South => self.size - 1 - row,
            Heading::West => column,
        }
    }

    /// Returns the number of junctions from this one to the goal, the goal included.
    pub(super) const fn distance(self, from: usize, goal: usize) -> usize {
        let ((row, column), (to_row, to_column)) = (self.place(from), self.place(goal));
        row.abs_diff(to_row) + column.abs_diff(to_column)
    }

    /// Returns the street behind the junction on the way to a goal: straight on while that gets closer, else around a
    /// corner. `None` at the goal.
    pub(super) fn next(self, street: Street, goal: usize) -> Option<Street> {
        let nearer = |heading: &Heading| {
            let ((row, column), (to_row, to_column)) = (self.place(street.junction), self.place(goal));
            match heading {
                Heading::North => to_row < row,
                Heading::East => to_column > column,
                Heading::South => to_row > row,
                Heading::West => to_column < column,
            }
        };
        let heading = [street.heading].into_iter().chain(Heading::ALL).find(nearer)?;
        let junction = match heading {
            Heading::North => street.junction - self.size,
            Heading::East => street.junction + 1,
            Heading::South => street.junction + self.size,
            Heading::West => street.junction - 1,
        };
        Some(Street { junction, heading })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_leads_to_its_goal() {
        let map = StreetMap { size: 4 };
        assert_eq!(map.beginnings().count(), 4 * 4 * 3);
        for begin in map.beginnings() {
            for goal in 0..map.junctions() {
                let (mut street, mut steps) = (begin, 0);
                let mut turns = 0;
                while let Some(next) = map.next(street, goal) {
                    assert_eq!(map.distance(next.junction, goal) + 1, map.distance(street.junction, goal));
                    turns += u32::from(next.heading != street.heading);
                    (street, steps) = (next, steps + 1);
                }
                assert_eq!((street.junction, steps), (goal, map.distance(begin.junction, goal)));
                assert!(turns <= 2);
            }
        }
    }
}
