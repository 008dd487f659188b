//! Taxi: a passenger to be picked up and driven to a place (Dietterich, 2000).

use super::{
    Mdp, TableOutcome,
    grid::{Direction, Grid},
    pictures::World,
};

pub(super) const GRID: Grid = Grid { rows: 5, columns: 5 };
/// Cells of the four places: red, green, yellow, blue.
pub(super) const PLACES: [u16; 4] = [0, 4, 20, 23];
/// The passenger's place while in the taxi.
pub(super) const IN_TAXI: u16 = 4;
/// Cells with a wall on their right.
pub(super) const WALLS: [u16; 6] = [1, 6, 15, 17, 20, 22];

/// The components of a state's number.
#[derive(Clone, Copy)]
pub(super) struct Scene {
    pub(super) taxi: u16,
    /// Index of a place, or [`IN_TAXI`].
    pub(super) passenger: u16,
    /// Index of a place.
    pub(super) destination: u16,
}

impl Scene {
    pub(super) fn of(state: u16) -> Self {
        Self { taxi: state / 20, passenger: state / 4 % 5, destination: state % 4 }
    }

    fn state(self) -> u16 {
        (self.taxi * 5 + self.passenger) * 4 + self.destination
    }

    /// Returns the scene after an action, the reward, and whether the passenger has arrived.
    fn after(self, action: u32) -> (Self, f64, bool) {
        let to = |direction| (Self { taxi: GRID.neighbour(self.taxi, direction), ..self }, -1.0, false);
        let place = PLACES.iter().position(|cell| *cell == self.taxi).map(|index| index as u16);
        match (action, place) {
            (0, _) => to(Direction::Down),
            (1, _) => to(Direction::Up),
            (2, _) if !WALLS.contains(&self.taxi) => to(Direction::Right),
            (3, _) if self.taxi == 0 || !WALLS.contains(&(self.taxi - 1)) => to(Direction::Left),
            (2 | 3, _) => (self, -1.0, false),
            (4, Some(place)) if place == self.passenger => (Self { passenger: IN_TAXI, ..self }, -1.0, false),
            (5, Some(place)) if self.passenger == IN_TAXI => {
                let arrived = place == self.destination;
                (Self { passenger: place, ..self }, if arrived { 20.0 } else { -1.0 }, arrived)
            }
            _ => (self, -10.0, false),
        }
    }
}

impl Mdp {
    /// Creates Taxi: reward 20 for dropping the passenger at the destination, -10 for an impossible pick-up or
    /// drop-off, -1 for any other step.
    ///
    /// States are `((row * 5 + column) * 5 + passenger) * 4 + destination`; actions south, north, east, west, pick
    /// up, drop off. Episodes begin with the passenger at a place that is not the destination.
    #[must_use]
    #[doc(alias = "Taxi-v4")]
    pub fn taxi() -> Self {
        let num_states = GRID.cells() * 5 * 4;
        let is_start = |state: &u16| {
            let Scene { passenger, destination, .. } = Scene::of(*state);
            passenger != IN_TAXI && passenger != destination
        };
        let starts = (0..num_states).filter(is_start).collect();
        Self::tabulate(World::Taxi, num_states, 6, starts, &[1.0], |state, action, _| {
            let (scene, reward, terminated) = Scene::of(state).after(action);
            TableOutcome { state: scene.state(), terminated, reward }
        })
    }
}
