//! The `rollmesh` program: the library with its built-in environments.

/// The learner allocates a tensor for every operation. The system's allocator returns most of that memory to the operating
/// system after each gradient step and requests it again, which takes as long as the arithmetic.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    rollmesh::main_with(rollmesh::Registry::builtin())
}
