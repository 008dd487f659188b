//! Other runs of the hub and of its directory, whose curves and settings are shown next to the current run's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use rollmesh_core::{config::leaves, protocol::message::RunHistory};
use serde_json::Value;

use super::{Curves, State, Texts, chart_view::CHART, form::shown, reduce::evaluated};

/// Maximum number of runs that are compared at a time.
pub(super) const MAX_COMPARED: usize = 16;
/// The setting that may differ between runs of one group.
const SEED: &str = "seed";

/// A run that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKey {
    /// A run of this hub, by its number.
    Hub(u32),
    /// A run in the hub's directory, by its id.
    Saved(String),
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(run) => write!(f, "Run {run}"),
            Self::Saved(id) => f.write_str(id),
        }
    }
}

/// The runs that are compared.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    wanted: BTreeSet<RunKey>,
    /// Runs whose metrics the hub has refused to send.
    refused: BTreeSet<RunKey>,
    known: BTreeMap<RunKey, ComparedRun>,
    revision: u64,
}

/// A run that the hub has sent.
#[derive(Clone, Debug, Default)]
pub struct ComparedRun {
    /// All of its settings.
    settings: Value,
    /// Its settings without the seed: equal for runs of one group.
    group: Value,
    /// Its iterations.
    pub curves: Curves,
    /// Its evaluations.
    pub evaluations: Curves,
}

/// The settings in which runs differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// The runs.
    pub runs: Vec<RunKey>,
    /// Settings by path, with a value for each run; empty for a run without the setting.
    pub rows: Vec<(String, Vec<String>)>,
}

impl Comparison {
    /// Reads the texts of a link.
    pub(super) fn of_texts(texts: &Texts) -> Self {
        let listed = |name, separator| texts.get(&link_name(name)).map_or("", String::as_str).split(separator);
        let of_hub = listed("runs", ',').filter_map(|run| run.parse().ok()).map(RunKey::Hub);
        // An id is the name of a directory, without slashes.
        let saved = listed("saved", '/').filter(|id| !id.is_empty()).map(|id| RunKey::Saved(id.to_owned()));
        let wanted = of_hub.chain(saved).take(MAX_COMPARED).collect();
        Self { wanted, ..Self::default() }
    }

    /// Returns the texts of a link that restores the comparison.
    pub(super) fn texts(&self) -> Texts {
        let (mut of_hub, mut saved) = (Vec::new(), Vec::new());
        for run in &self.wanted {
            match run {
                RunKey::Hub(run) => of_hub.push(run.to_string()),
                RunKey::Saved(id) => saved.push(id.clone()),
            }
        }
        let texts = [("runs", of_hub.join(",")), ("saved", saved.join("/"))];
        texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (link_name(name), text)).collect()
    }

    /// Returns a number that changes with the compared runs and their metrics.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns whether this run is compared.
    #[must_use]
    pub fn has(&self, run: &RunKey) -> bool {
        self.wanted.contains(run)
    }

    pub(super) fn is_full(&self) -> bool {
        self.wanted.len() >= MAX_COMPARED
    }

    /// Adds a run to the comparison, or removes it.
    pub(super) fn toggle(&mut self, run: RunKey) {
        if !self.wanted.remove(&run) {
            self.refused.remove(&run);
            self.wanted.insert(run);
        }
        self.revision += 1;
    }

    /// Removes a run that cannot be compared; the hub is not asked for it again.
    pub(super) fn give_up(&mut self, run: RunKey) {
        self.wanted.remove(&run);
        self.refused.insert(run);
        self.revision += 1;
    }

    /// Discards a run's metrics, since the hub has newer ones.
    pub(super) fn forget(&mut self, run: &RunKey) {
        self.known.remove(run);
        self.refused.remove(run);
        self.revision += 1;
    }

    /// Discards the metrics of all runs, since the next hub may be another one.
    pub(super) fn forget_all(&mut self) {
        self.known.clear();
        self.refused.clear();
        self.revision += 1;
    }

    pub(super) fn add(&mut self, key: RunKey, history: RunHistory) {
        // A hub sends an object; anything else is shown as no settings.
        let settings: Value = serde_json::from_str(&history.config).unwrap_or_default();
        let mut group = settings.clone();
        group.as_object_mut().map(|settings| settings.remove(SEED));
        let mut run = ComparedRun { settings, group, ..ComparedRun::default() };
        history.iterations.into_iter().for_each(|point| run.curves.push(point));
        for point in history.evaluations {
            let point = evaluated(point, &run.curves);
            run.evaluations.push(point);
        }
        self.known.insert(key, run);
        self.revision += 1;
    }
}

fn link_name(name: &str) -> String {
    format!("{CHART}{name}")
}

impl State {
    fn current_run(&self) -> Option<RunKey> {
        self.run.as_ref().map(|run| run.run).filter(|run| *run > 0).map(RunKey::Hub)
    }

    /// Returns the next run to request from the hub: one that is compared, or the current one for its settings.
    pub(super) fn run_to_ask_for(&self) -> Option<RunKey> {
        let Comparison { wanted, refused, known, .. } = &self.comparison;
        let has_begun = |key: &RunKey| match key {
            RunKey::Hub(run) => self.runs.runs.iter().any(|row| row.run == *run && row.place == 0),
            RunKey::Saved(_) => true,
        };
        let current = self.current_run().filter(|_| !wanted.is_empty());
        let runs: BTreeSet<RunKey> = wanted.iter().cloned().chain(current).collect();
        runs.into_iter().filter(|run| !known.contains_key(run) && !refused.contains(run)).find(has_begun)
    }

    /// Returns the shown runs, in groups that differ in nothing but the seed.
    #[must_use]
    pub fn run_groups(&self) -> Vec<Vec<RunKey>> {
        let mut groups: Vec<(&Value, Vec<RunKey>)> = Vec::new();
        for (run, compared) in self.shown_runs() {
            match groups.iter_mut().find(|(group, _)| **group == compared.group) {
                Some((_, runs)) => runs.push(run.clone()),
                None => groups.push((&compared.group, vec![run.clone()])),
            }
        }
        groups.into_iter().map(|(_, runs)| runs).collect()
    }

    /// Returns the iterations of a run that is shown.
    #[must_use]
    pub fn curves_of(&self, run: &RunKey) -> Option<&Curves> {
        self.points_of(run).map(|(curves, _)| curves)
    }

    /// Returns the evaluations of a run that is shown.
    #[must_use]
    pub fn evaluations_of(&self, run: &RunKey) -> Option<&Curves> {
        self.points_of(run).map(|(_, evaluations)| evaluations)
    }

    fn points_of(&self, run: &RunKey) -> Option<(&Curves, &Curves)> {
        if self.is_current(run) {
            return Some((&self.curves, &self.evaluations));
        }
        self.comparison.known.get(run).map(|compared| (&compared.curves, &compared.evaluations))
    }

    /// Returns whether this is the current run, which is drawn separately.
    #[must_use]
    pub fn is_current(&self, run: &RunKey) -> bool {
        self.current_run().as_ref() == Some(run)
    }

    /// Returns the settings in which the shown runs differ, side by side; none for a single run.
    #[must_use]
    pub fn differences(&self) -> Differences {
        let mut all: BTreeMap<String, BTreeMap<&RunKey, String>> = BTreeMap::new();
        for (run, compared) in self.shown_runs() {
            for (path, value) in leaves(&compared.settings, ".") {
                all.entry(path).or_default().insert(run, shown(value));
            }
        }
        let runs: Vec<RunKey> = self.shown_runs().map(|(run, _)| run.clone()).collect();
        let row = |(path, values): (String, BTreeMap<&RunKey, String>)| {
            let texts: Vec<String> = runs.iter().map(|run| values.get(run).cloned().unwrap_or_default()).collect();
            texts.windows(2).any(|pair| pair[0] != pair[1]).then_some((path, texts))
        };
        let rows = all.into_iter().filter_map(row).collect();
        Differences { runs, rows }
    }

    /// Returns the compared runs other than the current one.
    pub(super) fn other_runs(&self) -> impl Iterator<Item = (&RunKey, &ComparedRun)> {
        self.shown_runs().filter(|(run, _)| !self.is_current(run))
    }

    fn shown_runs(&self) -> impl Iterator<Item = (&RunKey, &ComparedRun)> {
        let Comparison { wanted, known, .. } = &self.comparison;
        known.iter().filter(move |(run, _)| wanted.contains(run) || (self.is_current(run) && !wanted.is_empty()))
    }
}
