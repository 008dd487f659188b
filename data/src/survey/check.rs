//! Finds rows that are unsuitable for training.

use std::{collections::BTreeMap, fmt};

use rollmesh_core::{
    batch::{ACTIONS, AnyBatch, NEW_OBS, OBS, REWARDS, SampleBatch},
    by_type,
    column::{Column, DType, RowsRef},
    env::EnvSpaces,
    preprocess::Preprocessor,
    space::{BoxSpace, Space},
};
use serde::{Deserialize, Serialize};

use super::{
    Steps,
    order::{Order, Step},
};

/// The name of the problem of lines that cannot be read.
pub const NO_BATCHES: &str = "lines that are no batches";

/// A problem, and the places where it occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Number of occurrences.
    pub count: u64,
    /// The first places.
    pub places: Vec<String>,
}

/// All problems by name. Each lists its first places, and counts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    found: BTreeMap<String, Problem>,
    most: usize,
}

impl Problems {
    /// Creates an empty list with at most `most` places per problem.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { found: BTreeMap::new(), most }
    }

    /// Adds a problem at a place.
    pub fn add(&mut self, what: &str, place: impl FnOnce() -> String) {
        let most = self.most;
        let problem = self.found.entry(what.to_owned()).or_default();
        problem.count += 1;
        if problem.places.len() < most {
            problem.places.push(place());
        }
    }

    /// Returns all problems.
    #[must_use]
    pub fn found(&self) -> &BTreeMap<String, Problem> {
        &self.found
    }
}

/// The position of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At<'a> {
    /// Its file; none for a single file.
    pub file: Option<&'a str>,
    /// Its line, from 1, in files of lines.
    pub line: Option<u64>,
    /// Number of rows before it in its file, or in its line.
    pub row: u64,
    /// True if its actions are the environment's, as in data sets of D4RL and Minari. Those of policies may be outside
    /// the bounds of boxes: workers clip or unsquash them for the environment.
    pub has_env_actions: bool,
}

/// The position of a policy's rows; single agents have no policy here.
struct RowsAt<'a> {
    batch: At<'a>,
    policy: Option<String>,
}

impl RowsAt<'_> {
    fn row(&self, row: usize) -> String {
        match self.to_string() {
            here if here.is_empty() => format!("row {}", self.batch.row + row as u64),
            here => format!("{here}, row {}", self.batch.row + row as u64),
        }
    }
}

impl fmt::Display for RowsAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.batch.file.map(str::to_owned);
        let line = self.batch.line.map(|line| format!("line {line}"));
        let policy = self.policy.as_ref().map(|policy| format!("policy {policy}"));
        f.write_str(&[file, line, policy].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The spaces of an environment, and those that policies' observations of it may have.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSpaces {
    /// The environment's own spaces.
    pub env: EnvSpaces,
    /// The spaces of observations: the environment's own first.
    observations: Vec<Space>,
}

impl RowSpaces {
    /// Returns an environment's spaces, and the space of its observations as [`Preprocessor`] encodes them for policies, such
    /// as numbers as one-hot vectors.
    #[must_use]
    pub fn new(env: EnvSpaces) -> Self {
        let own = env.observation.clone();
        let encoded = Preprocessor::for_space(&own).ok().map(|encoding| encoding.output_space());
        let spaces = Self { env, observations: vec![own] };
        encoded.into_iter().fold(spaces, Self::with_observation)
    }

    /// Adds another space of observations, such as that of a game in DeepMind's wrappers.
    #[must_use]
    pub fn with_observation(mut self, space: Space) -> Self {
        if !self.observations.contains(&space) {
            self.observations.push(space);
        }
        self
    }

    /// Returns the first space whose rows a column of observations has, by their type and their number of elements.
    #[must_use]
    pub fn observation_of(&self, column: &Column) -> Option<&Space> {
        space_of(&self.observations, column)
    }
}

/// Finds missing columns, columns whose type changes, numbers that are not finite, steps out of order or after the end of
/// their episode, and observations and actions outside their spaces, batch by batch.
///
/// ```
/// use rollmesh_core::{
///     batch::{REWARDS, SampleBatch},
///     column::ColumnData,
/// };
/// use rollmesh_data::survey::{At, Check, Problems};
///
/// let batch = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0, f32::NAN]))?;
/// let mut problems = Problems::new(10);
/// Check::new(None).batch(&batch.into(), At { line: Some(3), ..At::default() }, &mut problems);
/// let found = &problems.found()["rows of 'rewards' with numbers that are not finite"];
/// assert_eq!((found.count, found.places[0].as_str()), (1, "line 3, row 1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Check {
    spaces: Option<RowSpaces>,
    /// Type and shape of columns, by policy and name.
    kinds: BTreeMap<(Option<String>, String), String>,
    order: Order,
}

impl Check {
    /// Creates a check without state. Checks spaces if they are given.
    #[must_use]
    pub fn new(spaces: Option<RowSpaces>) -> Self {
        Self { spaces, kinds: BTreeMap::new(), order: Order::default() }
    }

    /// Begins another file: its episodes are different ones, even with the same ids.
    pub fn begin_file(&mut self) {
        self.order = Order::default();
    }

    /// Checks the next batch.
    pub fn batch(&mut self, batch: &AnyBatch, at: At<'_>, problems: &mut Problems) {
        let policies = batch.as_multi_agent().policy_batches;
        self.order.begin_runs(policies.values());
        for (id, mut rows) in policies {
            let at = RowsAt { batch: at, policy: batch.single().is_err().then(|| id.to_string()) };
            match rows.decompress_if_needed() {
                Ok(()) => self.rows(&rows, &at, problems),
                Err(error) => problems.add("columns that cannot be decompressed", || format!("{at}: {error}")),
            }
        }
    }

    fn rows(&mut self, rows: &SampleBatch, at: &RowsAt<'_>, problems: &mut Problems) {
        for name in [OBS.name(), ACTIONS.name(), REWARDS.name()] {
            let has = rows.iter().any(|(column, _)| column == name || column.starts_with(&format!("{name}.")));
            if !has {
                problems.add(&format!("batches without column '{name}'"), || at.to_string());
            }
        }
        for (name, column) in rows.iter() {
            self.column(name, column, at, problems);
        }
        self.spaces(rows, at, problems);
        self.steps(rows, at, problems);
        self.next_observations(rows, at, problems);
    }

    fn column(&mut self, name: &str, column: &Column, at: &RowsAt<'_>, problems: &mut Problems) {
        let kind = format!("{} {}", column.column_type(), column.shape());
        let known = self.kinds.entry((at.policy.clone(), name.to_owned())).or_insert_with(|| kind.clone());
        if *known != kind {
            problems
                .add("columns that change their type or shape", || format!("{at}: '{name}' is {kind}, was {known}"));
        }
        let width = column.shape().elements().max(1);
        let Some(values) = column.numbers() else { return };
        let mut last = None;
        for row in values.iter().enumerate().filter(|(_, x)| !x.is_finite()).map(|(i, _)| i / width) {
            if last != Some(row) {
                problems.add(&format!("rows of '{name}' with numbers that are not finite"), || at.row(row));
            }
            last = Some(row);
        }
    }

    /// Checks that observations and actions are in their spaces.
    fn spaces(&self, rows: &SampleBatch, at: &RowsAt<'_>, problems: &mut Problems) {
        let Some(spaces) = &self.spaces else { return };
        for name in [OBS.name(), NEW_OBS.name(), ACTIONS.name()] {
            let Some(column) = rows.column(name) else { continue };
            let outside = if name != ACTIONS.name() {
                first_outside(&spaces.observations, column)
            } else {
                let mut actions = spaces.env.action.clone();
                if !at.batch.has_env_actions {
                    unbound(&mut actions);
                }
                first_outside(&[actions], column)
            };
            let place = match outside {
                Ok(None) => continue,
                Ok(Some(row)) => at.row(row),
                Err(error) => format!("{at}: {error}"),
            };
            problems.add(&format!("batches with '{name}' outside of the space"), || place);
        }
    }

    /// Checks that the steps of a trajectory are in order, with none after its end.
    fn steps(&mut self, rows: &SampleBatch, at: &RowsAt<'_>, problems: &mut Problems) {
        let steps = Steps::of(rows);
        if !steps.has_ends {
            problems.add("batches without 'terminateds' and 'truncateds'", || at.to_string());
        }
        if !is_apart(&steps, at) {
            return;
        }
        let gaps = at.policy.is_some();
        for (row, (&(id, agent), &end)) in steps.keys.iter().zip(&steps.ends).enumerate() {
            let t = steps.t(row);
            match self.order.step((id, agent, at.policy.clone()), t, end, gaps) {
                Step::Follows => {}
                Step::AfterEnd => problems.add("steps after the end of their episode", || at.row(row)),
                Step::OutOfOrder { t, before } => {
                    problems.add("steps out of order", || format!("{}: t is {t} after {before}", at.row(row)));
                }
            }
        }
    }

    /// Checks that the result of each step equals the next step's observation.
    fn next_observations(&self, rows: &SampleBatch, at: &RowsAt<'_>, problems: &mut Problems) {
        let (Some(obs), Some(next)) = (rows.column(OBS.name()), rows.column(NEW_OBS.name())) else { return };
        let steps = Steps::of(rows);
        if !is_apart(&steps, at) || obs.rows() != next.rows() || obs.rows() != steps.keys.len() {
            return;
        }
        for (row, pair) in steps.keys.windows(2).enumerate() {
            let is_another = steps.t(row + 1).zip(steps.t(row)).is_some_and(|(t, before)| t <= before);
            let goes_on = pair[0] == pair[1] && steps.ends.get(row) == Some(&false) && !is_another;
            if goes_on && !obs.slice(row + 1..row + 2).same_bits(&next.slice(row..row + 1)) {
                problems.add("steps whose 'new_obs' is not the next step's 'obs'", || at.row(row));
            }
        }
    }
}

/// Returns whether rows identify their episode, and their agent if there are several.
fn is_apart(steps: &Steps, at: &RowsAt<'_>) -> bool {
    steps.has_ids && (steps.has_agents || at.policy.is_none())
}

/// Makes an environment's space of actions that of policies' actions: boxes have no bounds, since workers clip or unsquash these for
/// the environment.
fn unbound(space: &mut Space) {
    match space {
        Space::Box(of) => *space = Space::uniform(of.dtype(), of.shape(), f64::NEG_INFINITY, f64::INFINITY),
        Space::Tuple(parts) => parts.iter_mut().for_each(unbound),
        Space::Dict(parts) => parts.values_mut().for_each(unbound),
        _ => {}
    }
}

/// Returns the first of these spaces whose rows the column has. Formats with fewer types than this crate do not keep how many
/// bits the numbers of a box have.
fn space_of<'a>(spaces: &'a [Space], column: &Column) -> Option<&'a Space> {
    let dtype = column.array().ok()?.dtype();
    let width = column.shape().elements();
    let takes = |space: &Space| {
        let is_like = matches!(space, Space::Box(of) if of.dtype().is_float() == dtype.is_float());
        dtype == DType::Bool || is_like || space.takes_rows_of(dtype)
    };
    spaces.iter().find(|space| space.shape().elements() == width && takes(space))
}

/// Returns the first row that is out of the bounds of the space whose rows the column has, one of these.
fn first_outside(spaces: &[Space], column: &Column) -> Result<Option<usize>, String> {
    let Ok(values) = column.array() else { return Ok(None) };
    let Some(space) = space_of(spaces, column) else {
        let spaces: Vec<String> = spaces.iter().map(ToString::to_string).collect();
        return Err(format!(
            "they are {} {}, not rows of {}",
            column.column_type(),
            column.shape(),
            spaces.join(" or ")
        ));
    };
    match (values.dtype(), space) {
        (DType::Bool, _) => Ok(None),
        (dtype, Space::Box(of)) if dtype != of.dtype() => Ok(first_outside_box(of, &values.cast())),
        _ => by_type!(RowsRef, values, values => space.first_outside(values)).map_err(|error| error.to_string()),
    }
}

/// Returns the first row of numbers that is out of the bounds of a box with another element type.
fn first_outside_box(space: &BoxSpace, values: &[f64]) -> Option<usize> {
    let rounded = |x: f64| if space.dtype() == DType::F32 { f64::from(x as f32) } else { x };
    let bounds: Vec<(f64, f64)> = space.bounds().map(|(low, high)| (rounded(low), rounded(high))).collect();
    let is_outside = |(x, (low, high)): (&f64, &(f64, f64))| rounded(*x) < *low || rounded(*x) > *high;
    values.chunks_exact(bounds.len().max(1)).position(|row| row.iter().zip(&bounds).any(is_outside))
}
