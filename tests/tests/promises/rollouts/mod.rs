//! Rollouts compared with frozen ones, with Gymnasium's environments and with RLlib's results.

mod conformance;
mod golden_envs;
mod sampler_memory;
