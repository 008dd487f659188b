//! The loop that answers a collector, a bounded number of steps at a time.

use super::{Collector, Need};
use crate::{
    env::{AnyVectorEnv, EnvError},
    policy::{Policy, PolicyError},
};

/// Why a fragment could not be finished.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DriveError {
    /// The environments failed.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// The policy failed.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Goes on with the current fragment for at most `max_steps` steps of all lanes, so that a caller with a time budget
/// or other duties gets its turn. Returns the number of steps; the fragment is ready once the collector needs
/// [`Nothing`](Need::Nothing).
///
/// # Errors
/// [`DriveError`]; the fragment is then lost.
pub fn drive(
    collector: &mut dyn Collector,
    env: &mut dyn AnyVectorEnv,
    policy: &mut dyn Policy,
    max_steps: u32,
) -> Result<u32, DriveError> {
    let mut steps = 0;
    loop {
        match collector.need() {
            Need::Actions if steps == max_steps => return Ok(steps),
            Need::Actions => {
                let (input, output) = collector.action_request();
                policy.compute_actions(input, output)?;
                collector.actions_done();
            }
            Need::EnvStep => {
                collector.step_env(env)?;
                steps += 1;
            }
            Need::Values => {
                let (obs, values) = collector.value_request();
                policy.compute_values(obs, &[], values)?;
                collector.values_done();
            }
            Need::Nothing => return Ok(steps),
        }
    }
}
