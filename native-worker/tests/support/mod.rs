//! Helpers of the tests with real processes.
#![allow(dead_code, reason = "every test binary uses a part of it")]

pub(crate) mod cases;
pub(crate) mod client;
pub(crate) mod hub;
pub(crate) mod matrix;
pub(crate) mod process;

pub(crate) use process::Process;

use std::{future::Future, time::Duration};

use serde_json::Value;

/// Returns whether to run tests that take long without optimisation: set `ROLLMESH_LONG=1`.
pub(crate) fn is_long() -> bool {
    std::env::var_os("ROLLMESH_LONG").is_some_and(|value| value == "1")
}

/// Returns a time that nothing in these tests exceeds unless it hangs, also on a busy machine.
fn patience() -> Duration {
    Duration::from_secs(if is_long() { 600 } else { 120 })
}

/// Waits for something to happen, not forever.
pub(crate) async fn soon<T>(what: &str, happens: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience(), happens).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {:?}", patience()),
    }
}

/// Waits for a state of the system that has to be polled.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut pause = tokio::time::interval(Duration::from_millis(10));
    soon(what, async {
        while !is_so() {
            pause.tick().await;
        }
    })
    .await;
}

/// Reads the one JSON value that a text is.
pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

/// Returns the keys of an object, in their order.
pub(crate) fn keys(object: &Value) -> Vec<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}
