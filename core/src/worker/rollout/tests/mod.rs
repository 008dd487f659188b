//! Every method, with the numbers of RLlib 2.9.3 where it has some.

mod advantages;
mod base_envs;
mod data_parallel;
mod estimate;
mod filters;
mod learn;
mod methods;
mod metrics;
mod policies;
mod retry;
mod sample;
mod state;
mod weights;
mod within;
