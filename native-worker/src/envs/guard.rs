//! Converts panics of environments to errors, so that they are handled like other faults.

use std::{
    any::Any,
    cell::OnceCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use rollmesh_core::{
    column::DType,
    env::{
        AnyVectorEnv, EnvError, EnvRegistry, EnvSpaces, EnvSpec, EnvState, Frame, Moments, MultiAgentEnv,
        MultiAgentSpec, Rng, RowsMut, RowsRef, StepMark, StepOut,
        multi_agent::{AgentRows, Turn},
    },
    ids::AgentId,
    space::Space,
};

use crate::panics::panic_message;

/// Returns a registry with the same environments, whose panics become [`EnvError::Failed`], including panics while they are
/// made. An environment that has panicked is dropped and recreated for its next reset or restoration: what callbacks or
/// [`foreach_env`](rollmesh_core::worker::RolloutWorker::foreach_env) have changed in it is lost.
///
/// ```
/// use rollmesh::envs::guarded;
/// use rollmesh_core::env::{EnvRegistry, EnvSpec};
///
/// let mut registry = EnvRegistry::builtin();
/// registry.register(EnvSpec::new("Broken-v0", |_, _| panic!("no such file: maze.txt")));
/// let error = guarded(&registry).spec("Broken-v0")?.spaces().unwrap_err();
/// assert_eq!(error.to_string(), "the environment failed: panicked: no such file: maze.txt");
/// # Ok::<(), rollmesh_core::env::Unknown>(())
/// ```
#[must_use]
pub fn guarded(registry: &EnvRegistry) -> EnvRegistry {
    let mut all = EnvRegistry::default();
    all.resolver.clone_from(&registry.resolver);
    for spec in registry.iter() {
        let inner = spec.clone();
        let mut outer = EnvSpec::fallible(spec.name.clone(), move |contexts, kernels| {
            let (maker, contexts) = (inner.clone(), contexts.to_vec());
            lanes(Guarded::made(Box::new(move || maker.make(&contexts, kernels)))?)
        });
        (outer.max_episode_steps, outer.reward_threshold) = (spec.max_episode_steps, spec.reward_threshold);
        outer.settings.clone_from(&spec.settings);
        all.register(outer);
    }
    for spec in registry.iter_multi_agent() {
        let inner = spec.clone();
        let mut outer = MultiAgentSpec::new(spec.name.clone(), move |context| {
            let (maker, context) = (inner.clone(), context.clone());
            agents(Guarded::made(Box::new(move || maker.make(&context)))?)
        });
        outer.max_episode_steps = spec.max_episode_steps;
        all.register_multi_agent(outer);
    }
    all
}

/// Wraps an environment so that its panics become [`EnvError::Failed`]. After the first panic it is dropped, and every later
/// call returns the same error; only environments of a [`guarded`] registry are recreated.
///
/// Functions that downcast it, see [`AnyVectorEnv::as_any`], still find its type.
///
/// # Errors
/// [`EnvError::Failed`] if it panics when it returns its spaces.
pub fn guard(env: Box<dyn AnyVectorEnv>) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
    lanes(Guarded::new(env))
}

fn lanes(env: Guarded<Box<dyn AnyVectorEnv>>) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
    let facts = || Ok((env.ask(|env| env.num_envs())?, env.ask(|env| EnvSpaces::of(env.as_ref()))?));
    let (num_envs, spaces) = facts()?;
    Ok(Box::new(Lanes { env, num_envs, spaces }))
}

/// Works like [`guard`], for an environment with several agents.
///
/// # Errors
/// [`EnvError::Failed`] if it panics when it returns its agents.
pub fn guard_multi_agent(env: Box<dyn MultiAgentEnv>) -> Result<Box<dyn MultiAgentEnv>, EnvError> {
    agents(Guarded::new(env))
}

fn agents(env: Guarded<Box<dyn MultiAgentEnv>>) -> Result<Box<dyn MultiAgentEnv>, EnvError> {
    let agents = env.ask(|env| env.agents())?;
    Ok(Box::new(Agents { env, agents }))
}

/// An environment that is dropped at its first panic, which may leave it in an inconsistent state.
struct Guarded<E> {
    env: Option<E>,
    panic: OnceCell<EnvError>,
    /// Creates the next one.
    maker: Option<Maker<E>>,
}

type Maker<E> = Box<dyn Fn() -> Result<E, EnvError> + Send>;

impl<E> Guarded<E> {
    fn new(env: E) -> Self {
        Self { env: Some(env), panic: OnceCell::new(), maker: None }
    }

    fn made(maker: Maker<E>) -> Result<Self, EnvError> {
        let env = caught(&maker)?;
        Ok(Self { env: Some(env), panic: OnceCell::new(), maker: Some(maker) })
    }

    /// Begins an episode: like [`call`](Self::call), and first recreates the environment if it has panicked.
    fn begin<T>(&mut self, begin: impl FnOnce(&mut E) -> Result<T, EnvError>) -> Result<T, EnvError> {
        if let (Some(_), Some(maker)) = (self.panic.get(), &self.maker) {
            let env = caught(maker)?;
            self.discard();
            (self.env, self.panic) = (Some(env), OnceCell::new());
        }
        self.call(begin)
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut E) -> Result<T, EnvError>) -> Result<T, EnvError> {
        self.still_fine()?;
        let Some(env) = &mut self.env else { return Err(panicked_before()) };
        match catch_unwind(AssertUnwindSafe(|| call(env))) {
            Ok(result) => result,
            Err(panic) => {
                let error = self.panicked(panic);
                self.discard();
                Err(error)
            }
        }
    }

    fn ask<T>(&self, ask: impl FnOnce(&E) -> T) -> Result<T, EnvError> {
        self.still_fine()?;
        let Some(env) = &self.env else { return Err(panicked_before()) };
        catch_unwind(AssertUnwindSafe(|| ask(env))).map_err(|panic| self.panicked(panic))
    }

    fn still_fine(&self) -> Result<(), EnvError> {
        self.panic.get().map_or(Ok(()), |panic| Err(panic.clone()))
    }

    /// Records the first panic.
    fn panicked(&self, panic: Box<dyn Any + Send>) -> EnvError {
        self.panic.get_or_init(|| failure(panic)).clone()
    }

    fn discard(&mut self) {
        let env = self.env.take();
        // A panic in its destructor is too late to be reported.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(env)));
    }
}

impl<E> Drop for Guarded<E> {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Returns the error for a dropped environment. Unreachable, since the first panic is returned instead; needed for
/// exhaustive types.
fn panicked_before() -> EnvError {
    EnvError::Failed("panicked before".into())
}

/// Converts a panic to a failure.
fn caught<T>(act: impl FnOnce() -> Result<T, EnvError>) -> Result<T, EnvError> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(failure(panic)))
}

fn failure(panic: Box<dyn Any + Send>) -> EnvError {
    EnvError::Failed(words(panic.as_ref()))
}

/// Returns `panicked: ` and the message of the panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    format!("panicked: {}", panic_message(panic))
}

/// Runs user code of a worker, and converts its panic to a message.
pub(crate) fn catch_panics(work: &mut dyn FnMut()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| words(&*panic))
}

struct Lanes {
    env: Guarded<Box<dyn AnyVectorEnv>>,
    num_envs: usize,
    spaces: EnvSpaces,
}

impl Lanes {
    /// Works like [`Guarded::begin`]; the failure names the step in which a replay has panicked.
    fn begin_replay<T>(
        &mut self,
        lane: usize,
        replay: impl FnOnce(&mut dyn AnyVectorEnv) -> Result<T, EnvError>,
    ) -> Result<T, EnvError> {
        let mut at = None;
        let replayed = self.env.begin(|env| {
            catch_unwind(AssertUnwindSafe(|| replay(env.as_mut()))).unwrap_or_else(|panic| {
                // The environment is about to be dropped.
                at = env.replayed_at(lane);
                resume_unwind(panic)
            })
        });
        match at {
            Some(at) => replayed.map_err(|error| error.in_replay(at)),
            None => replayed,
        }
    }
}

impl AnyVectorEnv for Lanes {
    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn observation_space(&self) -> Space {
        self.spaces.observation.clone()
    }

    fn action_space(&self) -> Space {
        self.spaces.action.clone()
    }

    fn dtypes(&self) -> (DType, DType) {
        (self.spaces.observation_type, self.spaces.action_type)
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: RowsMut<'_>) -> Result<(), EnvError> {
        self.env.begin(|env| env.reset_at(lane, rng, obs))
    }

    fn step(
        &mut self,
        actions: RowsRef<'_>,
        moments: Moments<'_>,
        obs: RowsMut<'_>,
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let stepped = self.env.call(|env| env.step(actions, moments, obs, out));
        // An environment that steps its lanes sequentially has marked the one that panicked.
        let (slot, _) = moments.mark.filter(|_| self.env.env.is_none()).and_then(StepMark::position).unzip();
        let lane = slot.and_then(|slot| moments.lanes.iter().position(|moment| moment.slot == slot));
        match lane.filter(|_| self.num_envs > 1) {
            Some(lane) => stepped.map_err(|source| EnvError::InLane { lane, source: Box::new(source) }),
            None => stepped,
        }
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.env.ask(|env| env.render_at(lane, frame)).unwrap_or_else(|error| frame.fail(error.to_string()))
    }

    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool {
        let before = out.len();
        self.env.ask(|env| env.info_at(lane, out)).unwrap_or_else(|_| {
            out.truncate(before);
            false
        })
    }

    fn as_any(&mut self) -> &mut dyn Any {
        match self.env.env {
            Some(ref mut env) => env.as_any(),
            None => self,
        }
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> Result<EnvState, EnvError> {
        let before = out.len();
        self.env.ask(|env| env.snapshot_at(lane, out)).unwrap_or_else(|panic| {
            out.truncate(before);
            Err(panic)
        })
    }

    fn state(&self) -> EnvState {
        self.env.ask(|env| env.state()).unwrap_or(EnvState::Snapshot)
    }

    fn replay_at(&mut self, lane: usize, snapshot: &[u8], max_steps: u32) -> Result<u32, EnvError> {
        self.begin_replay(lane, |env| env.replay_at(lane, snapshot, max_steps))
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: RowsMut<'_>) -> Result<(), EnvError> {
        self.begin_replay(lane, |env| env.restore_at(lane, snapshot, obs))
    }
}

struct Agents {
    env: Guarded<Box<dyn MultiAgentEnv>>,
    agents: Vec<AgentId>,
}

impl MultiAgentEnv for Agents {
    fn agents(&self) -> Vec<AgentId> {
        self.agents.clone()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.env.ask(|env| env.spaces(agent)).ok().flatten()
    }

    fn reset(&mut self, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.env.begin(|env| env.reset(rng, turn))
    }

    fn step(&mut self, actions: &AgentRows, rng: &mut Rng, turn: &mut Turn) -> Result<(), EnvError> {
        self.env.call(|env| env.step(actions, rng, turn))
    }

    fn state(&self) -> EnvState {
        self.env.ask(|env| env.state()).unwrap_or_default()
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.env.ask(|env| env.render(frame)).unwrap_or_else(|error| frame.fail(error.to_string()))
    }

    fn as_any(&mut self) -> &mut dyn Any {
        match self.env.env {
            Some(ref mut env) => env.as_any(),
            None => self,
        }
    }
}

#[cfg(test)]
mod tests;
