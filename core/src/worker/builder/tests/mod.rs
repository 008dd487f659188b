//! Whatever a worker can be set up with, and whatever it cannot.

mod actions;
mod games;
mod mistakes;
mod shells;
mod spaces;
mod user_code;
