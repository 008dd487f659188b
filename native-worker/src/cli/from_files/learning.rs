//! A run: updates from files by turns with the policy's own episodes, saved on the way.

use std::{
    fs::File,
    io,
    time::{Duration, Instant},
};

use rollmesh_core::{
    config::Config,
    hash::weights_hash,
    ids::PolicyId,
    policy::{LearnInfo, ModelConfig},
    run::RunSpec,
    weights::Weights,
    worker::RolloutConfig,
};
use serde::Serialize;

use super::{
    evaluator::{Evaluation, Evaluator},
    plan::Plan,
    saved::{Progress as Measured, Saved},
};
use crate::{
    checkpoint::{CHECKPOINTS_DIR, Checkpoints, PolicyCheckpoint},
    cli::{
        exit::Failure,
        learn::{self, Training},
        train::TrainAlgo,
    },
    learner::Algorithm,
    progress::Progress,
    train::RunDir,
};

/// How long nothing is saved at most, an update and an evaluation aside.
const SAVED_EVERY: Duration = Duration::from_secs(10);

/// A line of `metrics.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    iteration: u64,
    /// Rows learned from.
    env_steps: u64,
    wall_s: f64,
    #[serde(flatten)]
    learner: Option<&'a LearnInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluation: Option<Evaluation>,
}

#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) env: String,
    pub(super) algo: &'static str,
    pub(super) seed: u64,
    /// Whether the stop return was reached.
    pub(super) solved: bool,
    pub(super) iterations: u64,
    /// Rows learned from.
    pub(super) env_steps: u64,
    /// The last one.
    pub(super) evaluation: Option<Evaluation>,
    pub(super) wall_s: f64,
    pub(super) weights_hash: String,
    /// Why it ended before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

pub(super) struct FromFiles {
    pub(super) plan: Plan,
    config: RolloutConfig,
    evaluator: Evaluator,
    pub(super) training: Training,
    dir: RunDir,
    /// None until the first one is saved.
    checkpoints: Option<Checkpoints>,
    evaluation: Option<Evaluation>,
    start: Instant,
    /// How long it had been running when it was saved.
    before: Duration,
    /// When it was saved last, and after which update.
    saved: (Instant, Option<u64>),
    /// Nothing is half done.
    is_between: bool,
}

impl FromFiles {
    pub(super) fn new(
        (config, plan): (RolloutConfig, Plan),
        training: Training,
        evaluator: Evaluator,
        dir: RunDir,
    ) -> Self {
        let (start, saved) = (Instant::now(), (Instant::now(), None));
        let (checkpoints, evaluation, before, is_between) = (None, None, Duration::ZERO, true);
        Self { plan, config, evaluator, training, dir, checkpoints, evaluation, start, before, saved, is_between }
    }

    /// Is what was saved after that update, with its worker and its evaluator as they were then.
    pub(super) fn go_on(self, measured: &Measured) -> Self {
        let saved = (Instant::now(), Some(self.training.done()));
        Self { evaluation: measured.evaluation, before: measured.elapsed(), saved, ..self }
    }

    /// Goes on until all rows are used up, the stop return is reached or somebody interrupts. Ends with an evaluation,
    /// unless somebody does not want to wait.
    pub(super) fn learn(&mut self, progress: &Progress) -> Result<(), Failure> {
        while !self.is_over() {
            self.is_between = false;
            let Some(iteration) = self.training.iterate(self.start).map_err(learn::failure)? else { break };
            let number = self.training.done() + 1;
            let (env_steps, learner) = (iteration.env_steps, iteration.infos.values().next().cloned());
            self.training.add(number, iteration);
            let is_planned = self.plan.is_evaluated(number);
            let is_due = is_planned || env_steps >= self.plan.max_env_steps;
            let before = self.evaluator.state().to_vec();
            let evaluation = if is_due { self.evaluate()? } else { None };
            if is_due && !is_planned {
                // Of one at the end the next ones know nothing: whoever goes further has those of a longer run.
                self.evaluator.restore(before).map_err(Failure::other)?;
            }
            let wall_s = self.elapsed().as_secs_f64();
            let line = Line { iteration: number, env_steps, wall_s, learner: learner.as_ref(), evaluation };
            self.dir.add_metrics(&line).iter().for_each(|news| eprintln!("{news}"));
            progress.say(env_steps.min(self.plan.max_env_steps), &self.say(learner.as_ref()));
            // Of an evaluation that was interrupted the next ones would have seen something.
            let is_judged = !is_due || evaluation.is_some() || self.plan.evaluation_episodes == 0;
            self.is_between = is_judged;
            let is_late = self.saved.0.elapsed() >= SAVED_EVERY;
            if is_judged && (is_late || number.is_multiple_of(self.plan.checkpoint_interval.max(1))) {
                self.save()?;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let is_used_up = self.training.env_steps() >= self.plan.max_env_steps;
        is_used_up || self.is_solved() || self.training.interruption().is_noticed()
    }

    fn elapsed(&self) -> Duration {
        self.before + self.start.elapsed()
    }

    /// The policy is written before it is judged.
    fn evaluate(&mut self) -> Result<Option<Evaluation>, Failure> {
        let policy = self.policy()?;
        if let Err(error) = self.dir.write_policy(&policy) {
            eprintln!("warning: the policy was not written: {error}");
        }
        let weights = self.training.worker().weights(None).map_err(Failure::other)?;
        let evaluation = self.evaluator.run(&weights, self.training.interruption()).map_err(Failure::other)?;
        self.evaluation = evaluation.or(self.evaluation);
        Ok(evaluation)
    }

    fn is_solved(&self) -> bool {
        let reached = |target: f64| self.evaluation.is_some_and(|evaluation| evaluation.return_mean >= target);
        self.plan.stop_return.is_some_and(reached)
    }

    fn say(&self, learner: Option<&LearnInfo>) -> String {
        let loss = learner.and_then(|info| info.get("policy_loss")).copied().unwrap_or(f64::NAN);
        let own = self.evaluation.map_or_else(String::new, |own| format!(" · return {:.1}", own.return_mean));
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
        let progress = Measured::new(metrics_bytes, self.elapsed(), self.evaluation, self.training.read());
        let worker = self.training.worker().save().map_err(Failure::other)?;
        let evaluator = self.evaluator.state().to_vec();
        match self.write(Saved { policy, worker, input, evaluator, progress }) {
            Ok(()) => self.saved.1 = Some(self.training.done()),
            Err(error) => eprintln!("warning: no checkpoint was saved: {error}"),
        }
        Ok(())
    }

    fn write(&mut self, saved: Saved) -> io::Result<()> {
        let files = saved.into_files(self.dir.config())?;
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
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
        let (algo, config) = (self.plan.algo, &self.config);
        let weights = self.training.worker().weights(None).map_err(Failure::other)?;
        let weights: Weights = weights.into_values().next().ok_or_else(|| Failure::other("there is no policy"))?;
        let settings = config.policies.get(&PolicyId::DEFAULT).map_or_else(Config::new, |policy| policy.config.clone());
        let settings = config.policy_config.merged(&settings);
        let parsed = match algo {
            TrainAlgo::Marwil => Algorithm::marwil(&settings),
            _ => Algorithm::bc(&settings),
        };
        let spec = RunSpec {
            env: config.env.clone().unwrap_or_default(),
            seed: config.seed,
            num_slots: 1,
            num_envs_per_worker: 1,
            rollout_fragment_length: 1,
            hidden: self.plan.hidden.clone(),
            env_config: config.env_config.clone(),
        };
        Ok(PolicyCheckpoint {
            model: ModelConfig::of(&settings).map_err(Failure::other)?,
            gamma: parsed.map_err(Failure::other)?.advantages().gamma,
            iteration: self.training.done(),
            env_steps: self.training.env_steps(),
            ..PolicyCheckpoint::new(algo.name(), spec, weights)
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
            env: policy.spec.env.clone(),
            algo: self.plan.algo.name(),
            seed: policy.spec.seed,
            solved: self.is_solved(),
            iterations: self.training.done(),
            env_steps: self.training.env_steps(),
            evaluation: self.evaluation,
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
