//! Standard input and output of processes that use them for a protocol.

use std::{fs::File, io};

use rustix::{
    io::fcntl_dupfd_cloexec,
    stdio::{dup2_stdin, dup2_stdout},
};

/// Returns this process's original standard input and output, for the protocol. An environment in the process gets neither:
/// its standard input is empty, and its standard output goes to standard error.
pub(crate) fn take_stdio() -> io::Result<(File, File)> {
    // Above the three standard descriptors, and closed in the environment's child processes.
    let heard = fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let said = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(io::stderr())?;
    Ok((File::from(heard), File::from(said)))
}
