//! Set-ups of a worker that work, and those that are errors.

mod actions;
mod games;
mod mistakes;
mod shells;
mod spaces;
mod user_code;
