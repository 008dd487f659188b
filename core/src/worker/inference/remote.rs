//! The networks of a policy, computed by another worker.

use super::MAX_ROW_BYTES;
use crate::{
    column::{LittleEndian as _, append_le},
    kernels::Kernels,
    policy::{Forward, ForwardFactory, Input, ModelSpec, Output, PolicyError, forward_by_kernels},
    prelude::*,
    protocol::message::{Infer, Inferred},
    weights::Weights,
};

type AskServer = dyn Fn(Infer) -> Result<Inferred, PolicyError> + Send + Sync;

/// Returns what lets policies act by another worker. `ask` gives the request a number, sends it, and waits for the answer.
/// If the other worker no longer keeps the weights, the kernels act: it has joined after them, or was too busy to take them.
///
/// # Errors
/// A policy whose rows do not fit into a message is not made.
pub fn forward_by(ask: impl Fn(Infer) -> Result<Inferred, PolicyError> + Send + Sync + 'static) -> ForwardFactory {
    let ask: Arc<AskServer> = Arc::new(ask);
    ForwardFactory::new(move |context, spec, weights| {
        let bytes = 4 * (spec.obs_len + spec.state_lens().iter().sum::<usize>());
        if bytes > MAX_ROW_BYTES {
            let reason = format!(
                "a row of {bytes} bytes does not fit into a message of {MAX_ROW_BYTES} to the worker that acts for others: use \
                 inference = \"local\""
            );
            return Err(PolicyError::Failed(reason));
        }
        let (policy, weights) = (context.id.as_str().to_owned(), weights.clone());
        let (spec, kernels) = (spec.clone(), context.kernels);
        Ok(Box::new(RemoteForward { policy, weights, ask: ask.clone(), spec, kernels, local: None }))
    })
}

struct RemoteForward {
    policy: String,
    weights: Weights,
    ask: Arc<AskServer>,
    spec: ModelSpec,
    kernels: Kernels,
    /// Acts with weights that the server no longer keeps.
    local: Option<Box<dyn Forward>>,
}

impl core::fmt::Debug for RemoteForward {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RemoteForward")
            .field("policy", &self.policy)
            .field("version", &self.weights.version())
            .finish_non_exhaustive()
    }
}

impl Forward for RemoteForward {
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        (self.weights, self.local) = (weights.clone(), None);
        Ok(())
    }

    fn forward(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        let all = out.values.len();
        if all == 0 {
            return Ok(());
        }
        if let Some(local) = &mut self.local {
            return local.forward(input, out);
        }
        let per_row = |len: usize| len / all;
        let (obs, before) = (per_row(input.obs.len()), per_row(input.state.len()));
        let (inputs, after) = (per_row(out.dist_inputs.len()), per_row(out.state.len()));
        let wants = if inputs == 0 { 0 } else { Infer::DIST_INPUTS } | if after == 0 { 0 } else { Infer::STATE };
        let version = self.weights.version().0;
        let bytes = 4 * (obs + before).max(inputs + 1 + after);
        let most = (MAX_ROW_BYTES / bytes.max(1)).max(1);
        for start in (0..all).step_by(most) {
            let rows = most.min(all - start);
            let end = start + rows;
            let mut request =
                Infer { policy: self.policy.clone(), version, rows: rows as u32, wants, ..Infer::default() };
            append_le(&mut request.obs, &input.obs[start * obs..end * obs]);
            append_le(&mut request.state, &input.state[start * before..end * before]);
            let answer = (self.ask)(request)?;
            if answer.is_not_kept(version) {
                let local = forward_by_kernels(&self.spec, &self.weights, self.kernels)?;
                return self.local.insert(local).forward(input, out);
            }
            self.check(&answer, rows * (inputs + 1 + after))?;
            let mut found = f32::iter_le(&answer.outputs);
            let mut copy = |to: &mut [f32]| to.iter_mut().zip(&mut found).for_each(|(to, from)| *to = from);
            copy(&mut out.dist_inputs[start * inputs..end * inputs]);
            copy(&mut out.values[start..end]);
            copy(&mut out.state[start * after..end * after]);
        }
        Ok(())
    }
}

impl RemoteForward {
    /// Checks that an answer is one for these weights, with this many numbers.
    fn check(&self, answer: &Inferred, numbers: usize) -> Result<(), PolicyError> {
        let failed = |what: String| Err(PolicyError::Failed(format!("the worker that acts for others {what}")));
        if !answer.error.is_empty() {
            return failed(format!("failed: {}", answer.error));
        }
        let version = self.weights.version().0;
        if answer.version != version {
            return failed(format!("answered with weights {}, not {version}", answer.version));
        }
        match answer.outputs.len() {
            bytes if bytes == 4 * numbers => Ok(()),
            bytes => failed(format!("answered with {bytes} bytes, not {}", 4 * numbers)),
        }
    }
}
