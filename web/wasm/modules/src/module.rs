//! The module for JavaScript: what the library exports.

use rollmesh_wasm as _;

fn main() {
    console_error_panic_hook::set_once();
}
