//! The policy of a checkpoint: everything needed to act like a run, without the run.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rollmesh_core::{
    action::ActionTransform,
    env::{EnvRegistry, EnvSpaces},
    hash::{Hash128, run_weights_hash, weights_hash},
    ids::{PolicyId, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec, NetPolicy, PolicyError},
    run::{InputSource, RolloutConfig, RunConfig},
    sampler::FragmentLayout,
    weights::{Weights, WeightsError},
    worker::{RolloutWorkerBuilder, SetupError},
};
use rollmesh_data::FileKind;

use super::{CheckpointError, Disk, MANIFEST, Storage as _, newest, place, read, weights_file};
use crate::{
    Registry,
    learner::{OnnxError, PolicyFile, to_onnx},
};

/// The file that describes the policy, except its weights.
pub(crate) const POLICY_FILE: &str = "policy.json";
/// The file of its weights.
pub(crate) const WEIGHTS_FILE: &str = "weights.safetensors";
/// The subdirectory of a run directory with its checkpoints.
pub(crate) const CHECKPOINTS_DIR: &str = "checkpoints";

/// Far more than any [`POLICY_FILE`] has.
const MAX_POLICY_BYTES: u64 = 1 << 20;

/// A policy after training, or at some point during it.
///
/// ```
/// use rollmesh::{checkpoint::PolicyCheckpoint, kernels};
/// use rollmesh_core::{
///     env::EnvRegistry,
///     policy::{ModelConfig, ModelSpec, Policy as _},
///     run::RunConfig,
/// };
///
/// # let dir = std::env::temp_dir().join(format!("rollmesh-policy-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir)?;
/// let envs = EnvRegistry::builtin();
/// let run = RunConfig::new("CartPole-v1").seed(7);
/// let spaces = envs.spec(run.env())?.spaces()?;
/// let weights = ModelSpec::for_spaces(&spaces, &ModelConfig::default())?.init_weights(7)?;
/// PolicyCheckpoint::new("ppo", run, weights).save(&dir)?;
///
/// let found = PolicyCheckpoint::load(&dir)?;
/// assert_eq!((found.run.env(), found.iteration), ("CartPole-v1", 0));
/// let policy = found.policy(&envs, kernels::AUTO)?;
/// assert_eq!(policy.weights(), &found.weights);
/// # std::fs::remove_dir_all(dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[doc(alias("from_checkpoint", "get_policy"))]
pub struct PolicyCheckpoint {
    /// The run, without the host settings of the machine that it was started on.
    pub run: RunConfig,
    /// The model's configuration.
    pub model: ModelConfig,
    /// The algorithm, for example `ppo`.
    pub algo: String,
    /// Discount used for learning.
    pub gamma: f64,
    /// Number of iterations that the weights were learned in.
    pub iteration: u64,
    /// Number of env steps that the weights were learned from.
    pub env_steps: u64,
    /// The run's policies, whose weights these are, see [`Weights::of_run`].
    pub policies: Vec<PolicyId>,
    /// The weights of all policies.
    pub weights: Weights,
}

/// An error of loading or saving a policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyCheckpointError {
    /// The path is a file instead of a directory.
    #[error("{0} is a file: give the directory of a run or of a checkpoint, in which it may be")]
    File(PathBuf),
    /// The directory holds no policy.
    #[error(
        "{place} holds no policy: give the directory of a run that has saved one, as `rollmesh train --run-dir {0}` does, or \
         a checkpoint in it",
        place = place(.0)
    )]
    NotFound(PathBuf),
    /// No checkpoint is valid.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The operating system reported an error.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file has invalid contents: use an earlier checkpoint.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

/// The reason why a policy could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The run has several policies, and none was named.
    #[error("an ONNX file holds one policy, and the run has {0}: name one with --policy")]
    Several(String),
    /// The run has no such policy.
    #[error("the run has no policy '{id}': it has {known}")]
    Unknown {
        /// The name that was given.
        id: PolicyId,
        /// The run's policies.
        known: String,
    },
    /// The environment or the policies of the run cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The policy's networks do not fit its spaces, or its `custom_model` is not registered.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The weights are those of other policies.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The networks cannot be encoded.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
}

fn names(policies: &[PolicyId]) -> String {
    policies.iter().map(PolicyId::as_str).collect::<Vec<_>>().join(", ")
}

fn read_policy(bytes: &[u8], dir: &Path) -> Result<PolicyFile, PolicyCheckpointError> {
    let bad = |reason| PolicyCheckpointError::Malformed { path: dir.join(POLICY_FILE), reason };
    let policy: PolicyFile = serde_json::from_slice(bytes).map_err(|error| bad(format!("it is no policy: {error}")))?;
    if policy.format != PolicyFile::FORMAT {
        return Err(bad(format!("it has format {}, this version reads {}", policy.format, PolicyFile::FORMAT)));
    }
    policy.run.check().map_err(|error| bad(error.to_string()))?;
    // They are never written, and a policy may come from anyone: variables decide which code a process loads.
    if !policy.run.rollout.extra_environs.is_empty() {
        return Err(bad("it sets environment variables, which belong to one machine".into()));
    }
    Ok(policy)
}

impl PolicyCheckpoint {
    fn of(file: PolicyFile, weights: Weights) -> Self {
        let PolicyFile { algo, gamma, iteration, env_steps, policies, model, run, .. } = file;
        Self { run, model, algo, gamma, iteration, env_steps, policies, weights }
    }

    /// Returns a policy with the networks of a run, before it has learned, with RLlib's discount of 0.99; every field
    /// can be set.
    #[must_use]
    pub fn new(algo: impl Into<String>, run: RunConfig, weights: Weights) -> Self {
        // A run's settings have been validated before, including its model.
        let model = ModelConfig::of(&run.default_policy_config()).unwrap_or_default();
        Self {
            run: run.for_wire(),
            model,
            algo: algo.into(),
            gamma: 0.99,
            iteration: 0,
            env_steps: 0,
            policies: vec![PolicyId::DEFAULT],
            weights,
        }
    }

    /// Loads the policy in a directory: the newest one of a run, which may be in progress, or that of a checkpoint. Changes
    /// nothing there.
    ///
    /// # Errors
    /// [`PolicyCheckpointError`], which names the file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PolicyCheckpointError> {
        let path = path.as_ref();
        if path.join(MANIFEST).is_file() {
            return Self::from_files(&read(path)?.files, path);
        }
        let last = path.join(POLICY_FILE).is_file().then(|| Self::read_last(path));
        let saved = Self::newest_in(&path.join(CHECKPOINTS_DIR)).or_else(|| Self::newest_in(path));
        match (last, saved) {
            // The policy written at a run's end may be newer than its last checkpoint, or older if the run was resumed.
            (Some(Ok(last)), Some(Ok(saved))) => Ok(if saved.iteration > last.iteration { saved } else { last }),
            (Some(Ok(found)), _) | (_, Some(Ok(found))) => Ok(found),
            (Some(Err(error)), _) | (None, Some(Err(error))) => Err(error),
            (None, None) if path.is_file() => Err(PolicyCheckpointError::File(path.into())),
            (None, None) => Err(PolicyCheckpointError::NotFound(path.into())),
        }
    }

    /// Reads the policy of the newest valid checkpoint; `None` if there are no checkpoints.
    fn newest_in(dir: &Path) -> Option<Result<Self, PolicyCheckpointError>> {
        if !dir.is_dir() {
            return None;
        }
        match newest(dir) {
            Ok(found) => found.map(|found| Self::from_files(&found.checkpoint.files, dir)),
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Reads the files that [`save`](Self::save) wrote.
    fn read_last(dir: &Path) -> Result<Self, PolicyCheckpointError> {
        let read = |(name, most): (&str, u64)| {
            let path = dir.join(name);
            let contents = Disk.read(&path, most).map_err(|source| PolicyCheckpointError::Io { path, source });
            contents.map(|contents| (name.to_owned(), contents))
        };
        let files =
            [(POLICY_FILE, MAX_POLICY_BYTES), (WEIGHTS_FILE, weights_file::MAX_WEIGHTS_BYTES)].into_iter().map(read);
        Self::from_files(&files.collect::<Result<_, _>>()?, dir)
    }

    /// Parses the two files of a policy; `dir` is for error messages.
    pub(crate) fn from_files(files: &BTreeMap<String, Vec<u8>>, dir: &Path) -> Result<Self, PolicyCheckpointError> {
        let malformed = |name: &str, reason: String| PolicyCheckpointError::Malformed { path: dir.join(name), reason };
        let file = |name| files.get(name).ok_or_else(|| malformed(name, "it is missing".into()));
        let policy = read_policy(file(POLICY_FILE)?, dir)?;
        let weights = Weights::from_safetensors(file(WEIGHTS_FILE)?, WeightsVersion(policy.weights_version))
            .map_err(|error| malformed(WEIGHTS_FILE, error.to_string()))?;
        let hash =
            run_weights_hash(&weights, &policy.policies).map_err(|error| malformed(WEIGHTS_FILE, error.to_string()))?;
        if hash.to_string() != policy.weights_hash {
            let advice = format!("`rollmesh weights set {} FILE` sets those of a file", dir.display());
            let reason = format!("it has other weights than {POLICY_FILE} says; {advice}");
            return Err(malformed(WEIGHTS_FILE, reason));
        }
        Ok(Self::of(policy, weights))
    }

    /// Reads the policy described by the [`POLICY_FILE`] in a directory, with these weights instead of the stored ones.
    pub(crate) fn read_with(dir: &Path, weights: Weights) -> Result<Self, PolicyCheckpointError> {
        let path = dir.join(POLICY_FILE);
        if !path.is_file() {
            return Err(PolicyCheckpointError::NotFound(dir.into()));
        }
        let bytes = Disk.read(&path, MAX_POLICY_BYTES).map_err(|source| PolicyCheckpointError::Io { path, source })?;
        let policy = read_policy(&bytes, dir)?;
        let version = WeightsVersion(policy.weights_version.saturating_add(1));
        Ok(Self::of(policy, weights.with_version(version)))
    }

    /// Returns a notice for users if the policy next to a run's checkpoints was edited and is not the one that is used.
    pub(crate) fn notice_of_unused(&self, dir: &Path) -> Option<String> {
        let has = |name: &str| dir.join(name).exists();
        if ![POLICY_FILE, WEIGHTS_FILE, CHECKPOINTS_DIR].into_iter().all(has) {
            return None;
        }
        let is_used = Self::read_last(dir)
            .is_ok_and(|last| last.iteration != self.iteration || last.weights_hash() == self.weights_hash());
        (!is_used).then(|| {
            let dir = dir.display();
            format!(
                "{dir}/{WEIGHTS_FILE} was changed and is not used, since the run has checkpoints; `rollmesh weights set \
                 {dir} FILE` sets the run's weights"
            )
        })
    }

    /// Returns the hash of the weights, as in the run's summary.
    #[must_use]
    pub fn weights_hash(&self) -> Hash128 {
        run_weights_hash(&self.weights, &self.policies).unwrap_or_else(|_| weights_hash(&self.weights))
    }

    /// Returns the names and contents of the two files of a policy.
    pub(crate) fn to_files(&self) -> io::Result<[(&'static str, Vec<u8>); 2]> {
        let file = PolicyFile {
            format: PolicyFile::FORMAT,
            algo: self.algo.clone(),
            gamma: self.gamma,
            iteration: self.iteration,
            env_steps: self.env_steps,
            weights_version: self.weights.version().0,
            policies: self.policies.clone(),
            weights_hash: self.weights_hash().to_string(),
            model: self.model.clone(),
            run: self.run.clone(),
        };
        let weights = self.weights.to_safetensors().map_err(io::Error::other)?;
        Ok([(WEIGHTS_FILE, weights), (POLICY_FILE, serde_json::to_vec_pretty(&file)?)])
    }

    /// Writes the policy into an existing directory, replacing an earlier one. Each of its two files appears atomically; if
    /// they do not match, [`load`](Self::load) returns an error.
    ///
    /// # Errors
    /// [`PolicyCheckpointError::Io`].
    pub fn save(&self, dir: impl AsRef<Path>) -> Result<(), PolicyCheckpointError> {
        let dir = dir.as_ref();
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PolicyCheckpointError::Io { path, source }
        };
        for (name, contents) in self.to_files().map_err(failed(dir))? {
            let path = dir.join(name);
            replace(&path, &contents).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// Builds the policy that acts with the weights, for the environment registered under the run's name, as on workers.
    ///
    /// # Errors
    /// [`PolicyError`] when the environment is unknown or cannot be made, or the weights do not fit it.
    pub fn policy(&self, envs: &EnvRegistry, kernels: Kernels) -> Result<NetPolicy, PolicyError> {
        self.policy_in(self.spaces(envs)?, kernels)
    }

    /// Builds the policy for these spaces of observations and of the environment's actions.
    pub(crate) fn policy_in(&self, mut spaces: EnvSpaces, kernels: Kernels) -> Result<NetPolicy, PolicyError> {
        let RolloutConfig { normalize_actions, seed, .. } = self.run.rollout;
        spaces.action =
            ActionTransform::for_space(&spaces.action, normalize_actions, false).policy_space(&spaces.action);
        NetPolicy::new(&spaces, &self.model, self.weights.clone(), seed, kernels)
    }

    /// Replaces the name of a `custom_model` by its description in a program's registry.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for a name that is not registered.
    pub fn with_models(mut self, registry: &Registry) -> Result<Self, PolicyError> {
        self.model = registry.policies.models().resolved(self.model)?;
        Ok(self)
    }

    /// Returns the weights of one of the run's policies, under the names of its own tensors.
    ///
    /// # Errors
    /// [`ExportError::Unknown`], [`ExportError::Weights`].
    pub fn weights_of(&self, id: &PolicyId) -> Result<Weights, ExportError> {
        let unknown = || ExportError::Unknown { id: id.clone(), known: names(&self.policies) };
        self.weights.of_policies(&self.policies)?.remove(id).ok_or_else(unknown)
    }

    /// Encodes one of the run's policies, or its only one, as an ONNX file, see [`to_onnx`].
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn to_onnx(&self, registry: &Registry, id: Option<&PolicyId>) -> Result<Vec<u8>, ExportError> {
        let id = match (id, &self.policies[..]) {
            (Some(id), _) | (None, [id]) => id,
            (None, several) => return Err(ExportError::Several(names(several))),
        };
        let weights = self.weights_of(id)?;
        Ok(to_onnx(&self.spec(id, registry)?, &weights)?)
    }

    /// Returns the networks of one of the run's policies.
    fn spec(&self, id: &PolicyId, registry: &Registry) -> Result<ModelSpec, ExportError> {
        if self.policies == [PolicyId::DEFAULT] {
            let policy = self.clone().with_models(registry)?.policy(&registry.envs, Kernels::PORTABLE)?;
            return Ok(policy.spec().clone());
        }
        // The agents of a policy, and with them its spaces, are those of the environment also where a run has read its rows.
        let rollout = RolloutConfig { input: InputSource::default(), ..self.run.rollout.clone() };
        let run = RunConfig { rollout, ..self.run.clone() };
        let layout = RolloutWorkerBuilder::new(registry.clone()).learning_parts(&run)?.layout;
        let spaces = match &layout {
            FragmentLayout::Lane { spaces, .. } => Some(spaces),
            FragmentLayout::Agents(layouts) => layouts.get(id).map(|layout| &layout.spaces),
        };
        let unknown = || ExportError::Unknown { id: id.clone(), known: names(&self.policies) };
        let settings = run.rollout.network_config().merged(&run.policy(id).config);
        let model = registry.policies.models().resolved(ModelConfig::of(&settings).map_err(PolicyError::from)?)?;
        Ok(ModelSpec::for_spaces(spaces.ok_or_else(unknown)?, &model)?)
    }

    /// Returns its spaces, or those that all agents of its environment share.
    pub(crate) fn spaces(&self, envs: &EnvRegistry) -> Result<EnvSpaces, PolicyError> {
        let failed = |error: &dyn std::fmt::Display| PolicyError::Failed(error.to_string());
        let context = self.run.env_context(SlotId(0));
        if let Some(env) = envs.multi_agent(self.run.env()) {
            return env.shared_spaces(&context).map_err(|error| failed(&error));
        }
        let env = envs.spec(self.run.env()).map_err(|error| failed(&error))?;
        let seen = env.preprocessed(&context, &self.run.rollout).and_then(|env| env.spaces_in(&context));
        seen.map_err(|error| failed(&error))
    }
}

/// Replaces a file atomically.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    rollmesh_data::replace(path, FileKind::Durable, |file| file.write_all(contents))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rollmesh_core::policy::{ModelSpec, Policy as _};

    use super::{super::Checkpoints, *};

    fn run() -> RunConfig {
        RunConfig::new("CartPole-v1").seed(u64::MAX).slots(3).num_envs(2).rollout_fragment_length(5).fcnet_hiddens(&[4])
    }

    fn after(iteration: u64) -> PolicyCheckpoint {
        let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
        let model = ModelConfig { fcnet_hiddens: vec![4], ..ModelConfig::default() };
        let spec = ModelSpec::for_spaces(&spaces, &model).unwrap();
        let weights = spec.init_weights(iteration).unwrap().with_version(WeightsVersion(iteration));
        let env_steps = 15 * iteration;
        PolicyCheckpoint { gamma: 0.1 + 0.2, iteration, env_steps, ..PolicyCheckpoint::new("ppo", run(), weights) }
    }

    fn add(dir: &Path, policy: &PolicyCheckpoint) -> PathBuf {
        let files = policy.to_files().unwrap();
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, contents)| (*name, contents.as_slice())).collect();
        let number = Checkpoints::open(dir.join(CHECKPOINTS_DIR)).unwrap().save(&files).unwrap();
        dir.join(CHECKPOINTS_DIR).join(super::super::name_of(number))
    }

    #[test]
    fn the_newest_policy_of_a_run_is_found_from_every_place() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let load = |path: &Path| PolicyCheckpoint::load(path).unwrap();
        after(3).save(dir).unwrap();
        assert_eq!(load(dir), after(3));
        let (older, newest) = (add(dir, &after(4)), add(dir, &after(5)));
        assert_eq!((load(&older), load(&newest)), (after(4), after(5)));
        assert_eq!((load(dir), load(&dir.join(CHECKPOINTS_DIR))), (after(5), after(5)));
        after(6).save(dir).unwrap();
        assert_eq!(load(dir), after(6));
        // A copy may have any name.
        fs::rename(newest, dir.join("best")).unwrap();
        assert_eq!(load(&dir.join("best")), after(5));
        let policy = load(dir).policy(&EnvRegistry::builtin(), Kernels::PORTABLE).unwrap();
        assert_eq!(policy.weights(), &after(6).weights);
    }

    #[test]
    fn newest_valid_checkpoint_replaces_a_damaged_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let error = |path: &Path| PolicyCheckpoint::load(path).unwrap_err().to_string();
        assert!(error(dir).contains("holds no policy: give the directory of a run"));
        after(1).save(dir).unwrap();
        fs::write(dir.join(WEIGHTS_FILE), &after(2).to_files().unwrap()[0].1).unwrap();
        assert!(
            error(dir)
                .contains("weights.safetensors: it has other weights than policy.json says; `rollmesh weights set")
        );
        let (older, newest) = (add(dir, &after(3)), add(dir, &after(4)));
        fs::write(newest.join(WEIGHTS_FILE), b"").unwrap();
        assert_eq!(PolicyCheckpoint::load(dir).unwrap(), after(3));
        assert!(
            error(&newest).contains("is no whole checkpoint: weights.safetensors has 0 bytes"),
            "{}",
            error(&newest)
        );
        fs::remove_file(older.join(MANIFEST)).unwrap();
        fs::remove_file(dir.join(POLICY_FILE)).unwrap();
        assert!(error(dir).contains("no checkpoint in"));
    }

    proptest::proptest! {
        #[test]
        fn no_damage_panics(name in 0usize..2, place in 0usize..10_000, flip in 1u8..=255, keep in 0usize..10_000) {
            let mut files: BTreeMap<String, Vec<u8>> =
                after(1).to_files().unwrap().into_iter().map(|(name, contents)| (name.into(), contents)).collect();
            let contents = files.get_mut([POLICY_FILE, WEIGHTS_FILE][name]).unwrap();
            let place = place % contents.len();
            contents[place] ^= flip;
            contents.truncate(keep);
            if let Ok(found) = PolicyCheckpoint::from_files(&files, Path::new("run")) {
                // Other files have no hash, but the weights are always the right ones.
                let whole = after(1).weights;
                proptest::prop_assert_eq!(found.weights.tensors(), whole.tensors());
            }
        }
    }
}
