//! Guarantees of all algorithms and models.

mod candle;
mod golden;
mod gradients;
mod imitation;
mod inline_run;
mod learned;
mod learning;
mod models;
mod policy;
mod same_weights;
mod sequences;
mod spaces;
mod stale;
mod torch;
mod traffic_grid;
mod updates;
mod worker;
