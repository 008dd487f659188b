//! Serialised state of a worker.

use serde::{Deserialize, Serialize};

use super::{PoliciesToTrain, RolloutWorker, policies::put_state};
use crate::{
    callbacks::Callbacks as _,
    encoding,
    episode::GlobalVars,
    hash::{seal, unseal},
    ids::PolicyId,
    policy::{PolicyEntry, PolicyState, Stash as _, StashError},
    prelude::*,
    sampler::{InputReader, Position, ResumePoint},
    worker::RolloutError,
};

/// The reason why a worker's state could not be saved or restored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerStateError {
    /// The bytes are something else, or their beginning is damaged.
    #[error("these bytes are no worker's state")]
    NotAState,
    /// The state was written by another version.
    #[error("the worker's state has version {0}, this program reads {wanted}", wanted = FORMAT_VERSION)]
    Version(u8),
    /// The bytes are truncated or altered.
    #[error("the worker's state is damaged")]
    Damaged,
    /// The input can only be read from its beginning, so its position cannot be restored.
    #[error(
        "the input can only be read from its beginning, so a run with it cannot be resumed; begin another with --init-weights"
    )]
    NoPosition,
    /// A policy's state is invalid.
    #[error("policy '{id}': {source}")]
    Policy {
        /// The policy.
        id: PolicyId,
        /// The cause.
        source: StashError,
    },
}

const MAGIC: &[u8] = b"RMWS";
const FORMAT_VERSION: u8 = 2;

/// The serialised fields.
#[derive(Serialize, Deserialize)]
struct State {
    policies: Vec<SavedPolicy>,
    mapping: Option<String>,
    trained: Trained,
    timestep: u64,
    updates: BTreeMap<PolicyId, u64>,
    seq_no: Option<u64>,
    /// Number of calls that learned so far.
    learned: u32,
    sampler: Option<Position>,
}

/// The serialised form of [`RolloutWorker::sampler_state`].
#[derive(Serialize, Deserialize)]
struct SamplerState {
    position: Option<Position>,
    /// Number of open episodes that the position does not continue.
    lost_episodes: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedPolicy {
    id: PolicyId,
    /// The recipe to create it, if that can be serialised.
    spec: String,
    state: Vec<u8>,
}

/// The policies that are trained.
#[derive(Serialize, Deserialize)]
enum Trained {
    All,
    Ids(BTreeSet<PolicyId>),
    /// Those that a function selects; it is not serialised, so the restoring worker keeps its own.
    Function,
}

impl RolloutWorker {
    /// Serialises the worker's state: policies with weights, filters and further state; the mapping function, if it has a
    /// registered name; the trained policies; the run's progress; and the position of each slot. Open episodes continue
    /// between two fragments, unless their environment is [opaque](crate::env::EnvState::Opaque) or in another process, or
    /// its state would exceed 1 MiB: then the next episodes begin. A sample in [progress](Self::sample_within) is not
    /// included. Nothing is flushed. The format: four letters, a version, the content, and a hash of all these.
    ///
    /// # Errors
    /// [`RolloutError::State`] for a policy that is too large, [`RolloutError::PolicyMap`] for one that cannot be restored
    /// from the store.
    #[doc(alias = "get_state")]
    pub fn save(&mut self) -> Result<Vec<u8>, RolloutError> {
        self.check_running()?;
        let mut policies = Vec::with_capacity(self.parts.policies.len());
        self.parts.policies.for_each(|id, entry: &PolicyEntry| {
            let state = entry.stash().map_err(|source| WorkerStateError::Policy { id: id.clone(), source })?;
            policies.push(SavedPolicy { id: id.clone(), spec: entry.spec().into(), state });
            Ok::<_, RolloutError>(())
        })?;
        policies.sort_by(|a, b| a.id.cmp(&b.id));
        let vars = self.global_vars();
        let state = State {
            policies,
            mapping: self.parts.mapping_name.clone(),
            trained: match &self.parts.policies_to_train {
                PoliciesToTrain::All => Trained::All,
                PoliciesToTrain::Ids(ids) => Trained::Ids(ids.clone()),
                PoliciesToTrain::Where(_) => Trained::Function,
            },
            timestep: vars.timestep,
            updates: vars.num_grad_updates_per_policy,
            seq_no: self.weights_seq_no,
            learned: self.learned,
            sampler: self.sampler_position(),
        };
        Ok(seal([MAGIC, &[FORMAT_VERSION][..]].concat(), &state))
    }

    /// Restores a [saved](Self::save) state. Policies that do not exist are created, if their class is registered; policies
    /// that are not in the state stay. Slots of other workers are ignored; quarantined sub-environments are retried. A
    /// sample in [progress](Self::sample_within) is dropped.
    ///
    /// # Errors
    /// [`RolloutError::State`] for damaged bytes; [`RolloutError::Policy`], [`RolloutError::Filter`] and
    /// [`RolloutError::Sample`] for states that do not fit; [`RolloutError::Setup`] for policies that cannot be created,
    /// which have to be added first; [`RolloutError::Unknown`] for an unregistered mapping function,
    /// [`RolloutError::FixedMapping`] for one that cannot take effect; [`RolloutError::Callback`]. Nothing has changed then.
    #[doc(alias = "set_state")]
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), RolloutError> {
        self.check_running()?;
        let state = decode(bytes)?;
        let mapping = match &state.mapping {
            Some(name) => Some((self.mapping_of_name(name)?, name.clone())),
            None => None,
        };
        let mut known = Vec::new();
        let mut made = Vec::new();
        for saved in &state.policies {
            let failed = |source| WorkerStateError::Policy { id: saved.id.clone(), source };
            let own = PolicyState::decode(&saved.state).map_err(failed)?;
            if self.parts.policies.contains(&saved.id) {
                known.push((saved.id.clone(), own));
                continue;
            }
            let (mut entry, recipe) = self.parts.workshop.remake(&saved.id, &saved.spec)?;
            put_state(&saved.id, &mut entry, &own)?;
            self.parts.callbacks.on_create_policy(&saved.id, entry.policy.as_mut())?;
            made.push((saved.id.clone(), entry, recipe, own));
        }
        let mut before = Vec::new();
        let put = self.put_states(&known, &mut before).and_then(|()| self.restore_sampler(state.sampler.as_ref()));
        if let Err(error) = put {
            let mut undone = Vec::new();
            self.put_states(&before, &mut undone)?;
            return Err(error);
        }
        self.give_up_sample()?;
        for (id, entry, recipe, own) in made {
            self.parts.recipes.insert(id.clone(), recipe);
            self.parts.policies.add(id.clone(), entry)?;
            known.push((id, own));
        }
        if let Some((map, name)) = mapping {
            (self.parts.policy_mapping_fn, self.parts.mapping_name) = (map, Some(name));
        }
        match state.trained {
            Trained::All => self.parts.policies_to_train = PoliciesToTrain::All,
            Trained::Ids(ids) => self.parts.policies_to_train = PoliciesToTrain::Ids(ids),
            Trained::Function => {}
        }
        (self.weights_seq_no, self.learned) = (state.seq_no, state.learned);
        let vars = GlobalVars { timestep: state.timestep, num_grad_updates_per_policy: state.updates };
        self.set_global_vars(&vars, None)?;
        // The policies' saved view of the run's progress takes precedence over what they are notified of now.
        self.put_states(&known, &mut Vec::new())
    }

    /// Returns the position of the worker's input, which is not part of the [state](Self::save), since other workers read
    /// other data. `None` without an input, for one that can only restart, and while a sample is in
    /// [progress](Self::sample_within).
    #[must_use]
    pub fn input_position(&self) -> Option<Position> {
        let opened = &self.parts.opened;
        let source = opened.source.as_ref().filter(|_| opened.offline);
        source.filter(|_| self.read.is_empty() && self.making.is_none())?.reader().position()
    }

    /// Sets the input to the [position](Self::input_position) of a worker with the same input and settings. A sample in
    /// progress is dropped.
    ///
    /// # Errors
    /// [`RolloutError::NoInput`] without one, [`RolloutError::Sample`] for a position of something else, and if the data has
    /// changed: then the input's position is undefined.
    pub fn set_input_position(&mut self, position: &Position) -> Result<(), RolloutError> {
        self.check_running()?;
        self.give_up_sample()?;
        let opened = &mut self.parts.opened;
        let source = opened.source.as_mut().filter(|_| opened.offline).ok_or(RolloutError::NoInput)?;
        Ok(source.reader_mut().set_position(position)?)
    }

    /// Returns the position of the worker's sampler or input, in bytes, without its policies: with it, the worker samples
    /// or reads the same next rows again, unless open episodes cannot be continued. A sample in
    /// [progress](Self::sample_within) is not included.
    ///
    /// # Errors
    /// [`RolloutError::Stopped`].
    pub fn sampler_state(&self) -> Result<Vec<u8>, RolloutError> {
        self.check_running()?;
        let point = self.own_sampler().map(InputReader::resume_point);
        let lost_episodes = point.as_ref().and_then(|point| point.lost_episodes).unwrap_or(0);
        let position = point.as_ref().and_then(ResumePoint::position).or_else(|| self.input_position());
        Ok(encoding::encode(&SamplerState { position, lost_episodes }))
    }

    /// Returns the number of episodes that were open at a [state](Self::sampler_state) and cannot be continued there: their
    /// slots begin the next ones. `None` for invalid bytes.
    #[must_use]
    pub fn lost_episodes(state: &[u8]) -> Option<u64> {
        encoding::decode(state).map(|SamplerState { lost_episodes, .. }| lost_episodes)
    }

    /// Resumes sampling and reading at a [state](Self::sampler_state) of a worker with the same settings. A sample in
    /// progress is dropped.
    ///
    /// # Errors
    /// [`RolloutError::State`] for invalid bytes, and for an input that can only be read from its beginning;
    /// [`RolloutError::Sample`] for a state of other settings.
    pub fn set_sampler_state(&mut self, state: &[u8]) -> Result<(), RolloutError> {
        self.check_running()?;
        let SamplerState { position, .. } = encoding::decode(state).ok_or(WorkerStateError::NotAState)?;
        match position {
            Some(position) if self.parts.opened.offline => self.set_input_position(&position),
            None if self.parts.opened.offline => Err(WorkerStateError::NoPosition.into()),
            position => {
                self.restore_sampler(position.as_ref())?;
                self.give_up_sample()
            }
        }
    }

    /// Returns the position of the worker's own sampler.
    fn sampler_position(&self) -> Option<Position> {
        self.own_sampler()?.position()
    }

    /// Returns the worker's own sampler; `None` for a worker that reads.
    fn own_sampler(&self) -> Option<&dyn InputReader> {
        let opened = &self.parts.opened;
        Some(opened.source.as_ref().filter(|_| !opened.offline)?.reader())
    }

    /// Drops what was read for a sample in progress, and samples that no reader has taken.
    pub(super) fn give_up_sample(&mut self) -> Result<(), RolloutError> {
        self.discard_waiting();
        self.end_sample()
    }

    /// Sets the states of policies, and keeps the previous ones.
    fn put_states(
        &mut self,
        states: &[(PolicyId, PolicyState)],
        before: &mut Vec<(PolicyId, PolicyState)>,
    ) -> Result<(), RolloutError> {
        for (id, state) in states {
            let entry = self.parts.policies.get_mut(id)?;
            let (weights, filter) = (entry.policy.weights().clone(), entry.filter.clone());
            let now = PolicyState { weights, filter, extra: entry.policy.extra_state() };
            put_state(id, entry, state)?;
            before.push((id.clone(), now));
        }
        Ok(())
    }

    /// Moves the worker's own sampler to a position, if there is one.
    pub(super) fn restore_sampler(&mut self, position: Option<&Position>) -> Result<(), RolloutError> {
        let opened = &mut self.parts.opened;
        if let (Some(source), Some(position), false) = (&mut opened.source, position, opened.offline) {
            source.reader_mut().set_position(position)?;
        }
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<State, WorkerStateError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(WorkerStateError::NotAState)?;
    let (&version, _) = rest.split_first().ok_or(WorkerStateError::Damaged)?;
    if version != FORMAT_VERSION {
        return Err(WorkerStateError::Version(version));
    }
    let state = unseal::<State>(bytes, MAGIC.len() + 1);
    // Each policy occurs once, in the order in which they are written.
    state.filter(|state| state.policies.is_sorted_by(|a, b| a.id < b.id)).ok_or(WorkerStateError::Damaged)
}
