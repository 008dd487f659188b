//! Slots whose environments have several agents, or whose steps call user code, with their sampler.

use super::{builder::LeaseHost, runner::ShowEnv};
use crate::{
    batch::{AnyBatch, MultiAgentBatch, SlotFragment},
    callbacks::Callbacks as _,
    env::BaseEnv,
    episode::RolloutMetrics,
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
    run::RunConfig,
    sampler::{Episodic, InputReader as _, Restarts, SampleError, SamplerOptions, SlotState},
};

/// Open slots sampled by [`Episodic`] in lockstep: an env step of one is an env step of all. Slots that may get out of step
/// are alone in their set.
pub(super) struct AgentLanes {
    sampler: Episodic,
    slots: Vec<SlotId>,
    fragment: FragmentNo,
    version: WeightsVersion,
    /// The finished part of the open fragment, by slot.
    ready: Vec<Ready>,
    /// Number of slots whose fragment is incomplete.
    open: usize,
    /// Index of the slots' home worker, which user code sees; the first slot's if they have several.
    home: u32,
}

/// The batches of a slot's fragment: one, or one for each whole episode.
#[derive(Clone, Debug, Default)]
struct Ready {
    batches: Vec<MultiAgentBatch>,
    env_steps: usize,
    agent_steps: usize,
}

/// The point from which a slot continues.
pub(super) struct SlotStart {
    pub(super) slot: SlotId,
    /// The episode that it begins with if there is no state.
    pub(super) episode: u32,
    /// Untrusted: may come from any peer.
    pub(super) state: Option<Vec<u8>>,
}

impl AgentLanes {
    /// Opens slots.
    pub(super) fn open(
        env: Box<dyn BaseEnv>,
        starts: Vec<SlotStart>,
        home: u32,
        options: &SamplerOptions,
        host: &mut LeaseHost,
    ) -> Result<Self, SampleError> {
        let slots: Vec<SlotId> = starts.iter().map(|start| start.slot).collect();
        let options = SamplerOptions {
            slots: starts.iter().map(|start| (start.slot, start.episode)).collect(),
            single_agent: false,
            ..options.clone()
        };
        let mut sampler = Episodic::new(options, env)?;
        host.info.worker_index = home;
        for (env, SlotStart { state, .. }) in starts.iter().enumerate() {
            state.as_ref().map_or(Ok(()), |state| sampler.restore_lane(env, state, &mut host.lend()))?;
        }
        let ready = vec![Ready::default(); slots.len()];
        Ok(Self { sampler, slots, fragment: FragmentNo(0), version: WeightsVersion(0), ready, open: 0, home })
    }

    /// Begins a fragment. Failures are counted by fragment, since another worker may have made the one before.
    pub(super) fn begin(
        &mut self,
        fragment: FragmentNo,
        version: WeightsVersion,
        restarts: impl Iterator<Item = Restarts>,
    ) {
        (self.fragment, self.version) = (fragment, version);
        restarts.enumerate().for_each(|(env, restarts)| self.sampler.set_restarts(env, restarts));
        self.ready.fill(Ready::default());
        self.open = self.slots.len();
    }

    /// Takes at most `max_steps` steps of all slots; returns the fragments once they are complete.
    pub(super) fn advance(
        &mut self,
        host: &mut LeaseHost,
        max_steps: u32,
    ) -> Result<(u32, Option<Vec<SlotFragment>>), SampleError> {
        host.info.worker_index = self.home;
        self.sampler.begin_episodes(&mut host.lend())?;
        let mut steps = 0;
        while steps < max_steps && self.open > 0 {
            self.sampler.step(&mut host.lend())?;
            steps += 1;
            self.collect()?;
        }
        if self.open > 0 {
            return Ok((steps, None));
        }
        // The first observations of an episode that begins outside of the worker are part of the slot's state.
        self.sampler.begin_episodes(&mut host.lend())?;
        Ok((steps, Some(self.take(host)?)))
    }

    /// Shows the environment of the first slot, in an episode that has begun.
    pub(super) fn show(&mut self, host: &mut LeaseHost, show: &mut ShowEnv<'_>) -> Result<(), SampleError> {
        host.info.worker_index = self.home;
        self.sampler.begin_episodes(&mut host.lend())?;
        let position = self.sampler.lane_position(0).unwrap_or_default();
        show(position, &mut |frame| self.sampler.try_render(0, frame));
        Ok(())
    }

    fn collect(&mut self) -> Result<(), SampleError> {
        while let Some((env, batch)) = self.sampler.take_of_env() {
            let Some(ready) = self.ready.get_mut(env) else { continue };
            ready.env_steps += batch.env_steps();
            ready.agent_steps += batch.agent_steps();
            ready.batches.push(batch.as_multi_agent());
            self.open -= usize::from(self.sampler.options().is_enough(ready.env_steps, ready.agent_steps));
        }
        // Slots with fragments of different lengths are alone here; those of the others are bounded.
        let (most, held) = (RunConfig::MAX_FRAGMENT_LENGTH as usize, self.sampler.held_env_steps());
        let env_steps = held + self.ready.first().map_or(0, |ready| ready.env_steps);
        let is_endless = held > most || env_steps > most + self.sampler.options().fragment_length as usize;
        match self.slots[..] {
            [slot] if is_endless => Err(SampleError::EndlessFragment { slot, env_steps }),
            _ => Ok(()),
        }
    }

    fn take(&mut self, host: &mut LeaseHost) -> Result<Vec<SlotFragment>, SampleError> {
        let ended = self.sampler.metrics();
        let extra = self.sampler.extra_batches();
        let mut fragments = Vec::with_capacity(self.slots.len());
        for (env, slot) in self.slots.iter().enumerate() {
            let state = self.sampler.lane_state(env).ok_or_else(|| self.sampler.state_error(env, *slot))?;
            if state.len() > SlotState::MAX_BYTES {
                return Err(SampleError::StateTooLarge { slot: *slot, bytes: state.len() });
            }
            let batches = self.ready.get_mut(env).map(|ready| core::mem::take(&mut ready.batches)).unwrap_or_default();
            let mut batch = AnyBatch::from(match <[MultiAgentBatch; 1]>::try_from(batches) {
                Ok([only]) => only,
                Err(episodes) => MultiAgentBatch::concat(&episodes)?,
            });
            host.callbacks.on_sample_end(&host.info, &mut batch)?;
            let mut agents = batch.as_multi_agent();
            agents.policy_batches.retain(|_, batch| !batch.is_empty());
            if self.slots.len() == 1 && !extra.is_empty() {
                let env_steps = agents.env_steps;
                let all: Vec<MultiAgentBatch> =
                    core::iter::once(agents).chain(extra.iter().map(AnyBatch::as_multi_agent)).collect();
                // Rows that were not made by an env step do not count as env steps.
                agents = MultiAgentBatch { env_steps, ..MultiAgentBatch::concat(&all)? };
            }
            let episodes = ended.iter().filter(|metrics| metrics.env == env && metrics.faulty.is_none());
            fragments.push(SlotFragment {
                slot: *slot,
                fragment: self.fragment,
                weights_version: self.version,
                agents: Some(agents),
                episodes: episodes.map(RolloutMetrics::of_slot).collect(),
                state,
                ..SlotFragment::default()
            });
        }
        Ok(fragments)
    }

    pub(super) fn slots(&self) -> &[SlotId] {
        &self.slots
    }

    /// Returns the episode and the step of a slot that failed.
    pub(super) fn failed_at(&self, lane: usize) -> (u32, u32) {
        self.sampler.lane_position(lane).unwrap_or_default()
    }
}
