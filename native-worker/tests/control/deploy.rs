//! The files of `deploy/` work as documented, as far as one machine can show it: scripts run against programs that
//! stand for `kubectl` and Slurm, and the arguments in manifests and units are those of the program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tokio::process::Command;

use super::HubProcess;
use crate::support::{Process, process::PROGRAM};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(deploy(file)).unwrap()
}

/// Returns a folder with programs of these names, to begin `PATH` with.
fn programs(scripts: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(PROGRAM, folder.path().join("rollmesh")).unwrap();
    for (name, script) in scripts {
        let path = folder.path().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    (folder, path)
}

/// Keeps the files of secrets, as the cluster would; a dry run prints where, and `apply` adds them. A secret is created once.
const KUBECTL: &str = r#"#!/bin/sh
echo "$*" >> "$KEPT/log"
case "$1 $*" in
apply*) read -r secret files; cp "$files"/* "$KEPT/$secret"; exit ;;
rollout*) exit ;;
*--dry-run=client*) folder=$KEPT/dry-$4; printed="$4 $folder" ;;
*) folder=$KEPT/$4; [ ! -e "$folder" ] || exit 1 ;;
esac
mkdir -p "$folder"
for argument; do case "$argument" in --from-file=*) cp "${argument#--from-file=}" "$folder" ;; esac; done
echo "${printed-}"
"#;

#[tokio::test]
async fn secrets_of_kubernetes_start_a_hub_and_let_its_workers_join() {
    let (folder, path) = programs(&[("kubectl", KUBECTL)]);
    let kept = folder.path().join("kept");
    fs::create_dir(&kept).unwrap();
    let script = async |arguments: &[&str]| {
        let mut script = Command::new("sh");
        script.arg(deploy("kubernetes/secrets.sh")).args(arguments).args(["--namespace", "games"]);
        let output = script.current_dir(folder.path()).env("PATH", &path).env("KEPT", &kept).output().await.unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let operator_token = || fs::read_to_string(folder.path().join("operator.token")).unwrap();
    assert!(script(&[]).await.0);
    let log = fs::read_to_string(kept.join("log")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("create secret generic") && line.contains("games")).count(), 2);
    let secret = |name: &str, file: &str| kept.join(name).join(file).display().to_string();
    let token = fs::read_to_string(secret("rollmesh-worker", "worker.token")).unwrap();
    assert!(!log.contains(token.trim()), "a token is on a command line");

    // A second time changes nothing, also where the operator's token was put elsewhere.
    let operator = operator_token();
    assert!(script(&[]).await.1.contains("--renew"));
    let moved = folder.path().join("moved.token");
    fs::rename(folder.path().join("operator.token"), &moved).unwrap();
    assert!(!script(&[]).await.0 && !folder.path().join("operator.token").exists());
    fs::rename(moved, folder.path().join("operator.token")).unwrap();
    let files = || ["tls.crt", "tls.key", "tokens.json"].map(|file| fs::read(secret("rollmesh-hub", file)).unwrap());
    let before = files();
    assert!(script(&["--renew"]).await.0);
    let after = files();
    assert!(before[0] != after[0] && before[1] != after[1] && before[2] == after[2]);
    assert_eq!(fs::read(secret("rollmesh-worker", "tls.crt")).unwrap(), after[0]);
    assert_eq!(
        (operator_token(), fs::read_to_string(secret("rollmesh-worker", "worker.token")).unwrap()),
        (operator, token)
    );

    // The manifest uses them in this way: the hub's host is localhost here.
    let tokens = secret("rollmesh-hub", "tokens.json");
    let (cert, key) = (secret("rollmesh-hub", "tls.crt"), secret("rollmesh-hub", "tls.key"));
    let state = folder.path().display().to_string();
    let hub =
        ["hub", "--listen", "127.0.0.1:0", "--public-host", "localhost", "--tokens", &tokens, "--tls-cert", &cert];
    let mut hub = Process::start(hub.into_iter().chain(["--tls-key", &key, "--state-dir", &state]));
    let line = hub.line("rollmesh worker --hub").await;
    let url = line.split_whitespace().find(|word| word.starts_with("wss://")).unwrap();
    let (ca, token) = (secret("rollmesh-worker", "tls.crt"), secret("rollmesh-worker", "worker.token"));
    let _worker = Process::start(["worker", "--hub", url, "--tls-ca", &ca, "--token-file", &token]);
    hub.line("worker 1 joined").await;
}

#[tokio::test]
async fn script_of_systemd_installs_hub_and_workers_and_keeps_their_tokens() {
    let record = "#!/bin/sh\necho \"${0##*/} $*\" >> \"$DESTDIR/log\"\n";
    let (folder, path) = programs(&[("systemctl", record), ("journalctl", record)]);
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("usr/local/bin")).unwrap();
    std::os::unix::fs::symlink(PROGRAM, root.join("usr/local/bin/rollmesh")).unwrap();
    let install = async |arguments: &[&str], code| {
        let set_up = |command: &mut Command| _ = command.env("PATH", &path).env("DESTDIR", &root);
        let script = [deploy("systemd/install.sh").display().to_string()];
        let arguments = script.into_iter().chain(arguments.iter().map(|&word| word.to_owned()));
        Process::start_program("sh", arguments, set_up).finish_with(code).await.stderr
    };
    let installed = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));

    let missing = install(&["workers", "wss://hub.example:7878", "abc"], 1).await;
    assert!(missing.contains("worker.token is missing: copy it from the hub's machine"), "{missing}");
    install(&["hub", "hub.example"], 0).await;
    let tokens = ["worker", "operator"].map(|role| installed(&format!("etc/rollmesh/{role}.token")));
    install(&["hub", "other.example"], 0).await;
    assert_eq!(["worker", "operator"].map(|role| installed(&format!("etc/rollmesh/{role}.token"))), tokens);
    assert_eq!(installed("etc/rollmesh/hub.env"), "ROLLMESH_PUBLIC_HOST=other.example\n");
    install(&["workers", "wss://hub.example:7878", "abc"], 0).await;
    let settings = "ROLLMESH_HUB=wss://hub.example:7878\nROLLMESH_TRUST=--tls-fingerprint=abc\n";
    assert_eq!(installed("etc/rollmesh/worker.env"), settings);
    for unit in ["rollmesh-hub.service", "rollmesh-worker.service"] {
        assert_eq!(installed(&format!("etc/systemd/system/{unit}")), read(&format!("systemd/{unit}")));
        assert!(installed("log").contains(&format!("systemctl enable {unit}\nsystemctl restart {unit}\n")));
    }
    assert!(install(&[], 2).await.contains("usage: "));

    let [tokens, token] =
        ["var/lib/rollmesh/tokens.json", "etc/rollmesh/worker.token"].map(|file| root.join(file).display().to_string());
    let mut hub = Process::start(["hub", "--listen", "127.0.0.1:0", "--tokens", &tokens]);
    let line = hub.line("rollmesh worker --hub").await;
    let url = line.split_whitespace().find(|word| word.starts_with("ws://")).unwrap();
    let _worker = Process::start(["worker", "--hub", url, "--token-file", &token]);
    hub.line("worker 1 joined").await;
}

/// Returns the arguments of `rollmesh` in a file that are flags.
fn flags(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| c.is_whitespace() || "\"'[],".contains(c));
    let flags = words.filter_map(|word| word.strip_prefix("--")).map(|word| word.split('=').next().unwrap_or(word));
    flags.filter(|flag| !flag.is_empty()).map(|flag| format!("--{flag}")).collect()
}

#[tokio::test]
async fn arguments_in_manifests_and_units_are_those_of_the_program() {
    let help =
        |command: &'static str| async move { Process::start([command, "--help-all"]).finish_with(0).await.stdout };
    let (hub, worker) = (flags(&help("hub").await), flags(&help("worker").await));
    let known: BTreeSet<String> = hub.union(&worker).cloned().collect();
    let args = |manifest: String| manifest.lines().filter(|line| line.trim().starts_with("- --")).collect::<String>();
    let manifest = read("kubernetes/rollmesh.yaml");
    let used = args(manifest.replace('\n', " \n"));
    assert!(flags(&used).len() >= 9 && flags(&used).is_subset(&known), "{:?}", flags(&used).difference(&known));
    for (unit, known) in [("systemd/rollmesh-hub.service", hub), ("systemd/rollmesh-worker.service", worker.clone())] {
        let unit = read(unit);
        let line = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert!(flags(line).len() >= 4 && flags(line).is_subset(&known), "{line}");
    }
    let script = read("slurm/workers.sbatch");
    let command = script.split_once("exec ").unwrap().1;
    assert!(flags(command).is_subset(&worker), "{command}");
}

#[tokio::test]
async fn task_of_a_job_array_is_a_worker() {
    let hub = HubProcess::start().await;
    let (folder, path) = programs(&[]);
    let token = folder.path().join("worker.token");
    fs::write(&token, &hub.invitation.worker_token).unwrap();
    let script = deploy("slurm/workers.sbatch");
    let url = format!("ws://{}", hub.invitation.address);
    let _task = Process::start_program("sh", [script], |command| {
        command.env("PATH", path).env("ROLLMESH_HUB", url).env("ROLLMESH_TOKEN_FILE", token);
        command.env("SLURM_ARRAY_JOB_ID", "70").env("SLURM_ARRAY_TASK_ID", "3");
    });
    let workers = hub.until_workers(1).await;
    assert_eq!(workers[0]["name"], Value::from("slurm-70-3"));
}
