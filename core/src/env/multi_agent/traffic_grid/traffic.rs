//! Cars on the streets: their positions and movements.

use super::{
    lights::Light,
    streets::{BLOCK, Heading, Street, StreetMap},
};
use crate::{env::Rng, prelude::*};

/// Most cells in one step.
pub(super) const MAX_SPEED: usize = 2;

/// A car on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Car {
    pub(super) street: Street,
    /// Cell on the street; `BLOCK - 1` is the stop line.
    pub(super) cell: usize,
    /// Cells in a step.
    pub(super) speed: usize,
    /// The junction behind whose stop line the journey ends.
    pub(super) goal: usize,
    /// Steps since its last movement.
    pub(super) waited: u32,
    pub(super) trip: Trip,
    /// Result of the last step.
    pub(super) ride: Ride,
}

/// State of a car's journey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trip {
    Driving,
    /// Arrived with the last step.
    Arrived,
    /// Arrived before.
    Gone,
}

/// Result of a step for a car.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ride {
    pub(super) cells: usize,
    /// Whether it crossed a junction at red.
    pub(super) ran_red: bool,
    /// Whether another car blocked it.
    pub(super) bumped: bool,
}

/// All cars, and the cells that they occupy.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) map: StreetMap,
    pub(super) cars: Vec<Car>,
    /// Cars that crossed each junction at green in the last step.
    pub(super) crossed: Vec<u32>,
    taken: Vec<bool>,
    /// Cells on which a journey can begin.
    beginnings: Vec<(Street, usize)>,
    order: Vec<usize>,
}

impl Traffic {
    /// Creates empty streets.
    pub(super) fn new(map: StreetMap) -> Self {
        Self {
            map,
            cars: Vec::new(),
            crossed: vec![0; map.junctions()],
            taken: vec![false; map.cells()],
            beginnings: map.beginnings().flat_map(|street| (0..BLOCK).map(move |cell| (street, cell))).collect(),
            order: Vec::new(),
        }
    }

    /// Returns the largest number of cars: they occupy every second cell on which a journey can begin.
    pub(super) fn capacity(map: StreetMap) -> usize {
        map.beginnings().count() * BLOCK / 2
    }

    /// Places new cars at random, standing, with random goals.
    pub(super) fn scatter(&mut self, num_cars: usize, rng: &mut Rng) {
        self.cars.clear();
        self.taken.fill(false);
        self.crossed.fill(0);
        for _ in 0..num_cars.min(self.beginnings.len()) {
            let mut place = rng.below(self.beginnings.len() as u32) as usize;
            while self.taken[Self::cell(self.beginnings[place].0, self.beginnings[place].1)] {
                place = (place + 1) % self.beginnings.len();
            }
            let (street, cell) = self.beginnings[place];
            self.taken[Self::cell(street, cell)] = true;
            let goal = self.goal(street, rng);
            let ride = Ride::default();
            self.cars.push(Car { street, cell, speed: 0, goal, waited: 0, trip: Trip::Driving, ride });
        }
        self.order.clear();
        self.order.extend(0..self.cars.len());
    }

    /// Returns a junction that is further ahead than the next one, possibly also to the side.
    fn goal(&self, street: Street, rng: &mut Rng) -> usize {
        let StreetMap { size } = self.map;
        let (row, column) = self.map.place(street.junction);
        let ahead = 1 + rng.below(self.map.ahead(street) as u32) as usize;
        let aside = rng.below(size as u32) as usize;
        match street.heading {
            Heading::North => (row - ahead) * size + aside,
            Heading::East => aside * size + column + ahead,
            Heading::South => (row + ahead) * size + aside,
            Heading::West => aside * size + column - ahead,
        }
    }

    const fn cell(street: Street, cell: usize) -> usize {
        street.index() * BLOCK + cell
    }

    /// Returns the number of free cells of the street from this one on.
    fn free_from(&self, street: Street, cell: usize) -> usize {
        self.taken[Self::cell(street, 0)..][..BLOCK].iter().skip(cell).take_while(|taken| !**taken).count()
    }

    /// Returns the number of free cells between a car and the stop line or the car in front.
    pub(super) fn gap(&self, car: &Car) -> usize {
        self.free_from(car.street, car.cell + 1)
    }

    /// Returns the number of free cells at the beginning of the street after the junction; all of them at the journey's end.
    pub(super) fn free_cells_ahead(&self, car: &Car) -> usize {
        self.map.next(car.street, car.goal).map_or(BLOCK, |next| self.free_from(next, 0))
    }

    /// Returns the numbers of standing and of driving cars on a street.
    pub(super) fn count(&self, junction: usize, heading: Heading) -> (usize, usize) {
        let street = Street { junction, heading };
        let here = self.cars.iter().filter(|car| car.trip == Trip::Driving && car.street == street);
        here.fold((0, 0), |(standing, driving), car| match car.speed {
            0 => (standing + 1, driving),
            _ => (standing, driving + 1),
        })
    }

    pub(super) fn all_arrived(&self) -> bool {
        self.cars.iter().all(|car| car.trip != Trip::Driving)
    }

    /// Moves every car by its speed, those in front first.
    pub(super) fn drive(&mut self, lights: &[Light]) {
        self.crossed.fill(0);
        let mut order = core::mem::take(&mut self.order);
        order.sort_unstable_by_key(|&index| (BLOCK - self.cars[index].cell, index));
        for &index in &order {
            let mut car = self.cars[index];
            if car.trip == Trip::Driving {
                self.taken[Self::cell(car.street, car.cell)] = false;
                self.advance(&mut car, lights);
                self.taken[Self::cell(car.street, car.cell)] |= car.trip == Trip::Driving;
            } else {
                car.trip = Trip::Gone;
            }
            self.cars[index] = car;
        }
        self.order = order;
    }

    fn advance(&mut self, car: &mut Car, lights: &[Light]) {
        car.ride = Ride::default();
        for _ in 0..car.speed {
            let (junction, heading) = (car.street.junction, car.street.heading);
            let crosses = car.cell + 1 == BLOCK;
            let next = if crosses { self.map.next(car.street, car.goal) } else { Some(car.street) };
            let cell = if crosses { 0 } else { car.cell + 1 };
            if next.is_some_and(|street| self.taken[Self::cell(street, cell)]) {
                car.ride.bumped = true;
                car.speed = 0;
                break;
            }
            car.ride.cells += 1;
            if crosses {
                let green = lights[junction].is_green(heading);
                car.ride.ran_red |= !green;
                self.crossed[junction] += u32::from(green);
            }
            match next {
                Some(street) => (car.street, car.cell) = (street, cell),
                None => {
                    car.trip = Trip::Arrived;
                    break;
                }
            }
        }
        car.waited = if car.ride.cells == 0 { car.waited.saturating_add(1) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    const EAST: Street = Street { junction: 0, heading: Heading::East };

    /// Returns traffic with cars at these cells of the street to junction 0, on their way to junction 1, at these
    /// speeds.
    fn queue(cars: &[(usize, usize)]) -> Traffic {
        let mut traffic = Traffic::new(StreetMap { size: 2 });
        for &(cell, speed) in cars {
            let ride = Ride::default();
            traffic.cars.push(Car { street: EAST, cell, speed, goal: 1, waited: 0, trip: Trip::Driving, ride });
            traffic.taken[Traffic::cell(EAST, cell)] = true;
            traffic.order.push(traffic.order.len());
        }
        traffic
    }

    #[test]
    fn cars_keep_behind_each_other() {
        let mut traffic = queue(&[(1, 2), (2, 1), (5, 0)]);
        assert_eq!((traffic.gap(&traffic.cars[0]), traffic.gap(&traffic.cars[1])), (0, 2));
        traffic.drive(&[Light::new(false); 4]);
        let cells: Vec<_> = traffic.cars.iter().map(|car| (car.cell, car.ride.bumped, car.speed)).collect();
        // The first one tried two cells and moved one.
        assert_eq!(cells, [(2, true, 0), (3, false, 1), (5, false, 0)]);
        assert_eq!((traffic.cars[2].waited, traffic.count(0, Heading::East)), (1, (2, 1)));
    }

    #[test]
    fn green_is_crossed_and_red_is_run() {
        for (across, ran_red) in [(true, false), (false, true)] {
            let mut traffic = queue(&[(5, 2)]);
            traffic.drive(&[Light::new(across); 4]);
            let car = traffic.cars[0];
            assert_eq!((car.street.junction, car.cell), (1, 1));
            assert_eq!(car.ride, Ride { cells: 2, ran_red, bumped: false });
            assert_eq!(traffic.crossed[0], u32::from(!ran_red));
            (0..3).for_each(|_| traffic.drive(&[Light::new(across); 4]));
            assert!(traffic.all_arrived() && traffic.count(1, Heading::East) == (0, 0));
        }
    }

    #[test]
    fn cars_up_to_the_capacity_find_a_place() {
        let map = StreetMap { size: 3 };
        let mut traffic = Traffic::new(map);
        for slot in 0..20 {
            let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(slot), 0, 0, 0);
            traffic.scatter(Traffic::capacity(map), &mut rng);
            assert_eq!((traffic.cars.len(), Traffic::capacity(map)), (72, 72));
            assert_eq!(traffic.taken.iter().filter(|taken| **taken).count(), 72);
            assert!(
                traffic.cars.iter().all(|car| map
                    .next(car.street, car.goal)
                    .is_some_and(|next| { next.heading == car.street.heading }))
            );
        }
    }
}
