//! Programs and environments in Python and JavaScript, and ONNX Runtime.
//!
//! They need interpreters and packages, so no bare `cargo test` runs them: `cargo xtask test clients python-envs onnx` does,
//! and `python-packages` runs those whose packages take minutes to install.
#![cfg(target_os = "linux")]

mod clients;
mod onnx;
mod python;
mod support;
