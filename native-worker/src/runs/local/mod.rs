//! RLlib's local worker: in runs without leases its policies learn from rows that it samples or reads itself, or that
//! other workers do.

mod ranks;

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, atomic::AtomicBool},
};

use rollmesh_core::{
    batch::{AnyBatch, EpisodeMetrics},
    callbacks::Callbacks as _,
    encoding,
    episode::{EpisodeSummary, GlobalVars, RolloutMetrics},
    filter::{Filter, FilterKind},
    hash::weights_hash,
    ids::{PolicyId, WeightsVersion},
    policy::{PolicyError, Postprocessing},
    run::{InputSource, PolicyConfig, RunConfig},
    weights::Weights,
    worker::{DataParallelConfig, RolloutConfig, RolloutError, RolloutWorker, WorkerStateError},
};
use serde::{Deserialize, Serialize};

use super::{
    RunRequestError, output::RunOutput, own_sampler::SampleWatch, read_metrics::ReadMetrics, row_source::RowSource,
};
use crate::{
    Registry,
    learner::{ENV_STEPS, LearnError, Learned, Results, algorithm, report_results},
    offline::{DATASET, DATASET_SETTINGS, INPUT_SETTINGS, json::JsonWriterOptions},
};

/// The learner of a run without leases, and the workers that sample or read for it, on a thread of its own.
pub(crate) struct LocalWorker {
    rows: Box<dyn RowSource>,
    /// The configuration of its workers.
    config: RolloutConfig,
    read: ReadMetrics,
    /// The state after the last batch that was learned from, while another one is in progress or was interrupted; in
    /// data-parallel runs always, since all ranks collect it together.
    before: Option<Result<Before, LearnError>>,
    /// True if the run is saved: then the state before each batch is kept.
    pub(super) is_saved: bool,
    /// True if a run can be resumed where this one is.
    pub(super) can_be_resumed: bool,
    /// The output of a run that writes its rows itself; `None` if its worker does, or without any.
    pub(super) output: Option<RunOutput>,
    /// How the run is to write its rows; `None` if it is not to.
    pub(super) output_options: Option<JsonWriterOptions>,
    /// Open episodes of the checkpoint that could not be continued, until an iteration reports them.
    pub(super) lost_episodes: u64,
    /// Number of workers of earlier processes that were lost.
    disturbances: u64,
    is_interrupted: Arc<AtomicBool>,
    /// The settings with which it joins the other ranks, in data-parallel runs.
    ranks: Option<DataParallelConfig>,
    /// This rank's filters from the checkpoint that it resumes from, until it has joined the others.
    filters: BTreeMap<PolicyId, Filter>,
    /// True if the run has begun; false for a worker that only checks a run.
    has_begun: bool,
}

/// The result of an iteration.
pub(crate) struct Iterated {
    /// Env steps that were learned from.
    pub(crate) env_steps: u64,
    /// Episodes that ended in it.
    pub(crate) episodes: Vec<EpisodeMetrics>,
    /// The reports of reading, in this process and in earlier ones.
    pub(crate) read: ReadMetrics,
    /// Possible mistakes, for the user.
    pub(crate) warnings: Vec<String>,
    /// Number of workers lost so far.
    pub(crate) disturbances: u64,
    /// Open episodes that were abandoned in it, since a failed sample or the checkpoint could not restore them.
    pub(crate) abandoned: u64,
    pub(crate) learned: Learned,
}

/// The serialised form of [`LocalWorker::state`].
#[derive(Serialize, Deserialize)]
struct LocalState {
    worker: Vec<u8>,
    /// By worker or rank; `None` for one that was lost, or has not joined.
    samplers: Vec<Option<Vec<u8>>>,
    disturbances: u64,
    blackholed_env_steps: u64,
    corrupt_lines: u64,
    /// By rank.
    filters: Vec<Filters>,
}

/// The encoded filters of a rank, which normalises with the statistics of its own samples.
type Filters = BTreeMap<PolicyId, Vec<u8>>;

/// The state that an interruption must not change.
#[derive(Clone)]
struct Before {
    samplers: Vec<Option<Vec<u8>>>,
    /// The worker that learns, if sampling changes it: a filter counts the rows that it has seen.
    worker: Option<Vec<u8>>,
    /// By rank.
    filters: Vec<Filters>,
}

impl LocalWorker {
    /// Returns the learner over these workers, also as a rank of a data-parallel run, in which it is the only one.
    ///
    /// # Errors
    /// [`LearnError::Rows`] for a group without a local worker.
    pub(crate) fn new(mut rows: Box<dyn RowSource>, ranks: Option<DataParallelConfig>) -> Result<Self, LearnError> {
        let (config, can_be_resumed) = (rows.sampler_config()?, rows.can_be_resumed());
        Ok(Self {
            rows,
            config,
            read: ReadMetrics::default(),
            before: None,
            is_saved: false,
            can_be_resumed,
            output: None,
            output_options: None,
            lost_episodes: 0,
            disturbances: 0,
            is_interrupted: Arc::default(),
            ranks,
            filters: BTreeMap::new(),
            has_begun: false,
        })
    }

    /// Calls the callbacks for the start of the run.
    pub(crate) fn begin(&mut self) -> Result<(), LearnError> {
        self.has_begun = true;
        let worker = self.rows.learner()?;
        let info = worker.info().clone();
        Ok(worker.callbacks_mut().on_algorithm_init(&info)?)
    }

    /// Returns the flag that, once set, keeps iterations from being completed.
    pub(crate) fn interruption(&self) -> Arc<AtomicBool> {
        self.is_interrupted.clone()
    }

    /// Returns the view of its sampling for other threads, if it samples itself.
    pub(crate) fn watch(&self) -> Option<SampleWatch> {
        self.rows.own_watch()
    }

    /// Returns the ids of all policies, sorted.
    pub(crate) fn ids(&self) -> Vec<PolicyId> {
        self.config.policies.keys().cloned().collect()
    }

    /// Returns the default policy's postprocessing, if it is the only policy.
    pub(crate) fn postprocessing(&mut self) -> Postprocessing {
        let worker = self.rows.learner().ok();
        let policy = worker.and_then(|worker| worker.policy(&PolicyId::DEFAULT));
        policy.map_or(Postprocessing::None, |policy| policy.postprocessing())
    }

    /// Returns the reports of reading, in this process and in earlier ones.
    pub(crate) fn read(&self) -> &ReadMetrics {
        &self.read
    }

    /// Returns the weights of all policies.
    pub(crate) fn weights(&mut self) -> Result<Weights, LearnError> {
        let weights = self.rows.learner()?.weights(None)?;
        let version = weights.values().map(Weights::version).max().unwrap_or(WeightsVersion(0));
        Ok(Weights::of_run(version, &weights).map_err(PolicyError::from)?)
    }

    /// Sets other weights, if they differ.
    pub(crate) fn set_weights(&mut self, weights: &Weights) -> Result<(), LearnError> {
        if weights_hash(weights) != weights_hash(&self.weights()?) {
            let weights = weights.of_policies(&self.ids()).map_err(PolicyError::from)?;
            self.rows.learner()?.set_weights(&weights, None, None)?;
        }
        let vars = self.rows.learner()?.global_vars();
        self.rows.sync(&vars)
    }

    /// Returns the state from which its workers continue after the last batch that was learned from, without their
    /// configuration.
    pub(crate) fn state(&mut self) -> Result<Vec<u8>, LearnError> {
        let ReadMetrics { blackholed_env_steps, corrupt_lines, .. } = self.read;
        let Before { mut samplers, worker, mut filters } = match &self.before {
            Some(Ok(before)) => before.clone(),
            Some(Err(error)) => return Err(LearnError::Rows(error.to_string())),
            None => Before { samplers: self.rows.sampler_states()?, worker: None, filters: Vec::new() },
        };
        if let Some(ranks) = &self.ranks {
            samplers.resize(ranks.world_size as usize, None);
            filters.resize(ranks.world_size as usize, Filters::new());
        }
        let worker = worker.map_or_else(|| self.rows.learner()?.save().map_err(LearnError::from), Ok)?;
        let disturbances = self.disturbances + self.rows.disturbances();
        let state = LocalState { worker, samplers, disturbances, blackholed_env_steps, corrupt_lines, filters };
        Ok(encoding::encode(&state))
    }

    /// Restores a [state](Self::state).
    pub(crate) fn restore(&mut self, state: &[u8]) -> Result<(), LearnError> {
        let LocalState { worker: own, mut samplers, disturbances, blackholed_env_steps, corrupt_lines, filters } =
            encoding::decode(state).ok_or_else(not_a_state)?;
        let worker = self.rows.learner()?;
        worker.restore(&own)?;
        let info = worker.info().clone();
        worker.callbacks_mut().on_checkpoint_loaded(&info)?;
        let vars = worker.global_vars();
        self.rows.sync(&vars)?;
        self.disturbances = disturbances;
        if let Some(rank) = self.ranks.as_ref().map(|ranks| ranks.rank as usize).filter(|_| !filters.is_empty()) {
            let filter = |(id, bytes): (&PolicyId, &Vec<u8>)| {
                Ok((id.clone(), Filter::decode(bytes).map_err(|_| not_a_state())?))
            };
            self.filters = filters.get(rank).into_iter().flatten().map(filter).collect::<Result<_, RolloutError>>()?;
            self.before = Some(Ok(Before { samplers: samplers.clone(), worker: Some(own), filters }));
            samplers = vec![samplers.get(rank).cloned().flatten()];
        }
        let (saved, now) = (samplers.len(), self.rows.num_samplers());
        if saved != now {
            return Err(LearnError::Rows(format!("the run was saved with {saved} workers and is resumed with {now}")));
        }
        self.lost_episodes = samplers.iter().flatten().filter_map(|state| RolloutWorker::lost_episodes(state)).sum();
        self.rows.set_sampler_states(samplers)?;
        self.read = ReadMetrics::counted(blackholed_env_steps, corrupt_lines);
        Ok(())
    }

    /// Samples or reads a train batch, and lets the policies learn from it. `None` after an interruption: then nothing was
    /// learned, and [`state`](Self::state) is that after the batch before. `results` is the run's progress.
    pub(crate) fn iterate(&mut self, mut results: Results) -> Result<Option<Iterated>, LearnError> {
        match self.ranks.clone() {
            Some(ranks) if self.rows.learner()?.data_parallel().is_none() => self.join(&ranks)?,
            Some(_) => {}
            // If the state cannot be saved, the checkpoint fails and not the run.
            None => self.before = self.is_saved.then(|| self.look_back()),
        }
        let mut warnings = self.rows.tend()?;
        let wanted = self.config.train_batch_size.max(1) as usize;
        let (mut batches, mut steps) = (Vec::new(), 0);
        let (mut ended, mut read) = (Vec::<RolloutMetrics>::new(), ReadMetrics::default());
        while steps < wanted {
            let Some(sampled) = self.rows.next_batches(wanted - steps, &self.is_interrupted)? else { break };
            for metrics in self.rows.metrics()? {
                read.add(&metrics);
                warnings.extend(metrics.warnings.iter().map(ToString::to_string));
                ended.extend(metrics.episodes);
            }
            steps += sampled.iter().map(AnyBatch::env_steps).sum::<usize>();
            batches.extend(sampled);
        }
        let Some(steps) = self.agree(steps as u64)? else { return Ok(None) };
        let worker = self.rows.learner()?;
        let is_sampled = self.config.input.is_sampler();
        let batch = if is_sampled { AnyBatch::concat(&batches) } else { AnyBatch::concat_common(&batches) }?;
        let infos = worker.learn_on_batch(&batch)?;
        let mut vars: GlobalVars = worker.global_vars();
        vars.timestep += steps;
        for id in infos.keys() {
            *vars.num_grad_updates_per_policy.entry(id.clone()).or_default() += 1;
        }
        self.rows.sync(&vars)?;
        if let Some(output) = &self.output {
            output.append(batches).map_err(|error| LearnError::Rows(error.to_string()))?;
        }
        self.before = if self.ranks.is_some() && self.is_saved { Some(self.look_back_together()?) } else { None };
        self.read.follow(read);
        results.insert(ENV_STEPS.into(), vars.timestep as f64);
        let summary = EpisodeSummary::of(&ended);
        let means = [("episode_return_mean", summary.episode_return.mean), ("episode_len_mean", summary.length.mean)];
        for (name, mean) in means.into_iter().filter(|(_, mean)| !mean.is_nan()) {
            results.insert(name.into(), mean);
        }
        let is_single = self.ids() == [PolicyId::DEFAULT];
        let added = report_results(self.rows.learner()?.callbacks_mut(), is_single, &infos, results)?;
        let learned = Learned { weights: self.weights()?, infos, added };
        let lost = ended.iter().filter_map(|episode| Some((episode.episode_id, episode.faulty.as_ref()?)));
        warnings.extend(lost.map(|(id, fault)| format!("episode {id} was lost: {fault}")));
        let episodes = ended.iter().filter(|episode| episode.faulty.is_none()).map(RolloutMetrics::of_slot).collect();
        let (read, disturbances) = (self.read.clone(), self.disturbances + self.rows.disturbances());
        let abandoned = self.rows.take_abandoned() + mem::take(&mut self.lost_episodes);
        Ok(Some(Iterated { env_steps: steps, episodes, read, warnings, disturbances, abandoned, learned }))
    }

    fn look_back(&mut self) -> Result<Before, LearnError> {
        let has_filter = self.config.observation_filter != FilterKind::NoFilter;
        let worker = if has_filter { Some(self.rows.learner()?.save()?) } else { None };
        Ok(Before { samplers: self.rows.sampler_states()?, worker, filters: Vec::new() })
    }
}

impl Drop for LocalWorker {
    fn drop(&mut self) {
        // After a mere check an external environment must stay open.
        if self.has_begun {
            self.rows.end();
        }
    }
}

/// Checks the input settings of a run that reads: settings unknown to file inputs are errors; registered inputs define their
/// own. An algorithm learns from logged rows or from sampled ones, not from both.
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

fn not_a_state() -> RolloutError {
    WorkerStateError::NotAState.into()
}
