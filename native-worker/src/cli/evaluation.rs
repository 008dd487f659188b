//! The flags for evaluations alongside a run, and their result in its summary.

use std::num::NonZeroU32;

use clap::Args;
use rollmesh_core::config::Config;
use serde_json::Value;

use super::{exit::Failure, settings::with_given, table::count};
use crate::runs::{EvaluationMetrics, RunConfig};

/// The schedule and the settings of a run's evaluations.
#[derive(Args, Clone, Debug)]
pub(super) struct EvaluationFlags {
    /// Evaluate the policy after every N iterations
    ///
    /// With its most likely actions, in a separate process. Training from files (train --input) waits for that, and is
    /// evaluated at its end, too [default: never; from files with a stop return 10]
    #[arg(long, value_name = "N")]
    pub(super) evaluation_interval: Option<u64>,
    /// Episodes of an evaluation; 0 for none [default: 20]
    #[arg(long, hide_short_help = true, value_name = "M")]
    pub(super) evaluation_episodes: Option<u32>,
    /// Seconds without progress after which it is given up
    ///
    /// [default: 600]
    #[arg(long, hide_short_help = true, value_name = "S")]
    evaluation_timeout: Option<NonZeroU32>,
    /// Env steps after which its episodes are truncated
    ///
    /// [default: never; of a training from files 100000]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) evaluation_horizon: Option<u32>,
    /// Write its first episode as a GIF
    ///
    /// Into the run's directory, below gifs
    #[arg(long, hide_short_help = true)]
    evaluation_render: bool,
}

impl EvaluationFlags {
    /// Returns whether a flag was given.
    pub(super) fn are_given(&self) -> bool {
        self.evaluation_interval.is_some() || self.evaluation_horizon.is_some() || self.need_an_interval()
    }

    fn need_an_interval(&self) -> bool {
        self.evaluation_episodes.is_some_and(|episodes| episodes > 0)
            || self.evaluation_timeout.is_some()
            || self.evaluation_render
    }

    /// Returns the flags as settings of a run, added to others.
    pub(super) fn added_to(&self, settings: Config) -> Config {
        let flags: [(&str, Option<Value>); 5] = [
            ("evaluation.interval", self.evaluation_interval.map(Value::from)),
            ("evaluation.episodes", self.evaluation_episodes.map(Value::from)),
            ("evaluation.timeout_s", self.evaluation_timeout.map(|seconds| seconds.get().into())),
            ("evaluation.horizon", self.evaluation_horizon.map(Value::from)),
            ("evaluation.render", self.evaluation_render.then(|| true.into())),
        ];
        with_given(settings, flags)
    }

    /// Refuses flags without an effect on the run that was made with them.
    pub(super) fn check(&self, run: &RunConfig) -> Result<(), Failure> {
        if self.need_an_interval() && run.evaluation.interval == 0 && !run.reads_input() {
            let flags = "--evaluation-episodes, --evaluation-timeout and --evaluation-render";
            return Err(Failure::usage(format!("{flags} are of no use without --evaluation-interval: say how often")));
        }
        Ok(())
    }
}

/// Returns the latest evaluation of a run as a line of its summary, without its name.
pub(super) fn line_of(found: &EvaluationMetrics) -> String {
    let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
    let EvaluationMetrics { episode_return_mean, episode_return_min, episode_return_max, episodes, iteration, .. } =
        found;
    let spread = format!("from {} to {}", number(*episode_return_min), number(*episode_return_max));
    let episodes = count((*episodes).into(), "episode");
    let when = format!("{episodes} after iteration {iteration}, most likely actions");
    format!("{} ({spread}, {when})", number(*episode_return_mean))
}
