//! Workers that launchers and supervising processes start, as people run them; `ssh`, `srun` and `sbatch` are scripts that start
//! them on this machine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use rollmesh_core::protocol::{Token, TokenHash};
use serde_json::{Value, json};

use super::{HubProcess, count, total};
use crate::support::{
    Process,
    process::{Invitation, PROGRAM, Signal, children_of, has_ended, kill, send},
    soon, until,
};

/// Records its arguments, and runs the command line after `-- HOST` here. One machine cannot be reached.
const SSH: &str = r#"#!/bin/sh
echo "ssh $*" >> "$LOG"
while [ "$1" != -- ]; do shift; done
if [ "$2" = dead ]; then echo "ssh: connect to host dead port 22: Connection refused" >&2; exit 255; fi
shift 2
exec sh -c "exec $*"
"#;

/// `srun` or `salloc`: records its arguments, and runs the command behind its options here.
const RUN: &str = r#"#!/bin/sh
echo "${0##*/} $*" >> "$LOG"
while :; do case "$1" in -*) shift ;; *) break ;; esac; done
exec "$@"
"#;

/// Records its arguments, prints a job's number, and waits for the job. As in Slurm, the job outlives the command. A job array runs
/// on by itself.
const SBATCH: &str = r#"#!/bin/sh
echo "sbatch $*" >> "$LOG"
tasks=
for last; do
    case "$last" in
    --array=1-*) tasks=$(seq "${last#--array=1-}") ;;
    --export=ALL,*) export "${last#--export=ALL,}" ;;
    esac
done
for task in $tasks; do
    SLURM_ARRAY_JOB_ID=70 SLURM_ARRAY_TASK_ID=$task setsid sh "$last" < /dev/null > /dev/null 2>&1 &
done
[ -z "$tasks" ] || exit 0
setsid sh -c "${last#--wrap=}" < /dev/null > /dev/null 2>&1 &
echo "$!;cluster"
wait $!
"#;

const SCANCEL: &str = "#!/bin/sh\necho \"scancel $*\" >> \"$LOG\"\nkill \"$1\"\n";

/// Programs of a cluster in a folder, and what they were started with.
pub(super) struct Fakes {
    pub(super) folder: tempfile::TempDir,
}

impl Fakes {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scripts = [("ssh", SSH), ("srun", RUN), ("salloc", RUN), ("sbatch", SBATCH), ("scancel", SCANCEL)];
        for (name, script) in scripts {
            let path = folder.path().join(name);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(folder.path().join("log"), "").unwrap();
        Self { folder }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Sets a command up to find the programs.
    pub(super) fn set_up(&self, command: &mut tokio::process::Command) {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).env("LOG", self.folder.path().join("log"));
    }

    fn launch(&self, hub: &HubProcess, token: &str, args: &[&str]) -> Process {
        launch(hub, token, args, |command| self.set_up(command))
    }
}

fn launch(hub: &HubProcess, token: &str, args: &[&str], set_up: impl FnOnce(&mut tokio::process::Command)) -> Process {
    let url = format!("ws://{}", hub.invitation.address);
    Process::start_with(["launch", "--hub", &url, "--name", "l"].iter().chain(args), |command| {
        set_up(command.env("ROLLMESH_TOKEN", token));
    })
}

impl HubProcess {
    /// Starts a hub with an operator's token in this file: in the log of a service there is none.
    async fn with_tokens(listen: &str, file: &str) -> Self {
        let create = ["tokens", "create", "--role", "operator", "--file", file];
        let operator_token = Process::start(create).finish_with(0).await.stdout.trim().to_owned();
        let mut process = Process::start(["hub", "--listen", listen, "--tokens", file]);
        let dashboard = process.line("dashboard  ").await;
        let address =
            dashboard.strip_prefix("dashboard  http://").and_then(|url| url.strip_suffix('/')).expect(&dashboard);
        let worker = process.line("worker     ").await;
        assert_eq!(worker, format!("worker     rollmesh worker --hub ws://{address}"));
        let invitation = Invitation { address: address.into(), operator_token, worker_token: String::new() };
        Self { process, invitation }
    }

    async fn launcher_token(&self) -> String {
        self.succeed(&["tokens", "create", "--role", "launcher"]).await.trim().to_owned()
    }

    /// Waits until this many workers are connected, and returns their rows.
    pub(super) async fn until_workers(&self, number: usize) -> Vec<Value> {
        soon("the workers", async {
            loop {
                let workers = self.workers().await;
                // A worker reports its machine after it has joined.
                if workers.len() == number && workers.iter().all(|worker| !worker["host"].is_null()) {
                    return workers;
                }
            }
        })
        .await
    }
}

/// The processes with these words on their command line.
pub(super) fn processes(words: [&str; 2]) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_words = |pid: &u32| {
        let line = fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        words.iter().all(|word| line.contains(word)) && !has_ended(*pid)
    };
    pids.filter(has_words).collect()
}

#[tokio::test]
async fn launcher_presents_the_token_that_replaces_its_own_in_the_file() {
    let mut hub = HubProcess::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launcher.token");
    let old = hub.launcher_token().await;
    fs::write(&file, &old).unwrap();
    let mut launcher = launch(&hub, "", &["--here", "--token-file", file.to_str().unwrap()], |_| {});
    launcher.line("serving the hub").await;
    hub.succeed(&["scale", "1"]).await;
    let worker = hub.until_workers(1).await[0]["worker"].clone();

    fs::write(&file, hub.launcher_token().await).unwrap();
    // Once at its start, and once with the new token.
    for _ in 0..2 {
        hub.process.line("launcher l has places").await;
    }
    hub.succeed(&["tokens", "revoke", &TokenHash::of(&Token::from_hex(&old).unwrap()).id().to_string()]).await;
    hub.succeed(&["scale", "2"]).await;
    let workers = hub.until_workers(2).await;
    assert!(workers.iter().any(|row| row["worker"] == worker), "{workers:?}");
}

fn names(workers: &[Value]) -> Vec<&str> {
    workers.iter().map(|worker| worker["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn launcher_starts_replaces_and_ends_the_hubs_workers() {
    let hub = HubProcess::start().await;
    let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
    let args = ["--here", "--capacity", "3", "--worker-option=--data-root=/tmp"];
    let mut launcher = launch(&hub, &token, &args, |_| {});
    launcher.line("serving the hub").await;
    let mut hub = hub;
    hub.process.line("launcher l has places for 3 workers").await;
    hub.succeed(&["scale", "2"]).await;
    let workers = hub.until_workers(2).await;
    assert!(workers.iter().all(|worker| worker["launcher"] == "l" && worker["local"] == true), "{workers:?}");
    assert!(names(&workers).iter().all(|name| name.starts_with("here-")), "{workers:?}");
    let hosts = hub.status().await["hosts"].clone();
    assert_eq!(hosts.as_object().unwrap().values().cloned().collect::<Vec<_>>(), [2]);
    let launchers = json!([{ "name": "l", "capacity": 3, "running": 2, "absent": false }]);
    hub.until_status("its places", |status| status["launchers"] == launchers).await;
    let text = hub.succeed(&["status"]).await;
    assert!(text.lines().any(|line| line == "launchers   l 2 of 3"), "{text}");
    let first = processes([&url, " --data-root=/tmp"]);
    assert_eq!(first.len(), 2, "workers of the launcher: {first:?}");
    assert_eq!(children_of(launcher.pid()).len(), 2);
    assert!(processes([&token, ""]).is_empty(), "a token is on a command line");

    // The launcher replaces a killed worker.
    kill(first[0]);
    hub.process.line("another one takes its place").await;
    hub.until_workers(2).await;
    let refused = hub.command(&["scale", "4"]).await;
    assert!(refused.stderr.contains("places of the connected launchers are taken"), "{}", refused.stderr);
    hub.succeed(&["scale", "1"]).await;
    hub.until_workers(1).await;

    launcher.signal(Signal::TERM);
    launcher.finish_with(0).await;
    hub.process.line("launcher l was removed with its 1 workers").await;
    hub.until_workers(0).await;
    until("the end of the workers", || processes([&url, "here-"]).is_empty()).await;
}

#[tokio::test]
async fn workers_of_a_killed_launcher_exit_and_are_started_by_the_next_one() {
    let mut hub = HubProcess::start().await;
    let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
    let mut launcher = launch(&hub, &token, &["--here"], |_| {});
    launcher.line("serving the hub").await;
    hub.process.line("launcher l has places").await;
    hub.succeed(&["scale", "2"]).await;
    hub.until_workers(2).await;
    kill(launcher.pid());
    until("the end of the workers", || processes([&url, "here-"]).is_empty()).await;
    // The hub expects it back, and starts none on its own machine meanwhile.
    let _launcher = launch(&hub, &token, &["--here"], |_| {});
    let workers = hub.until_workers(2).await;
    assert!(workers.iter().all(|worker| worker["launcher"] == "l"), "{workers:?}");
}

#[tokio::test]
async fn ssh_runs_workers_on_the_machines_that_can_be_reached() {
    let mut hub = HubProcess::start().await;
    let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
    let fakes = Fakes::new();
    let args = ["--hosts", "desk,dead,lab", "--capacity", "2", "--program", PROGRAM, "--option=-4"];
    let mut launcher = fakes.launch(&hub, &token, &args);
    launcher.line("serving the hub").await;
    hub.process.line("launcher l has places for 6 workers").await;
    hub.succeed(&["scale", "4"]).await;
    let workers = hub.until_workers(4).await;
    let on = |host: &str| names(&workers).iter().filter(|name| name.starts_with(host)).count();
    assert_eq!((on("desk-"), on("lab-")), (2, 2), "{workers:?}");
    launcher.line("ssh: exit status: 255: ssh: connect to host dead port 22: Connection refused").await;
    assert!(fakes.log().contains(" -4 -- desk "), "{}", fakes.log());
    assert!(processes([&url, "desk-"]).len() >= 2);
    hub.succeed(&["scale", "0"]).await;
    hub.until_workers(0).await;
    until("the end of the workers", || processes([&url, "worker"]).is_empty()).await;
}

#[tokio::test]
async fn scale_ends_with_the_hubs_reason_and_another_one_makes_new_attempts() {
    let mut hub = HubProcess::start().await;
    let token = hub.launcher_token().await;
    let fakes = Fakes::new();
    let _launcher = fakes.launch(&hub, &token, &["--hosts", "dead"]);
    hub.process.line("launcher l has places").await;
    let ended = hub.command(&["scale", "1"]).await;
    let reason = "error: no more attempts to start local workers: they end as soon as they start (ssh: exit status: 255: \
                  ssh: connect to host dead port 22: Connection refused)";
    assert_eq!((ended.status.code(), ended.stderr.trim()), (Some(1), reason));
    hub.succeed(&["scale", "1", "--no-wait"]).await;
    hub.process.line("another one takes its place").await;
}

#[tokio::test]
async fn slurm_runs_workers_in_steps_and_in_jobs() {
    for (engine, flag) in [("srun", "--srun"), ("sbatch", "--slurm")] {
        let mut hub = HubProcess::start().await;
        let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
        let fakes = Fakes::new();
        let args = [flag, "--capacity", "2", "--program", PROGRAM, "--option=--partition=cpu"];
        let mut launcher = fakes.launch(&hub, &token, &args);
        launcher.line("serving the hub").await;
        hub.process.line("launcher l has places for 2 workers").await;
        hub.succeed(&["scale", "2"]).await;
        let workers = hub.until_workers(2).await;
        assert!(workers.iter().all(|worker| worker["launcher"] == "l"), "{workers:?}");
        let log = fakes.log();
        let started: Vec<&str> = log.lines().filter(|line| line.starts_with(engine)).collect();
        assert!(started.len() == 2 && started.iter().all(|line| line.contains(" --partition=cpu ")), "{log}");
        hub.succeed(&["scale", "0"]).await;
        hub.until_workers(0).await;
        until("the end of the workers", || processes([&url, "worker"]).is_empty()).await;
        // Jobs of a launcher that ends are cancelled.
        hub.succeed(&["scale", "1", "--no-wait"]).await;
        hub.until_workers(1).await;
        launcher.signal(Signal::TERM);
        launcher.finish_with(0).await;
        until("the end of the workers", || processes([&url, "worker"]).is_empty()).await;
        assert_eq!(fakes.log().contains("scancel "), engine == "sbatch", "{}", fakes.log());
    }
}

#[tokio::test]
async fn own_command_gets_the_workers_arguments_and_its_token_on_standard_input() {
    let mut hub = HubProcess::start().await;
    let token = hub.launcher_token().await;
    let script = r#"read -r ROLLMESH_TOKEN; export ROLLMESH_TOKEN
        eval set -- "$(printf %s "$ROLLMESH_WORKER_ARGUMENTS" | tr '[],' '   ')"
        exec "$PROGRAM" "$@" --until-stdin-closes"#;
    let args = ["--name", "mine", "--", "sh", "-c", script];
    let url = format!("ws://{}", hub.invitation.address);
    let mut launcher = Process::start_with(["launch", "--hub", &url].iter().chain(&args), |command| {
        command.env("ROLLMESH_TOKEN", &token).env("PROGRAM", PROGRAM);
    });
    launcher.line("serving the hub").await;
    hub.process.line("launcher mine has places").await;
    hub.succeed(&["scale", "1"]).await;
    let workers = hub.until_workers(1).await;
    assert!(workers[0]["launcher"] == "mine" && names(&workers)[0].starts_with("mine-"), "{workers:?}");
}

#[tokio::test]
async fn launcher_with_another_roles_token_is_refused() {
    let hub = HubProcess::start().await;
    for token in [&hub.invitation.worker_token, &hub.invitation.operator_token] {
        let refused = launch(&hub, token, &["--here"], |_| {}).finish_with(2).await;
        assert!(refused.stderr.contains("`rollmesh tokens create --role launcher` makes one"), "{}", refused.stderr);
    }
    let usage = launch(&hub, &hub.invitation.worker_token, &["--hosts=-oProxyCommand=x"], |_| {});
    assert!(usage.finish_with(2).await.stderr.contains("expected names of machines"));
}

#[tokio::test]
async fn processes_of_a_machine_are_restarted_and_end_with_their_supervisor() {
    let hub = HubProcess::start().await;
    let url = format!("ws://{}", hub.invitation.address);
    let long = "x".repeat(64);
    let args = ["worker", "--hub", &url, "--name", &long, "--processes", "1"];
    let with_a_long_name = Process::start_with(args, |command| {
        command.env("ROLLMESH_TOKEN", &hub.invitation.worker_token);
    });
    assert_eq!(names(&hub.until_workers(1).await), [format!("{}-1", &long[..48])]);
    let environ = fs::read(format!("/proc/{}/environ", children_of(with_a_long_name.pid())[0])).unwrap();
    assert!(!String::from_utf8_lossy(&environ).contains("ROLLMESH_TOKEN="), "the token is in the environment");
    with_a_long_name.signal(Signal::TERM);
    with_a_long_name.finish_with(0).await;
    let args = ["worker", "--hub", &url, "--name", "desk", "--processes", "2"];
    let start = |token: &str| Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token));
    let mut machine = start(&hub.invitation.worker_token);
    let workers = hub.until_workers(2).await;
    let mut found = names(&workers);
    found.sort_unstable();
    assert_eq!(found, ["desk-1", "desk-2"]);
    assert_eq!(children_of(machine.pid()).len(), 2);

    let victim = processes([&url, "--name desk-1"])[0];
    kill(victim);
    let line = machine.line("starting again in").await;
    assert!(line.starts_with("[desk-1] ended (signal: 9 (SIGKILL)); starting again in 0.5 s"), "{line}");
    until("the end of the victim", || has_ended(victim)).await;
    until("its successor", || !processes([&url, "--name desk-1"]).is_empty()).await;
    hub.until_workers(2).await;

    // A signal lets them finish their leases; without a supervisor they end immediately.
    machine.signal(Signal::TERM);
    machine.finish_with(0).await;
    let machine = start(&hub.invitation.worker_token);
    hub.until_workers(2).await;
    send(machine.pid(), Signal::KILL);
    until("the end of the workers", || processes([&url, "--name desk-"]).is_empty()).await;

    let refused = start(&"0".repeat(64)).finish_with(2).await;
    assert!(refused.stderr.contains("the hub refused this worker"), "{}", refused.stderr);
}

#[tokio::test]
async fn launcher_ends_its_workers_when_its_hub_ends_and_serves_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.json").display().to_string();
    let mut hub = HubProcess::with_tokens("127.0.0.1:0", &tokens).await;
    let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
    let mut launcher = launch(&hub, &token, &["--here"], |_| {});
    hub.process.line("launcher l has places").await;
    hub.succeed(&["scale", "1"]).await;
    // Another one may be starting.
    hub.succeed(&["scale", "2", "--no-wait"]).await;
    hub.process.signal(Signal::TERM);
    hub.process.finish_with(0).await;
    until("the end of the workers", || processes([&url, "here-"]).is_empty()).await;
    let address = hub.invitation.address.clone();
    let mut hub = HubProcess::with_tokens(&address, &tokens).await;
    launcher.line("serving the hub").await;
    hub.process.line("launcher l has places").await;
    hub.succeed(&["scale", "2"]).await;
    let workers = hub.until_workers(2).await;
    assert!(workers.iter().all(|worker| worker["launcher"] == "l"), "{workers:?}");
}

#[tokio::test]
async fn drained_worker_of_a_launcher_is_not_replaced_and_a_drained_run_has_lost_nothing() {
    let mut hub = HubProcess::start().await;
    let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
    let _launcher = launch(&hub, &token, &["--here"], |_| {});
    hub.process.line("launcher l has places").await;
    hub.start_run(2).await;
    let is_under_way = |status: &Value| status["num_workers"] == 2 && count(&status["iteration"]) > 0;
    hub.until_status("both", is_under_way).await;
    let id = hub.workers().await[0]["worker"].to_string();
    assert_eq!(hub.succeed(&["drain", "--worker", &id]).await, format!("worker {id}: removed\n"));
    until("the end of its process", || processes([&url, "here-"]).len() == 1).await;
    let status = hub.until_status("a free place", |status| status["launchers"][0]["running"] == 1).await;
    assert_eq!((&status["num_local_workers"], &status["phase"]), (&1.into(), &"running".into()));

    let said = hub.succeed(&["drain"]).await;
    assert!(said.starts_with("run 1: drained after "), "{said}");
    let status = hub.status().await;
    let ledger = &status["ledger"];
    assert_eq!((&ledger["balances"], &ledger["outstanding"], total(&ledger["expired"])), (&true.into(), &0.into(), 0));
    assert_eq!(ledger["committed"], status["env_steps"], "what was committed was learned from");
    assert_eq!((&status["num_local_workers"], processes([&url, "here-"]).len()), (&1.into(), 1));
}

/// Returns the hash of the weights of a run with two local workers, of any kind; `disturb` is called in the middle of
/// it.
async fn weights_hash(hub: &HubProcess, runs: &Path, disturb: impl FnOnce()) -> Value {
    let settings = ["env=CartPole-v1", "seed=1", "num_workers=2", "num_envs=4", "stop.env_steps=8000"];
    let settings = settings.into_iter().flat_map(|setting| ["--set", setting]);
    hub.succeed(&["start"].into_iter().chain(settings).collect::<Vec<_>>()).await;
    hub.until_status("some iterations", |status| status["iteration"].as_u64() > Some(4)).await;
    disturb();
    hub.until_status("the end", |status| status["phase"] == "finished").await;
    let ledger = hub.status().await["ledger"].clone();
    assert_eq!(ledger["balances"], true, "{ledger}");
    let run = fs::read_dir(runs).unwrap().next().expect("a run").unwrap().path();
    until("its summary", || run.join("summary.json").exists()).await;
    let summary = fs::read_to_string(run.join("summary.json")).unwrap();
    serde_json::from_str::<Value>(&summary).unwrap()["weights_hash"].clone()
}

#[tokio::test]
async fn killed_workers_of_a_launcher_change_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    let runs = ["calm", "disturbed"].map(|name| folder.path().join(name));
    let start = |runs: &Path| {
        let runs = runs.display().to_string();
        async move { HubProcess::start_with(&["--runs-dir", &runs]).await }
    };
    let calm = weights_hash(&start(&runs[0]).await, &runs[0], || {}).await;

    let mut hub = start(&runs[1]).await;
    let (url, token) = (format!("ws://{}", hub.invitation.address), hub.launcher_token().await);
    let fakes = Fakes::new();
    let _launcher = fakes.launch(&hub, &token, &["--hosts", "desk,lab", "--program", PROGRAM]);
    hub.process.line("launcher l has places").await;
    let kill_one = || kill(processes([&url, "desk-"]).into_iter().find(|pid| is_program(*pid)).expect("a worker"));
    let disturbed = weights_hash(&hub, &runs[1], kill_one).await;
    assert_eq!(disturbed, calm);
    assert!(hub.status().await["num_worker_restarts"].as_u64() >= Some(1));
}

/// Returns true for a process of the program under test, not of `ssh` or a shell.
fn is_program(pid: u32) -> bool {
    fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe")).is_ok_and(|exe| exe == Path::new(PROGRAM))
}
