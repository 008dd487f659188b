//! The hub and the learner: for JavaScript, and as the Web Worker in which a page without a native hub has its own.
//!
//! The page and the Web Worker exchange frames of the protocol as bytes: to the hub the page is an operator. Other
//! messages are objects with named fields. The Web Worker posts
//!
//! - `{token}`, with which the page authenticates as the operator;
//! - `{start, token, port}`: start a Web Worker that works for the hub, and connect it with this `MessagePort`;
//! - `{closed}`: end the Web Worker of that number;
//! - `{invited, token, port}`: a port for a peer of the role that the page has asked for, or `{invited, error}` with
//!   the reason of a failure;
//! - `{run, weights_hash}`: a run that has learned something has ended;
//! - `{name, bytes, plays}`: a file of the policy, and whether the page requested it for the player; or `{name, error}`
//!   with the reason of a failure.
//!
//! The page posts `{ended, reason}` for a Web Worker that has ended, `{invite}` with a role, and `{file, plays}` with a
//! file's name. A string from the Web Worker is the reason of its failure.

mod algorithm;
#[allow(dead_code, reason = "the module that samples uses the rest")]
#[path = "../../../src/columns.rs"]
mod columns;
#[allow(dead_code, reason = "the module that samples uses the rest")]
#[path = "../../../src/envs/mod.rs"]
mod envs;
#[allow(dead_code, reason = "the module that samples uses the rest")]
#[path = "../../../src/failure.rs"]
mod failure;
mod page_hub;
mod schema;
#[path = "../../../src/tab/scope.rs"]
mod scope;
#[path = "../../../src/tab/slices.rs"]
mod slices;

pub use self::{
    algorithm::AlgorithmHandle,
    envs::{env_random, register_env},
    failure::{Failure, use_error_class},
    page_hub::serve,
};

fn main() {
    console_error_panic_hook::set_once();
}
