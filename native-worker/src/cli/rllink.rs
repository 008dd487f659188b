//! `rollmesh worker --rllink`: a worker for an algorithm of RLlib.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, builder::PossibleValuesParser};
use rollmesh_core::{
    kernels::nets::Activation,
    run::{FragmentLength, RunConfig},
    worker::RolloutWorkerBuilder,
};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{
    exit::Failure,
    runtime,
    settings::{WorkerFlags, setting},
    signals::Endings,
};
use crate::{
    NativeWorker as _, Registry,
    kernels::KernelChoice,
    rllink::{LinkError, RllinkConfig, RllinkError, serve},
};

/// Ids of the arguments that only a worker for a hub has.
const HUB_WORKER_ARGS: [&str; 13] = [
    "hub",
    "processes",
    "token_file",
    "device",
    "data_root",
    "serve_inference",
    "relay",
    "relay_fingerprint",
    "tls_ca",
    "tls_fingerprint",
    "i_know_this_is_not_encrypted",
    "tls_client_cert",
    "tls_client_key",
];

fn host_and_port(text: &str) -> Result<String, String> {
    let is_address =
        |(host, port): (&str, &str)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok();
    let is_address = text.rsplit_once(':').is_some_and(is_address);
    is_address.then(|| text.to_owned()).ok_or_else(|| "expected HOST:PORT, like localhost:5556".into())
}

/// The flags of a worker for RLlib.
#[derive(Args)]
pub(super) struct RllinkFlags {
    /// Work for an algorithm of RLlib instead of a hub
    ///
    /// The address of its EnvRunnerServerForExternalInference. The worker samples with the algorithm's module, whose layers
    /// are dense, and sends it episodes
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, conflicts_with_all = HUB_WORKER_ARGS)]
    pub(super) rllink: Option<String>,
    /// One of `rollmesh envs` [default: CartPole-v1]
    #[arg(long, requires = "rllink")]
    env: Option<String>,
    /// Settings of the worker as TOML or JSON
    #[arg(long, value_name = "FILE", requires = "rllink")]
    config: Option<PathBuf>,
    /// Any setting of the worker by its path, like num_envs=8
    ///
    /// May be given several times
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting, requires = "rllink")]
    set: Vec<(String, Value)>,
    /// Env steps of a message
    ///
    /// The algorithm's train batch, divided among its env runners: it waits for as many before it learns
    #[arg(long, value_name = "N", default_value_t = 4_000, requires = "rllink",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(RunConfig::MAX_FRAGMENT_LENGTH)))]
    env_steps: u32,
    /// Activation of the module's hidden layers, which its tensors do not show
    #[arg(long, hide_short_help = true, default_value = "tanh", requires = "rllink",
        value_parser = PossibleValuesParser::new(Activation::NAMES))]
    activation: String,
}

impl RllinkFlags {
    fn config(&self, server: &str, kernels: KernelChoice) -> Result<RllinkConfig, Failure> {
        let flags = WorkerFlags {
            config: self.config.clone(),
            env: self.env.clone(),
            set: self.set.clone(),
            kernels,
            env_config: None,
            seed: None,
            policy: None,
            observation_filter: None,
            monitor_path: None,
            output: None,
            log_dir: None,
            log_level: None,
        };
        let mut rollout = flags.with_set(flags.settings()?)?;
        rollout.rollout_fragment_length = FragmentLength::Steps(self.env_steps.div_ceil(rollout.num_envs.max(1)));
        let activation = self.activation.clone();
        Ok(RllinkConfig { server: server.to_owned(), rollout, activation, env_steps: self.env_steps })
    }
}

/// Works for the algorithm until it is asked to end; rows that were not sent are discarded.
pub(super) fn run(
    flags: &RllinkFlags,
    server: &str,
    kernels: KernelChoice,
    registry: &Registry,
) -> Result<ExitCode, Failure> {
    let (config, table) = (flags.config(server, kernels)?, kernels.table().map_err(Failure::usage)?);
    // Before it connects, since RLlib may be far from ready.
    config.rollout.env.iter().try_for_each(|env| registry.env(env).map(drop)).map_err(Failure::usage)?;
    let registry = registry.clone();
    let serve = move || {
        let make =
            |rollout| RolloutWorkerBuilder::new(registry.clone()).config(rollout).native().kernels(table).build();
        serve(&config, make, |line| eprintln!("{line}"))
    };
    let runtime = runtime(1)?;
    let end = runtime.block_on(async {
        let mut endings = Endings::listen();
        tokio::select! {
            error = spawn_blocking(serve) => Err(error.map_or_else(Failure::other, failure)),
            _ = endings.first() => Ok(ExitCode::SUCCESS),
        }
    });
    // The thread may wait for RLlib; it ends with the process.
    runtime.shutdown_background();
    end
}

fn failure(error: RllinkError) -> Failure {
    match error {
        RllinkError::Link(LinkError::TooMany(_))
        | RllinkError::NotDense(_)
        | RllinkError::Layer(..)
        | RllinkError::NoHead
        | RllinkError::Spaces(..)
        | RllinkError::Setup(_) => Failure::usage(error),
        _ => Failure::other(error),
    }
}
