//! The value model of dm and dr, and refits of it to bootstrap samples of the episodes.

use std::{sync::mpsc, thread};

use rollmesh_core::{
    batch::SampleBatch,
    estimate::{EstimateError, Estimator, Transitions, draw_episodes},
    policy::{Judge, JudgeError},
    rng::{Purpose, Streams},
};

use super::OpeArgs;
use crate::{
    cli::exit::Failure,
    cli::progress::Progress,
    kernels::AUTO,
    learner::{Fit, FittedQ, FittedQConfig},
};

pub(super) struct Model {
    pub(super) fit: Fit,
    /// For each estimator that uses a model, its estimates with every refit.
    refits: Vec<(Estimator, Vec<f64>)>,
}

impl Model {
    pub(super) fn refits(&self, of: Estimator) -> &[f64] {
        self.refits.iter().find(|(estimator, _)| *estimator == of).map_or(&[], |(_, values)| values)
    }
}

/// The rows to fit a model to: task 0 has all episodes, the others bootstrap samples.
struct FitTask {
    number: u32,
    rows: SampleBatch,
    transitions: Transitions,
}

/// Fits a model to all rows, and adds their values; and refits to bootstrap samples of the episodes, as many in parallel as
/// there are processors.
pub(super) fn fit(args: &OpeArgs, gamma: f64, judge: &mut Judge<'_>, rows: &mut SampleBatch) -> Result<Model, Failure> {
    let config = FittedQConfig::for_log(if args.bandit { 0.0 } else { gamma });
    let config = config.merged(&args.q_model_config).map_err(Failure::usage)?;
    let streams = Streams::new(args.seed, Purpose::Shuffle);
    let passes = u64::from(config.n_iters) * (u64::from(args.refits) + 1);
    let progress = Progress::new(passes, "passes of fitted Q evaluation", !args.json);
    let mut model = Model { fit: Fit::default(), refits: Vec::new() };
    for estimator in args.estimators.iter().map(|name| name.estimator()).filter(|of| of.needs_model()) {
        model.refits.push((estimator, Vec::new()));
    }
    let logged = rows.clone();
    let numbers: Vec<u32> = (0..=args.refits).collect();
    let mut done = 0;
    for numbers in numbers.chunks(thread::available_parallelism().map_or(1, usize::from)) {
        let task = |number: &u32| {
            let rows = if *number == 0 { logged.clone() } else { draw_episodes(&logged, &streams, *number)? };
            Ok(FitTask { number: *number, transitions: judge.transitions(&rows)?, rows })
        };
        let tasks: Result<Vec<FitTask>, JudgeError> = numbers.iter().map(task).collect();
        let tasks = tasks.map_err(Failure::usage)?;
        let models = side_by_side(&tasks, gamma, &config, args.seed, |fit| {
            done += 1;
            progress.say(done, &format!("· loss {:.4}", fit.loss));
        });
        for (task, fitted) in tasks.into_iter().zip(models) {
            let (mut fitted, fit) = fitted.map_err(Failure::usage)?;
            let mut judged = task.rows;
            judge.add_values(&mut judged, &mut fitted).map_err(Failure::usage)?;
            if task.number == 0 {
                (*rows, model.fit) = (judged, fit);
                continue;
            }
            for (estimator, values) in &mut model.refits {
                values.push(estimator.estimate(&judged, gamma, true).map_err(Failure::usage)?.v_target);
            }
        }
    }
    progress.finish();
    Ok(model)
}

/// Fits a model to each task, on a thread of its own; the caller's thread shows progress after every pass.
fn side_by_side<'tasks>(
    tasks: &'tasks [FitTask],
    gamma: f64,
    config: &FittedQConfig,
    seed: u64,
    mut hear: impl FnMut(Fit),
) -> Vec<Result<(FittedQ, Fit), EstimateError>> {
    thread::scope(|scope| {
        let (said, heard) = mpsc::channel();
        let start = |FitTask { number, transitions, .. }: &'tasks FitTask| {
            let said = said.clone();
            let fit = move || {
                let hear = |fit| {
                    // The receiver lives as long as this thread.
                    let _ = said.send(fit);
                };
                let seed = seed.wrapping_add(u64::from(*number));
                FittedQ::of_log(transitions, gamma, config.clone(), seed, AUTO, hear)
            };
            scope.spawn(fit)
        };
        let threads: Vec<_> = tasks.iter().map(start).collect();
        drop(said);
        heard.iter().for_each(&mut hear);
        let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(EstimateError::Model("it has panicked".into())))
        };
        threads.into_iter().map(ended).collect()
    })
}
