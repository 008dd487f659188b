//! Type-erased environments with their element types restored.

use core::marker::PhantomData;

use super::{AnyVectorEnv, EnvError, EnvState, Frame, Lane, Moments, Rng, StepOut, VectorEnv, wrappers::Lives};
use crate::{column::Element, prelude::*, space::Space};

/// Wraps any environment as a [`VectorEnv`] of known element types, so that a [`Lane`] of it can be wrapped.
///
/// ```
/// use rollmesh_core::{
///     env::{EnvContext, EnvRegistry, Lane, Typed, wrappers::TimeLimit},
///     kernels::Kernels,
///     ids::HomeIndex,
/// };
///
/// let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
/// let env = EnvRegistry::builtin().spec("CartPole-v1")?.make(&[context], Kernels::PORTABLE)?;
/// let _short = TimeLimit::new(Lane::new(Typed::<f32, i64>::new(env)?), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Typed<O, A> {
    env: Box<dyn AnyVectorEnv>,
    types: PhantomData<fn() -> (O, A)>,
}

impl<O: Element, A: Element> Typed<O, A> {
    /// Wraps the environment, if it has these types.
    ///
    /// # Errors
    /// [`EnvError::WrongType`].
    pub fn new(env: Box<dyn AnyVectorEnv>) -> Result<Self, EnvError> {
        let (obs, action) = env.dtypes();
        let check = |what, found: crate::column::DType, wanted: crate::column::DType| {
            let wrong = EnvError::WrongType { what, found: found.name(), wanted: wanted.name() };
            if found == wanted { Ok(()) } else { Err(wrong) }
        };
        check("observations", obs, O::DTYPE)?;
        check("actions", action, A::DTYPE)?;
        Ok(Self { env, types: PhantomData })
    }
}

impl<O: Element, A: Element> VectorEnv for Typed<O, A> {
    type Obs = O;
    type Act = A;

    fn num_envs(&self) -> usize {
        self.env.num_envs()
    }

    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [O]) -> Result<(), EnvError> {
        self.env.reset_at(lane, rng, O::erase_rows_mut(obs))
    }

    fn step(&mut self, actions: &[A], moments: Moments<'_>, obs: &mut [O], out: StepOut<'_>) -> Result<(), EnvError> {
        self.env.step(A::erase_rows(actions), moments, O::erase_rows_mut(obs), out)
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.env.render_at(lane, frame)
    }

    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool {
        self.env.info_at(lane, out)
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        // Wrappers cannot fail here: what an error has appended is restored, or refused where it is to be.
        self.env.snapshot_at(lane, out).unwrap_or(EnvState::Snapshot)
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [O]) -> Result<(), EnvError> {
        self.env.restore_at(lane, snapshot, O::erase_rows_mut(obs))
    }
}

/// A type-erased environment does not report lives, so a game counts as one life.
impl<O, A> Lives for Lane<Typed<O, A>> {
    fn lives(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{CheckOptions, EnvRegistry, EnvSpec, check_env_all};

    #[test]
    fn an_environment_keeps_the_rules_with_its_types_back() {
        let spec = EnvSpec::fallible("Typed", |contexts, kernels| {
            let env = EnvRegistry::builtin().spec("FrozenLake-v1").map(|spec| spec.make(contexts, kernels));
            Ok(Box::new(Typed::<i64, i64>::new(env.map_err(|error| EnvError::Failed(error.to_string()))??)?))
        });
        assert_eq!(check_env_all(&spec, CheckOptions { lanes: 2, steps: 100, seed: 4 }), []);
    }

    #[test]
    fn other_types_are_refused() {
        let spec = EnvRegistry::builtin().spec("CartPole-v1").unwrap();
        let make = || spec.make(&[], crate::kernels::Kernels::PORTABLE).unwrap();
        let error = Typed::<u8, i64>::new(make()).err().unwrap().to_string();
        assert_eq!(error, "the environment's observations are float32, the caller's buffers uint8");
        assert!(Typed::<f32, f32>::new(make()).is_err() && Typed::<f32, i64>::new(make()).is_ok());
    }
}
