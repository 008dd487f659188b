//! The module for JavaScript: what the library exports.

use rollmesh_wasm as _;

fn main() {}
