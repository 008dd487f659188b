//! `rollmesh worker --processes`: one process that starts a machine's workers, restarts those that fail, and ends with them.

use std::{
    num::NonZeroU32,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use rollmesh_core::protocol::Token;
use tokio::{sync::watch, time::sleep};

use super::{
    exit::Failure,
    runtime,
    signals::{EndRequest, Endings},
    worker::WorkerArgs,
};
use crate::{launch::SupervisedChild, net::TOKEN_VARIABLE, program};

/// A process that lives at least this long is restarted immediately.
const LONG_LIFE: Duration = Duration::from_secs(60);
/// The first pause before a restart; it doubles with each failure in a row, …
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Exit code of a worker that the hub refuses: another attempt would end in the same way.
const REFUSED: i32 = 2;

/// Runs the workers until all have ended on purpose, one is refused, or a signal ends them.
pub(super) fn run(args: &WorkerArgs, processes: NonZeroU32, token: Token) -> Result<ExitCode, Failure> {
    let runtime = runtime(1)?;
    runtime.block_on(async {
        let endings = Endings::listen();
        let (refused, is_over) = watch::channel(false);
        let place = |number: u32| keep_running(args, token, number, endings.clone(), is_over.clone());
        let mut places: FuturesUnordered<_> = (1..=processes.get()).map(place).collect();
        let mut failure = None;
        while let Some(ended) = places.next().await {
            if let Err(reason) = ended {
                // The others end, too: they have the same token and the same hub.
                refused.send_replace(true);
                failure = failure.or(Some(reason));
            }
        }
        failure.map_or(Ok(ExitCode::SUCCESS), Err)
    })
}

/// Keeps one worker running.
///
/// # Errors
/// [`Failure`] if the hub refuses it, or the program cannot be started.
async fn keep_running(
    args: &WorkerArgs,
    token: Token,
    number: u32,
    mut endings: Endings,
    mut is_over: watch::Receiver<bool>,
) -> Result<(), Failure> {
    // A hub admits names of at most 64 characters.
    let name = format!("{:.48}-{number}", args.name());
    let mut failures = 0;
    loop {
        let mut command = Command::new(program().map_err(Failure::other)?);
        command.args(args.of_process(name.clone())).envs(crate::envs::python::child_environs());
        // It reads its token from standard input, or from the file.
        command.env_remove(TOKEN_VARIABLE);
        let began = Instant::now();
        let started = SupervisedChild::start(command, &format!("{}\n", token.to_hex())).await;
        let worker = started.map_err(|error| Failure::other(format!("worker {name} cannot be started: {error}")))?;
        let pid = worker.pid();
        let (mut asked, mut over) = (endings.clone(), is_over.clone());
        let stop = async {
            tokio::select! {
                ending = asked.first() => leave_politely(pid, ending, &mut over).await,
                () = when_over(&mut over) => {}
            }
        };
        let end = worker.run(&format!("[{name}] "), |_| {}, stop).await.map_err(Failure::other)?;
        if end.status.success() || endings.is_noticed() || *is_over.borrow() {
            return Ok(());
        }
        if end.status.code() == Some(REFUSED) {
            return Err(Failure::usage(end.last_line.trim_start_matches("error: ")));
        }
        failures = if began.elapsed() >= LONG_LIFE { 0 } else { failures + 1 };
        let pause = if failures == 0 { Duration::ZERO } else { pause_after(failures) };
        eprintln!("[{name}] ended ({}); starting again in {:.1} s", end.status, pause.as_secs_f64());
        tokio::select! {
            () = sleep(pause) => {}
            _ = endings.first() => return Ok(()),
            () = when_over(&mut is_over) => return Ok(()),
        }
    }
}

/// Asks a worker to leave when its lease is done, as the signal asked this process. Returns if there is no time for that.
async fn leave_politely(pid: Option<u32>, ending: EndRequest, over: &mut watch::Receiver<bool>) {
    #[cfg(unix)]
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw) {
        use rustix::process::{Signal, kill_process};
        let signal = if ending == EndRequest::Interrupt { Signal::INT } else { Signal::TERM };
        if kill_process(pid, signal).is_ok() {
            // The worker has a deadline of its own; a second signal ends this process, and with it the worker.
            when_over(over).await;
        }
    }
    #[cfg(not(unix))]
    let _ = (pid, ending, over);
}

async fn when_over(is_over: &mut watch::Receiver<bool>) {
    if is_over.wait_for(|over| *over).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns the pause before a restart after this many consecutive failures (exponential backoff).
fn pause_after(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = [1, 2, 3, 6, 7, 40].map(|failures| pause_after(failures).as_millis());
        assert_eq!(pauses, [500, 1_000, 2_000, 16_000, 30_000, 30_000]);
    }
}
