//! The fast sampler of plain single agents, behind the interface of all samplers.

use serde::{Deserialize, Serialize};

use super::lane_set::LaneSet;
use crate::{
    batch::{AnyBatch, CutReason, SampleBatch, SlotFragment},
    env::{AnyVectorEnv, EnvError, SubEnv},
    episode::{RolloutMetrics, SamplerPerf},
    ids::{AgentId, FragmentNo, PolicyId, SlotId, eps_id},
    policy::{Policy, PolicyMapError, Postprocessing},
    postprocess::{Finisher, PostprocessError},
    prelude::*,
    sampler::{DriveError, LaneStart, SampleError, SamplerHost, SamplerInput, SlotState},
    time::Micros,
};

/// All environments of a worker as lanes that step together. Every batch holds a fragment of each.
pub(super) struct LockstepSampler {
    lanes: LaneSet,
    seed: u64,
    limit: Option<u32>,
    steps: u32,
    next: FragmentNo,
    finisher: Finisher,
    episodes: Vec<RolloutMetrics>,
    perf: SamplerPerf,
    stopped: bool,
}

impl LockstepSampler {
    pub(super) fn new(
        env: Box<dyn AnyVectorEnv>,
        slots: &[SlotId],
        seed: u64,
        limit: Option<u32>,
        steps: u32,
    ) -> Result<Self, EnvError> {
        let starts: Vec<LaneStart> = slots.iter().map(|&slot| LaneStart { slot, state: None }).collect();
        let lanes = LaneSet::of(env, &starts, seed, limit)?;
        Ok(Self {
            lanes,
            seed,
            limit,
            steps,
            next: FragmentNo(0),
            finisher: Finisher::default(),
            episodes: Vec::new(),
            perf: SamplerPerf::default(),
            stopped: false,
        })
    }

    /// The next `steps` steps of every lane, with cuts and states. Copies nothing that it need not.
    pub(super) fn fragments(
        &mut self,
        steps: u32,
        policy: &mut dyn Policy,
        clock: &dyn Fn() -> Micros,
    ) -> Result<Vec<SlotFragment>, SampleError> {
        if self.stopped {
            return Err(SampleError::Stopped);
        }
        let begun = clock();
        self.lanes.begin(self.next, policy.weights().version(), steps);
        self.next.0 += 1;
        let fragments = loop {
            let progress = self.lanes.advance(policy, u32::MAX).map_err(|error| match error {
                DriveError::Env(error) => SampleError::Env(error),
                DriveError::Policy(source) => SampleError::Policy { id: PolicyId::DEFAULT, source },
            })?;
            if let (_, Some(fragments)) = progress {
                break fragments;
            }
        };
        let took = clock().since(begun).0 as f64 / 1_000.0;
        let (before, now) = (self.perf.iterations as f64, f64::from(steps));
        // Here policy and environment are one loop, whose time is not told apart.
        self.perf.env_wait_ms = (self.perf.env_wait_ms * before + took) / (before + now);
        self.perf.iterations += u64::from(steps);
        self.note_episodes(&fragments);
        Ok(fragments)
    }

    /// Finished episodes in the order in which they ended.
    fn note_episodes(&mut self, fragments: &[SlotFragment]) {
        let mut ended = Vec::new();
        for (lane, fragment) in fragments.iter().enumerate() {
            let ends = fragment.cuts.iter().filter(|cut| cut.reason != CutReason::FragmentEnd).map(|cut| cut.end);
            ended.extend(ends.zip(&fragment.episodes).map(|(end, episode)| (end, lane, fragment.slot, *episode)));
        }
        ended.sort_by_key(|(end, lane, ..)| (*end, *lane));
        let perf = self.perf;
        self.episodes.extend(ended.into_iter().map(|(_, lane, slot, episode)| RolloutMetrics {
            episode_id: eps_id(slot, episode.episode),
            env: lane,
            length: episode.len,
            episode_return: episode.episode_return,
            agent_rewards: vec![(AgentId::SINGLE, PolicyId::DEFAULT, episode.episode_return)],
            perf,
            ..RolloutMetrics::default()
        }));
    }

    /// One batch of all fragments, with every column.
    fn finish(&mut self, fragments: &[SlotFragment], policy: &dyn Policy) -> Result<SampleBatch, SampleError> {
        let advantages = match policy.postprocessing() {
            Postprocessing::Advantages(config) => Some(config),
            Postprocessing::None | Postprocessing::Custom => None,
        };
        self.finisher.finish(fragments, advantages.as_ref()).map_err(|error| match error {
            PostprocessError::Batch(error) => error.into(),
            error => SampleError::Policy { id: PolicyId::DEFAULT, source: error.into() },
        })
    }
}

/// State of one slot.
#[derive(Serialize, Deserialize)]
struct LaneState {
    slot: SlotId,
    steps: u64,
    state: Vec<u8>,
}

impl SamplerInput for LockstepSampler {
    fn data(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let missing = |error: PolicyMapError| match error {
            PolicyMapError::Unknown(unknown) => SampleError::UnknownPolicy {
                agent: AgentId::SINGLE,
                id: unknown.id,
                known: unknown.known.iter().map(PolicyId::as_str).collect::<Vec<_>>().join(", "),
            },
            other => SampleError::PolicyMap(other),
        };
        let policy = host.policies.policy_mut(&PolicyId::DEFAULT).map_err(missing)?;
        let fragments = self.fragments(self.steps, policy, host.clock)?;
        Ok(self.finish(&fragments, policy)?.into())
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        core::mem::take(&mut self.episodes)
    }

    /// The first lane: all are one environment. See [`for_each_env`](Self::for_each_env).
    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        if self.stopped {
            return Vec::new();
        }
        vec![SubEnv::Lane { env: self.lanes.env_mut(), lane: 0 }]
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        let lanes = if self.stopped { 0 } else { self.lanes.len() };
        (0..lanes).for_each(|lane| f(SubEnv::Lane { env: self.lanes.env_mut(), lane }));
    }

    fn state(&self) -> Vec<u8> {
        let slots: Vec<SlotId> = self.lanes.slots().collect();
        let states: Vec<LaneState> = slots
            .into_iter()
            .filter_map(|slot| {
                let steps = self.finisher.steps(slot);
                Some(LaneState { slot, steps, state: self.lanes.state(slot)?.encode() })
            })
            .collect();
        // Writing into memory that grows cannot fail.
        postcard::to_allocvec(&(self.next.0, states)).unwrap_or_default()
    }

    fn set_state(&mut self, state: &[u8]) -> Result<(), SampleError> {
        let damaged = || SampleError::Env(EnvError::BadSnapshot(state.len()));
        if state.is_empty() {
            return Ok(());
        }
        let (next, states): (u64, Vec<LaneState>) = postcard::from_bytes(state).map_err(|_| damaged())?;
        let slots: Vec<SlotId> = self.lanes.slots().collect();
        let (mut starts, mut before) = (Vec::new(), Vec::new());
        for slot in slots {
            let now = LaneStart { slot, state: self.lanes.state(slot) };
            match states.iter().find(|state| state.slot == slot) {
                Some(found) => {
                    let state = SlotState::decode(&found.state).map_err(|_| damaged())?;
                    starts.push(LaneStart { slot, state: Some(state) });
                }
                None => starts.push(now.clone()),
            }
            before.push(now);
        }
        if let Err(error) = self.lanes.reopen(&starts, self.seed, self.limit) {
            // What was there before is a state of this environment.
            self.lanes.reopen(&before, self.seed, self.limit)?;
            return Err(error.into());
        }
        self.next = FragmentNo(next);
        for lane in &states {
            self.finisher.set_steps(lane.slot, lane.steps);
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.stopped = true;
        Ok(())
    }
}
