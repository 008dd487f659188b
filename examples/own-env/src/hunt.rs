//! An environment with several agents: hunters that chase their prey on a ring of places.

use std::any::Any;

use rollmesh_core::{
    column::{DType, Element as _},
    config::ConfigError,
    env::{
        EnvContext, EnvError, EnvSpaces, MultiAgentEnv, Rng, RowsRef,
        multi_agent::{AgentRows, Turn},
    },
    ids::AgentId,
    space::Space,
};

/// The environment of a hunt. All agents move at the same time: back (0), not at all (1) or forward (2). Hunters
/// observe the distance to the prey, the prey observes the distances to the next hunter on either side, all as
/// fractions of the ring.
#[derive(Clone, Debug)]
pub struct Hunt {
    size: i64,
    hunters: Vec<(AgentId, i64)>,
    prey: (AgentId, i64),
}

impl Hunt {
    /// Creates the hunt of a sub-environment. Its settings are the places of the ring (`size`) and the number of
    /// hunters (`num_hunters`).
    ///
    /// # Errors
    /// [`EnvError::Config`] for invalid settings.
    pub fn new(context: &EnvContext) -> Result<Self, EnvError> {
        context.config.check_known(&["size", "num_hunters"]).map_err(EnvError::Config)?;
        let number = |name: &str, usual: u32, least: u32| match context.config.get(name).map_err(EnvError::Config)? {
            Some(number) if !(least..=1000).contains(&number) => {
                let reason = format!("{number} is not between {least} and 1000");
                Err(EnvError::Config(ConfigError::BadValue { name: name.into(), reason }))
            }
            number => Ok(number.unwrap_or(usual)),
        };
        let (size, num_hunters) = (number("size", 12, 3)?, number("num_hunters", 2, 1)?);
        let hunters = (0..num_hunters).map(|i| (AgentId::name(&format!("hunter_{i}")), 0)).collect();
        Ok(Self { size: i64::from(size), hunters, prey: (AgentId::name("prey"), 0) })
    }

    /// Returns the number of hunters.
    #[must_use]
    pub fn num_hunters(&self) -> usize {
        self.hunters.len()
    }

    fn observe(&self, turn: &mut Turn) {
        let ahead = |from: i64, to: i64| (to - from).rem_euclid(self.size);
        let part = |places: i64| places as f32 / self.size as f32;
        for (hunter, place) in &self.hunters {
            turn.observe(hunter, f32::erase_rows(&[part(ahead(*place, self.prey.1))]));
        }
        let nearest = |ways: &mut dyn Iterator<Item = i64>| part(ways.min().unwrap_or_default());
        let ahead_of = nearest(&mut self.hunters.iter().map(|(_, place)| ahead(self.prey.1, *place)));
        let behind = nearest(&mut self.hunters.iter().map(|(_, place)| ahead(*place, self.prey.1)));
        turn.observe(&self.prey.0, f32::erase_rows(&[ahead_of, behind]));
    }

    fn moved(&self, agent: &AgentId, place: i64, actions: &AgentRows) -> Result<i64, EnvError> {
        match actions.get(agent) {
            Some(RowsRef::I64(&[action @ 0..=2])) => Ok((place + action - 1).rem_euclid(self.size)),
            other => Err(EnvError::InvalidAction { lane: 0, action: format!("{other:?} of agent {agent}") }),
        }
    }
}

impl MultiAgentEnv for Hunt {
    fn agents(&self) -> Vec<AgentId> {
        self.hunters.iter().chain([&self.prey]).map(|(agent, _)| agent.clone()).collect()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        let observation = match (agent.starts_with("hunter_"), *agent == self.prey.0) {
            (true, _) => Space::vector(&[0.0], &[1.0]),
            (_, true) => Space::vector(&[0.0; 2], &[1.0; 2]),
            _ => return None,
        };
        Some(EnvSpaces {
            observation,
            observation_type: DType::F32,
            action: Space::Discrete { n: 3 },
            action_type: DType::I64,
        })
    }

    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.prey.1 = 0;
        for (_, place) in &mut self.hunters {
            *place = 1 + rng.below_u64(self.size as u64 - 1) as i64;
        }
        self.observe(turn);
        Ok(())
    }

    fn step(&mut self, actions: &AgentRows, _rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        let prey = self.moved(&self.prey.0, self.prey.1, actions)?;
        let hunters: Vec<i64> =
            self.hunters.iter().map(|(hunter, place)| self.moved(hunter, *place, actions)).collect::<Result<_, _>>()?;
        self.prey.1 = prey;
        self.hunters.iter_mut().zip(hunters).for_each(|((_, place), to)| *place = to);
        self.observe(turn);
        turn.reward(&self.prey.0, 0.01);
        for (hunter, _) in self.hunters.iter().filter(|(_, place)| *place == prey) {
            turn.reward(hunter, 1.0);
            turn.terminate_all();
        }
        if turn.is_over() {
            turn.reward(&self.prey.0, -1.0);
        }
        Ok(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}
