//! Actions that were taken elsewhere: a policy computes their log-probabilities instead of drawing its own actions.

use super::head::Head;
use crate::{
    column::{Element, RowsMut, RowsRef, by_type},
    policy::{PolicyError, TakenActions},
    space::Point,
};

/// The largest difference between the outputs of a device's networks and the kernels', relative to numbers above 1.
const DEVICE_ERROR: f32 = 1e-5;
/// The largest difference of a log-probability for that reason, however narrow its distribution.
const MAX_LOGP_ERROR: f32 = 0.1;

/// Actions for the rows to come, in their order.
#[derive(Debug)]
pub(super) struct GivenActions {
    taken: TakenActions,
    /// The next row.
    next: usize,
}

impl GivenActions {
    pub(super) fn new(taken: TakenActions) -> Self {
        Self { taken, next: 0 }
    }

    /// Writes the next actions, and their log-probabilities by the inputs of their distributions: those that were claimed, as
    /// far as the inputs' last bits explain the difference. A narrow distribution multiplies it.
    pub(super) fn take(
        &mut self,
        head: &Head,
        dist_inputs: &[f32],
        actions: &mut RowsMut<'_>,
        logp: &mut [f32],
    ) -> Result<(), PolicyError> {
        let (len, dtype) = (head.action_len(), actions.dtype());
        for (row, (logp, inputs)) in logp.iter_mut().zip(dist_inputs.chunks_exact(head.input_len().max(1))).enumerate()
        {
            let given = self.taken.actions.row(self.next).filter(|given| given.dtype() == dtype && given.len() == len);
            let given = given.ok_or_else(|| PolicyError::Failed("there are no given actions for this row".into()))?;
            let claimed = self.taken.logp.get(self.next).copied();
            self.next += 1;
            let action = Point::cast(&given.cast::<f64>(), dtype);
            let own = head.logp(inputs, &action)?;
            let error = logp_error(head, inputs, &action, own)?;
            *logp = claimed.filter(|claimed| (claimed - own).abs() <= error).unwrap_or(own);
            by_type!(RowsMut, actions, actions => write(given, actions, row * len));
        }
        Ok(())
    }
}

/// Returns how much a log-probability changes if every input of the distribution is off by [`DEVICE_ERROR`].
fn logp_error(head: &Head, inputs: &[f32], action: &Point, logp: f32) -> Result<f32, PolicyError> {
    let (mut moved, mut error) = (inputs.to_vec(), 0.0);
    for (index, input) in inputs.iter().enumerate() {
        moved[index] = input + DEVICE_ERROR * input.abs().max(1.0);
        error += (head.logp(&moved, action)? - logp).abs();
        moved[index] = *input;
    }
    Ok(error.min(MAX_LOGP_ERROR))
}

fn write<T: Element>(given: RowsRef<'_>, actions: &mut [T], start: usize) {
    let to = actions.iter_mut().skip(start);
    to.zip(T::rows(given).unwrap_or_default()).for_each(|(to, from)| *to = *from);
}
