//! Opening slots: creates their environments and replays their open episodes.

use super::{LeasedLanes, RunnerError, Start, episode_after};
use crate::{
    env::{AnyVectorEnv, BaseEnv, EnvContext, EnvError, EnvStart},
    ids::PolicyId,
    prelude::*,
    run::RunConfig,
    sampler::{FragmentLayout, LaneStart, SampleError, SlotState, agent_env},
    worker::{
        agent_lanes::{AgentLanes, SlotStart},
        builder::LeaseParts,
        lane_set::LaneSet,
    },
};

/// Environments of slots that are sampled together, and how many of them are restored.
pub(super) struct Opening {
    envs: OpenedEnvs,
    /// Number of restored slots.
    done: usize,
}

enum OpenedEnvs {
    Lockstep(Box<dyn AnyVectorEnv>, Vec<LaneStart>),
    Agents {
        envs: Box<dyn BaseEnv>,
        starts: Vec<SlotStart>,
        /// Index of the first slot's home worker.
        home: u32,
    },
}

impl Opening {
    /// Creates the environments. With `gives_up` open episodes are abandoned: each slot begins its next one.
    pub(super) fn new(
        run: &RunConfig,
        parts: &mut LeaseParts,
        starts: &[Start],
        gives_up: bool,
    ) -> Result<Self, RunnerError> {
        let envs = match parts.layout {
            FragmentLayout::Lane { .. } => {
                let starts: Vec<LaneStart> =
                    starts.iter().map(|start| lane_start(start, gives_up)).collect::<Result<_, _>>()?;
                let contexts: Vec<EnvContext> = starts.iter().map(|start| run.env_context(start.slot)).collect();
                OpenedEnvs::Lockstep(parts.envs.make_lanes(&contexts)?, starts)
            }
            FragmentLayout::Agents(_) => {
                let starts: Vec<SlotStart> = starts.iter().map(|start| slot_start(start, gives_up)).collect();
                let env_start = |&SlotStart { slot, episode, .. }: &SlotStart| EnvStart {
                    slot,
                    episode,
                    context: run.env_context(slot),
                };
                let envs = parts.envs.make_base(starts.iter().map(env_start).collect(), parts.options.seed)?;
                let home = starts.first().map_or(1, |start| run.home(start.slot).worker_index);
                OpenedEnvs::Agents { envs, starts, home }
            }
        };
        Ok(Self { envs, done: 0 })
    }

    /// Replays at most `steps` steps of open episodes, and subtracts those taken; returns false if more are left.
    pub(super) fn replay(&mut self, steps: &mut u32) -> Result<bool, RunnerError> {
        while *steps > 0 {
            let is_there = match &mut self.envs {
                OpenedEnvs::Lockstep(env, starts) => {
                    let Some(start) = starts.get(self.done) else { return Ok(true) };
                    let state = start.state.as_ref().filter(|state| !state.env.is_empty());
                    *steps -= state.map_or(Ok(0), |state| env.replay_at(self.done, &state.env, *steps))?;
                    *steps > 0
                }
                OpenedEnvs::Agents { envs, starts, .. } => {
                    let Some(start) = starts.get(self.done) else { return Ok(true) };
                    match &start.state {
                        None => true,
                        Some(state) => {
                            let bad = EnvError::BadSnapshot(state.len());
                            let (episode, snapshot) = agent_env(state, start.slot).ok_or(bad)?;
                            envs.restore(self.done, episode, &snapshot, steps)?
                        }
                    }
                }
            };
            self.done += usize::from(is_there);
        }
        Ok(false)
    }

    /// Passes the environments to the sampler that fits.
    pub(super) fn finish(self, parts: &mut LeaseParts) -> Result<LeasedLanes, RunnerError> {
        match self.envs {
            OpenedEnvs::Lockstep(env, starts) => {
                let entry = parts.host.policies.get_mut(&PolicyId::DEFAULT).map_err(SampleError::from)?;
                Ok(LeasedLanes::Lockstep(LaneSet::of(env, &starts, &parts.options, entry)?))
            }
            OpenedEnvs::Agents { envs, starts, home } => {
                let lanes = AgentLanes::open(envs, starts, home, &parts.options, &mut parts.host)?;
                Ok(LeasedLanes::Agents(Box::new(lanes)))
            }
        }
    }
}

fn lane_start(start: &Start, gives_up: bool) -> Result<LaneStart, RunnerError> {
    let Start { slot, state, .. } = start;
    match state {
        None => Ok(LaneStart { slot: *slot, state: None }),
        Some(_) if gives_up => {
            let state = SlotState { episode: episode_after(start), ..SlotState::default() };
            Ok(LaneStart { slot: *slot, state: Some(state) })
        }
        Some(state) => Ok(LaneStart::decode(*slot, state)?),
    }
}

fn slot_start(start: &Start, gives_up: bool) -> SlotStart {
    let Start { slot, state, .. } = start;
    SlotStart {
        slot: *slot,
        episode: if gives_up { episode_after(start) } else { 0 },
        state: state.clone().filter(|_| !gives_up),
    }
}
