//! The loop that drives a collector, a bounded number of steps at a time.

use super::{Collector, Need};
use crate::{
    env::{AnyVectorEnv, EnvError},
    filter::FilterError,
    policy::{Policy, PolicyEntry, PolicyError},
    preprocess::PreprocessError,
};

/// Why a fragment could not be completed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
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

/// What computes a collector's actions.
enum Actor<'a> {
    Policy(&'a mut dyn Policy),
    Entry(&'a mut PolicyEntry),
}

/// Continues the current fragment for at most `max_steps` steps of all lanes, so that a caller with a time budget or other
/// duties regains control. Returns the number of steps; the fragment is complete once the collector needs
/// [`Nothing`](Need::Nothing).
///
/// # Errors
/// [`DriveError`]; the fragment is then lost. [`PolicyError::Unsupported`] for a collector that uses an entry's preprocessor
/// or filter.
pub fn drive(
    collector: &mut dyn Collector,
    env: &mut dyn AnyVectorEnv,
    policy: &mut dyn Policy,
    max_steps: u32,
) -> Result<u32, DriveError> {
    run(collector, env, Actor::Policy(policy), max_steps)
}

/// Does the same as [`drive`] with a policy, its preprocessor and its filter.
///
/// # Errors
/// [`DriveError`]; the fragment is then lost.
pub fn drive_entry(
    collector: &mut dyn Collector,
    env: &mut dyn AnyVectorEnv,
    entry: &mut PolicyEntry,
    max_steps: u32,
) -> Result<u32, DriveError> {
    run(collector, env, Actor::Entry(entry), max_steps)
}

fn run(
    collector: &mut dyn Collector,
    env: &mut dyn AnyVectorEnv,
    mut actor: Actor<'_>,
    max_steps: u32,
) -> Result<u32, DriveError> {
    let mut steps = 0;
    collector.prepare(actor.policy());
    loop {
        match collector.need() {
            Need::Observations => match &mut actor {
                Actor::Entry(entry) => collector.observe(entry)?,
                Actor::Policy(_) => {
                    return Err(DriveError::Policy(PolicyError::Unsupported {
                        wanted: "observations through a preprocessor or filter, which are driven by an entry".into(),
                        found: "a policy alone".into(),
                    }));
                }
            },
            Need::Actions if steps == max_steps => return Ok(steps),
            Need::Actions => {
                let (input, output) = collector.action_request();
                actor.policy().compute_actions(input, output)?;
                collector.actions_done();
            }
            Need::EnvStep => {
                collector.step_env(env)?;
                steps += 1;
            }
            Need::Values => {
                let request = collector.value_request();
                actor.policy().compute_values(request.obs, request.state, request.values)?;
                collector.values_done();
            }
            Need::Nothing => return Ok(steps),
        }
    }
}

impl Actor<'_> {
    fn policy(&mut self) -> &mut dyn Policy {
        match self {
            Self::Policy(policy) => *policy,
            Self::Entry(entry) => entry.policy.as_mut(),
        }
    }
}
