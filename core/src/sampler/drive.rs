//! The loop that drives a collector, a bounded number of steps at a time.

use super::{Collector, Need};
use crate::{
    env::{AnyVectorEnv, EnvError},
    filter::FilterError,
    policy::{PolicyEntry, PolicyError},
    preprocess::PreprocessError,
};

/// Why a fragment could not be completed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    /// The environments failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An observation could not be preprocessed.
    #[error(transparent)]
    Preprocess(#[from] PreprocessError),
    /// An observation could not be filtered.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Continues the current fragment for at most `max_steps` steps of all lanes, so that a caller with a time budget or other
/// duties regains control. Returns the number of steps; the fragment is complete once the collector needs
/// [`Nothing`](Need::Nothing).
///
/// # Errors
/// [`DriveError`]; the fragment is then lost.
pub fn drive(
    collector: &mut dyn Collector,
    env: &mut dyn AnyVectorEnv,
    entry: &mut PolicyEntry,
    max_steps: u32,
) -> Result<u32, DriveError> {
    let mut steps = 0;
    collector.prepare(entry.policy.as_ref());
    loop {
        match collector.need() {
            Need::Observations => collector.observe(entry)?,
            Need::Actions if steps == max_steps => return Ok(steps),
            Need::Actions => {
                let (input, output) = collector.action_request();
                entry.policy.compute_actions(input, output)?;
                collector.actions_done();
            }
            Need::EnvStep => {
                collector.step_env(env)?;
                steps += 1;
            }
            Need::Values => {
                let request = collector.value_request();
                entry.policy.compute_values(request.obs, request.state, request.values)?;
                collector.values_done();
            }
            Need::Nothing => return Ok(steps),
        }
    }
}
