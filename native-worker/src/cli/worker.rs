//! `rollmesh worker`: a worker for a hub.

use std::{
    env,
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
    thread::available_parallelism,
};

use clap::{Args, Command};
use rollmesh_core::{protocol::handshake::shortened, worker::HostSettings};
use tokio::sync::watch;

use super::{
    choices::kernels,
    exit::Failure,
    processes,
    python::PythonFlags,
    rllink,
    rllink::RllinkFlags,
    runtime,
    security::{RelayFlags, TrustFlags},
    signals, spare_memory,
};
use crate::{
    Registry,
    child::{ConfineFlags, end_with_parent},
    control::{token_from_env, token_from_file},
    envs::ENV_MEMORY_VARIABLE,
    kernels::KernelChoice,
    learner::DeviceSpec,
    net::is_hub_url,
    registry::{acting_on, shown_device},
    worker::{self, Duty, EndKind, WorkerConfig, WorkerEnd},
};

/// More processes than this per CPU are a mistake, such as a seed in the place of a number.
const PROCESSES_PER_CPU: NonZeroU32 = NonZeroU32::new(16).expect("it is not 0");

#[derive(Args)]
#[command(after_help = "The hub prints the command with its token.\n\n\
                  Examples:\n  ROLLMESH_TOKEN=… rollmesh worker --hub ws://127.0.0.1:7878\n  \
                  rollmesh worker --hub wss://hub.example:7878 --processes auto\n  \
                  rollmesh worker --rllink localhost:5556 --env CartPole-v1 --env-steps 4000")]
pub(super) struct WorkerArgs {
    /// Address of the hub, ws://HOST:PORT or wss://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = is_hub_url, required_unless_present = "rllink")]
    hub: Option<String>,
    /// Name in the hub's table
    ///
    /// Printable ASCII, at most 64 characters
    #[arg(long, default_value = "worker", value_parser = parse_name)]
    name: String,
    /// File with the token [default: in ROLLMESH_TOKEN]
    ///
    /// Without it the token is that of the environment variable ROLLMESH_TOKEN. A token that replaces it there is presented to the hub within seconds. - is the first line of standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Be this many workers, or with auto one for each CPU
    ///
    /// Each is a process of its own that is restarted if it fails; at most 16 for each CPU
    #[arg(long, value_name = "N", value_parser = parse_processes)]
    processes: Option<NonZeroU32>,
    /// Where policies act
    ///
    /// cpu, cuda:N or metal. A GPU's rows have other bits than a CPU's: only runs with device_rows = true take such a
    /// worker
    #[arg(long, default_value = "cpu")]
    device: DeviceSpec,
    /// Act for the other workers instead of sampling
    ///
    /// Of runs with inference = "server": it computes the outputs of their policies' networks, in large batches
    #[arg(long, hide_short_help = true)]
    serve_inference: bool,
    /// Instantiation of the hot loops
    ///
    /// Has no influence on the rows
    #[arg(long, hide_short_help = true, default_value_t, value_parser = kernels())]
    kernels: KernelChoice,
    /// Directory below which a hub may name outputs
    ///
    /// Outputs of a worker group's workers (output, monitor_path); without it they may write nothing
    #[arg(long, hide_short_help = true, value_name = "DIR")]
    data_root: Option<PathBuf>,
    #[command(flatten)]
    trust: TrustFlags,
    #[command(flatten)]
    relay: RelayFlags,
    #[command(flatten, next_help_heading = "Algorithms of RLlib")]
    rllink: RllinkFlags,
    #[command(flatten, next_help_heading = "Python environments")]
    python: PythonFlags,
    /// End when standard input does, as the hub's own workers do
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    /// Take settings that name files and environment variables of this machine: the hub has started this process
    #[arg(long, hide = true)]
    takes_host_settings: bool,
    #[command(flatten)]
    confine: ConfineFlags,
}

fn parse_processes(text: &str) -> Result<NonZeroU32, String> {
    let cpus = available_parallelism().map_err(|error| format!("the number of CPUs is unknown: {error}"))?;
    let cpus = NonZeroU32::try_from(cpus).map_err(|_| "too many CPUs")?;
    if text == "auto" {
        return Ok(cpus);
    }
    let most = cpus.saturating_mul(PROCESSES_PER_CPU);
    text.parse().ok().filter(|number| *number <= most).ok_or_else(|| {
        format!("expected a number from 1 to {most}, {PROCESSES_PER_CPU} for each CPU of this machine, or auto")
    })
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_name = shortened(text) == text;
    is_name.then(|| text.to_owned()).ok_or_else(|| "expected at most 64 characters of printable ASCII".into())
}

impl WorkerArgs {
    /// Checks a command line, of which the first word is the command.
    ///
    /// # Errors
    /// The mistake, in one line.
    pub(super) fn check(line: &[String]) -> Result<(), String> {
        let command = Self::augment_args(Command::new("worker"));
        command.try_get_matches_from(line).map(drop).map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })
    }

    /// Returns the name that the workers' names begin with.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file whose changes are followed.
    fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref().filter(|path| *path != Path::new("-"))
    }

    fn hub(&self) -> &str {
        self.hub.as_deref().expect("clap requires --hub without --rllink")
    }

    /// Returns the arguments of one of several processes, which reads its token from standard input and ends with it.
    pub(super) fn of_process(&self, name: String) -> Vec<String> {
        let kernels = self.kernels.to_string();
        let own = [("--hub", self.hub().to_owned()), ("--name", name), ("--kernels", kernels)];
        let mut arguments = vec!["worker".to_owned()];
        arguments.extend(own.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        arguments.extend(["--device".into(), self.device.to_string()]);
        arguments.extend(self.serve_inference.then(|| "--serve-inference".into()));
        let root = self.data_root.iter().flat_map(|root| ["--data-root".into(), root.display().to_string()]);
        arguments.extend(root.chain(self.trust.arguments()).chain(self.relay.arguments()));
        // A file may get another token.
        let file = self.token_file().map_or_else(|| "-".into(), |path| path.display().to_string());
        arguments.extend(["--token-file".into(), file, "--until-stdin-closes".into()]);
        arguments
    }
}

pub(super) fn run(args: &WorkerArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    spare_memory();
    args.python.install(None);
    if args.until_stdin_closes {
        end_with_parent().map_err(|error| {
            Failure::other(format!("this worker could not end with its hub, so it does not start: {error}"))
        })?;
    }
    // Before any thread that works is started.
    args.confine.apply().map_err(Failure::other)?;
    if let Some(server) = &args.rllink.rllink {
        return rllink::run(&args.rllink, server, args.kernels, registry);
    }
    let token = args.token_file.as_deref().map_or_else(token_from_env, token_from_file).map_err(Failure::usage)?;
    if let Some(processes) = args.processes {
        args.trust.trust().check(args.hub()).map_err(Failure::usage)?;
        return processes::run(args, processes, token);
    }
    let registry = acting_on(registry, args.device).map_err(Failure::usage)?;
    let trust = args.trust.trust();
    trust.check(args.hub()).map_err(Failure::usage)?;
    let kernels = args.kernels.table().map_err(Failure::usage)?;
    let config = WorkerConfig {
        hub: args.hub().to_owned(),
        relay: args.relay.address(args.hub(), &trust).map_err(Failure::usage)?,
        trust,
        token,
        token_file: args.token_file().map(Path::to_owned),
        kind: "native",
        name: args.name.clone(),
        device: shown_device(&registry, args.device, kernels).map_err(Failure::other)?,
        kernels,
        host_settings: host_settings(args)?,
        env_memory_mb: env_memory_mb()?,
        duty: if args.serve_inference { Duty::ActsForOthers } else { Duty::Runs },
    };
    let runtime = runtime(1)?;
    let end = runtime.block_on(async {
        let mut endings = signals::Endings::listen();
        let (leave, wish) = watch::channel(false);
        let run = worker::run(config, registry, wish, |line| eprintln!("{line}"));
        let notice = async {
            endings.first().await;
            eprintln!("leaving as soon as the lease is done; a second signal ends immediately");
            leave.send_replace(true);
            std::future::pending::<WorkerEnd>().await
        };
        tokio::select! {
            end = run => end,
            end = notice => end,
        }
    });
    // Hung threads end with the process.
    runtime.shutdown_background();
    let WorkerEnd { kind, reason } = end;
    match kind {
        EndKind::Refused | EndKind::NameTaken => Err(Failure::usage(format!("the hub refused this worker: {reason}"))),
        EndKind::Untrusted => Err(Failure::usage(reason)),
        EndKind::Failed => Err(Failure::other(reason)),
        EndKind::Closed => {
            eprintln!("{reason}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Returns the limit of this machine, or of the process that started this one.
fn env_memory_mb() -> Result<Option<u32>, Failure> {
    let Some(text) = env::var_os(ENV_MEMORY_VARIABLE) else { return Ok(None) };
    let mb = text.to_str().and_then(|text| text.parse().ok());
    mb.map(Some).ok_or_else(|| {
        let text = text.to_string_lossy();
        Failure::usage(format!("{ENV_MEMORY_VARIABLE} is '{text}'; it must be MiB, a whole number, or 0 for no limit"))
    })
}

/// Returns the treatment of the hub's settings for this machine: a hub that started this process decides for its
/// machine; any other only names outputs.
fn host_settings(args: &WorkerArgs) -> Result<HostSettings, Failure> {
    if args.takes_host_settings {
        return Ok(HostSettings::Taken);
    }
    let Some(root) = &args.data_root else { return Ok(HostSettings::Refused) };
    let root = root.to_str().ok_or_else(|| Failure::usage("--data-root: the path is no UTF-8"))?;
    Ok(HostSettings::Below(root.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_processes_are_checked() {
        let error = |argument: &str| {
            let line = ["worker", "--hub", "ws://127.0.0.1:1", argument].map(str::to_owned);
            WorkerArgs::check(&line).unwrap_err()
        };
        assert!(error(&format!("--name={}", "x".repeat(65))).ends_with("at most 64 characters of printable ASCII"));
        assert!(error("--name=h\u{e9}").contains("printable ASCII"));
        for number in ["0", "100000", "all"] {
            assert!(error(&format!("--processes={number}")).contains(", 16 for each CPU of this machine, or auto"));
        }
    }

    #[test]
    fn worker_for_rllib_takes_an_address_and_no_flags_about_hubs() {
        let check = |arguments: &[&str]| {
            WorkerArgs::check(
                &["worker", "--rllink"].iter().chain(arguments).map(|&word| word.into()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(check(&["localhost:5556"]), Ok(()));
        for address in ["localhost", "5556", ":5556", "localhost:port", "localhost:70000", "http://localhost:5556"] {
            assert!(check(&[address]).unwrap_err().ends_with("expected HOST:PORT, like localhost:5556"), "{address}");
        }
        for flag in ["--relay=ws://127.0.0.1:1", "--tls-ca=ca.pem", "--i-know-this-is-not-encrypted"] {
            assert!(check(&["localhost:5556", flag]).unwrap_err().contains("cannot be used with"), "{flag}");
        }
    }
}
