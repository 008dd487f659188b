//! `cargo xtask baseline`: the program of an earlier commit, against which the current one is checked.
//!
//! `tests/golden/frozen.json` holds hashes of its rollouts, which `cargo test` recomputes with the current code. Speed is
//! compared by hand, on an idle machine. Two figures are those of benchmarks: the time of an update (`learner`), and the time
//! to bring 10 MB of weights to workers (`group`). Trained weights differ since the learner has an arithmetic of its own.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};

use crate::{
    artifacts,
    job::Job,
    plan::{self, Step},
    progress::say,
    workspace::{cargo, command, root, target},
};

/// What a redesign must leave as it is: rollouts to the bit, speed to a twentieth.
const COMMIT: &str = "ab1fc68";

pub(crate) enum Task {
    /// Builds the baseline's program, once.
    Build,
    /// Writes `frozen.json`.
    Freeze,
    /// Compares speeds, in this many turns.
    Compare { turns: usize },
}

pub(crate) fn run(task: &Task) -> Result<ExitCode> {
    let step = |name, about, run| Step { name, about, needs: &[], long: false, early: false, run };
    let mut steps = vec![step("baseline", "program of the baseline (some minutes the first time)", build)];
    if let Task::Compare { .. } = task {
        steps.push(step("current", "current program", |job| job.run(cargo().args(artifacts::SHIPPED))));
    }
    if !plan::run(&steps.iter().collect::<Vec<_>>()).all_passed() {
        return Ok(ExitCode::FAILURE);
    }
    let job = Job::new("baseline")?;
    match task {
        Task::Build => say(format_args!("{}", binary().display())),
        Task::Freeze => freeze(&job)?,
        Task::Compare { turns } => return compare(&job, *turns),
    }
    Ok(ExitCode::SUCCESS)
}

fn folder() -> PathBuf {
    target().join("baseline")
}

/// The baseline's program.
fn binary() -> PathBuf {
    folder().join("target/release").join(artifacts::binary_name())
}

/// Builds the baseline's program unless it is there.
fn build(job: &Job) -> Result<()> {
    let (src, target) = (folder().join("src"), folder().join("target"));
    if binary().is_file() {
        return Ok(());
    }
    if !src.is_dir() {
        // By force: git may still list a worktree there whose files have been deleted with the target directory.
        let add = ["worktree", "add", "--force", "--force", "--detach"];
        job.run(command("git").args(add).arg(&src).arg(COMMIT))
            .with_context(|| format!("cannot check out {COMMIT}; a shallow clone needs `git fetch --unshallow`"))?;
    }
    job.run(cargo().args(artifacts::SHIPPED).current_dir(&src).env("CARGO_TARGET_DIR", &target))
}

/// What a program prints with these arguments, separated by spaces.
fn output(job: &Job, binary: &Path, args: &str) -> Result<String> {
    job.output(command(binary).args(args.split(' ')))
}

/// A number or a text without escapes in a compact JSON object.
fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = object.split_once(&format!("\"{name}\":"))?;
    Some(value.split([',', '}']).next()?.trim_matches('"'))
}

fn number(object: &str, name: &str) -> Result<f64> {
    let value = field(object, name).and_then(|value| value.parse().ok());
    value.with_context(|| format!("`{name}` is no number in {object}"))
}

const FREEZE: &str = "cargo xtask baseline freeze";
const FROZEN: &str = "tests/golden/frozen.json";
const NUM_ENVS: u32 = 4;
const HIDDEN: u32 = 16;
const FRAGMENT: u32 = 37;
const ENV_STEPS: u32 = 1_000;
/// The one environment that has settings.
const WITH_SETTINGS: (&str, &str) = ("MultiAgentTrafficGrid-v0", "examples/traffic_grid/traffic_grid.toml");

fn freeze(job: &Job) -> Result<()> {
    let envs = output(job, &binary(), "envs")?;
    // Indented lines are agents of the environment above them.
    let names = envs.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    let mut entries = Vec::new();
    for env in names {
        let config = if env == WITH_SETTINGS.0 { Some(WITH_SETTINGS.1) } else { None };
        for policy in ["net", "random"] {
            for seed in 1..=3 {
                let mut args = format!(
                    "sample --json --env {env} --policy {policy} --seed {seed} --num-envs {NUM_ENVS} --hidden \
                     {HIDDEN},{HIDDEN} --rollout-fragment-length {FRAGMENT} --env-steps {ENV_STEPS}"
                );
                let mut entry = format!("{{\"env\": \"{env}\", \"policy\": \"{policy}\", \"seed\": {seed}");
                if let Some(config) = config {
                    write!(args, " --config {config}")?;
                    write!(entry, ", \"config\": \"{config}\"")?;
                }
                let printed = output(job, &binary(), &args)?;
                let hash = |name| field(&printed, name).map(|hash| format!("{entry}, \"{name}\": \"{hash}\"}}"));
                let hash = hash("rollout_hash").or_else(|| hash("batch_hash"));
                entries.push(hash.with_context(|| format!("there is no hash in {printed}"))?);
            }
        }
    }
    let text = format!(
        "{{\n  \"made_by\": \"{FREEZE}, from what `rollmesh sample --json` of commit {COMMIT} prints\",\n  \
         \"num_envs\": {NUM_ENVS},\n  \"hidden\": [{HIDDEN}, {HIDDEN}],\n  \
         \"rollout_fragment_length\": {FRAGMENT},\n  \"env_steps\": {ENV_STEPS},\n  \"hashes\": [\n    {}\n  ]\n}}\n",
        entries.join(",\n    ")
    );
    fs::write(root().join(FROZEN), text).with_context(|| format!("cannot write {FROZEN}"))?;
    say(format_args!("{FROZEN}: {} hashes", entries.len()));
    Ok(())
}

/// What is measured: arguments of `rollmesh sample --json`, and fields of what it prints.
const SPEEDS: [(&str, &[&str]); 4] = [
    ("--num-envs 1 --env-steps 1000000", &[SPEED]),
    ("--num-envs 64 --env-steps 3000000", &[SPEED]),
    ("--num-envs 1024 --env-steps 3000000", &[SPEED]),
    ("--num-workers 2 --no-hash --env-steps 8000000", &[SPEED, "hub_cpu_ns_per_step", "bytes_per_step"]),
];

/// Of this field more is better, of all others less.
const SPEED: &str = "steps_per_s";

/// The least median of the current speed over the baseline's.
const LEAST_RATIO: f64 = 0.95;

/// Prints a row for every figure; fails if a median ratio is too low.
fn compare(job: &Job, turns: usize) -> Result<ExitCode> {
    let binaries = [binary(), artifacts::binary_path()];
    say(format_args!("\n{:<78} {:>12} {:>12} {:>6}", "", COMMIT, "current", "ratio"));
    let mut all_fast = true;
    for (args, fields) in SPEEDS {
        let all = format!("sample --json --seed 1 {args}");
        // What both print in each turn. Each begins every other one.
        let mut printed = Vec::new();
        for turn in 0..turns {
            let first = turn % 2;
            let mut both = [output(job, &binaries[first], &all)?, output(job, &binaries[1 - first], &all)?];
            both.rotate_left(first);
            printed.push(both);
        }
        for name in fields {
            let (mut values, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
            for [before, now] in &printed {
                let (before, now) = (number(before, name)?, number(now, name)?);
                values[0].push(before);
                values[1].push(now);
                ratios.push(if *name == SPEED { now / before } else { before / now });
            }
            let (ratio, [before, now]) = (median(ratios), values.map(median));
            all_fast &= ratio >= LEAST_RATIO;
            let verdict = if ratio >= LEAST_RATIO { "" } else { "  TOO LOW" };
            say(format_args!(
                "{:<78} {before:>12.1} {now:>12.1} {ratio:>6.3}{verdict}",
                format!("sample {args}: {name}")
            ));
        }
    }
    Ok(if all_fast { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of at least one number.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_compact_object_are_found_by_their_whole_name() {
        let object = r#"{"env_steps":64,"steps_per_s":1.5e6,"rollout_hash":"10d1"}"#;
        assert_eq!((field(object, "rollout_hash"), field(object, "steps")), (Some("10d1"), None));
        assert_eq!(number(object, "steps_per_s").unwrap(), 1.5e6);
        assert!(number(object, "wall_s").is_err());
    }

    #[test]
    fn the_median_is_the_middle_one_of_an_odd_number() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
