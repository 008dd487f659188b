//! Engines: where and how a launcher starts its workers. Each worker is a command of this machine that lives as long as the
//! worker: `ssh`, `srun`, `sbatch --wait`, the program itself, or a command of the user's.

use std::{collections::BTreeMap, process::Command, time::Duration};

use rollmesh_core::worker::WorkerSpec;
use tokio::time::timeout;

use crate::{child::LIMITED, net::TOKEN_VARIABLE};

/// The place where workers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LaunchEngine {
    /// On this machine.
    Here,
    /// On these machines, through `ssh`.
    Ssh(Vec<String>),
    /// In the steps of a Slurm allocation, through `srun`.
    Srun,
    /// Each in a Slurm job, through `sbatch`.
    Sbatch,
    /// In a place that this command chooses.
    Custom(Vec<String>),
}

/// The settings that the workers of a launcher have in common.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) engine: LaunchEngine,
    /// The program on the workers' machines.
    pub(crate) program: String,
    /// The way to the hub: arguments of `worker`.
    pub(crate) way: Vec<String>,
    /// Further arguments of `ssh`, `srun` or `sbatch`.
    pub(crate) options: Vec<String>,
    /// Further arguments of `worker`.
    pub(crate) worker_options: Vec<String>,
}

/// A worker to start.
#[derive(Clone, Debug)]
pub(crate) struct StartOrder {
    pub(crate) name: String,
    /// The token as text. A secret, which must not be among a command's arguments.
    pub(crate) token: String,
    pub(crate) spec: WorkerSpec,
    /// The machine, for [`LaunchEngine::Ssh`].
    pub(crate) host: Option<String>,
}

/// The command that is a worker.
#[derive(Debug)]
pub(crate) struct StartCommand {
    pub(crate) command: Command,
    /// The text that it reads from standard input.
    pub(crate) input: String,
}

/// The worker needs something that the engine does not provide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{engine} cannot reserve {what} for a worker: leave {setting} out, or use an engine that can")]
pub(crate) struct CannotProvide {
    engine: &'static str,
    what: &'static str,
    /// The flag of the hub, and the setting of a run in its file of settings.
    setting: &'static str,
}

impl LaunchEngine {
    /// Returns its name, which begins the names of its launcher and workers.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Ssh(_) => "ssh",
            Self::Srun => "srun",
            Self::Sbatch => "slurm",
            Self::Custom(_) => "custom",
        }
    }

    fn refuse(&self, what: &'static str, setting: &'static str) -> CannotProvide {
        CannotProvide { engine: self.name(), what, setting }
    }

    /// Checks that the engine provides what a worker needs.
    fn check(&self, spec: &WorkerSpec) -> Result<(), CannotProvide> {
        let (is_slurm, is_custom) = (matches!(self, Self::Srun | Self::Sbatch), matches!(self, Self::Custom(_)));
        if spec.cpus > 0 && !is_slurm && !is_custom {
            return Err(self.refuse("CPUs", "--worker-cpus (host.worker.cpus)"));
        }
        if spec.gpus.is_some() && !is_slurm && !is_custom {
            return Err(self.refuse("GPUs", "--worker-gpus (host.worker.gpus)"));
        }
        if !spec.resources.is_empty() && !is_custom {
            return Err(self.refuse("declared resources", "--worker-resource (host.worker.resources)"));
        }
        Ok(())
    }
}

impl Template {
    /// Returns the command that starts a worker, and lives as long as it.
    ///
    /// # Errors
    /// [`CannotProvide`].
    pub(crate) fn command(&self, start: &StartOrder) -> Result<StartCommand, CannotProvide> {
        self.engine.check(&start.spec)?;
        let input = format!("{}\n", start.token);
        let mut started = match &self.engine {
            LaunchEngine::Here => {
                let mut command = Command::new(&self.program);
                command.args(self.worker(start)).args(READS_TOKEN).envs(limits(start));
                StartCommand { command, input }
            }
            LaunchEngine::Ssh(_) => {
                let mut command = Command::new("ssh");
                // It must fail instead of asking for a password, and report soon that the machine is unreachable.
                command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
                command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]).args(&self.options);
                let host = start.host.as_deref().unwrap_or_default();
                let limits: String = limits(start).map(|(name, value)| format!("{name}={value} ")).collect();
                let limits = if limits.is_empty() { limits } else { format!("env {limits}") };
                command.args(["--", host, &(limits + &self.line(start, &READS_TOKEN))]);
                StartCommand { command, input }
            }
            LaunchEngine::Srun => {
                let mut command = Command::new("srun");
                command.args(["--ntasks=1", "--nodes=1"]).args(slurm_options(start)).args(&self.options);
                command.arg(&self.program).args(self.worker(start)).args(READS_TOKEN);
                StartCommand { command, input }
            }
            LaunchEngine::Sbatch => {
                let mut command = Command::new("sbatch");
                command.args(["--wait", "--parsable", "--ntasks=1", "--nodes=1", "--export=ALL"]);
                command.args(slurm_options(start)).args(&self.options);
                // The environment of the job is that of sbatch.
                command.arg(format!("--wrap=exec {}", self.line(start, &[]))).env(TOKEN_VARIABLE, &start.token);
                StartCommand { command, input: String::new() }
            }
            LaunchEngine::Custom(words) => {
                let mut command = Command::new(words.first().map_or("", String::as_str));
                command.args(words.iter().skip(1)).envs(limits(start)).envs(self.variables(start));
                StartCommand { command, input }
            }
        };
        if self.engine != LaunchEngine::Sbatch {
            // The launcher's own token, which is valid for longer than a worker's.
            started.command.env_remove(TOKEN_VARIABLE);
        }
        Ok(started)
    }

    /// Returns the arguments with which a worker is started that reads its token, so that they can be checked beforehand.
    pub(crate) fn example(&self) -> Vec<String> {
        let (name, token, spec) = ("example".into(), String::new(), WorkerSpec::default());
        let worker = self.worker(&StartOrder { name, token, spec, host: None });
        worker.into_iter().chain(READS_TOKEN.map(str::to_owned)).collect()
    }

    /// Returns the arguments of the program that make it a worker.
    fn worker(&self, start: &StartOrder) -> Vec<String> {
        let mut arguments = vec!["worker".to_owned()];
        arguments.extend(self.way.iter().cloned());
        arguments.extend(["--name".into(), start.name.clone()]);
        arguments.extend(start.spec.device.iter().flat_map(|device| ["--device".into(), device.clone()]));
        let is_limited_by_engine = matches!(self.engine, LaunchEngine::Srun | LaunchEngine::Sbatch);
        let limit = start.spec.memory.filter(|_| !is_limited_by_engine);
        arguments.extend(limit.into_iter().flat_map(|bytes| ["--memory-limit".into(), bytes.to_string()]));
        arguments.extend(self.worker_options.iter().cloned());
        arguments
    }

    /// Returns the same as a line for a shell.
    fn line(&self, start: &StartOrder, more: &[&str]) -> String {
        let words = std::iter::once(self.program.clone()).chain(self.worker(start));
        words.chain(more.iter().map(|&word| word.into())).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ")
    }

    /// Returns the variables that a command of the user's gets, besides the token on its standard input.
    fn variables(&self, start: &StartOrder) -> BTreeMap<&'static str, String> {
        let spec = serde_json::to_string(&start.spec).unwrap_or_default();
        let worker = serde_json::to_string(&self.worker(start)).unwrap_or_default();
        let environment = serde_json::to_string(&limits(start).collect::<BTreeMap<_, _>>()).unwrap_or_default();
        BTreeMap::from([
            ("ROLLMESH_WORKER_NAME", start.name.clone()),
            ("ROLLMESH_WORKER_SPEC", spec),
            ("ROLLMESH_WORKER_ARGUMENTS", worker),
            ("ROLLMESH_WORKER_ENVIRONMENT", environment),
        ])
    }
}

/// The flags of a worker that reads its token from standard input and ends with it.
const READS_TOKEN: [&str; 3] = ["--token-file", "-", "--until-stdin-closes"];

/// Returns the environment variables of a worker that limits its memory itself.
fn limits(start: &StartOrder) -> impl Iterator<Item = (&'static str, &'static str)> {
    start.spec.memory.iter().flat_map(|_| LIMITED)
}

/// Returns the options with which `srun` and `sbatch` reserve resources for a worker.
fn slurm_options(start: &StartOrder) -> Vec<String> {
    let WorkerSpec { cpus, gpus, memory, .. } = &start.spec;
    let mut options = vec![format!("--job-name={}", start.name)];
    if *cpus > 0 {
        options.push(format!("--cpus-per-task={cpus}"));
    }
    options.extend(gpus.filter(|gpus| *gpus > 0).map(|gpus| format!("--gpus-per-task={gpus}")));
    options.extend(memory.map(|bytes| format!("--mem={}M", bytes.div_ceil(1 << 20))));
    options
}

/// Returns a word in a form that a POSIX shell reads as it is.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Cancels a Slurm job.
pub(crate) async fn cancel(job: &str) {
    let mut command = tokio::process::Command::new("scancel");
    command.arg(job).env_remove(TOKEN_VARIABLE).kill_on_drop(true);
    // The job ends by itself when the hub refuses its worker.
    if timeout(Duration::from_secs(10), command.status()).await.is_err() {
        eprintln!("scancel {job} does not answer");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(engine: LaunchEngine, spec: WorkerSpec) -> Result<Command, CannotProvide> {
        let way = vec!["--hub".into(), "ws://h:1".into()];
        let (options, worker_options) = (vec!["-v".into()], vec!["--data-root=/d".into()]);
        let template = Template { engine, program: "my rollmesh".into(), way, options, worker_options };
        let start = StartOrder { name: "n-7".into(), token: "secret".into(), spec, host: Some("desk".into()) };
        template.command(&start).map(|started| started.command)
    }

    fn words(engine: LaunchEngine, spec: WorkerSpec) -> Result<Vec<String>, CannotProvide> {
        let command = command(engine, spec)?;
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        Ok(words.map(|word| word.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn commands_hold_what_a_worker_needs_and_never_its_token() {
        let spec = WorkerSpec { cpus: 2, gpus: Some(1), memory: Some((1 << 30) + 1), ..WorkerSpec::default() };
        let line = words(LaunchEngine::Sbatch, spec.clone()).unwrap().join("|");
        let expected = "sbatch|--wait|--parsable|--ntasks=1|--nodes=1|--export=ALL|--job-name=n-7|--cpus-per-task=2|\
                        --gpus-per-task=1|--mem=1025M|-v|--wrap=exec 'my rollmesh' worker --hub ws://h:1 --name n-7 --data-root=/d";
        assert_eq!(line, expected);
        let line = words(LaunchEngine::Srun, spec).unwrap().join("|");
        assert!(line.starts_with("srun|--ntasks=1|--nodes=1|--job-name=n-7|--cpus-per-task=2|"), "{line}");
        assert!(line.ends_with(
            "|my rollmesh|worker|--hub|ws://h:1|--name|n-7|--data-root=/d|--token-file|-|--until-stdin-closes"
        ));
        let spec = WorkerSpec { memory: Some(5), ..WorkerSpec::default() };
        let line = words(LaunchEngine::Ssh(vec!["desk".into()]), spec).unwrap();
        let remote = "env MIMALLOC_ARENA_EAGER_COMMIT=0 RUST_BACKTRACE=0 'my rollmesh' worker --hub ws://h:1 --name n-7 --memory-limit 5 \
                      --data-root=/d --token-file - --until-stdin-closes";
        assert_eq!(line[line.len() - 4..], ["-v", "--", "desk", remote]);
        let custom = words(LaunchEngine::Custom(vec!["run".into(), "one".into()]), WorkerSpec::default()).unwrap();
        assert_eq!(custom, ["run", "one"]);
    }

    #[test]
    fn commands_do_not_inherit_the_launchers_token() {
        let [ssh, custom] = [LaunchEngine::Ssh(vec!["desk".into()]), LaunchEngine::Custom(vec!["run".into()])];
        for engine in [LaunchEngine::Here, ssh, LaunchEngine::Srun, LaunchEngine::Sbatch, custom] {
            let of_job = (engine == LaunchEngine::Sbatch).then_some("secret".as_ref());
            let command = command(engine, WorkerSpec::default()).unwrap();
            let token = command.get_envs().find(|(name, _)| *name == TOKEN_VARIABLE);
            assert_eq!(token, Some((TOKEN_VARIABLE.as_ref(), of_job)), "{command:?}");
        }
    }

    #[test]
    fn own_command_receives_the_environment_of_a_worker_with_limited_memory() {
        let environment = |memory| {
            let command =
                command(LaunchEngine::Custom(vec!["run".into()]), WorkerSpec { memory, ..WorkerSpec::default() });
            let command = command.unwrap();
            let value = |name| command.get_envs().find(|(key, _)| *key == name)?.1?.to_str().map(str::to_owned);
            (value("ROLLMESH_WORKER_ENVIRONMENT").unwrap(), value("RUST_BACKTRACE"))
        };
        assert_eq!(environment(None), ("{}".into(), None));
        let limited = r#"{"MIMALLOC_ARENA_EAGER_COMMIT":"0","RUST_BACKTRACE":"0"}"#;
        assert_eq!(environment(Some(5)), (limited.into(), Some("0".into())));
    }

    #[test]
    fn resources_that_an_engine_cannot_reserve_are_refused() {
        let spec = WorkerSpec { cpus: 1, ..WorkerSpec::default() };
        let error = words(LaunchEngine::Here, spec).unwrap_err().to_string();
        let expected = "here cannot reserve CPUs for a worker: leave --worker-cpus (host.worker.cpus) out, or use an \
                        engine that can";
        assert_eq!(error, expected);
        let spec = WorkerSpec::default().with_resource("simulator", 1);
        assert!(words(LaunchEngine::Sbatch, spec.clone()).unwrap_err().to_string().contains("--worker-resource (host"));
        assert!(words(LaunchEngine::Custom(vec!["run".into()]), spec).is_ok());
    }

    #[test]
    fn words_survive_the_shell_of_another_machine() {
        for word in ["plain-1", "", "a b", "it's", "$HOME;`x`", "\"", "\\"] {
            assert_eq!(shlex::split(&quoted(word)).unwrap(), [word]);
        }
    }
}
