//! The picture of the town from above, with right-hand traffic.

use super::{
    MultiAgentTrafficGrid,
    streets::{BLOCK, Heading, Street, StreetMap},
    traffic::{Car, Trip},
};
use crate::env::{
    Frame,
    render::{
        Canvas, CanvasPoint, Colour,
        palette::{BLUE, BLUISH_GREEN, GREY, INK, ORANGE, VERMILLION, WHITE},
    },
};

const GRASS: Colour = [219, 228, 200];
const HOUSES: Colour = [231, 225, 213];

/// Cells of a street between two junctions; streets are two lanes wide.
const STREET: f64 = BLOCK as f64;
const PITCH: f64 = STREET + 2.0;

/// Draws streets, the lights at their stop lines, and cars, standing ones in orange. A green spot is where a car has just
/// arrived.
pub(super) fn draw(town: &MultiAgentTrafficGrid, frame: &mut Frame) {
    let map = town.traffic.map;
    let cells = map.size * (BLOCK + 2) + BLOCK;
    let side = (420 / cells).clamp(4, 14);
    let pixels = (cells * side) as u32;
    let mut canvas = Canvas::new(frame, [pixels; 2], GRASS).with_cells(side as f64);
    draw_blocks(&mut canvas, map);
    for (junction, light) in town.phases.iter().enumerate() {
        let [x, y] = centre(map, junction);
        canvas.rectangle([x - 1.0, y - 1.0], [x + 1.0, y + 1.0], GREY);
        for heading in Heading::ALL {
            let lane = RoadLane::of(map, Street { junction, heading });
            canvas.polygon(&lane.corners([1.0, STREET + 1.0], [0.0, 1.0]), GREY);
            let colour = if light.is_green(heading) { BLUISH_GREEN } else { VERMILLION };
            canvas.polygon(&lane.corners([0.66, 0.96], [0.1, 0.96]), colour);
        }
    }
    draw_lines(&mut canvas, map);
    for car in &town.traffic.cars {
        match car.trip {
            Trip::Driving => draw_car(&mut canvas, map, car),
            Trip::Arrived => canvas.circle(centre(map, car.goal), 0.55, BLUISH_GREEN),
            Trip::Gone => {}
        }
    }
}

fn draw_blocks(canvas: &mut Canvas<'_>, map: StreetMap) {
    for row in 0..=map.size {
        for column in 0..=map.size {
            let [x, y] = [column, row].map(|n| PITCH * n as f64);
            let [left, top] = [x + 0.7, y + 0.7];
            canvas.rectangle([left, top], [x + STREET - 0.7, y + STREET - 0.7], HOUSES);
        }
    }
}

/// Draws lines between the lanes of two-way streets.
fn draw_lines(canvas: &mut Canvas<'_>, map: StreetMap) {
    for junction in 0..map.junctions() {
        for heading in Heading::ALL {
            let street = Street { junction, heading };
            // A street from outside has a single lane; of the others, one line for both directions is enough.
            let (row, column) = map.place(junction);
            let two_ways = match heading {
                Heading::East => column > 0,
                Heading::South => row > 0,
                Heading::North | Heading::West => false,
            };
            if two_ways {
                for dash in 0..BLOCK {
                    let from = 1.0 + dash as f64;
                    let corners = RoadLane::of(map, street).corners([from + 0.25, from + 0.75], [-0.05, 0.05]);
                    canvas.polygon(&corners, WHITE);
                }
            }
        }
    }
}

fn draw_car(canvas: &mut Canvas<'_>, map: StreetMap, car: &Car) {
    let lane = RoadLane::of(map, car.street);
    // Distance from the junction to the car's front.
    let front = STREET - car.cell as f64 + 0.1;
    let colour = if car.speed == 0 { ORANGE } else { BLUE };
    canvas.polygon(&lane.corners([front - 0.02, front + 0.82], [0.2, 0.8]), INK);
    canvas.polygon(&lane.corners([front + 0.06, front + 0.74], [0.28, 0.72]), colour);
    canvas.polygon(&lane.corners([front + 0.2, front + 0.36], [0.28, 0.72]), WHITE);
}

/// Returns the middle of a junction.
fn centre(map: StreetMap, junction: usize) -> CanvasPoint {
    let (row, column) = map.place(junction);
    [column, row].map(|n| STREET + 1.0 + PITCH * n as f64)
}

/// The lane of a street that leads to a junction.
#[derive(Clone, Copy)]
struct RoadLane {
    /// The middle of the junction.
    centre: CanvasPoint,
    ahead: CanvasPoint,
    right: CanvasPoint,
}

impl RoadLane {
    fn of(map: StreetMap, street: Street) -> Self {
        let ahead = match street.heading {
            Heading::North => [0.0, -1.0],
            Heading::East => [1.0, 0.0],
            Heading::South => [0.0, 1.0],
            Heading::West => [-1.0, 0.0],
        };
        Self { centre: centre(map, street.junction), ahead, right: [-ahead[1], ahead[0]] }
    }

    /// Returns a rectangle of the street, between two distances before the middle of the junction, and two to the right of
    /// the middle of the street.
    fn corners(self, [near, far]: [f64; 2], [inner, outer]: [f64; 2]) -> [CanvasPoint; 4] {
        [[near, inner], [near, outer], [far, outer], [far, inner]].map(|[before, aside]| {
            core::array::from_fn(|i| self.centre[i] - before * self.ahead[i] + aside * self.right[i])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};
    use crate::ids::HomeIndex;

    /// Draws a car on its way to the second junction of the upper row, left to right, at this speed.
    fn town(speed: usize, trip: Trip, across: bool) -> Frame {
        let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
        let context = context.with_config(r#"{"size": 2, "num_cars": 1}"#.parse().unwrap());
        let mut town = MultiAgentTrafficGrid::new(&context).unwrap();
        town.phases = vec![Light::new(across); 4];
        let street = Street { junction: 1, heading: Heading::East };
        let ride = traffic::Ride::default();
        town.traffic.cars = vec![Car { street, cell: 2, speed, goal: 1, waited: 0, trip, ride }];
        let mut frame = Frame::new();
        assert!(town.render(&mut frame));
        frame
    }

    /// Returns the colour there, in cells of 14 pixels.
    fn colour(frame: &Frame, x: f64, y: f64) -> Option<Colour> {
        frame.pixel((x * 14.0) as u32, (y * 14.0) as u32)
    }

    #[test]
    fn cars_are_on_the_right_and_show_whether_they_stand() {
        // 6 cells to the first junction, 2 for it, and 2 more; the middle is glass.
        let [x, y] = [10.35, 7.5];
        assert_eq!(colour(&town(0, Trip::Driving, false), x, y), Some(ORANGE));
        assert_eq!(colour(&town(2, Trip::Driving, false), x, y), Some(BLUE));
        let arrived = town(2, Trip::Arrived, false);
        assert_eq!((colour(&arrived, x, y), colour(&arrived, 15.0, 7.0)), (Some(GREY), Some(BLUISH_GREEN)));
        assert_eq!(colour(&town(2, Trip::Gone, false), 15.0, 7.0), Some(GREY));
    }

    #[test]
    fn lights_show_their_phase_to_approaching_cars() {
        for across in [false, true] {
            let frame = town(0, Trip::Gone, across);
            let [served, others] = if across { [VERMILLION, BLUISH_GREEN] } else { [BLUISH_GREEN, VERMILLION] };
            // From below and above, then from the left and right.
            for (x, y, seen) in [(7.5, 7.8, served), (6.5, 6.2, served), (6.2, 7.5, others), (7.8, 6.5, others)] {
                assert_eq!(colour(&frame, x, y), Some(seen), "{x} {y}");
            }
        }
    }
}
