//! Standard input and output of processes that are spoken to by them.

use std::{fs::File, io};

use rustix::{
    io::fcntl_dupfd_cloexec,
    stdio::{dup2_stdin, dup2_stdout},
};

/// What this process hears, and where it answers. An environment in it gets neither: for it, standard input is empty, and
/// standard output goes where standard error goes.
pub(crate) fn take_stdio() -> io::Result<(File, File)> {
    // Above the three that every program knows, and closed in programs that the environment starts.
    let heard = fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let said = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(io::stderr())?;
    Ok((File::from(heard), File::from(said)))
}
