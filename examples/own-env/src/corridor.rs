//! An environment with one agent, which walks along a windy corridor to its far end.

use rollmesh_core::{
    config::ConfigError,
    env::{
        Env, EnvContext, EnvError, EnvState, Frame, Rng, SnapshotReader, Step,
        render::{Canvas, palette},
    },
    space::Space,
};

/// The environment of a walker, which observes its distance as a fraction of the corridor, and moves back or forward. A
/// gust may push it back.
#[derive(Clone, Debug)]
pub struct Corridor {
    length: u8,
    wind: f64,
    place: u8,
}

impl Corridor {
    /// The settings: the number of places (`length`), the probability of a gust in each step (`wind`), and the number
    /// of places by which the corridors of each next home worker are longer (`longer_by_worker`).
    pub const SETTINGS: &[&str] = &["length", "wind", "longer_by_worker"];

    /// Creates the corridor of a sub-environment.
    ///
    /// # Errors
    /// [`EnvError::Config`] for invalid settings.
    pub fn new(context: &EnvContext) -> Result<Self, EnvError> {
        let config = &context.config;
        let number = |name| config.get::<u8>(name).map_err(EnvError::Config);
        let (length, longer) = (number("length")?.unwrap_or(8), number("longer_by_worker")?.unwrap_or(0));
        let wind = config.get::<f64>("wind").map_err(EnvError::Config)?.unwrap_or(0.0);
        let bad = |name: &str, reason: &str| {
            Err(EnvError::Config(ConfigError::BadValue { name: name.into(), reason: reason.into() }))
        };
        if length < 2 {
            return bad("length", "a corridor has at least 2 places");
        }
        if !(0.0..1.0).contains(&wind) {
            return bad("wind", "a probability is at least 0, and below 1, so that an agent can arrive");
        }
        // A slot's home stays the same on every worker.
        let worker = u8::try_from(context.home.worker_index.saturating_sub(1)).unwrap_or(u8::MAX);
        Ok(Self { length: length.saturating_add(longer.saturating_mul(worker)), wind, place: 0 })
    }

    fn observe(&self, obs: &mut [f32]) {
        obs.fill(f32::from(self.place) / f32::from(self.length - 1));
    }
}

impl Env for Corridor {
    type Obs = f32;
    type Act = i64;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[1.0])
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.place = rng.below(u32::from(self.length) / 2) as u8;
        self.observe(obs);
        Ok(())
    }

    fn step(&mut self, action: &[i64], rng: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let on = action.first() == Some(&1) && rng.uniform_f64() >= self.wind;
        // The episode ends at the far end, so there is always a next place.
        self.place = if on { (self.place + 1).min(self.length - 1) } else { self.place.saturating_sub(1) };
        self.observe(obs);
        let arrived = self.place == self.length - 1;
        Ok(Step { reward: if arrived { 1.0 } else { -0.01 }, terminated: arrived, truncated: false })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(self.place);
        EnvState::Snapshot
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let place = reader.below(self.length - 1)?;
        reader.finish()?;
        self.place = place;
        self.observe(obs);
        Ok(())
    }

    fn render(&self, frame: &mut Frame) -> bool {
        let (length, place) = (f64::from(self.length), f64::from(self.place));
        let mut canvas = Canvas::new(frame, [20 * u32::from(self.length), 20], palette::PAPER).with_cells(20.0);
        canvas.rectangle([length - 1.0, 0.0], [length, 1.0], palette::BLUISH_GREEN);
        canvas.circle([place + 0.5, 0.5], 0.4, palette::BLUE);
        true
    }
}
