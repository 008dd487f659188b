//! The contents of a checkpoint: the policies, the group's and the learner's state, and the run's progress.

use std::{collections::BTreeMap, io, path::Path};

use rollmesh_core::{
    batch::EpisodeMetrics,
    group::{GroupState, Ledger},
    hub::RecentEpisodes,
    time::Micros,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    super::output::{OutputPlace, RunOutput},
    ResumeError,
};
use crate::{checkpoint::PolicyCheckpoint, learner::LearnError};

pub(super) const CONFIG: &str = "config.toml";
const GROUP: &str = "group.bin";
const LEARNER: &str = "learner.bin";
const RUN: &str = "run.json";

/// Version of the format of [`RUN`].
const FORMAT: u32 = 1;

/// A run between two iterations. The weights are not copied, and the learner's state arrives later.
pub(in super::super) struct Snapshot {
    pub(in super::super) policy: PolicyCheckpoint,
    pub(in super::super) group: GroupState,
    pub(in super::super) learner: LearnerState,
    pub(in super::super) progress: SavedProgress,
    /// The output that the run writes, if there is one.
    pub(in super::super) output: Option<RunOutput>,
}

/// The run's progress: [`RUN`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct SavedProgress {
    format: u32,
    /// Length of `metrics.jsonl`, up to the last iteration.
    pub(in super::super) metrics_bytes: u64,
    /// Length of `journal.jsonl`, if there is one.
    pub(in super::super) journal_bytes: u64,
    /// Running time in seconds, without pauses.
    wall_s: f64,
    finished_episodes: u64,
    /// True if divergent rows were learned from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(in super::super) tainted: bool,
    /// Number of ranks of a data-parallel run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in super::super) world_size: Option<u32>,
    /// The position of the output, up to the last iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in super::super) output: Option<OutputPlace>,
    /// The latest episodes, oldest first.
    recent_episodes: Vec<Episode>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Episode {
    episode: u32,
    len: u32,
    /// As text, since an environment may return numbers that JSON does not have.
    #[serde(rename = "return", with = "float_text")]
    episode_return: f64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    custom_metrics: BTreeMap<String, f64>,
}

/// Returns the progress of a run.
pub(in super::super) fn progress(
    (metrics_bytes, journal_bytes): (u64, u64),
    elapsed: Micros,
    episodes: &RecentEpisodes,
) -> SavedProgress {
    let recent = episodes.recent().cloned().map(|EpisodeMetrics { episode, len, episode_return, custom_metrics }| {
        Episode { episode, len, episode_return, custom_metrics }
    });
    SavedProgress {
        format: FORMAT,
        metrics_bytes,
        journal_bytes,
        wall_s: elapsed.as_secs_f64(),
        finished_episodes: episodes.finished(),
        tainted: false,
        world_size: None,
        output: None,
        recent_episodes: recent.collect(),
    }
}

impl SavedProgress {
    pub(in super::super) fn elapsed(&self) -> Micros {
        Micros::from_secs_f64(self.wall_s)
    }

    pub(in super::super) fn episodes(&self) -> RecentEpisodes {
        let metrics = |Episode { episode, len, episode_return, custom_metrics }| EpisodeMetrics {
            episode,
            len,
            episode_return,
            custom_metrics,
        };
        RecentEpisodes::of(self.finished_episodes, self.recent_episodes.iter().cloned().map(metrics))
    }
}

/// The learner's state, which arrives when the learner is idle.
type LearnerState = oneshot::Receiver<Result<Vec<u8>, LearnError>>;

impl Snapshot {
    /// Returns true once the learner has sent its state, or never will.
    pub(in super::super) fn is_complete(&self) -> bool {
        !self.learner.is_empty() || self.learner.is_terminated()
    }

    /// Returns the state to continue from; `None` without the learner's state.
    pub(in super::super) fn into_saved(mut self) -> Option<Saved> {
        let learner = self.learner.try_recv().ok()?.ok()?;
        Some(Saved { policy: self.policy, group: self.group, learner, progress: self.progress })
    }

    /// Returns the ledger.
    pub(super) fn ledger(&self) -> Ledger {
        *self.group.ledger()
    }

    /// Returns the files. Waits for the learner.
    pub(super) fn into_files(self, config: &str) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
        let learner = self.learner.blocking_recv().unwrap_or(Err(LearnError::Gone)).map_err(io::Error::other)?;
        let mut files: Vec<(&str, Vec<u8>)> = self.policy.to_files()?.into();
        files.push((CONFIG, config.into()));
        files.push((GROUP, self.group.encode()));
        files.push((LEARNER, learner));
        files.push((RUN, serde_json::to_vec_pretty(&self.progress)?));
        Ok(files)
    }
}

/// The state from which a run is resumed.
#[derive(Debug)]
pub(in super::super) struct Saved {
    pub(in super::super) policy: PolicyCheckpoint,
    pub(in super::super) group: GroupState,
    pub(in super::super) learner: Vec<u8>,
    pub(in super::super) progress: SavedProgress,
}

impl Saved {
    /// Reads the files of a checkpoint, which are untrusted, and its configuration; `dir` is for error messages.
    pub(super) fn read(mut files: BTreeMap<String, Vec<u8>>, dir: &Path) -> Result<(String, Self), ResumeError> {
        let bad = |name: &str, reason: String| ResumeError::Contents { path: dir.join(name), reason };
        let policy = PolicyCheckpoint::from_files(&files, dir)?;
        let mut take = |name: &str| files.remove(name).ok_or_else(|| bad(name, "it is missing".into()));
        let config = String::from_utf8(take(CONFIG)?).map_err(|_| bad(CONFIG, "it is no text".into()))?;
        let group = GroupState::decode(&take(GROUP)?).map_err(|error| bad(GROUP, error.to_string()))?;
        let learner = take(LEARNER)?;
        let progress: SavedProgress =
            serde_json::from_slice(&take(RUN)?).map_err(|error| bad(RUN, error.to_string()))?;
        if progress.format != FORMAT {
            return Err(bad(RUN, format!("it has format {}, this version reads {FORMAT}", progress.format)));
        }
        if progress.output.as_ref().is_some_and(|output| !output.is_sound()) {
            return Err(bad(RUN, "its output has no name of files".into()));
        }
        if progress.recent_episodes.len() > RecentEpisodes::WINDOW {
            return Err(bad(RUN, format!("it has more than the latest {} episodes", RecentEpisodes::WINDOW)));
        }
        Ok((config, Self { policy, group, learner, progress }))
    }
}

/// Floats as Rust's text, bit-identical but for the payload of NaN.
mod float_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rollmesh_core::group::{GroupConfig, LeaseGroup};

    use super::{
        super::super::{RunConfig, run::tests::begin},
        *,
    };

    fn episodes() -> RecentEpisodes {
        let returns = [0.1 + 0.2, f64::INFINITY, -0.0, f64::NAN];
        let episode = |(i, episode_return)| EpisodeMetrics {
            episode: i as u32,
            len: 3,
            episode_return,
            custom_metrics: [("speed".into(), 0.1 + 0.2)].into(),
        };
        RecentEpisodes::of(7, returns.into_iter().enumerate().map(episode))
    }

    type Files = BTreeMap<String, Vec<u8>>;

    fn config() -> RunConfig {
        RunConfig::new("CartPole-v1").fcnet_hiddens(&[4])
    }

    /// Returns the snapshot of a new run with some episodes.
    pub(in super::super) fn snapshot() -> Snapshot {
        let run = begin(config());
        let group = LeaseGroup::new(GroupConfig::new(16, 64)).unwrap().state();
        let (sender, learner) = oneshot::channel();
        sender.send(Ok(vec![1, 2, 3])).unwrap();
        let progress = progress((11, 5), Micros::from_millis(1_500), &episodes());
        Snapshot { policy: run.policy(), group, learner, progress, output: None }
    }

    fn files() -> Files {
        let files = snapshot().into_files(&toml::to_string(&config()).unwrap()).unwrap();
        files.into_iter().map(|(name, contents)| (name.to_owned(), contents)).collect()
    }

    #[test]
    fn everything_round_trips_bit_identically() {
        let (config, Saved { policy, group, learner, progress }) = Saved::read(files(), Path::new("run")).unwrap();
        let preset = "none".into();
        assert_eq!(super::super::read_config(&config), Ok(RunConfig { preset, ..self::config() }));
        assert_eq!((policy.iteration, group.next_fragment().0, learner), (0, 0, vec![1, 2, 3]));
        assert_eq!((progress.metrics_bytes, progress.elapsed()), (11, Micros::from_millis(1_500)));
        let bits = |episodes: &RecentEpisodes| -> Vec<u64> {
            episodes.recent().map(|episode| episode.episode_return.to_bits()).collect()
        };
        assert_eq!((progress.episodes().finished(), bits(&progress.episodes())), (7, bits(&episodes())));
    }

    #[test]
    fn error_names_the_file_that_is_missing_or_of_another_version() {
        let error = |change: &dyn Fn(&mut Files)| {
            let mut files = files();
            change(&mut files);
            Saved::read(files, Path::new("run")).unwrap_err().to_string()
        };
        for name in [CONFIG, GROUP, LEARNER, RUN, "policy.json", "weights.safetensors"] {
            assert_eq!(error(&|files| _ = files.remove(name)), format!("run/{name}: it is missing"));
        }
        let later = |files: &mut Files| {
            let text = String::from_utf8(files[RUN].clone()).unwrap();
            files.insert(RUN.into(), text.replace("\"format\": 1", "\"format\": 2").into());
        };
        assert_eq!(error(&later), "run/run.json: it has format 2, this version reads 1");
        let elsewhere = |files: &mut Files| {
            let mut run: serde_json::Value = serde_json::from_slice(&files[RUN]).unwrap();
            run["output"] =
                serde_json::json!({"series": "../x", "at": {"file": 0, "bytes": 1}, "steps": [], "iteration": 0});
            files.insert(RUN.into(), serde_json::to_vec(&run).unwrap());
        };
        assert_eq!(error(&elsewhere), "run/run.json: its output has no name of files");
        assert!(
            error(&|files| files.get_mut(GROUP).unwrap()[0] = 9).starts_with("run/group.bin: the state of the group")
        );
        assert_eq!(error(&|files| _ = files.insert(CONFIG.into(), vec![255])), "run/config.toml: it is no text");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2_000))]
        #[test]
        fn no_damage_panics(name in 0usize..6, place in 0usize..10_000, flip in 1u8..=255, keep in 0usize..20_000) {
            static FILES: std::sync::LazyLock<Files> = std::sync::LazyLock::new(files);
            let mut files = FILES.clone();
            let contents = files.values_mut().nth(name).unwrap();
            let place = place % contents.len();
            contents[place] ^= flip;
            contents.truncate(keep);
            // Usually hashes find such damage first; here it may be missed, and must do no harm.
            if let Ok((_, saved)) = Saved::read(files, Path::new("run")) {
                saved.progress.elapsed();
                saved.progress.episodes();
            }
        }
    }
}
