//! Actions that were taken elsewhere: a policy says what it thinks of them instead of drawing its own.

use super::head::Head;
use crate::{
    column::{Column, Element, RowsMut, RowsRef, by_type},
    policy::PolicyError,
    space::Point,
};

/// Actions for the rows to come, in their order.
#[derive(Debug)]
pub(super) struct GivenActions {
    actions: Column,
    /// The next row.
    next: usize,
}

impl GivenActions {
    pub(super) fn new(actions: Column) -> Self {
        Self { actions, next: 0 }
    }

    /// Writes the next actions, and their log-probabilities by the inputs of their distributions.
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
            let given = self.actions.row(self.next).filter(|given| given.dtype() == dtype && given.len() == len);
            let given = given.ok_or_else(|| PolicyError::Failed("there are no given actions for this row".into()))?;
            self.next += 1;
            *logp = head.logp(inputs, &Point::cast(&given.cast::<f64>(), dtype))?;
            by_type!(RowsMut, actions, actions => write(given, actions, row * len));
        }
        Ok(())
    }
}

fn write<T: Element>(given: RowsRef<'_>, actions: &mut [T], start: usize) {
    let to = actions.iter_mut().skip(start);
    to.zip(T::rows(given).unwrap_or_default()).for_each(|(to, from)| *to = *from);
}
