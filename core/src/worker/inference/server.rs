//! Computes the outputs of policies' networks for other workers.

use super::{Batcher, MAX_ROW_BYTES};
use crate::{
    column::{LittleEndian as _, append_le},
    ids::{PolicyId, WeightsVersion},
    policy::{Input, Output},
    prelude::*,
    protocol::message::{Infer, Inferred},
    run::{RunConfig, SamplingMode},
    time::Micros,
    weights::Weights,
    worker::{Guard, NetworkLens, RolloutWorkerBuilder, RunnerError, SetupError, SlotRunner},
};

/// Least number of versions that are kept: workers whose lease was superseded still ask for the one before.
const MIN_KEPT: u64 = 4;
/// Most versions that are kept, whatever the staleness: a worker that asks for an older one acts by itself.
const MAX_KEPT: u64 = 64;
/// Most bytes of requests for weights that have not arrived.
const MAX_EARLY_BYTES: usize = 64 << 20;

/// Computes the outputs of a run's networks for rows of other workers, without I/O. Pass it requests and weights, let it
/// [work](Self::work), and send its [answers](Self::poll_answer).
pub struct InferenceServer {
    slots: SlotRunner,
    batcher: Batcher,
    /// The latest versions, oldest first.
    kept: VecDeque<Weights>,
    max_kept: usize,
    /// Requests for weights that have not arrived: a small message may overtake them.
    early: Vec<Infer>,
    answers: VecDeque<Inferred>,
}

impl NetworkLens {
    /// Returns the numbers per row of the distribution's inputs, and of the states after it, that a request asks for.
    fn wanted(&self, wants: u8) -> (usize, usize) {
        let of = |bit, len| if wants & bit == 0 { 0 } else { len };
        (of(Infer::DIST_INPUTS, self.dist_inputs), of(Infer::STATE, self.state))
    }
}

impl InferenceServer {
    /// Creates a server for a run, whose policies act by what the builder's registry has: the kernels, or a device.
    ///
    /// # Errors
    /// [`SetupError`] as for a worker that samples.
    pub fn new(run: &RunConfig, builder: RolloutWorkerBuilder) -> Result<Self, SetupError> {
        let staleness = match run.sampling_mode() {
            SamplingMode::Synchronous => 0,
            SamplingMode::Asynchronous { max_staleness, .. } | SamplingMode::Deadline { max_staleness, .. } => {
                max_staleness
            }
        };
        Ok(Self {
            slots: SlotRunner::new(run, builder)?,
            batcher: Batcher::new(run.inference_batch),
            kept: VecDeque::new(),
            max_kept: staleness.saturating_add(2).clamp(MIN_KEPT, MAX_KEPT) as usize,
            early: Vec::new(),
            answers: VecDeque::new(),
        })
    }

    /// Sets the guard that catches panics of user code, which the core cannot do itself.
    pub fn set_guard(&mut self, guard: Guard) {
        self.slots.set_guard(guard);
    }

    /// Adds weights of the run; those of the oldest version are dropped.
    pub fn add_weights(&mut self, weights: Weights) {
        if self.newest().is_some_and(|newest| newest >= weights.version()) {
            return;
        }
        self.kept.push_back(weights);
        if self.kept.len() > self.max_kept {
            self.kept.pop_front();
        }
        for request in core::mem::take(&mut self.early) {
            self.handle(request);
        }
    }

    fn newest(&self) -> Option<WeightsVersion> {
        self.kept.back().map(Weights::version)
    }

    /// Handles an untrusted request.
    pub fn handle(&mut self, request: Infer) {
        if let Err(reason) = self.check(&request) {
            self.answers.push_back(Inferred::failed(&request, &reason));
        } else if self.newest().is_some_and(|newest| newest.0 >= request.version) {
            self.batcher.push(request);
        } else if self.early.iter().chain([&request]).map(Infer::num_bytes).sum::<usize>() > MAX_EARLY_BYTES {
            let reason = format!("too many rows wait for weights {}, which have not arrived", request.version);
            self.answers.push_back(Inferred::failed(&request, &reason));
        } else {
            self.early.push(request);
        }
    }

    /// Checks that a request has the bytes of its rows, and that a message can hold their outputs: memory is allocated for
    /// as many rows as it names.
    fn check(&mut self, request: &Infer) -> Result<(), String> {
        let Infer { policy, rows, .. } = request;
        let lens = self.slots.network_lens(&PolicyId::new(policy.clone())).map_err(|error| error.to_string())?;
        let bytes_of = |len: usize| 4 * u64::from(*rows) * len as u64;
        let (obs, state) = (bytes_of(lens.obs), bytes_of(lens.state));
        if *rows == 0 || (request.obs.len() as u64, request.state.len() as u64) != (obs, state) {
            let (found_obs, found_state) = (request.obs.len(), request.state.len());
            return Err(format!(
                "{rows} rows for policy '{policy}' are {obs} bytes of observations and {state} of states, not {found_obs} and \
                 {found_state}"
            ));
        }
        let (inputs, after) = lens.wanted(request.wants);
        match bytes_of(1 + inputs + after) {
            bytes if bytes > MAX_ROW_BYTES as u64 => Err(format!(
                "the outputs of {rows} rows are {bytes} bytes, and a message holds {MAX_ROW_BYTES}: send fewer rows at a time"
            )),
            _ => Ok(()),
        }
    }

    /// Returns true if [`work`](Self::work) has something to do whatever the time is.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.answers.is_empty() || self.batcher.has_work()
    }

    /// Returns when there is something to do although more rows would be welcome.
    #[must_use]
    pub fn due_at(&self) -> Option<Micros> {
        self.batcher.due_at()
    }

    /// Computes the batch that is due, if there is one.
    pub fn work(&mut self, now: Micros) {
        let Some(batch) = self.batcher.poll(now) else { return };
        let Some(version) = batch.first().map(|first| WeightsVersion(first.version)) else { return };
        let is_kept = |weights: &Weights| weights.version() == version;
        if let Some(newest) = self.newest().filter(|_| !self.kept.iter().any(is_kept)) {
            return self.answers.extend(batch.iter().map(|request| Inferred::not_kept(request, newest.0)));
        }
        match self.outputs(&batch) {
            Ok(answers) => self.answers.extend(answers),
            Err(reason) => self.answers.extend(batch.iter().map(|request| Inferred::failed(request, &reason))),
        }
    }

    /// Returns the next answer.
    pub fn poll_answer(&mut self) -> Option<Inferred> {
        self.answers.pop_front()
    }

    /// Computes the outputs for requests of one policy, version and size of rows.
    fn outputs(&mut self, batch: &[Infer]) -> Result<Vec<Inferred>, String> {
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        self.act_with(WeightsVersion(first.version))?;
        let rows: usize = batch.iter().map(|request| request.rows as usize).sum();
        let wants = batch.iter().fold(0, |wants, request| wants | request.wants);
        let floats =
            |part: fn(&Infer) -> &[u8]| -> Vec<f32> { batch.iter().flat_map(|one| f32::iter_le(part(one))).collect() };
        let (obs, before) = (floats(|one| &one.obs), floats(|one| &one.state));
        let id = PolicyId::new(first.policy.clone());
        let lens = self.slots.network_lens(&id).map_err(|error| error.to_string())?;
        let (inputs_len, state_len) = lens.wanted(wants);
        let (mut inputs, mut values) = (vec![0.0; rows * inputs_len], vec![0.0; rows]);
        let mut after = vec![0.0; rows * state_len];
        let out = Output { dist_inputs: &mut inputs, values: &mut values, state: &mut after };
        let acted = self.slots.compute_outputs(&id, Input { obs: &obs, state: &before }, out);
        acted.map_err(|error| error.to_string())?;
        let mut at = 0;
        let answer = |request: &Infer| {
            let of = at..at + request.rows as usize;
            at = of.end;
            let mut outputs = Vec::new();
            let mut append =
                |values: &[f32], len: usize| append_le(&mut outputs, &values[of.start * len..of.end * len]);
            if request.wants & Infer::DIST_INPUTS != 0 {
                append(&inputs, inputs_len);
            }
            append(&values, 1);
            if request.wants & Infer::STATE != 0 {
                append(&after, state_len);
            }
            Inferred { ask: request.ask, version: request.version, error: String::new(), outputs }
        };
        Ok(batch.iter().map(answer).collect())
    }

    fn act_with(&mut self, version: WeightsVersion) -> Result<(), String> {
        if self.slots.weights_version() == version {
            return Ok(());
        }
        let found = self.kept.iter().find(|weights| weights.version() == version);
        let weights = found.ok_or_else(|| format!("weights {version} are not kept"))?;
        self.slots.set_weights(weights).map_err(|error: RunnerError| error.to_string())
    }
}
