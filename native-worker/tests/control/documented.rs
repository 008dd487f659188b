//! The commands of docs/deploy.md start ten workers as they are written there. `ssh`, `salloc`, `srun` and `sbatch` are scripts that
//! start them on this machine.

use std::{fs, path::Path};

use super::launch::{Fakes, processes};
use crate::support::{
    Process, json,
    process::{PROGRAM, Signal, kill},
    soon, until,
};

/// Returns a path in the repository.
fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns the lines of the first shell block below a heading.
fn commands(heading: &str) -> Vec<String> {
    let text = format!("\n{}", fs::read_to_string(repository("docs/deploy.md")).unwrap());
    let section = text.split_once(&format!("\n{heading}\n")).expect(heading).1;
    let block = section.split_once("```sh\n").expect(heading).1.split_once("```").expect(heading).0;
    block.lines().map(str::to_owned).collect()
}

/// A user's machine: the working directory of the commands, with the hub of the page's first one.
struct Machine {
    fakes: Fakes,
    hub: Process,
    operator_token: String,
    url: String,
    fingerprint: String,
}

impl Machine {
    async fn start() -> Self {
        let fakes = Fakes::new();
        let folder = fakes.folder.path();
        std::os::unix::fs::symlink(PROGRAM, folder.join("rollmesh")).unwrap();
        std::os::unix::fs::symlink(repository("deploy"), folder.join("deploy")).unwrap();
        let create = "rollmesh tokens create --role operator --file tokens.json";
        let operator_token = shell(&fakes, create, "").finish_with(0).await.stdout.trim().to_owned();
        let hub = commands("# Workers on machines and clusters").join("\n");
        let hub = hub.replace("0.0.0.0:7878", "127.0.0.1:0").replace("hub.example", "localhost");
        let mut hub = shell(&fakes, &format!("exec {hub}"), "");
        let line = hub.line("rollmesh worker --hub").await;
        let (url, fingerprint) = line.rsplit_once(" --tls-fingerprint ").expect("a fingerprint");
        let url = url.rsplit_once(' ').expect("an address").1.to_owned();
        Self { operator_token, url, fingerprint: fingerprint.trim().into(), fakes, hub }
    }

    /// Runs a command of the page in a shell.
    fn shell(&self, command: &str) -> Process {
        let command = command.replace("wss://hub.example:7878", &self.url).replace('…', &self.fingerprint);
        shell(&self.fakes, &command, &self.operator_token)
    }

    fn processes(&self) -> Vec<u32> {
        processes([" worker --hub ", &self.url])
    }

    async fn until_ten_workers(&self, heading: &str) {
        soon(heading, async {
            loop {
                let workers = "rollmesh workers --json --hub wss://hub.example:7878 --tls-fingerprint …";
                let workers = json(&self.shell(workers).finish_with(0).await.stdout);
                if workers.as_array().is_some_and(|workers| workers.len() == 10) {
                    return;
                }
            }
        })
        .await;
    }
}

impl Drop for Machine {
    /// Jobs outlive the command that started them.
    fn drop(&mut self) {
        self.processes().into_iter().for_each(kill);
    }
}

/// Runs a command in the folder of the programs.
fn shell(fakes: &Fakes, command: &str, token: &str) -> Process {
    Process::start_program("sh", ["-c", command], |process| {
        fakes.set_up(process);
        process.current_dir(fakes.folder.path()).env("HOME", fakes.folder.path()).env("ROLLMESH_TOKEN", token);
    })
}

#[tokio::test]
async fn documented_commands_start_ten_workers() {
    let mut machine = Machine::start().await;
    for heading in ["### ssh", "### Slurm", "#### Steps of an allocation"] {
        let lines = commands(heading);
        let [token, launch, scale] = &*lines else { panic!("{heading}: {lines:?}") };
        machine.shell(token).finish_with(0).await;
        let mut launcher = machine.shell(&format!("exec {launch}"));
        launcher.line("serving the hub").await;
        machine.hub.line(" has places for ").await;
        machine.shell(scale).finish_with(0).await;
        machine.until_ten_workers(heading).await;
        launcher.signal(Signal::TERM);
        launcher.finish_with(0).await;
        until("the end of the workers", || machine.processes().is_empty()).await;
    }
    let array = commands("#### A job array");
    assert_eq!(array.len(), 3, "{array:?}");
    machine.shell(&array.join("\n")).finish_with(0).await;
    machine.until_ten_workers("a job array").await;
}
