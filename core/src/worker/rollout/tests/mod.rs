//! Every method, with the numbers of RLlib 2.9.3 where it has some.

mod advantages;
mod filters;
mod learn;
mod methods;
mod policies;
mod sample;
mod state;
mod weights;
