//! The `rollmesh` program: the library with its built-in environments.

fn main() -> std::process::ExitCode {
    rollmesh::main_with(rollmesh::Registry::builtin())
}
