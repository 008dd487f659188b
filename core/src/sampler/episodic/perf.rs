//! Time by phase.

use crate::{episode::SamplerPerf, time::Micros};

/// Accumulates time by phase.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PhaseStopwatch {
    pub(super) iterations: u64,
    pub(super) env_wait: Micros,
    pub(super) obs_processing: Micros,
    pub(super) inference: Micros,
    pub(super) action_processing: Micros,
}

impl PhaseStopwatch {
    pub(super) fn means(&self) -> SamplerPerf {
        let mean = |sum: Micros| sum.0 as f64 / 1_000.0 / self.iterations.max(1) as f64;
        SamplerPerf {
            iterations: self.iterations,
            env_wait_ms: mean(self.env_wait),
            obs_processing_ms: mean(self.obs_processing),
            inference_ms: mean(self.inference),
            action_processing_ms: mean(self.action_processing),
            env_render_ms: 0.0,
        }
    }
}

/// Adds the time since `last` to a phase, and sets `last` to now.
pub(super) fn lap(phase: &mut Micros, last: &mut Micros, clock: &dyn Fn() -> Micros) {
    let now = clock();
    *phase = *phase + now.since(*last);
    *last = now;
}
