//! The loop that drives a collector, a bounded number of steps at a time.

use super::{Collector, Need, SampleError};
use crate::{
    env::AnyVectorEnv,
    ids::PolicyId,
    policy::{PolicyEntry, PolicyError},
};

/// Continues the current fragment for at most `max_steps` steps of all lanes, so that a caller with a time budget or other
/// duties regains control. Returns the number of steps; the fragment is complete once the collector needs
/// [`Nothing`](Need::Nothing).
///
/// # Errors
/// [`SampleError`] of environments, policy, preprocessor or filter; the fragment is then lost.
pub fn drive(
    collector: &mut dyn Collector,
    env: &mut dyn AnyVectorEnv,
    entry: &mut PolicyEntry,
    max_steps: u32,
) -> Result<u32, SampleError> {
    let failed = |source: PolicyError| SampleError::Policy { id: PolicyId::DEFAULT, source };
    let mut steps = 0;
    collector.prepare(entry.policy.as_ref());
    loop {
        match collector.need() {
            Need::Observations => collector.observe(entry)?,
            Need::Actions if steps == max_steps => return Ok(steps),
            Need::Actions => {
                let (input, output) = collector.action_request();
                entry.policy.compute_actions(input, output).map_err(failed)?;
                collector.actions_done();
            }
            Need::EnvStep => {
                collector.step_env(env)?;
                steps += 1;
            }
            Need::Values => {
                let request = collector.value_request();
                entry.policy.compute_values(request.obs, request.state, request.values).map_err(failed)?;
                collector.values_done();
            }
            Need::Nothing => return Ok(steps),
        }
    }
}
