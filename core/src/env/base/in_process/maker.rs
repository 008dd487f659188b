//! Factories of sub-environments, and a uniform view of what they make.

use crate::{
    env::{
        AnyVectorEnv, EnvContext, EnvError, EnvSpaces, EnvSpec, Frame, Moment, Moments, MultiAgentEnv, MultiAgentSpec,
        Rng, StepOut, SubEnv,
        base::rules::check_spaces,
        multi_agent::{AgentRows, Turn},
    },
    ids::{AgentId, SlotId},
    kernels::Kernels,
    prelude::*,
    rng::Streams,
};

/// Makes sub-environments one at a time, so that each can be restarted separately.
#[derive(Clone, Debug)]
pub enum EnvMaker {
    /// Single-agent environments, with [`AgentId::SINGLE`]: a vector environment with a single lane each.
    SingleAgent {
        /// The environment.
        spec: EnvSpec,
        /// Kernels that it uses.
        kernels: Kernels,
    },
    /// Multi-agent environments.
    MultiAgent(MultiAgentSpec),
}

/// Start of a sub-environment: its context, and its position in its slot.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvStart {
    /// The slot, whose random streams it uses.
    pub slot: SlotId,
    /// Number of its next episode. The n-th reset from here begins episode `episode + n`, also after resets that failed.
    pub episode: u32,
    /// The context that it is made with.
    pub context: EnvContext,
}

impl EnvMaker {
    /// Uses a registered single-agent environment.
    #[must_use]
    pub fn single_agent(spec: &EnvSpec, kernels: Kernels) -> Self {
        Self::SingleAgent { spec: spec.clone(), kernels }
    }

    /// Uses a registered multi-agent environment.
    #[must_use]
    pub fn multi_agent(spec: &MultiAgentSpec) -> Self {
        Self::MultiAgent(spec.clone())
    }

    pub(super) fn make(&self, context: &EnvContext) -> Result<MadeEnv, EnvError> {
        match self {
            Self::SingleAgent { spec, kernels } => {
                let env = spec.make(core::slice::from_ref(context), *kernels)?;
                match env.num_envs() {
                    1 => Ok(MadeEnv::Lane(env)),
                    lanes => Err(EnvError::Failed(format!("made for one lane, it has {lanes}"))),
                }
            }
            Self::MultiAgent(spec) => spec.make(context).map(MadeEnv::MultiAgent),
        }
    }
}

/// A sub-environment.
pub(super) enum MadeEnv {
    Lane(Box<dyn AnyVectorEnv>),
    MultiAgent(Box<dyn MultiAgentEnv>),
}

impl MadeEnv {
    /// Returns the agents, ascending, each once.
    pub(super) fn agents(&self) -> Vec<AgentId> {
        match self {
            Self::Lane(_) => vec![AgentId::SINGLE],
            Self::MultiAgent(env) => env.agents().into_iter().collect_ordered::<BTreeSet<_>>().into_iter().collect(),
        }
    }

    pub(super) fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        match self {
            Self::Lane(env) => (*agent == AgentId::SINGLE).then(|| EnvSpaces::of(env.as_ref())),
            Self::MultiAgent(env) => env.spaces(agent),
        }
    }

    /// Resets the environment. `single` are the spaces of the single agent, if there is one.
    pub(super) fn reset(&mut self, rng: &mut Rng, single: Option<&EnvSpaces>, turn: &mut Turn) -> Result<(), EnvError> {
        match self {
            Self::Lane(env) => {
                let EnvSpaces { observation, observation_type, .. } = single.ok_or_else(no_spaces)?;
                let len = observation.shape().elements();
                env.reset_at(0, rng, turn.obs_mut().row_mut(&AgentId::SINGLE, *observation_type, len))?;
                report_info(env.as_ref(), turn);
                Ok(())
            }
            Self::MultiAgent(env) => env.reset(rng, turn),
        }
    }

    pub(super) fn step(
        &mut self,
        actions: &AgentRows,
        streams: Streams,
        moment: Moment,
        single: Option<&EnvSpaces>,
        turn: &mut Turn,
    ) -> Result<(), EnvError> {
        match self {
            Self::Lane(env) => {
                let EnvSpaces { observation, observation_type, .. } = single.ok_or_else(no_spaces)?;
                let action = actions.get(&AgentId::SINGLE).ok_or_else(no_spaces)?;
                let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
                let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
                let len = observation.shape().elements();
                let row = turn.obs_mut().row_mut(&AgentId::SINGLE, *observation_type, len);
                env.step(action, Moments { streams, lanes: &[moment], mark: None }, row, out)?;
                turn.reward(&AgentId::SINGLE, reward[0]);
                if terminated[0] {
                    turn.terminate(&AgentId::SINGLE);
                    turn.terminate_all();
                }
                if truncated[0] {
                    turn.truncate(&AgentId::SINGLE);
                    turn.truncate_all();
                }
                report_info(env.as_ref(), turn);
                Ok(())
            }
            Self::MultiAgent(env) => {
                let Moment { slot, episode, t, .. } = moment;
                env.step(actions, &mut streams.at(slot, episode, t, 0), turn)
            }
        }
    }

    pub(super) fn render(&self, frame: &mut Frame) -> bool {
        match self {
            Self::Lane(env) => env.render_at(0, frame),
            Self::MultiAgent(env) => env.render(frame),
        }
    }

    pub(super) fn sub_env(&mut self) -> SubEnv<'_> {
        match self {
            Self::Lane(env) => SubEnv::Lane { env: env.as_mut(), lane: 0 },
            Self::MultiAgent(env) => SubEnv::MultiAgent(env.as_mut()),
        }
    }
}

/// Adds the single agent's info. Environments without infos cost nothing but the call.
fn report_info(env: &dyn AnyVectorEnv, turn: &mut Turn) {
    let mut info = Vec::new();
    if env.info_at(0, &mut info) {
        turn.info(&AgentId::SINGLE, info);
    }
}

/// Returns the error for missing spaces or actions of the single agent, which were checked before.
fn no_spaces() -> EnvError {
    EnvError::Failed("the single agent has no spaces or no action".into())
}

/// Spaces of the agents seen so far, the same for all sub-environments.
#[derive(Default)]
pub(super) struct Spaces(BTreeMap<AgentId, EnvSpaces>);

impl Spaces {
    /// Returns the spaces of an agent; `None` if the environment has none for it.
    ///
    /// # Errors
    /// [`EnvError::Failed`] for invalid spaces.
    pub(super) fn learn(&mut self, agent: &AgentId, env: &MadeEnv) -> Result<Option<&EnvSpaces>, EnvError> {
        if !self.0.contains_key(agent) {
            let Some(spaces) = env.spaces(agent) else { return Ok(None) };
            check_spaces(agent, &spaces)?;
            self.0.insert(agent.clone(), spaces);
        }
        Ok(self.0.get(agent))
    }

    pub(super) fn get(&self, agent: &AgentId) -> Option<&EnvSpaces> {
        self.0.get(agent)
    }
}
