//! `rollmesh launch`: starts and ends workers for a hub, on other machines or in a cluster.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use rollmesh_core::{
    protocol::{handshake::shortened, message::LauncherReady},
    worker::HostFacts as _,
};
use tokio::sync::watch;

use super::{exit::Failure, runtime, security::TrustFlags, signals, worker::WorkerArgs};
use crate::{
    NativeHost,
    control::{token_from_env, token_from_file},
    launch::{LaunchEngine, LauncherConfig, LauncherEnd, Template, serve},
    net::{is_hub_url, is_on_loopback},
    program,
};

/// Places of a machine or cluster, unless the user says otherwise.
const CAPACITY: u32 = 8;
const CAPACITY_OF_CLUSTER: u32 = 64;
/// Flags of `rollmesh worker` that the launcher sets, or that make something else of it.
const NOT_OF_LAUNCHED: [&str; 5] = ["--hub", "--name", "--token-file", "--processes", "--rllink"];
/// Seconds for a worker to join, unless the user says otherwise; jobs wait in queues.
const JOIN_SECONDS: u32 = 10 * 60;

#[derive(Args)]
#[command(
    override_usage = "rollmesh launch --hub <URL> <--here|--hosts|--slurm|--srun|-- COMMAND>",
    after_help = "`rollmesh tokens create --role launcher` makes a launcher's token.\n\n\
                  Examples:\n  \
                  rollmesh launch --hub wss://hub.example:7878 --hosts desk,lab\n  \
                  rollmesh launch --hub wss://hub.example:7878 --slurm --option=--partition=cpu\n  \
                  rollmesh launch --hub wss://hub.example:7878 -- ./start-one",
    after_long_help = "`rollmesh tokens create --role launcher` makes a launcher's token. \
                  While it is connected, the hub starts all its local workers through it: `rollmesh scale`, the dashboard's \
                  plus and minus, and the num_workers of runs. When it ends, its workers do.\n\n\
                  A command of your own after -- is started for each worker and lives as long as it. It reads the worker's \
                  token from standard input, which closes when the worker is to end, and runs `rollmesh` with the arguments in \
                  ROLLMESH_WORKER_ARGUMENTS, a JSON list. ROLLMESH_WORKER_NAME is its name, ROLLMESH_WORKER_SPEC a JSON \
                  object with what it needs. A command that runs it on another machine sets there the environment \
                  variables in ROLLMESH_WORKER_ENVIRONMENT, a JSON object.\n\n\
                  Examples:\n  \
                  rollmesh launch --hub wss://hub.example:7878 --token-file launcher.token --hosts desk,lab\n  \
                  rollmesh launch --hub wss://hub.example:7878 --token-file launcher.token --slurm --option=--partition=cpu\n  \
                  rollmesh launch --hub wss://hub.example:7878 --token-file launcher.token -- ./start-one"
)]
pub(super) struct LaunchArgs {
    /// Address of the hub, ws://HOST:PORT or wss://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = is_hub_url)]
    hub: String,
    /// Address of the hub for the workers [default: that of --hub]
    #[arg(long, value_name = "URL", value_parser = is_hub_url)]
    worker_hub: Option<String>,
    /// File with the token [default: in ROLLMESH_TOKEN]
    ///
    /// Without it the token is that of the environment variable ROLLMESH_TOKEN. - is the first line of standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Most workers at the same time [default: 8, in a cluster 64]
    ///
    /// With --hosts on each machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=LauncherReady::MAX_WORKERS as i64))]
    capacity: Option<u32>,
    /// Name in the hub's tables
    ///
    /// [default: the engine's name and this machine's] A second launcher with the same token and name waits for the first one's end
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The program on the workers' machines [default: rollmesh]
    ///
    /// With --here this program
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    /// A further argument of ssh, srun or sbatch
    ///
    /// Like --option=--partition=cpu; may be given several times
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    option: Vec<String>,
    /// A further argument of `rollmesh worker`
    ///
    /// Like --worker-option=--data-root=/data; may be given several times. Files that it names, and those of --tls-ca,
    /// --tls-client-cert and --tls-client-key, must exist on every machine
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    worker_option: Vec<String>,
    /// Seconds in which a worker has to join [default: 600]
    ///
    /// With --slurm a day. Its token is valid for so long
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=i64::from(LauncherReady::MAX_TOKEN_SECONDS)))]
    join_seconds: Option<u32>,
    /// End when standard input does
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
    #[command(flatten)]
    trust: TrustFlags,
}

/// The place where workers run.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct EngineFlags {
    /// Run workers on this machine
    #[arg(long)]
    here: bool,
    /// Run workers on these machines, through ssh
    ///
    /// ssh must not ask for a password
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_parser = parse_host)]
    hosts: Vec<String>,
    /// Run each worker in a Slurm job, through sbatch
    #[arg(long)]
    slurm: bool,
    /// Run workers in this Slurm allocation, through srun
    #[arg(long)]
    srun: bool,
    /// Run this command for each worker
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Checks the name of a machine: one that begins with a hyphen would be an option of `ssh`.
fn parse_host(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.@:[]".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_part) {
        return Err("expected names of machines, like desk,me@lab.example".into());
    }
    Ok(text.into())
}

impl EngineFlags {
    fn engine(&self) -> LaunchEngine {
        match self {
            Self { here: true, .. } => LaunchEngine::Here,
            Self { slurm: true, .. } => LaunchEngine::Sbatch,
            Self { srun: true, .. } => LaunchEngine::Srun,
            Self { hosts, .. } if !hosts.is_empty() => LaunchEngine::Ssh(hosts.clone()),
            Self { command, .. } => LaunchEngine::Custom(command.clone()),
        }
    }
}

/// Checks the options of workers, which would otherwise fail on other machines.
fn check(template: &Template) -> Result<(), String> {
    let name = |option: &String| option.split('=').next().unwrap_or_default().to_owned();
    if let Some(own) = template.worker_options.iter().map(name).find(|name| NOT_OF_LAUNCHED.contains(&&**name)) {
        return Err(format!("--worker-option: {own} is not for a launcher's workers; leave it out"));
    }
    WorkerArgs::check(&template.example()).map_err(|reason| format!("--worker-option: {reason}"))
}

pub(super) fn run(args: &LaunchArgs) -> Result<ExitCode, Failure> {
    let token = args.token_file.as_deref().map_or_else(token_from_env, token_from_file).map_err(Failure::usage)?;
    let trust = args.trust.trust();
    trust.check(&args.hub).map_err(Failure::usage)?;
    let engine = args.engine.engine();
    let worker_hub = args.worker_hub.as_ref().unwrap_or(&args.hub);
    if matches!(engine, LaunchEngine::Ssh(_) | LaunchEngine::Sbatch) && is_on_loopback(worker_hub) {
        eprintln!(
            "workers reach the hub at {worker_hub}, which on their machines is not this one: name its address with \
             --worker-hub, unless a tunnel leads there"
        );
    }
    let usual_name = || format!("{}@{}", engine.name(), NativeHost.hostname().unwrap_or_default());
    let is_cluster = matches!(engine, LaunchEngine::Sbatch | LaunchEngine::Srun | LaunchEngine::Custom(_));
    let config = LauncherConfig {
        hub: args.hub.clone(),
        trust,
        token,
        token_file: args.token_file.clone().filter(|path| path != Path::new("-")),
        name: shortened(&args.name.clone().unwrap_or_else(usual_name)),
        capacity: args.capacity.unwrap_or(if is_cluster { CAPACITY_OF_CLUSTER } else { CAPACITY }),
        token_seconds: args.join_seconds.unwrap_or(match engine {
            LaunchEngine::Sbatch => LauncherReady::MAX_TOKEN_SECONDS,
            _ => JOIN_SECONDS,
        }),
        template: Template {
            program: match &args.program {
                Some(program) => program.clone(),
                None if engine == LaunchEngine::Here => program().map_err(Failure::other)?.display().to_string(),
                None => "rollmesh".into(),
            },
            way: [vec!["--hub".into(), worker_hub.clone()], args.trust.arguments()].concat(),
            options: args.option.clone(),
            worker_options: args.worker_option.clone(),
            engine,
        },
    };
    check(&config.template).map_err(Failure::usage)?;
    runtime(1)?.block_on(async {
        let mut endings = signals::Endings::listen();
        let (leave, wish) = watch::channel(false);
        if args.until_stdin_closes {
            let leave = leave.clone();
            std::thread::spawn(move || {
                // An error ends it as well.
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                leave.send_replace(true);
            });
        }
        let notice = async {
            endings.first().await;
            eprintln!("ending with all workers; a second signal ends immediately");
            leave.send_replace(true);
            std::future::pending::<LauncherEnd>().await
        };
        let end = tokio::select! {
            end = serve(config, wish, |line| eprintln!("{line}")) => end,
            end = notice => end,
        };
        match end {
            LauncherEnd::Asked => Ok(ExitCode::SUCCESS),
            LauncherEnd::Refused(reason) => Err(Failure::usage(reason)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_workers_are_checked_before_any_is_started() {
        let check = |options: &[&str]| {
            check(&Template {
                engine: LaunchEngine::Here,
                program: "rollmesh".into(),
                way: vec!["--hub".into(), "ws://127.0.0.1:1".into()],
                options: Vec::new(),
                worker_options: options.iter().map(|&option| option.into()).collect(),
            })
        };
        assert_eq!(check(&["--data-root=/data", "--device", "cuda:1", "--relay=wss://relay.example:7879"]), Ok(()));
        for (option, expected) in [
            ("--processes=2", "--worker-option: --processes is not for a launcher's workers; leave it out"),
            ("--token-file", "--worker-option: --token-file is not for a launcher's workers; leave it out"),
            ("--no-such-flag", "--worker-option: unexpected argument '--no-such-flag' found"),
            ("--device=gpu", "--worker-option: invalid value 'gpu' for '--device <DEVICE>': "),
        ] {
            assert!(check(&[option]).unwrap_err().starts_with(expected), "{:?}", check(&[option]));
        }
    }
}
