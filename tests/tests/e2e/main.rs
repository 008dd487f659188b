//! Tests of the program and its page together, in a real Chromium.
//!
//! `cargo xtask test e2e` builds both and runs these tests. The tests save screenshots for inspection in `target/e2e/`.

mod attaching;
mod attack;
#[path = "../../../native-worker/tests/chaos/behind.rs"]
mod behind;
mod browser;
#[path = "../../../native-worker/tests/support/cases.rs"]
mod cases;
mod charts;
mod clients;
mod dashboard;
mod data_files;
mod determinism;
mod drawings;
mod driver;
mod evaluating;
mod evaluations;
mod front;
mod group;
mod load;
mod loading;
mod made_hub;
mod matrix;
mod monitoring;
mod own_crate;
mod program;
#[path = "../../../native-worker/tests/chaos/proxy.rs"]
#[allow(dead_code, reason = "the tests of native workers use the rest")]
mod proxy;
mod runs;
mod saved_runs;
mod tab_playing;
mod tab_training;
mod training;
mod trunk_serve;

use std::{env, path::PathBuf, time::Duration};

/// The limit of every wait, longer than any step takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time between two checks of a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Returns a file or directory that the set-up names in the environment.
fn built(variable: &str) -> PathBuf {
    let Some(path) = env::var_os(variable).map(PathBuf::from) else {
        panic!("{variable} is not set: `cargo xtask test e2e` builds what these tests need, and runs them");
    };
    assert!(path.exists(), "{variable} names {}, which does not exist", path.display());
    path
}
