//! The networks of a policy, computed by another worker.

use crate::{
    column::{LittleEndian as _, append_le},
    policy::{Forward, ForwardFactory, Input, Output, PolicyError},
    prelude::*,
    protocol::{
        CHUNK_BYTES,
        message::{Infer, Inferred},
    },
    weights::Weights,
};

/// Bytes of a message for rows: the rest is for its header, names and lengths.
const ROW_BYTES: usize = CHUNK_BYTES as usize - 1_024;

type AskServer = dyn Fn(Infer) -> Result<Inferred, PolicyError> + Send + Sync;

/// Returns what lets policies act by another worker. `ask` gives the request a number, sends it, and waits for the answer.
///
/// # Errors
/// A policy whose rows do not fit into a message is not made.
pub fn forward_by(ask: impl Fn(Infer) -> Result<Inferred, PolicyError> + Send + Sync + 'static) -> ForwardFactory {
    let ask: Arc<AskServer> = Arc::new(ask);
    ForwardFactory::new(move |context, spec, weights| {
        let bytes = 4 * (spec.obs_len + spec.state_lens().iter().sum::<usize>());
        if bytes > ROW_BYTES {
            let reason = format!(
                "a row of {bytes} bytes does not fit into a message of {ROW_BYTES} to the worker that acts for others: use \
                 inference = \"local\""
            );
            return Err(PolicyError::Failed(reason));
        }
        let (policy, version) = (context.id.as_str().to_owned(), weights.version().0);
        Ok(Box::new(RemoteForward { policy, version, ask: ask.clone() }))
    })
}

struct RemoteForward {
    policy: String,
    version: u64,
    ask: Arc<AskServer>,
}

impl core::fmt::Debug for RemoteForward {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RemoteForward").field("policy", &self.policy).field("version", &self.version).finish()
    }
}

impl Forward for RemoteForward {
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.version = weights.version().0;
        Ok(())
    }

    fn forward(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        let all = out.values.len();
        if all == 0 {
            return Ok(());
        }
        let per_row = |len: usize| len / all;
        let (obs, before) = (per_row(input.obs.len()), per_row(input.state.len()));
        let (inputs, after) = (per_row(out.dist_inputs.len()), per_row(out.state.len()));
        let wants = if inputs == 0 { 0 } else { Infer::DIST_INPUTS } | if after == 0 { 0 } else { Infer::STATE };
        let bytes = 4 * (obs + before).max(inputs + 1 + after);
        let most = (ROW_BYTES / bytes.max(1)).max(1);
        for start in (0..all).step_by(most) {
            let rows = most.min(all - start);
            let end = start + rows;
            let mut request = Infer {
                policy: self.policy.clone(),
                version: self.version,
                rows: rows as u32,
                wants,
                ..Infer::default()
            };
            append_le(&mut request.obs, &input.obs[start * obs..end * obs]);
            append_le(&mut request.state, &input.state[start * before..end * before]);
            let answer = (self.ask)(request)?;
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
        if answer.version != self.version {
            return failed(format!("answered with weights {}, not {}", answer.version, self.version));
        }
        match answer.outputs.len() {
            bytes if bytes == 4 * numbers => Ok(()),
            bytes => failed(format!("answered with {bytes} bytes, not {}", 4 * numbers)),
        }
    }
}
