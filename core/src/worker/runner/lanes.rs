//! Slots that are sampled together.

use super::{RunnerError, Start};
use crate::{
    batch::SlotFragment,
    env::Frame,
    ids::{FragmentNo, PolicyId, SlotId, WeightsVersion},
    prelude::*,
    sampler::{SampleError, SlotState},
    worker::{agent_lanes::AgentLanes, builder::LeaseParts, lane_set::LaneSet},
};

/// Is shown an environment before a step: gets the episode and the step, and what draws its picture, which returns false for
/// an environment without pictures.
pub type ShowEnv<'a> = dyn FnMut((u32, u32), &mut dyn FnMut(&mut Frame) -> bool) + 'a;

/// Slots that are sampled together, by the sampler that fits.
pub(super) enum LeasedLanes {
    Lockstep(LaneSet),
    Agents(Box<AgentLanes>),
}

impl LeasedLanes {
    /// Begins a fragment of the slots that were opened from these starts.
    pub(super) fn begin(&mut self, starts: &[Start], fragment: FragmentNo, version: WeightsVersion, steps: u32) {
        match self {
            Self::Lockstep(lanes) => lanes.collector.begin(fragment, version, steps),
            Self::Agents(lanes) => {
                lanes.begin(fragment, version, starts.iter().map(|start| start.restarts.clone()));
            }
        }
    }

    /// Takes at most `max_steps` steps of all slots; returns the fragments once they are complete.
    pub(super) fn advance(
        &mut self,
        parts: &mut LeaseParts,
        max_steps: u32,
    ) -> Result<(u32, Option<Vec<SlotFragment>>), RunnerError> {
        match self {
            Self::Lockstep(lanes) => {
                let entry = parts.host.policies.get_mut(&PolicyId::DEFAULT).map_err(SampleError::from)?;
                let (steps, fragments) = lanes.advance(entry, max_steps)?;
                let too_large = |fragment: &&SlotFragment| fragment.state.len() > SlotState::MAX_BYTES;
                match fragments.iter().flatten().find(too_large) {
                    Some(SlotFragment { slot, state, .. }) => {
                        Err(SampleError::StateTooLarge { slot: *slot, bytes: state.len() }.into())
                    }
                    None => Ok((steps, fragments)),
                }
            }
            Self::Agents(lanes) => Ok(lanes.advance(&mut parts.host, max_steps)?),
        }
    }

    /// Shows the environment of the first slot.
    pub(super) fn show(&mut self, parts: &mut LeaseParts, show: &mut ShowEnv<'_>) -> Result<(), RunnerError> {
        match self {
            Self::Lockstep(lanes) => {
                let position = lanes.collector.failed_at(0);
                show(position, &mut |frame| lanes.env.render_at(0, frame));
            }
            Self::Agents(lanes) => lanes.show(&mut parts.host, show)?,
        }
        Ok(())
    }

    pub(super) fn slots(&self) -> Vec<SlotId> {
        match self {
            Self::Lockstep(lanes) => lanes.slots().collect(),
            Self::Agents(lanes) => lanes.slots().to_vec(),
        }
    }

    /// Returns the episode and step at which a slot failed.
    pub(super) fn failed_at(&self, lane: usize) -> (u32, u32) {
        match self {
            Self::Lockstep(lanes) => lanes.collector.failed_at(lane),
            Self::Agents(lanes) => lanes.failed_at(lane),
        }
    }
}
