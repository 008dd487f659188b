//! Every value read back from any format equals what was written, or is reported as lost; and nothing else is reported.

use std::path::Path;

use proptest::{prelude::*, sample::Index, test_runner::RngSeed};
use rollmesh_core::{
    batch::{
        ACTION_LOGP, ACTIONS, BatchParts, EPS_ID, INFOS, MultiAgentBatch, NEW_OBS, OBS, REWARDS, T, TERMINATEDS,
        TRUNCATEDS,
    },
    column::{BytesColumn, Column, ColumnData, Element, RowShape},
    ids::PolicyId,
};
use rollmesh_data::dataset::BatchStream as _;
use serde_json::Map;

use super::*;
use crate::{
    cli::data::spaces::{SeenSpaces, dataset_id},
    offline::open_logged,
};

/// Describes the batches of a run.
#[derive(Clone, Debug)]
struct Run {
    /// Number of steps of each episode, and whether it has an end.
    episodes: Vec<(usize, bool)>,
    /// Number of missing first steps of the first episode.
    missing: i64,
    /// The places where the rows are cut into batches, besides the end.
    cuts: Vec<Index>,
    obs: Kind,
    /// True if `new_obs` differs from the next step's `obs`.
    has_other_new_obs: bool,
    rewards: Kind,
    /// The columns that exist: `t`, `eps_id`, `action_logp`, `infos`, a custom one, `new_obs`, `truncateds`.
    has: [bool; 7],
    own: Kind,
    /// Names of policies; without any, batches are of a single agent.
    policies: Vec<String>,
    updates: Option<f64>,
    is_training: bool,
    seed: u64,
}

/// Element type of a column and its shape: scalar, of three, or of two by two.
#[derive(Clone, Copy, Debug)]
struct Kind(u8, u8);

impl Kind {
    fn shape(self) -> RowShape {
        match self.1 {
            0 => RowShape::SCALAR,
            1 => RowShape::vector(3),
            _ => RowShape::new(&[2, 2]).unwrap(),
        }
    }

    /// Returns random values: any bits of floats, including all kinds of NaN; few different integers.
    fn column(self, rows: usize, seed: u64) -> Column {
        fn of<T: Element>(shape: RowShape, words: impl Iterator<Item = T>) -> Column {
            Column::from_typed(ColumnData::new(words.collect(), shape).unwrap())
        }
        let shape = self.shape();
        let word = |n: u64| (n + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let words = (0..(rows * shape.elements()) as u64).map(word);
        match self.0 {
            0 => of(shape, words.map(|word| f32::from_bits(word as u32))),
            1 => of(shape, words.map(f64::from_bits)),
            2 => of(shape, words.map(|word| (word as i32) >> 20)),
            3 => of(shape, words.map(|word| (word as i64) >> 40)),
            4 => of(shape, words.map(|word| word as u8)),
            // Like typical rewards: few digits.
            5 => of(shape, words.map(|word| f64::from(word as u8) * 0.5)),
            _ => of(shape, words.map(|word| word & 1 == 1)),
        }
    }
}

fn kind(most: u8) -> impl Strategy<Value = Kind> {
    (0..most, 0..3u8).prop_map(|(dtype, shape)| Kind(dtype, shape))
}

prop_compose! {
    fn runs()(
        episodes in prop::collection::vec((1..6usize, prop::bool::weighted(0.8)), 1..4),
        missing in prop_oneof![Just(0), 0..3i64],
        cuts in prop::collection::vec(any::<Index>(), 0..4),
        obs in kind(6),
        has_other_new_obs in prop::bool::weighted(0.3),
        rewards in (0..6u8).prop_map(|dtype| Kind(dtype, 0)),
        has in [0.5, 0.5, 0.5, 0.5, 0.5, 0.9, 0.9].map(prop::bool::weighted),
        own in kind(7),
        policies in prop_oneof![
            3 => Just(Vec::new()),
            1 => Just(vec!["default_policy".to_owned()]),
            1 => Just(vec!["a".to_owned(), "b\"".to_owned()]),
        ],
        updates in prop::option::weighted(0.2, any::<f64>()),
        is_training in prop::bool::weighted(0.2),
        seed in any::<u64>(),
    ) -> Run {
        Run { episodes, missing, cuts, obs, has_other_new_obs, rewards, has, own, policies, updates, is_training, seed }
    }
}

impl Run {
    /// Returns all rows, with their numbers as actions, which every format keeps.
    fn rows(&self) -> SampleBatch {
        let (mut ts, mut ids, mut terminateds, mut truncateds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (episode, (steps, ends)) in self.episodes.iter().enumerate() {
            let first = if episode == 0 { self.missing } else { 0 };
            ts.extend((first..).take(*steps));
            ids.extend(std::iter::repeat_n(7 + 2 * episode as i64, *steps));
            for flags in [&mut terminateds, &mut truncateds] {
                flags.resize(ts.len(), false);
            }
            let ended = if episode % 2 == 0 { &mut terminateds } else { &mut truncateds };
            ended[ts.len() - 1] = *ends;
        }
        let rows = ts.len();
        let observed = self.obs.column(rows + 1, self.seed);
        let (obs, mut new_obs) = (observed.slice(0..rows), observed.slice(1..rows + 1));
        if self.has_other_new_obs {
            new_obs = self.obs.column(rows, self.seed ^ 1);
        }
        let numbers: Vec<i64> = (0..rows as i64).collect();
        let mut columns: Vec<(&str, Column)> = vec![
            (OBS.name(), obs),
            (ACTIONS.name(), ColumnData::scalars(numbers).into()),
            (REWARDS.name(), self.rewards.column(rows, self.seed ^ 2)),
            (TERMINATEDS.name(), ColumnData::scalars(terminateds).into()),
        ];
        let infos = (0..rows).map(|row| [r#"{"lives":3}"#, "", "{ }"][row % 3]);
        let optional: [(&str, Column); 7] = [
            (T.name(), ColumnData::scalars(ts).into()),
            (EPS_ID.name(), ColumnData::scalars(ids).into()),
            (ACTION_LOGP.name(), Kind(0, 0).column(rows, self.seed ^ 3)),
            (INFOS, BytesColumn::json(infos).unwrap().into()),
            ("own", self.own.column(rows, self.seed ^ 4)),
            (NEW_OBS.name(), new_obs),
            (TRUNCATEDS.name(), ColumnData::scalars(truncateds).into()),
        ];
        columns.extend(optional.into_iter().zip(self.has).filter_map(|(column, has)| has.then_some(column)));
        SampleBatch::from_parts(BatchParts {
            columns: columns.into_iter().map(|(name, column)| (name.into(), column)).collect(),
            is_training: self.is_training,
            num_grad_updates: self.updates,
            ..BatchParts::default()
        })
        .unwrap()
    }

    fn batches(&self) -> Vec<AnyBatch> {
        let rows = self.rows();
        let mut cuts: Vec<usize> = self.cuts.iter().map(|cut| cut.index(rows.len() + 1)).collect();
        cuts.extend([0, rows.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|ends| rows.slice(ends[0] as i64, ends[1]).unwrap());
        let batch = |piece: SampleBatch| {
            if self.policies.is_empty() {
                return AnyBatch::Single(piece);
            }
            let steps = piece.len();
            let batches = self.policies.iter().map(|policy| (PolicyId::new(policy.clone()), piece.clone()));
            MultiAgentBatch::new(batches.collect(), steps).into()
        };
        pieces.map(batch).collect()
    }
}

/// Writes batches in a format and reads them back; returns them with the reported losses.
fn converted(batches: &[AnyBatch], target: DataFormat) -> Result<(Vec<AnyBatch>, Losses), Failure> {
    let folder = tempfile::tempdir().map_err(Failure::other)?;
    let folder = folder.path();
    let mut losses = Losses::new();
    let mut sink = match target {
        DataFormat::Json => json(folder, u64::MAX)?,
        DataFormat::Parquet => parquet(folder, u64::MAX)?,
        DataFormat::Minari => minari(folder, info(folder, batches)?)?,
    };
    batches.iter().try_for_each(|batch| sink.write(batch, &mut losses))?;
    sink.finish(&mut losses)?;
    let mut logged = open_logged(&[folder.display().to_string()], None).map_err(Failure::other)?;
    let mut read = Vec::new();
    while let Some(batch) = logged.next_batch().map_err(Failure::other)? {
        read.push(batch);
    }
    assert_eq!(logged.corrupt_lines(), 0);
    Ok((read, losses))
}

fn info(folder: &Path, batches: &[AnyBatch]) -> Result<MinariInfo, Failure> {
    let mut seen = SeenSpaces::default();
    for batch in batches {
        seen.add(single(batch)?);
    }
    let (observation_space, action_space) = seen.finish()?;
    Ok(MinariInfo { dataset_id: dataset_id(folder), observation_space, action_space, more: Map::new() })
}

/// Returns the rows of each policy in the order of their numbers, with their attributes.
fn by_policy(batches: &[AnyBatch]) -> Vec<(PolicyId, SampleBatch)> {
    let joined = AnyBatch::concat(batches).unwrap().as_multi_agent();
    let in_order = |rows: SampleBatch| {
        let numbers = rows.get(ACTIONS).unwrap();
        let mut order: Vec<u32> = (0..rows.len() as u32).collect();
        order.sort_by_key(|row| numbers[*row as usize]);
        rows.gather(&order).unwrap()
    };
    joined.policy_batches.into_iter().map(|(policy, rows)| (policy, in_order(rows))).collect()
}

/// Checks that exactly the changed columns are reported.
fn check_columns(before: &SampleBatch, after: &SampleBatch, lost: &Losses) -> Result<(), TestCaseError> {
    for (name, column) in before.iter() {
        let is_same = after.column(name).is_some_and(|after| after.same_bits(column));
        let is_named = lost.iter().any(|what| {
            what.contains(&format!("column '{name}'"))
                || name == EPS_ID.name() && what.starts_with("numbers of episodes")
                || name == TRUNCATEDS.name() && what.contains("have no end")
        });
        prop_assert_eq!(is_same, !is_named, "{}: {:?}\ncame back as\n{:?}\n{:?}", name, before, after, lost);
    }
    Ok(())
}

/// Returns whether the batches' boundaries are kept.
fn keeps_batches(lost: &Losses) -> bool {
    !lost.iter().any(|what| what.starts_with("which rows were in one batch"))
}

/// Checks that exactly the changes are reported.
fn check(before: &[AnyBatch], after: &[AnyBatch], lost: &Losses) -> Result<(), TestCaseError> {
    let (rows_before, rows_after) = (by_policy(before), by_policy(after));
    prop_assert_eq!(rows_before.len(), rows_after.len());
    for ((policy, before), (other, after)) in rows_before.iter().zip(&rows_after) {
        prop_assert_eq!(policy, other);
        prop_assert_eq!(before.len(), after.len());
        check_columns(before, after, lost)?;
        let mut unsaid = Losses::new();
        losses::of_all_rows(before, after, &mut unsaid);
        prop_assert!(unsaid.is_subset(lost), "{:?} of {:?}", unsaid, lost);
    }
    if keeps_batches(lost) {
        let steps = |batches: &[AnyBatch]| {
            let mut steps: Vec<_> = batches.iter().map(|batch| (batch.env_steps(), batch.agent_steps())).collect();
            // Episodes without an end come last.
            if lost.iter().any(|what| what.contains("have no end")) {
                steps.sort_unstable();
            }
            steps
        };
        prop_assert_eq!(steps(before), steps(after));
    }
    Ok(())
}

fn config() -> ProptestConfig {
    let is_long = std::env::var_os("ROLLMESH_LONG").is_some_and(|value| value == "1");
    let cases = if is_long { 5_000 } else { 60 };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..ProptestConfig::default() }
}

const TARGETS: [DataFormat; 3] = [DataFormat::Json, DataFormat::Parquet, DataFormat::Minari];

proptest! {
    #![proptest_config(config())]

    #[test]
    fn conversion_round_trips_or_names_what_it_loses(run in runs(), there in 0..3usize, back in 0..3usize) {
        let (there, back) = (TARGETS[there], TARGETS[back]);
        let mut batches = run.batches();
        for target in [there, back, there] {
            let (read, lost) = match converted(&batches, target) {
                Ok(converted) => converted,
                Err(refused) => {
                    let why = refused.to_string();
                    let is_sound = match (run.policies.len(), run.has) {
                        (2, _) => why.starts_with("minari holds episodes of single agents"),
                        (_, [.., new_obs, truncateds]) => {
                            !new_obs && why.contains("'new_obs'") || !truncateds && why.contains("'truncateds'")
                        }
                    };
                    prop_assert!(target == DataFormat::Minari && is_sound, "{target:?}: {why}");
                    return Ok(());
                }
            };
            check(&batches, &read, &lost)?;
            batches = read;
        }
    }
}

/// Checks a run whose batches have one kind of columns, but of which only the last one has a loss.
#[test]
fn losses_of_a_late_batch_are_reported() {
    let rows = |last: f32, t: i64| {
        let column = |name: &str, column: Column| (name.to_owned().into(), column);
        let scalars = |values: Vec<f32>| Column::from(ColumnData::scalars(values));
        let columns = vec![
            column("obs", scalars(vec![1.0, 2.0])),
            column("new_obs", scalars(vec![2.0, 3.0])),
            column("actions", ColumnData::scalars(vec![0i64, 1]).into()),
            column("rewards", scalars(vec![0.5, last])),
            column("terminateds", ColumnData::scalars(vec![false, true]).into()),
            column("truncateds", ColumnData::scalars(vec![false, false]).into()),
            column("t", ColumnData::scalars(vec![t, t + 1]).into()),
        ];
        AnyBatch::from(SampleBatch::from_parts(BatchParts { columns, ..BatchParts::default() }).unwrap())
    };
    let usual = || vec![rows(1.0, 0), rows(2.0, 0)];
    let lost_in = |target: DataFormat, late: AnyBatch| {
        let (_, before) = converted(&usual(), target).unwrap();
        let mut batches = usual();
        batches.push(late);
        let (_, after) = converted(&batches, target).unwrap();
        after.difference(&before).cloned().collect::<Vec<_>>()
    };
    assert_eq!(
        lost_in(DataFormat::Minari, rows(1.0, 4)),
        ["numbers of column 't': the steps of an episode are counted from 0"]
    );
    let mut jump = rows(1.0, 0).single().unwrap().clone();
    jump.insert("new_obs", ColumnData::scalars(vec![2.5f32, 3.0])).unwrap();
    let next = "numbers of column 'new_obs': what follows on a step is the next one's observation";
    assert_eq!(lost_in(DataFormat::Minari, jump.into()), [next]);
    assert_eq!(lost_in(DataFormat::Parquet, rows(f32::from_bits(0x7fc0_1234), 0)), Vec::<String>::new());
    let with_own = |bits: u64| {
        let mut batch = rows(1.0, 0).single().unwrap().clone();
        let nan = f64::from_bits(f64::NAN.to_bits() | bits);
        batch.insert("own", ColumnData::scalars(vec![1.0, nan])).unwrap();
        AnyBatch::from(batch)
    };
    let (_, usual) = converted(&[with_own(0)], DataFormat::Json).unwrap();
    let (_, odd) = converted(&[with_own(0), with_own(1)], DataFormat::Json).unwrap();
    assert_eq!(odd.difference(&usual).collect::<Vec<_>>(), ["numbers of column 'own'"]);
}
