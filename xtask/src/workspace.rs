//! The folders of the repository, and commands that start there.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

/// Returns the root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a folder of the repository")
}

/// Returns cargo's target directory, as set by the user's configuration: this program is run as
/// `TARGET/debug/xtask`, and its tests from `TARGET/debug/deps`.
pub(crate) fn target() -> &'static Path {
    static TARGET: LazyLock<PathBuf> = LazyLock::new(|| {
        let exe = env::current_exe().ok();
        let folder = exe.as_deref().and_then(Path::parent);
        let profile = folder.and_then(|folder| if folder.ends_with("deps") { folder.parent() } else { Some(folder) });
        profile.and_then(Path::parent).map_or_else(|| root().join("target"), Path::to_path_buf)
    });
    &TARGET
}

/// Returns the root of everything that is installed for this repository.
pub(crate) fn tools() -> PathBuf {
    target().join("tools")
}

/// Returns the folders in which commands are looked up before the user's PATH.
fn tool_paths() -> [PathBuf; 2] {
    [tools().join("bin"), tools().join("npm/node_modules/.bin")]
}

/// Returns the PATH for commands: `first`, then our tools, then the user's.
pub(crate) fn path_with(first: Option<PathBuf>) -> OsString {
    let users = env::var_os("PATH").unwrap_or_default();
    let paths = first.into_iter().chain(tool_paths()).chain(env::split_paths(&users));
    env::join_paths(paths).unwrap_or(users)
}

/// Returns the first executable of that name on the PATH for commands.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let users = env::var_os("PATH").unwrap_or_default();
    let paths = tool_paths().into_iter().chain(env::split_paths(&users));
    let names = [program.to_owned(), format!("{program}{}", env::consts::EXE_SUFFIX)];
    paths.flat_map(|dir| names.each_ref().map(|name| dir.join(name))).find(|path| path.is_file())
}

/// Returns a command that runs in the root of the repository and finds our tools.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).env("PATH", path_with(None));
    // `cargo run` describes xtask to its children. A build script that watches one of these would
    // be run again whenever the user builds without xtask.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    command
}

/// Returns the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
