//! Command line, hub and worker of a program with code of its own.

fn main() -> std::process::ExitCode {
    rollmesh::main_with(rollmesh_example_own_env::registry())
}
