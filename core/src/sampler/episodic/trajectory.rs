//! Postprocessing of rows before they join a batch.

use super::{
    agent::Agent,
    lane::{EpisodeLane, Round},
};
use crate::{
    batch::{REWARDS, SampleBatch, TERMINATEDS},
    callbacks::TrajectoryHook,
    column::RowBuffer,
    episode::{Episode, OtherAgent},
    policy::{Policy, PolicyError, Postprocessing},
    postprocess::{compute_advantages, last_r},
    prelude::*,
    sampler::SampleError,
    view::drop_unused_for_training,
};

/// An agent's rows since the last cut.
struct Piece {
    /// Index of the agent in the lane.
    place: usize,
    raw: SampleBatch,
    /// Value of what follows the last row, as estimated by the policy; 0 where it is not needed.
    bootstrap: f32,
}

impl EpisodeLane {
    /// Postprocesses all rows since the last cut, agent by agent in the order of their names, and adds them to the builder.
    /// On an error nothing is added.
    pub(super) fn postprocess(&mut self, round: &mut Round<'_, '_>) -> Result<(), SampleError> {
        let pieces = self.pieces(round)?;
        let mut done = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let Some(agent) = self.agents.get(piece.place) else { continue };
            let others: Vec<OtherAgent<'_>> = pieces
                .iter()
                .filter(|other| other.place != piece.place)
                .filter_map(|other| Some((self.agents.get(other.place)?, &other.raw)))
                .map(|(other, trajectory)| OtherAgent { agent: &other.id, policy: &other.policy, trajectory })
                .collect();
            done.push((piece.place, postprocess(agent, piece, &others, &self.episode, round)?));
        }
        for (place, batch) in done {
            if let Some(agent) = self.agents.get(place) {
                self.builder.add(&agent.policy, batch);
            }
        }
        self.close_steps();
        Ok(())
    }

    /// Returns the recorded rows, with clipped rewards.
    fn pieces(&mut self, round: &mut Round<'_, '_>) -> Result<Vec<Piece>, SampleError> {
        let mut places: Vec<usize> = (0..self.agents.len()).filter(|&place| self.agents[place].rows() > 0).collect();
        places.sort_by(|a, b| self.agents[*a].id.cmp(&self.agents[*b].id));
        let mut pieces = Vec::with_capacity(places.len());
        for place in places {
            if !round.host.policies.contains(&self.agents[place].policy) {
                self.remap(place, round)?;
            }
            let unroll_id = self.unroll_id(&self.agents[place]);
            let agent = &mut self.agents[place];
            if !agent.training_enabled || agent.rows() == 0 {
                agent.forget();
                continue;
            }
            let policy = round.host.policies.policy_mut(&agent.policy)?;
            let bootstrap = match policy.postprocessing() {
                Postprocessing::Advantages(_) => value(agent, policy)?,
                Postprocessing::None | Postprocessing::Custom => 0.0,
            };
            let mut raw = agent.build(unroll_id)?;
            if round.options.clip_rewards.is_on() {
                round.options.clip_rewards.clip(raw.get_mut(REWARDS)?);
            }
            pieces.push(Piece { place, raw, bootstrap });
        }
        Ok(pieces)
    }
}

fn postprocess(
    agent: &Agent,
    piece: &Piece,
    others: &[OtherAgent<'_>],
    episode: &Episode,
    round: &mut Round<'_, '_>,
) -> Result<SampleBatch, SampleError> {
    let host = &mut *round.host;
    let policy = host.policies.policy_mut(&agent.policy)?;
    let failed = |source: PolicyError| SampleError::Policy { id: agent.policy.clone(), source };
    let mut batch = match policy.postprocessing() {
        Postprocessing::None => piece.raw.clone(),
        Postprocessing::Advantages(config) => {
            let follows = last_r(piece.raw.get(TERMINATEDS)?, piece.bootstrap);
            compute_advantages(&piece.raw, follows, &config).map_err(|error| failed(error.into()))?
        }
        Postprocessing::Custom => policy.postprocess_trajectory(piece.raw.clone(), others, episode).map_err(failed)?,
    };
    host.callbacks.on_postprocess_trajectory(&mut TrajectoryHook {
        worker: host.worker,
        episode,
        agent: &agent.id,
        policy: &agent.policy,
        trajectory: &mut batch,
        others,
    })?;
    Ok(drop_unused_for_training(&batch, agent.wants.views()))
}

/// Returns the policy's value of the observation after the last row.
fn value(agent: &Agent, policy: &mut dyn Policy) -> Result<f32, SampleError> {
    let (mut obs, mut value) = (RowBuffer::default(), [0.0]);
    agent.show(&mut obs)?;
    let failed = |source| SampleError::Policy { id: agent.policy.clone(), source };
    policy.compute_values(obs.all(), agent.state(), &mut value).map_err(failed)?;
    Ok(value[0])
}
