//! Cars that drive to their goals through a town, and the traffic lights of its junctions.

mod lights;
mod picture;
mod streets;
mod traffic;

use self::{
    lights::Light,
    streets::{BLOCK, Heading, StreetMap},
    traffic::{Car, MAX_SPEED, Traffic, Trip},
};
use super::{AgentRows, Turn, count, discrete_action, over};
use crate::{
    column::{DType, Element as _, RowShape},
    env::{EnvContext, EnvError, EnvSpaces, Frame, MultiAgentEnv, Rng},
    ids::AgentId,
    prelude::*,
    space::Space,
};

const CAR_OBS: usize = 8;
const LIGHT_OBS: usize = 9;
/// Number of steps at which observed durations saturate.
const LONG: u32 = 20;

/// Cars and lights of a town with a grid of streets, all of them agents.
///
/// A car, `car_0` and on, drives along a given way to its goal, at most two cells in a step, and leaves there: its actions
/// are to brake (0), to keep its speed (1) and to accelerate (2). Its rewards are 0.1 for every cell, 1 at its goal, -0.05
/// for a step without moving, -1 for running a red light and -0.5 for bumping into another car, which stops it. Its
/// observation, all between 0 and 1:
///
/// | number | meaning |
/// |---|---|
/// | 0 | its speed |
/// | 1 | cells to the stop line |
/// | 2 | free cells in front of it, on its street |
/// | 3 | 1 if its light is green |
/// | 4 | steps since that was switched |
/// | 5 | free cells on the street behind the junction |
/// | 6 | steps that it has waited |
/// | 7 | junctions on its way |
///
/// A light, `light_0` and on, row by row, keeps its phase (0) or switches (1) between green for the vertical and for the
/// horizontal streets, with one step of red for all in between. Its rewards are 0.2 for every car that crosses at green and
/// -0.1 for every car that stands in front of it. It observes the number of standing cars on each of its four streets (going
/// up, right, down, left), of driving cars on the vertical and on the horizontal ones, whether either pair has green, and
/// the steps since it switched.
///
/// The episode ends when all cars have arrived. Settings: `num_cars`, 25 by default, and `size`, the number of junctions
/// along each side, 3 by default.
#[doc(alias = "MultiAgentTrafficGrid-v0")]
pub struct MultiAgentTrafficGrid {
    cars: Vec<AgentId>,
    lights: Vec<AgentId>,
    traffic: Traffic,
    phases: Vec<Light>,
    /// Actions of a step, until they take effect.
    choices: Vec<i64>,
    num_cars: usize,
}

impl MultiAgentTrafficGrid {
    /// Builds the town that the settings describe.
    ///
    /// # Errors
    /// [`EnvError::Config`], for example for more cars than fit.
    pub fn new(context: &EnvContext) -> Result<Self, EnvError> {
        context.config.check_known(&["num_cars", "size"]).map_err(EnvError::Config)?;
        let size = count(&context.config, "size", 3, 2..=16)? as usize;
        let map = StreetMap { size };
        let num_cars = count(&context.config, "num_cars", 25, 1..=Traffic::room(map) as u32)?;
        let names = |what: &str, n: usize| (0..n).map(|index| AgentId::name(&format!("{what}_{index}"))).collect();
        Ok(Self {
            cars: names("car", num_cars as usize),
            lights: names("light", map.junctions()),
            traffic: Traffic::new(map),
            phases: vec![Light::default(); map.junctions()],
            choices: Vec::new(),
            num_cars: num_cars as usize,
        })
    }

    fn observe_car(&self, car: &Car) -> [f32; CAR_OBS] {
        let Traffic { map, .. } = &self.traffic;
        let light = self.phases[car.street.junction];
        [
            part(car.speed, MAX_SPEED),
            part(BLOCK - 1 - car.cell, BLOCK),
            part(self.traffic.gap(car), BLOCK),
            f32::from(u8::from(light.is_green(car.street.heading))),
            long(light.since),
            part(self.traffic.free_cells_ahead(car), BLOCK),
            long(car.waited),
            part(map.distance(car.street.junction, car.goal), 2 * map.size),
        ]
    }

    fn observe_light(&self, junction: usize) -> [f32; LIGHT_OBS] {
        let counts = Heading::ALL.map(|heading| self.traffic.count(junction, heading));
        let standing = counts.map(|(standing, _)| part(standing, BLOCK));
        let driving = |a: Heading, b: Heading| part(counts[a as usize].1 + counts[b as usize].1, 2 * BLOCK);
        let light = self.phases[junction];
        let green = |heading| f32::from(u8::from(light.is_green(heading)));
        [
            standing[0],
            standing[1],
            standing[2],
            standing[3],
            driving(Heading::North, Heading::South),
            driving(Heading::East, Heading::West),
            green(Heading::North),
            green(Heading::East),
            long(light.since),
        ]
    }

    /// Returns the cars that have not left, those that arrived with the last step included.
    fn present(&self) -> impl Iterator<Item = (&AgentId, &Car)> {
        self.cars.iter().zip(&self.traffic.cars).filter(|(_, car)| car.trip != Trip::Gone)
    }

    fn observe(&self, turn: &mut Turn) {
        for (agent, car) in self.present() {
            turn.observe(agent, f32::erase_rows(&self.observe_car(car)));
        }
        for (junction, agent) in self.lights.iter().enumerate() {
            turn.observe(agent, f32::erase_rows(&self.observe_light(junction)));
        }
    }

    fn pay(&self, turn: &mut Turn) {
        for (agent, car) in self.present() {
            turn.reward(agent, car_reward(car));
            if car.trip == Trip::Arrived {
                turn.terminate(agent);
            }
        }
        for (junction, agent) in self.lights.iter().enumerate() {
            let standing: usize = Heading::ALL.iter().map(|heading| self.traffic.count(junction, *heading).0).sum();
            turn.reward(agent, 0.2 * f64::from(self.traffic.crossed[junction]) - 0.1 * standing as f64);
        }
    }
}

/// Returns a count as a share of its maximum.
fn part(n: usize, most: usize) -> f32 {
    n.min(most) as f32 / most as f32
}

fn long(steps: u32) -> f32 {
    steps.min(LONG) as f32 / LONG as f32
}

fn car_reward(car: &Car) -> f64 {
    let ride = car.ride;
    let mut reward = if ride.cells == 0 { -0.05 } else { 0.1 * ride.cells as f64 };
    reward -= if ride.ran_red { 1.0 } else { 0.0 };
    reward -= if ride.bumped { 0.5 } else { 0.0 };
    reward + if car.trip == Trip::Arrived { 1.0 } else { 0.0 }
}

impl MultiAgentEnv for MultiAgentTrafficGrid {
    fn agents(&self) -> Vec<AgentId> {
        self.cars.iter().chain(&self.lights).cloned().collect_ordered::<BTreeSet<_>>().into_iter().collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        let spaces = |width: usize, actions| EnvSpaces {
            observation: Space::uniform(DType::F32, RowShape::vector(width as u32), 0.0, 1.0),
            observation_type: DType::F32,
            action: Space::Discrete { n: actions },
            action_type: DType::I64,
        };
        if self.cars.contains(agent) {
            Some(spaces(CAR_OBS, 3))
        } else {
            self.lights.contains(agent).then(|| spaces(LIGHT_OBS, 2))
        }
    }

    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.traffic.scatter(self.num_cars, rng);
        self.phases.iter_mut().for_each(|light| *light = Light::new(rng.below(2) == 1));
        self.observe(turn);
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        if self.traffic.all_arrived() {
            return Err(over());
        }
        // Read all actions before anything moves.
        self.choices.clear();
        let driving = self.cars.iter().zip(&self.traffic.cars).filter(|(_, car)| car.trip == Trip::Driving);
        let actors = driving.map(|(agent, _)| (agent, 3)).chain(self.lights.iter().map(|agent| (agent, 2)));
        for (hint, (agent, n)) in actors.enumerate() {
            self.choices.push(discrete_action(actions, agent, n, hint)?);
        }
        let mut choices = self.choices.iter().copied();
        for (car, choice) in self.traffic.cars.iter_mut().filter(|car| car.trip == Trip::Driving).zip(&mut choices) {
            car.speed = match choice {
                0 => car.speed.saturating_sub(1),
                1 => car.speed,
                _ => (car.speed + 1).min(MAX_SPEED),
            };
        }
        // Cars follow the lights that they observed.
        self.traffic.drive(&self.phases);
        for (light, choice) in self.phases.iter_mut().zip(choices) {
            light.step(choice == 1);
        }
        self.observe(turn);
        self.pay(turn);
        if self.traffic.all_arrived() {
            turn.terminate_all();
        }
        Ok(())
    }

    fn render(&self, frame: &mut Frame) -> bool {
        picture::draw(self, frame);
        true
    }

    fn as_any(&mut self) -> &mut dyn core::any::Any {
        self
    }
}

#[cfg(test)]
mod tests;
