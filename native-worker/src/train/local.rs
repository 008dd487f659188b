//! RLlib's local worker: one worker reads or samples what its policies learn from, for runs without slots.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rollmesh_core::{
    batch::{AnyBatch, BatchError, EpisodeMetrics, MultiAgentBatch},
    callbacks::Callbacks as _,
    episode::{EpisodeSummary, GlobalVars, RolloutMetrics},
    hash::weights_hash,
    ids::{PolicyId, WeightsVersion},
    policy::{AllReduceError, PolicyError, Postprocessing},
    run::{InputSource, PolicyConfig, RunConfig},
    sampler::{Position, SampleError},
    time::Micros,
    weights::Weights,
    worker::{DataParallelConfig, RolloutError, RolloutWorker, WorkerMetrics, WorkerStateError},
};
use serde::{Deserialize, Serialize};

use super::{RunRequestError, read_metrics::ReadMetrics};
use crate::{
    Registry,
    learner::{ENV_STEPS, LearnError, Learned, Results, algorithm, tell_results},
    offline::{DATASET, DATASET_SETTINGS, INPUT_SETTINGS},
};

/// A worker whose policies learn where it samples, on a thread of its own.
pub(crate) struct LocalWorker {
    worker: RolloutWorker,
    /// Env steps of a batch, at least.
    train_batch_size: usize,
    reads_input: bool,
    read: ReadMetrics,
    /// What is read after the last batch that was learned from; none for a sampler, and for what can only be read from its
    /// beginning.
    position: Option<Position>,
    is_interrupted: Arc<AtomicBool>,
    /// Other ranks, until it has joined them.
    ranks: Option<DataParallelConfig>,
    /// It is more than a look at what a run would need.
    has_begun: bool,
}

/// How long it samples before it looks for an interruption.
const SPAN: Micros = Micros(50_000);

/// The result of an iteration.
pub(crate) struct Iterated {
    /// That were learned from.
    pub(crate) env_steps: u64,
    /// That ended in it.
    pub(crate) episodes: Vec<EpisodeMetrics>,
    /// What reading has said, of this life of the run and of those before it.
    pub(crate) read: ReadMetrics,
    /// What may be a mistake.
    pub(crate) warnings: Vec<String>,
    pub(crate) learned: Learned,
}

/// What [`LocalWorker::state`] gives.
#[derive(Serialize, Deserialize)]
struct State {
    worker: Vec<u8>,
    /// See [`LocalWorker`].
    position: Option<Vec<u8>>,
    blackholed_env_steps: u64,
    corrupt_lines: u64,
}

impl LocalWorker {
    /// A worker for a run, which it may do together with other ranks.
    pub(crate) fn new(worker: RolloutWorker, ranks: Option<DataParallelConfig>) -> Self {
        let config = worker.creation_args();
        let train_batch_size = config.train_batch_size.max(1) as usize;
        let (reads_input, read, is_interrupted) = (!config.input.is_sampler(), ReadMetrics::default(), Arc::default());
        let position = worker.input_position();
        Self { worker, train_batch_size, reads_input, read, position, is_interrupted, ranks, has_begun: false }
    }

    /// Callbacks hear that the run begins.
    pub(crate) fn begin(&mut self) -> Result<(), LearnError> {
        self.has_begun = true;
        let info = self.worker.info().clone();
        Ok(self.worker.callbacks_mut().on_algorithm_init(&info)?)
    }

    /// Set, it keeps iterations from being completed.
    pub(crate) fn interruption(&self) -> Arc<AtomicBool> {
        self.is_interrupted.clone()
    }

    /// Ids of all policies, in order.
    pub(crate) fn ids(&self) -> Vec<PolicyId> {
        self.worker.creation_args().policies.keys().cloned().collect()
    }

    /// What the default policy does with trajectories, if it is the only one.
    pub(crate) fn postprocessing(&self) -> Postprocessing {
        self.worker.policy(&PolicyId::DEFAULT).map_or(Postprocessing::None, |policy| policy.postprocessing())
    }

    /// True if a run can go on where this one is.
    pub(crate) fn can_go_on(&self) -> bool {
        !self.reads_input || self.position.is_some()
    }

    /// What reading has said, in this life of the run and in those before it.
    pub(crate) fn read(&self) -> &ReadMetrics {
        &self.read
    }

    /// Weights of all policies.
    pub(crate) fn weights(&mut self) -> Result<Weights, LearnError> {
        let weights = self.worker.weights(None)?;
        let version = weights.values().map(Weights::version).max().unwrap_or(WeightsVersion(0));
        Ok(Weights::of_run(version, &weights).map_err(PolicyError::from)?)
    }

    /// Lets the policies go on with other weights, if they are others.
    pub(crate) fn set_weights(&mut self, weights: &Weights) -> Result<(), LearnError> {
        if weights_hash(weights) != weights_hash(&self.weights()?) {
            let weights = weights.of_policies(&self.ids()).map_err(PolicyError::from)?;
            self.worker.set_weights(&weights, None, None)?;
        }
        Ok(())
    }

    /// All that the worker needs, besides its configuration, to go on after the last batch that was learned from.
    pub(crate) fn state(&mut self) -> Result<Vec<u8>, LearnError> {
        let ReadMetrics { blackholed_env_steps, corrupt_lines, .. } = self.read;
        let position = self.position.as_ref().map(|position| position.as_bytes().to_vec());
        let state = State { worker: self.worker.save()?, position, blackholed_env_steps, corrupt_lines };
        Ok(postcard::to_allocvec(&state).map_err(|_| not_a_state())?)
    }

    /// Goes on from a [state](Self::state).
    pub(crate) fn restore(&mut self, state: &[u8]) -> Result<(), LearnError> {
        let State { worker, position, blackholed_env_steps, corrupt_lines } =
            postcard::from_bytes(state).map_err(|_| not_a_state())?;
        self.worker.restore(&worker)?;
        let info = self.worker.info().clone();
        self.worker.callbacks_mut().on_checkpoint_loaded(&info)?;
        self.position = position.map(Position::from_bytes);
        match &self.position {
            Some(position) => self.worker.set_input_position(position)?,
            None if self.reads_input => {
                let reason = "it can only be read from its beginning, so a run with it cannot be resumed; begin another with \
                              --init-weights";
                return Err(RolloutError::from(SampleError::Input(reason.into())).into());
            }
            None => {}
        }
        self.read = ReadMetrics::counted(blackholed_env_steps, corrupt_lines);
        Ok(())
    }

    /// Reads or samples a train batch, and lets the policies learn from it. None after an interruption: then nothing was
    /// learned, and [`state`](Self::state) is that after the batch before. `results` are what is known of the run.
    pub(crate) fn iterate(&mut self, mut results: Results) -> Result<Option<Iterated>, LearnError> {
        if let Some(ranks) = self.ranks.take() {
            self.worker.setup_data_parallel(&ranks)?;
        }
        let (mut batches, mut steps, mut warnings) = (Vec::new(), 0, Vec::new());
        let (mut ended, mut read) = (Vec::<RolloutMetrics>::new(), ReadMetrics::default());
        while steps < self.train_batch_size {
            let Some(batch) = self.sample()? else { break };
            let metrics = self.worker.metrics();
            read.add(&metrics);
            let WorkerMetrics { episodes, warnings: new, .. } = metrics;
            warnings.extend(new.iter().map(ToString::to_string));
            steps += batch.env_steps();
            ended.extend(episodes);
            batches.push(batch);
        }
        let Some(steps) = self.agree(steps as u64)? else { return Ok(None) };
        let infos = self.worker.learn_on_batch(&joined(&batches)?)?;
        let mut vars: GlobalVars = self.worker.global_vars();
        vars.timestep += steps;
        for id in infos.keys() {
            *vars.num_grad_updates_per_policy.entry(id.clone()).or_default() += 1;
        }
        self.worker.set_global_vars(&vars, None)?;
        self.read.follow(read);
        self.position = self.worker.input_position();
        results.insert(ENV_STEPS.into(), vars.timestep as f64);
        let summary = EpisodeSummary::of(&ended);
        let means = [("episode_return_mean", summary.episode_return.mean), ("episode_len_mean", summary.length.mean)];
        for (name, mean) in means.into_iter().filter(|(_, mean)| !mean.is_nan()) {
            results.insert(name.into(), mean);
        }
        let is_single = self.ids() == [PolicyId::DEFAULT];
        let added = tell_results(self.worker.callbacks_mut(), is_single, &infos, results)?;
        let learned = Learned { weights: self.weights()?, infos, added };
        let lost = ended.iter().filter_map(|episode| Some((episode.episode_id, episode.faulty.as_ref()?)));
        warnings.extend(lost.map(|(id, fault)| format!("episode {id} was lost: {fault}")));
        let episodes = ended.iter().filter(|episode| episode.faulty.is_none()).map(RolloutMetrics::of_slot).collect();
        Ok(Some(Iterated { env_steps: steps, episodes, read: self.read.clone(), warnings, learned }))
    }

    /// None after an interruption.
    fn sample(&mut self) -> Result<Option<AnyBatch>, LearnError> {
        while !self.is_interrupted() {
            if let Some(batch) = self.worker.sample_within(SPAN)? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Env steps of all ranks together; none if any of them was interrupted.
    fn agree(&mut self, steps: u64) -> Result<Option<u64>, LearnError> {
        let is_interrupted = self.is_interrupted();
        let Some(ranks) = self.worker.data_parallel() else { return Ok(Some(steps).filter(|_| !is_interrupted)) };
        let own = [&steps.to_le_bytes()[..], &[u8::from(is_interrupted)]].concat();
        let mut sum = Some(0u64);
        for (rank, bytes) in (0..).zip(ranks.all_gather("env steps of an iteration", &own, own.len())?) {
            let protocol = || AllReduceError::Protocol { rank, reason: "a number of env steps was expected".into() };
            let (steps, is_interrupted) = bytes.split_first_chunk().ok_or_else(protocol)?;
            let steps = Some(u64::from_le_bytes(*steps)).filter(|_| is_interrupted == [0]);
            sum = sum.zip(steps).map(|(sum, steps)| sum.saturating_add(steps));
        }
        Ok(sum)
    }
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        // After a check alone an external environment must go on.
        if self.has_begun {
            // There is no one left to report a failure to.
            let _ = self.worker.stop();
        }
    }
}

/// Checks what a run that reads says of its input: a setting that means nothing to files is a mistake; those of registered
/// inputs are their own. An algorithm learns from what is logged or from what is sampled, not from both.
pub(super) fn check_input(config: &RunConfig, registry: &Registry) -> Result<(), RunRequestError> {
    let on_policy = |policy: &&PolicyConfig| algorithm(&policy.policy).is_some_and(|known| !known.is_offline);
    if let Some(policy) = config.worker_config().policies.values().find(on_policy) {
        return Err(RunRequestError::NeedsSampler(policy.policy.clone()));
    }
    let is_file = |name: &String| registry.input(name).is_err();
    let input = &config.rollout.input;
    let only_files = match input {
        InputSource::Name(name) => is_file(name),
        InputSource::Files(_) => true,
        InputSource::Mixture(mixture) => mixture.keys().all(is_file),
    };
    let of_paths = DATASET_SETTINGS.iter().filter(|_| *input == InputSource::Name(DATASET.into()));
    let known: Vec<&str> = INPUT_SETTINGS.iter().chain(of_paths).copied().collect();
    match config.rollout.io_config.check_known(&known) {
        Err(unknown) if only_files => Err(RunRequestError::Input(unknown)),
        _ => Ok(()),
    }
}

/// The batches as one. Files may have columns that sampled batches, or other files, lack: only common ones are kept then.
fn joined(batches: &[AnyBatch]) -> Result<AnyBatch, BatchError> {
    AnyBatch::concat(batches).or_else(|_| {
        let mut batches: Vec<MultiAgentBatch> = batches.iter().map(AnyBatch::as_multi_agent).collect();
        let mut common: BTreeMap<PolicyId, BTreeSet<String>> = BTreeMap::new();
        for (id, rows) in batches.iter().flat_map(|batch| &batch.policy_batches) {
            let names: BTreeSet<String> = rows.iter().map(|(name, _)| name.to_owned()).collect();
            common.entry(id.clone()).and_modify(|common| common.retain(|name| names.contains(name))).or_insert(names);
        }
        for (id, rows) in batches.iter_mut().flat_map(|batch| &mut batch.policy_batches) {
            let names: Vec<String> = rows.iter().map(|(name, _)| name.to_owned()).collect();
            for name in names.iter().filter(|name| !common[id].contains(*name)) {
                rows.remove(name);
            }
        }
        MultiAgentBatch::concat(&batches).map(AnyBatch::Multi)
    })
}

fn not_a_state() -> RolloutError {
    WorkerStateError::NotAState.into()
}
