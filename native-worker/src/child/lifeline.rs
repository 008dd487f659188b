//! The child's side: ending with the parent.

#[cfg(unix)]
use std::{fs::File, os::fd::OwnedFd};
use std::{io, process, sync::mpsc, thread, time::Duration};

#[cfg(unix)]
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, fcntl_dupfd_cloexec},
    process::{Signal, getpgrp, getpid, kill_current_process_group},
    stdio::{dup2_stdin, dup2_stdout},
};

/// Makes Linux kill this process when its parent ends, if it is a child of this program. Called first thing in `main`: it
/// covers the time until the process [watches](end_with_parent) its pipe, but not the processes that it starts in that
/// time.
pub(crate) fn bind_to_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Pid, getppid};
        let named = std::env::var(super::spawn::PARENT_VARIABLE).ok().and_then(|id| id.parse().ok());
        let Some(parent) = named.and_then(Pid::from_raw) else { return };
        // A process that an environment has started inherits the variable, but has another parent.
        if getppid() != Some(parent) {
            return;
        }
        notify_of_parents_end(Signal::KILL);
        if getppid() != Some(parent) {
            // The parent has ended in between.
            process::exit(1);
        }
    }
}

/// Requests a signal for the parent's end; a system that does not support it has the pipe only.
#[cfg(target_os = "linux")]
fn notify_of_parents_end(signal: Signal) {
    let _ = rustix::process::set_parent_process_death_signal(Some(signal));
}

/// Ends this process and its process group when its standard input closes. It is called before memory is limited, and before
/// [`take_stdio`].
///
/// # Errors
/// The system has no thread or no descriptor for it.
pub(crate) fn end_with_parent() -> io::Result<()> {
    #[cfg(unix)]
    return end_with_pipe(fcntl_dupfd_cloexec(io::stdin(), 3)?, Duration::ZERO);
    #[cfg(not(unix))]
    watch(|| drop(io::Read::read_to_end(&mut io::stdin(), &mut Vec::new())), Duration::ZERO)
}

/// Works like [`end_with_parent`], for the standard input that [`take_stdio`] has returned. The process may end by
/// itself within `grace`.
///
/// # Errors
/// As there.
#[cfg(unix)]
pub(crate) fn end_with_pipe(pipe: OwnedFd, grace: Duration) -> io::Result<()> {
    watch(move || wait_for_hang_up(&pipe), grace)
}

/// Ends this process when the parent has ended.
fn watch(wait: impl FnOnce() + Send + 'static, grace: Duration) -> io::Result<()> {
    let (begin, begun) = mpsc::channel();
    let watch = move || {
        let _ = begin.send(());
        wait();
        thread::sleep(grace);
        #[cfg(unix)]
        if getpgrp() == getpid() {
            let _ = kill_current_process_group(Signal::KILL);
        }
        process::exit(1);
    };
    thread::Builder::new().name("lifeline".into()).spawn(watch)?;
    // A thread takes memory while it begins, which the caller may limit now.
    let _ = begun.recv();
    // From here on the pipe ends the process, and its child processes with it. If it is stopped, the signal continues it.
    #[cfg(target_os = "linux")]
    notify_of_parents_end(Signal::CONT);
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const HALF_CLOSED: PollFlags = PollFlags::RDHUP;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const HALF_CLOSED: PollFlags = PollFlags::empty();

#[cfg(unix)]
fn wait_for_hang_up(pipe: &OwnedFd) {
    loop {
        // A hang-up of a pipe is always reported; the closed half of a socket, on Linux, if it is requested.
        match poll(&mut [PollFd::new(pipe, HALF_CLOSED)], None) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Returns this process's original standard input and output, for a protocol. An environment in the process gets neither:
/// its standard input is empty, and its standard output goes to standard error.
#[cfg(unix)]
pub(crate) fn take_stdio() -> io::Result<(File, File)> {
    // Above the three standard descriptors, and closed in the environment's child processes.
    let heard = fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let said = fcntl_dupfd_cloexec(io::stdout(), 3)?;
    dup2_stdin(File::open("/dev/null")?)?;
    dup2_stdout(io::stderr())?;
    Ok((File::from(heard), File::from(said)))
}
