//! The WebAssembly module with the library's exports for JavaScript.

use rollmesh_wasm as _;

fn main() {
    console_error_panic_hook::set_once();
}
