//! A run: updates from files by turns with the policy's own episodes, saved on the way.

use std::{
    fs::File,
    io,
    time::{Duration, Instant},
};

use rollmesh_core::{
    callbacks::{CallbackError, CallbackList, Callbacks as _, WorkerInfo},
    hash::weights_hash,
    policy::LearnInfo,
    weights::Weights,
};
use serde::Serialize;

use super::{
    evaluator::Evaluator,
    saved::{Progress as Measured, Saved},
};
use crate::{
    checkpoint::{CHECKPOINTS_DIR, Checkpoints, PolicyCheckpoint},
    cli::{
        exit::Failure,
        learn::{self, Training},
    },
    learner::Algorithm,
    progress::Progress,
    train::{Candidate, Evaluated, EvaluationLine, EvaluationMetrics, RunConfig, RunDir, StopConfig},
};

/// How long nothing is saved at most, an update and an evaluation aside.
const SAVED_EVERY: Duration = Duration::from_secs(10);
/// Updates between two evaluations that decide on the end of a run, if the run does not say how many.
const EVALUATED_EVERY: u64 = 10;
/// How long it waits for an evaluation before it asks whether somebody has interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A line of `metrics.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    iteration: u64,
    /// Rows learned from.
    env_steps: u64,
    wall_s: f64,
    #[serde(flatten)]
    learner: Option<&'a LearnInfo>,
}

#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) env: String,
    pub(super) algo: String,
    pub(super) seed: u64,
    /// Whether the stop return was reached.
    pub(super) solved: bool,
    pub(super) iterations: u64,
    /// Rows learned from.
    pub(super) env_steps: u64,
    /// The last one.
    pub(super) evaluation: Option<EvaluationMetrics>,
    pub(super) wall_s: f64,
    pub(super) weights_hash: String,
    /// Why it ended before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

pub(super) struct FromFiles {
    config: RunConfig,
    evaluator: Evaluator,
    pub(super) training: Training,
    dir: RunDir,
    /// None until the first one is saved.
    checkpoints: Option<Checkpoints>,
    /// The last one.
    evaluation: Option<EvaluationMetrics>,
    start: Instant,
    /// How long it had been running when it was saved.
    before: Duration,
    /// When it was saved last, and after which update; none if an evaluation has come to its end since.
    saved: (Instant, Option<u64>),
    /// Nothing is half done.
    is_between: bool,
}

impl FromFiles {
    pub(super) fn new(config: RunConfig, training: Training, evaluator: Evaluator, dir: RunDir) -> Self {
        let (start, saved) = (Instant::now(), (Instant::now(), None));
        let (checkpoints, evaluation, before, is_between) = (None, None, Duration::ZERO, true);
        Self { config, evaluator, training, dir, checkpoints, evaluation, start, before, saved, is_between }
    }

    /// Is what was saved after that update, with its worker as it was then, and has its unfinished evaluations made again.
    pub(super) fn go_on(mut self, measured: Measured, unfinished: Vec<Candidate>) -> Self {
        unfinished.into_iter().for_each(|candidate| self.evaluator.offer(candidate));
        let saved = (Instant::now(), Some(self.training.done()));
        Self { before: measured.elapsed(), evaluation: measured.evaluation, saved, ..self }
    }

    /// Goes on until all rows or the time are used up, the stop return is reached or the user interrupts. Ends with an evaluation,
    /// unless somebody does not want to wait.
    pub(super) fn learn(&mut self, progress: &Progress) -> Result<(), Failure> {
        loop {
            // An evaluation decides only here whether the run goes on, however long it takes.
            if self.stop().episode_return_mean.is_some() || self.is_used_up() {
                self.settle(progress);
            }
            if self.is_used_up() || self.is_solved() || self.training.interruption().is_noticed() {
                return Ok(());
            }
            self.is_between = false;
            let Some(iteration) = self.training.iterate(self.start).map_err(learn::failure)? else { return Ok(()) };
            let number = self.training.done() + 1;
            let (env_steps, learner) = (iteration.env_steps, iteration.infos.values().next().cloned());
            self.training.add(number, iteration);
            self.is_between = true;
            let wall_s = self.elapsed().as_secs_f64();
            self.write(&Line { iteration: number, env_steps, wall_s, learner: learner.as_ref() });
            if self.is_evaluated(number) || self.is_used_up() {
                self.evaluate(progress)?;
            }
            self.hear(Duration::ZERO, progress);
            progress.say(env_steps.min(self.stop().env_steps), &self.say(learner.as_ref()));
            let is_late = self.saved.0.elapsed() >= SAVED_EVERY;
            if is_late || number.is_multiple_of(self.config.checkpoint_interval) {
                self.save()?;
            }
        }
    }

    /// When it ends.
    fn stop(&self) -> &StopConfig {
        &self.config.stop
    }

    /// True once all rows or all of the time are used up.
    pub(super) fn is_used_up(&self) -> bool {
        let is_late = |most| self.elapsed().as_secs_f64() >= most;
        self.training.env_steps() >= self.stop().env_steps || self.stop().wall_s.is_some_and(is_late)
    }

    /// Whether the policy is evaluated after so many updates, its end aside.
    fn is_evaluated(&self, updates: u64) -> bool {
        let interval = match (self.config.evaluation.interval, self.stop().episode_return_mean) {
            (0, Some(_)) => EVALUATED_EVERY,
            (interval, _) => interval,
        };
        interval > 0 && updates.is_multiple_of(interval)
    }

    fn elapsed(&self) -> Duration {
        self.before + self.start.elapsed()
    }

    fn write(&mut self, line: &impl Serialize) {
        self.dir.add_metrics(line).iter().for_each(|news| eprintln!("{news}"));
    }

    /// Has the policy evaluated beside the run. It is written before it is judged.
    fn evaluate(&mut self, progress: &Progress) -> Result<(), Failure> {
        let policy = self.policy()?;
        if let Err(error) = self.dir.write_policy(&policy) {
            eprintln!("warning: the policy was not written: {error}");
        }
        while self.must_wait() && !self.training.interruption().is_noticed() {
            self.hear(LOOK_EVERY, progress);
        }
        if self.evaluator.is_full()
            && let Some(Candidate { iteration, .. }) = self.evaluator.skip()
        {
            progress.println(&format!(
                "warning: the policy after update {iteration} is not evaluated: too many wait for that"
            ));
        }
        let PolicyCheckpoint { iteration, env_steps, weights, .. } = policy;
        self.evaluator.offer(Candidate { iteration, env_steps, weights });
        Ok(())
    }

    /// True if a run that ends with a policy that is good enough is far ahead of the evaluations that decide on that. It does
    /// not wait for episodes that hang.
    fn must_wait(&self) -> bool {
        self.stop().episode_return_mean.is_some() && self.evaluator.is_full() && !self.evaluator.hangs()
    }

    /// Waits until all evaluations have come to their end, or somebody does not want to wait.
    fn settle(&mut self, progress: &Progress) {
        while !self.evaluator.is_idle() && !self.training.interruption().is_noticed() {
            self.hear(LOOK_EVERY, progress);
        }
    }

    /// What came of an evaluation, if it comes to its end within that time. What goes wrong there is told, and nothing else
    /// comes of it.
    fn hear(&mut self, timeout: Duration, progress: &Progress) {
        let evaluated = self.evaluator.unfinished().next().map_or(0, |candidate| candidate.iteration);
        if self.evaluator.begins() {
            self.call_back(progress, |callbacks, info| callbacks.on_evaluate_start(info));
        }
        let Some(outcome) = self.evaluator.poll(timeout) else { return };
        self.saved.1 = None;
        match outcome {
            Ok(Evaluated { metrics, episodes, .. }) => {
                self.call_back(progress, |callbacks, info| callbacks.on_evaluate_end(info, &episodes));
                self.write(&EvaluationLine { evaluation: &metrics });
                self.evaluation = Some(metrics);
            }
            Err(error) => progress.println(&format!("warning: after update {evaluated}: {error}")),
        }
    }

    /// Calls a hook of the worker's. One that fails is told, as what goes wrong in an evaluation is.
    fn call_back(
        &mut self,
        progress: &Progress,
        hook: impl FnOnce(&mut CallbackList, &WorkerInfo) -> Result<(), CallbackError>,
    ) {
        let worker = self.training.worker();
        let info = worker.info().clone();
        if let Err(error) = hook(worker.callbacks_mut(), &info) {
            progress.println(&format!("warning: {error}"));
        }
    }

    fn is_solved(&self) -> bool {
        let mean = self.evaluation.as_ref().and_then(|evaluation| evaluation.episode_return_mean);
        self.stop().episode_return_mean.is_some_and(|target| mean.is_some_and(|mean| mean >= target))
    }

    fn say(&self, learner: Option<&LearnInfo>) -> String {
        let loss = learner.and_then(|info| info.get("policy_loss")).copied().unwrap_or(f64::NAN);
        let own = self.evaluation.as_ref().and_then(|evaluation| evaluation.episode_return_mean);
        let own = own.map_or_else(String::new, |mean| format!(" · return {mean:.1}"));
        format!("loss {loss:.4}{own}")
    }

    /// Saves what the run goes on from; where nobody knows where the input is, the policy alone. A disk that takes no
    /// checkpoint does the run no harm.
    fn save(&mut self) -> Result<(), Failure> {
        let policy = self.policy()?;
        self.saved.0 = Instant::now();
        let Some(input) = self.training.worker().input_position() else {
            return self.dir.write_policy(&policy).map_err(Failure::other);
        };
        let (metrics_bytes, _) = self.dir.bytes();
        let progress = Measured::new(metrics_bytes, self.elapsed(), self.evaluation.clone(), self.training.read());
        let worker = self.training.worker().save().map_err(Failure::other)?;
        let unfinished = self.evaluator.unfinished().cloned().collect();
        match self.write_checkpoint(Saved { policy, worker, input, unfinished, progress }) {
            Ok(()) => self.saved.1 = Some(self.training.done()),
            Err(error) => eprintln!("warning: no checkpoint was saved: {error}"),
        }
        Ok(())
    }

    fn write_checkpoint(&mut self, saved: Saved) -> io::Result<()> {
        let files = saved.into_files(self.dir.config())?;
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        // Its lines are counted.
        self.dir.share_lines()?.iter().try_for_each(File::sync_data)?;
        // The directory may be one again that it was not the last time.
        let mut checkpoints = match self.checkpoints.take() {
            Some(open) => open,
            None => Checkpoints::open(self.dir.path().join(CHECKPOINTS_DIR)).map_err(io::Error::other)?,
        };
        checkpoints.save(&files).map_err(io::Error::other)?;
        self.checkpoints = Some(checkpoints);
        Ok(())
    }

    /// The policy so far.
    fn policy(&mut self) -> Result<PolicyCheckpoint, Failure> {
        let weights = self.training.worker().weights(None).map_err(Failure::other)?;
        let weights: Weights = weights.into_values().next().ok_or_else(|| Failure::other("there is no policy"))?;
        let algorithm = self.config.algorithm.clone().unwrap_or_default();
        let settings = self.config.default_policy_config();
        let parsed = match algorithm.as_str() {
            "marwil" => Algorithm::marwil(&settings),
            _ => Algorithm::bc(&settings),
        };
        Ok(PolicyCheckpoint {
            gamma: parsed.map_err(Failure::other)?.advantages().gamma,
            iteration: self.training.done(),
            env_steps: self.training.env_steps(),
            ..PolicyCheckpoint::new(algorithm, self.config.clone(), weights)
        })
    }

    /// Writes what the run has come to.
    pub(super) fn finish(mut self, error: Option<String>) -> Result<Summary, Failure> {
        // Of an update that was begun rows are lost: it is made again from the checkpoint before.
        if self.is_between && error.is_none() && self.saved.1 != Some(self.training.done()) {
            self.save()?;
        }
        let policy = self.policy()?;
        let summary = Summary {
            env: policy.run.env().into(),
            algo: policy.algo.clone(),
            seed: policy.run.rollout.seed,
            solved: self.is_solved(),
            iterations: self.training.done(),
            env_steps: self.training.env_steps(),
            evaluation: self.evaluation.clone(),
            wall_s: self.elapsed().as_secs_f64(),
            weights_hash: weights_hash(&policy.weights).to_string(),
            error,
        };
        let (_, faults) = self.dir.finish();
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        self.dir.write_end(&policy, &summary).map_err(Failure::other)?;
        self.training.stop().map_err(Failure::other)?;
        Ok(summary)
    }
}
