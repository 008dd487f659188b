//! MLflow's store of files: a directory per experiment, and in it one per run with a file per metric and per parameter.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rollmesh_core::{config::leaves, run::RunConfig};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::EVALUATION;
use crate::{checkpoint::replace, files::if_exists};

/// The experiment of all runs of this program. Ids are numbers that MLflow draws at random.
const EXPERIMENT: &str = "726871767265736834";
const EXPERIMENT_NAME: &str = "rollmesh";
/// Values of `status`.
const RUNNING: u8 = 1;
const FINISHED: u8 = 3;
/// Maximum length of a parameter's value in MLflow.
const MAX_PARAM_CHARS: usize = 6_000;

/// A run in a store.
#[derive(Debug)]
pub(super) struct MlflowRun {
    dir: PathBuf,
    id: String,
    name: String,
    began_ms: u128,
}

impl MlflowRun {
    /// Creates the run in the store, or continues it: its id follows from the run's directory. Lines of steps that are not in
    /// `metrics.jsonl` are removed: a run that is resumed, or rolled back, writes them again.
    pub(super) fn open(store: &Path, run_dir: &Path, config: &RunConfig) -> io::Result<Self> {
        let run_dir = run_dir.canonicalize()?;
        let name = run_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hash = Sha256::digest(run_dir.as_os_str().as_encoded_bytes());
        let id: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let experiment = store.join(EXPERIMENT);
        let run = Self { dir: experiment.join(&id), id, name, began_ms: now_ms() };
        for folder in ["metrics", "params", "tags", "artifacts"] {
            fs::create_dir_all(run.dir.join(folder))?;
        }
        let metrics = run.dir.join("metrics");
        let written = WrittenSteps::read(&run_dir.join("metrics.jsonl"))?;
        cut_back(&metrics, &|path: &Path, step: u64| {
            let steps =
                if path.starts_with(metrics.join(EVALUATION)) { &written.evaluations } else { &written.iterations };
            steps.contains(&step)
        })?;
        let experiment_meta = experiment.join("meta.yaml");
        if !experiment_meta.exists() {
            let now = run.began_ms.to_string();
            replace(
                &experiment_meta,
                yaml(&[
                    ("artifact_location", quoted(&uri(&experiment)?)),
                    ("creation_time", now.clone()),
                    ("experiment_id", format!("'{EXPERIMENT}'")),
                    ("last_update_time", now),
                    ("lifecycle_stage", "active".into()),
                    ("name", EXPERIMENT_NAME.into()),
                ])
                .as_bytes(),
            )?;
        }
        run.write_meta(None)?;
        fs::write(run.dir.join("tags/mlflow.runName"), &run.name)?;
        // A configuration that was checked can be written.
        let settings = config.settings().map(|settings| json!(settings)).unwrap_or_default();
        run.write_params(&settings)?;
        Ok(run)
    }

    /// Appends a line to the file of each metric: time, value, step.
    pub(super) fn add(&mut self, step: u64, numbers: &[(String, f64)]) -> io::Result<()> {
        let now = now_ms();
        for (name, value) in numbers {
            let path = self.dir.join("metrics").join(file_name(name));
            if let Some(folder) = path.parent().filter(|_| name.contains('/')) {
                fs::create_dir_all(folder)?;
            }
            let mut file = File::options().create(true).append(true).open(path)?;
            writeln!(file, "{now} {value} {step}")?;
        }
        Ok(())
    }

    /// Marks the run as ended.
    pub(super) fn finish(self) -> io::Result<()> {
        self.write_meta(Some(FINISHED))
    }

    fn write_meta(&self, ended: Option<u8>) -> io::Result<()> {
        let Self { id, name, began_ms, .. } = self;
        let end = ended.map_or_else(|| "null".into(), |_| now_ms().to_string());
        let meta = yaml(&[
            ("artifact_uri", quoted(&uri(&self.dir.join("artifacts"))?)),
            ("end_time", end),
            ("entry_point_name", "''".into()),
            ("experiment_id", format!("'{EXPERIMENT}'")),
            ("lifecycle_stage", "active".into()),
            ("run_id", quoted(id)),
            ("run_name", quoted(name)),
            ("run_uuid", quoted(id)),
            ("source_name", "''".into()),
            ("source_type", "4".into()),
            ("source_version", "''".into()),
            ("start_time", began_ms.to_string()),
            ("status", ended.unwrap_or(RUNNING).to_string()),
            ("tags", "[]".into()),
            ("user_id", "''".into()),
        ]);
        replace(&self.dir.join("meta.yaml"), meta.as_bytes())
    }

    fn write_params(&self, settings: &Value) -> io::Result<()> {
        let mut set = leaves(settings, ".").into_iter().filter(|(_, value)| !value.is_null());
        set.try_for_each(|(path, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text: String = text.chars().take(MAX_PARAM_CHARS).collect();
            fs::write(self.dir.join("params").join(file_name(&path).replace('/', "_")), text)
        })
    }
}

/// The env steps at which a run's `metrics.jsonl` has lines.
#[derive(Default)]
struct WrittenSteps {
    iterations: BTreeSet<u64>,
    evaluations: BTreeSet<u64>,
}

impl WrittenSteps {
    fn read(path: &Path) -> io::Result<Self> {
        let mut written = Self::default();
        let Some(file) = if_exists(File::open(path))? else { return Ok(written) };
        for line in BufReader::new(file).lines() {
            let line: Value = serde_json::from_str(&line?).unwrap_or_default();
            written.iterations.extend(line["env_steps"].as_u64());
            written.evaluations.extend(line[EVALUATION]["env_steps"].as_u64());
        }
        Ok(written)
    }
}

/// Removes lines from the files in a folder, unless they are complete and their step is to be kept.
fn cut_back(folder: &Path, keeps: &impl Fn(&Path, u64) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            cut_back(&path, keeps)?;
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let step = |line: &str| line.strip_suffix('\n')?.rsplit(' ').next()?.parse().ok();
        let kept: String =
            text.split_inclusive('\n').filter(|line| step(line).is_some_and(|step| keeps(&path, step))).collect();
        if kept.len() < text.len() {
            replace(&path, kept.as_bytes())?;
        }
    }
    Ok(())
}

/// Returns a name that MLflow accepts: letters, digits, and a few signs. No part is one that leads out of the directory.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-. /".contains(c) { c } else { '_' };
    let parts = name.split('/').map(|part| if matches!(part, "" | "." | "..") { "_".into() } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("/").chars().map(plain).collect()
}

fn yaml(entries: &[(&str, String)]) -> String {
    entries.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// Returns a text as a YAML string, which JSON's strings are, too.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns a directory as a `file` URI.
fn uri(dir: &Path) -> io::Result<String> {
    let dir = std::path::absolute(dir)?;
    Ok(format!("file://{}", dir.display().to_string().replace('%', "%25").replace(' ', "%20")))
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_has_metrics_parameters_and_an_end_and_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let (store, run_dir) = (dir.path().join("mlruns"), dir.path().join("first"));
        fs::create_dir(&run_dir).unwrap();
        let config = RunConfig::new("CartPole-v1").seed(7);
        let mut run = MlflowRun::open(&store, &run_dir, &config).unwrap();
        run.add(64, &[("policies/a/entropy".into(), 0.5), ("odd:../name".into(), 1.0)]).unwrap();
        let folder = run.dir.clone();
        run.finish().unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert!(read("metrics/policies/a/entropy").ends_with(" 0.5 64\n"));
        assert!(read("metrics/odd_../name").ends_with(" 1 64\n"));
        assert_eq!(
            (read("params/seed"), read("params/env"), read("tags/mlflow.runName")),
            ("7".into(), "CartPole-v1".into(), "first".into())
        );
        let meta = read("meta.yaml");
        assert!(meta.contains("status: 3\n") && !meta.contains("end_time: null"), "{meta}");
        assert!(fs::read_to_string(store.join(EXPERIMENT).join("meta.yaml")).unwrap().contains("name: rollmesh\n"));
        // The steps of the run up to its checkpoint stay, later ones will be written again.
        let mut again = MlflowRun::open(&store, &run_dir, &config).unwrap();
        assert_eq!(read("metrics/policies/a/entropy"), "");
        assert!(read("meta.yaml").contains("status: 1\n"));
        for step in [64, 128, 192] {
            let numbers = [("policies/a/entropy".into(), 0.25), (format!("{EVALUATION}/return"), 1.0)];
            again.add(step, &numbers).unwrap();
        }
        let lines = "{\"env_steps\":64}\n{\"evaluation\":{\"env_steps\":64}}\n{\"env_steps\":128}\n";
        fs::write(run_dir.join("metrics.jsonl"), lines).unwrap();
        MlflowRun::open(&store, &run_dir, &config).unwrap();
        let steps = |name: &str| read(name).lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
        let (iterations, evaluations): (Vec<_>, Vec<_>) =
            (steps("metrics/policies/a/entropy"), steps("metrics/evaluation/return"));
        assert_eq!((iterations, evaluations), (vec!["64".to_owned(), "128".into()], vec!["64".to_owned()]));
    }
}
