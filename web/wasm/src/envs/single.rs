//! Environments with one agent.

use std::marker::PhantomData;

use rollmesh_core::{
    column::{DType, Element},
    env::{AnyVectorEnv, Env, EnvError, Frame, Rng, Step},
    space::Space,
};

use super::{Instance, Vectorized};

/// One environment, with rows of these types. An answer consists of flags, a reward and an observation.
struct Single<O, A> {
    instance: Instance,
    action: Vec<f64>,
    types: PhantomData<fn() -> (O, A)>,
}

/// Combines environments into a vector environment.
pub(super) fn side_by_side(instances: Vec<Instance>) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
    let mut spaces = instances.iter().filter_map(|instance| instance.agents.first()).map(|(_, spaces)| spaces);
    let Some(first) = spaces.next() else {
        return Err(EnvError::Failed("an environment in JavaScript says that it has no agent".into()));
    };
    if let Some(other) = spaces.find(|spaces| *spaces != first) {
        let (one, other) = (&first.observation, &other.observation);
        return Err(EnvError::Failed(format!("environments of one name have other spaces each: {one} and {other}")));
    }
    match first.observation_type {
        DType::F32 => with_actions::<f32>(first.action_type, instances),
        DType::F64 => with_actions::<f64>(first.action_type, instances),
        DType::U8 => with_actions::<u8>(first.action_type, instances),
        DType::I64 => with_actions::<i64>(first.action_type, instances),
        other => Err(unsupported("observations", other)),
    }
}

fn with_actions<O: Element>(action_type: DType, instances: Vec<Instance>) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
    match action_type {
        DType::F32 => Ok(vectorized::<O, f32>(instances)),
        DType::U8 => Ok(vectorized::<O, u8>(instances)),
        DType::I64 => Ok(vectorized::<O, i64>(instances)),
        other => Err(unsupported("actions", other)),
    }
}

fn vectorized<O: Element, A: Element>(instances: Vec<Instance>) -> Box<dyn AnyVectorEnv> {
    let single = |instance| Single::<O, A> { instance, action: Vec::new(), types: PhantomData };
    Box::new(Vectorized::new(instances.into_iter().map(single).collect()))
}

fn unsupported(what: &str, dtype: DType) -> EnvError {
    EnvError::Failed(format!("environments in JavaScript do not have {what} of {dtype}"))
}

impl<O: Element, A> Single<O, A> {
    /// Returns the latest answer, with the observation written to `obs`.
    fn answer(&self, obs: &mut [O]) -> Result<Step, EnvError> {
        match &self.instance.values[..] {
            [flags, reward, row @ ..] if row.len() == obs.len() => {
                obs.iter_mut().zip(row).for_each(|(to, from)| *to = O::from_f64(*from));
                let flags = *flags as u8;
                Ok(Step { reward: *reward, terminated: flags & 1 != 0, truncated: flags & 2 != 0 })
            }
            _ => Err(self.instance.garbled()),
        }
    }

    fn space(&self, of: fn(&super::EnvSpaces) -> &Space) -> Space {
        self.instance.agents.first().map_or(Space::Discrete { n: 0 }, |(_, spaces)| of(spaces).clone())
    }
}

impl<O: Element, A: Element> Env for Single<O, A> {
    type Obs = O;
    type Act = A;

    fn observation_space(&self) -> Space {
        self.space(|spaces| &spaces.observation)
    }

    fn action_space(&self) -> Space {
        self.space(|spaces| &spaces.action)
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        self.instance.call(rng, |env| env.reset())?;
        self.answer(obs).map(|_| ())
    }

    fn step(&mut self, action: &[A], rng: &mut Rng, obs: &mut [O]) -> Result<Step, EnvError> {
        self.action.clear();
        self.action.extend(action.iter().map(|element| element.to_f64()));
        let action = &self.action;
        self.instance.call(rng, |env| env.step(action))?;
        self.answer(obs)
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.instance.render(frame)
    }
}
