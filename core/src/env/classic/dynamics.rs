//! Control problems as pure functions, and vector environments of them.

use core::{fmt, marker::PhantomData};

use super::states::States;
use crate::{
    column::Element,
    env::{EnvError, EnvState, Frame, Moments, Rng, StepOut, VectorEnv, check_actions_len, check_obs_len},
    prelude::*,
    space::Space,
};

/// A deterministic control problem: a state of `S` numbers, and observations of `O`.
///
/// All that an author of such an environment writes; [`Classic`] makes a [`VectorEnv`] of it. Arithmetic beyond `+ - * /`
/// must use [`crate::math`], so that every machine computes the same bits.
pub trait Dynamics<const S: usize, const O: usize> {
    /// Element type of actions, one element per lane.
    type Act: Element + fmt::Display;

    /// Returns the space of the observations, a vector of `O` components.
    fn observation_space() -> Space;

    /// Returns the space of the actions.
    fn action_space() -> Space;

    /// Returns true for actions that [`step`](Self::step) accepts: finite ones that Gymnasium would accept.
    fn accepts(action: Self::Act) -> bool;

    /// Returns the state at the beginning of an episode.
    fn reset(rng: &mut Rng) -> [f64; S];

    /// Returns the state after one step, with the reward.
    fn step(state: [f64; S], action: Self::Act) -> Transition<S>;

    /// Returns the observation of a state.
    fn observe(state: [f64; S]) -> [f32; O];

    /// Renders a state; returns false if there is no picture of it.
    fn render(_state: [f64; S], _frame: &mut Frame) -> bool {
        false
    }

    /// Returns true for states that an episode can reach; snapshots of others are rejected. Called for finite states only.
    fn is_possible(state: [f64; S]) -> bool;
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition<const S: usize> {
    /// The state after the step.
    pub state: [f64; S],
    /// Reward of the step.
    pub reward: f64,
    /// The state is terminal.
    pub terminated: bool,
}

/// Lanes of one control problem, their states as structure of arrays.
///
/// ```
/// use rollmesh_core::{
///     env::{
///         Moment, Moments, Rng, StepOut, VectorEnv as _,
///         classic::{Classic, Dynamics, Transition},
///     },
///     ids::SlotId,
///     rng::{Purpose, Streams},
///     space::Space,
/// };
///
/// /// A ball on a rail, pushed left or right; the episode ends a metre from where it began.
/// struct Rail;
///
/// impl Dynamics<2, 2> for Rail {
///     type Act = i64;
///
///     fn observation_space() -> Space {
///         Space::vector(&[-1.0, -8.0], &[1.0, 8.0])
///     }
///     fn action_space() -> Space {
///         Space::Discrete { n: 2 }
///     }
///     fn accepts(action: i64) -> bool {
///         (0..2).contains(&action)
///     }
///     fn reset(_: &mut Rng) -> [f64; 2] {
///         [0.0, 0.0]
///     }
///     fn step([x, v]: [f64; 2], action: i64) -> Transition<2> {
///         let v = (v + if action == 1 { 0.25 } else { -0.25 }).clamp(-8.0, 8.0);
///         Transition { state: [x + v, v], reward: -1.0, terminated: !(-1.0..=1.0).contains(&(x + v)) }
///     }
///     fn observe(state: [f64; 2]) -> [f32; 2] {
///         state.map(|value| value as f32)
///     }
///     fn is_possible([x, v]: [f64; 2]) -> bool {
///         x.abs() <= 9.0 && v.abs() <= 8.0
///     }
/// }
///
/// let mut env = Classic::<Rail, 2, 2>::new(2);
/// let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
/// let mut obs = [0.0; 4];
/// for (lane, row) in obs.chunks_exact_mut(2).enumerate() {
///     env.reset_at(lane, &mut rng, row)?;
/// }
/// let (mut rewards, mut terminateds, mut truncateds) = ([0.0; 2], [false; 2], [false; 2]);
/// let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
/// let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &[Moment::default(); 2], mark: None };
/// env.step(&[0, 1], moments, &mut obs, out)?;
/// assert_eq!(obs, [-0.25, -0.25, 0.25, 0.25]);
/// # Ok::<(), rollmesh_core::env::EnvError>(())
/// ```
pub struct Classic<D, const S: usize, const O: usize> {
    states: States<S>,
    dynamics: PhantomData<fn() -> D>,
}

impl<D: Dynamics<S, O>, const S: usize, const O: usize> Classic<D, S, O> {
    /// Creates `num_envs` lanes, which must be reset before their first step.
    #[must_use]
    pub fn new(num_envs: usize) -> Self {
        Self { states: States::new(num_envs), dynamics: PhantomData }
    }

    /// Returns the state of a lane; `None` if there is no such lane.
    #[must_use]
    pub fn state(&self, lane: usize) -> Option<[f64; S]> {
        self.states.at(lane)
    }

    /// Sets the state of a lane.
    ///
    /// # Errors
    /// [`EnvError::NoSuchLane`].
    pub fn set_state(&mut self, lane: usize, state: [f64; S]) -> Result<(), EnvError> {
        self.states.set(lane, state)
    }
}

impl<D: Dynamics<S, O>, const S: usize, const O: usize> VectorEnv for Classic<D, S, O> {
    type Obs = f32;
    type Act = D::Act;

    fn num_envs(&self) -> usize {
        self.states.num_envs()
    }

    fn observation_space(&self) -> Space {
        D::observation_space()
    }

    fn action_space(&self) -> Space {
        D::action_space()
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        check_obs_len(O, obs.len())?;
        let state = D::reset(rng);
        self.states.set(lane, state)?;
        obs.copy_from_slice(&D::observe(state));
        Ok(())
    }

    fn step(
        &mut self,
        actions: &[D::Act],
        _moments: Moments<'_>,
        obs: &mut [f32],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let n = self.num_envs();
        check_actions_len(n, actions.len())?;
        check_obs_len(n * O, obs.len())?;
        out.check_len(n)?;
        if let Some(lane) = actions.iter().position(|action| !D::accepts(*action)) {
            return Err(EnvError::InvalidAction { lane, action: actions[lane].to_string() });
        }
        // Equal lengths known to the compiler avoid bounds checks in the loop.
        let mut variables = self.states.variables_mut().each_mut().map(|values| &mut values[..n]);
        let (rows, _) = obs.as_chunks_mut::<O>();
        let results = rows.iter_mut().zip(out.rewards).zip(out.terminateds);
        for (lane, (action, ((row, reward), terminated))) in actions[..n].iter().zip(results).enumerate() {
            let after = D::step(core::array::from_fn(|i| variables[i][lane]), *action);
            for (values, value) in variables.iter_mut().zip(after.state) {
                values[lane] = value;
            }
            *row = D::observe(after.state);
            *reward = after.reward;
            *terminated = after.terminated;
        }
        out.truncateds.fill(false);
        Ok(())
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.state(lane).is_some_and(|state| D::render(state, frame))
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        self.states.snapshot_at(lane, out)
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        check_obs_len(O, obs.len())?;
        let state = self.states.restore_at(lane, snapshot, D::is_possible)?;
        obs.copy_from_slice(&D::observe(state));
        Ok(())
    }
}

impl<D, const S: usize, const O: usize> Clone for Classic<D, S, O> {
    fn clone(&self) -> Self {
        Self { states: self.states.clone(), dynamics: PhantomData }
    }
}

impl<D, const S: usize, const O: usize> fmt::Debug for Classic<D, S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Classic").field(&self.states).finish()
    }
}
