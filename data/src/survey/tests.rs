//! Tests several agents, several files, and incomplete data.

use proptest::prelude::*;
use rollmesh_core::{
    batch::{ACTIONS, EPS_ID, MultiAgentBatch, NEW_OBS, OBS, REWARDS, T, TERMINATEDS},
    column::{ColumnData, DType, RowShape},
    env::EnvSpaces,
    ids::PolicyId,
    space::{BoxSpace, Space},
};

use super::*;
use crate::json::encode_record;

/// Returns steps of an episode, each with a reward of 1; the last one may be its end.
fn steps(id: i64, from: i64, to: i64, ends: bool) -> SampleBatch {
    let rows = to - from;
    let column = |values: Vec<i64>| ColumnData::scalars(values);
    let batch = SampleBatch::new().with(EPS_ID, column(vec![id; rows as usize])).unwrap();
    let batch = batch.with(T, column((from..to).collect())).unwrap();
    let batch = batch.with(REWARDS, ColumnData::scalars(vec![1.0; rows as usize])).unwrap();
    let end = (from..to).map(|t| ends && t + 1 == to).collect();
    batch.with(TERMINATEDS, ColumnData::scalars(end)).unwrap()
}

#[test]
fn episodes_continue_across_batches_and_files() {
    let mut survey = Survey::default();
    survey.begin_file();
    survey.add(&steps(1, 0, 3, false).into()).unwrap();
    survey.add(&steps(1, 3, 5, true).into()).unwrap();
    survey.add(&steps(2, 0, 4, false).into()).unwrap();
    let report = survey.report(4);
    let policy = &report.policies["default_policy"];
    assert_eq!((report.batches, report.env_steps, policy.episodes, policy.unfinished), (3, 9, 1, 1));
    assert_eq!((policy.returns.mean, policy.lengths.mean), (5.0, 5.0));
    survey.begin_file();
    survey.add(&steps(2, 4, 6, true).into()).unwrap();
    let policy = &survey.report(4).policies["default_policy"];
    assert_eq!((policy.episodes, policy.unfinished, policy.returns.min, policy.returns.max), (2, 0, 5.0, 6.0));
    // Without step numbers, it is unknown whether it is the same episode.
    let ids = |rows: usize| SampleBatch::new().with(EPS_ID, ColumnData::scalars(vec![9; rows])).unwrap();
    let mut survey = Survey::default();
    survey.add(&ids(2).into()).unwrap();
    survey.begin_file();
    survey.add(&ids(1).into()).unwrap();
    assert_eq!(survey.report(4).policies["default_policy"].unfinished, 2);
}

#[test]
fn every_episode_is_in_a_bin() {
    let mut survey = Survey::default();
    (0..20).for_each(|id| survey.add(&steps(id, 0, id + 1, true).into()).unwrap());
    let report = survey.report(4);
    let policy = &report.policies["default_policy"];
    assert!(policy.histogram.len() <= 4);
    assert_eq!(policy.histogram.iter().map(|bin| bin.count).sum::<u64>(), 20);
}

#[test]
fn policies_are_counted_separately() {
    let mut survey = Survey::default();
    let rows = [("a", steps(1, 0, 4, true)), ("b", steps(1, 0, 2, false))];
    let batch = MultiAgentBatch::new(rows.map(|(id, rows)| (PolicyId::new(id), rows)).into(), 4);
    survey.add(&batch.into()).unwrap();
    let report = survey.report(4);
    let of = |id: &str| (report.policies[id].rows, report.policies[id].episodes, report.policies[id].unfinished);
    assert_eq!((report.env_steps, of("a"), of("b")), (4, (4, 1, 0), (2, 0, 1)));
}

#[test]
fn places_say_what_there_is_to_say() {
    let mut check = Check::new(None);
    let mut problems = Problems::new(1);
    let first = steps(1, 0, 2, true);
    let both =
        |rows: &SampleBatch| AnyBatch::from(MultiAgentBatch::new([(PolicyId::new("p"), rows.clone())].into(), 2));
    check.batch(&first.clone().into(), At::default(), &mut problems);
    check.batch(&steps(1, 2, 4, false).into(), At { row: 2, ..At::default() }, &mut problems);
    let after = &problems.found()["steps after the end of their episode"];
    assert_eq!((after.count, &*after.places), (1, &["row 2".to_owned()][..]));
    let at = At { file: Some("a.json"), line: Some(7), ..At::default() };
    let mut problems = Problems::new(1);
    check.batch(&both(&first), at, &mut problems);
    let missing = &problems.found()["batches without column 'obs'"];
    assert_eq!((missing.count, &*missing.places), (1, &["a.json, line 7, policy p".to_owned()][..]));
}

#[test]
fn rows_may_have_the_space_of_the_environment_or_of_its_wrappers() {
    let picture = |dims: &[u32]| {
        let space = BoxSpace::uniform(DType::U8, RowShape::new(dims).unwrap(), 0.0, 9.0);
        Space::Box(space.unwrap())
    };
    let game = EnvSpaces::with_usual_types(picture(&[210, 160, 3]), Space::Discrete { n: 4 });
    let spaces = RowSpaces::new(game).with_observation(picture(&[84, 84, 4]));
    let look = |dims: &[u32], pixel: u8| {
        let shape = RowShape::new(dims).unwrap();
        let obs = ColumnData::new(vec![pixel; 2 * shape.elements()], shape).unwrap();
        let mut problems = Problems::new(1);
        let mut rows = steps(1, 0, 2, true);
        rows.insert(OBS.name(), obs.clone()).unwrap();
        rows.insert(NEW_OBS.name(), obs).unwrap();
        Check::new(Some(spaces.clone())).batch(&rows.into(), At::default(), &mut problems);
        problems.found().get("batches with 'obs' outside of the space").map(|problem| problem.places[0].clone())
    };
    assert_eq!((look(&[210, 160, 3], 7), look(&[84, 84, 4], 7)), (None, None));
    assert_eq!(look(&[84, 84, 4], 10).as_deref(), Some("row 0"));
    let other = look(&[84, 84, 1], 7).unwrap();
    assert!(other.contains("not rows of Box") && other.contains("(84, 84, 4)"), "{other}");
}

#[test]
fn actions_of_policies_may_be_out_of_bounds_and_floats_may_have_any_bits() {
    let pendulum = EnvSpaces::with_usual_types(Space::vector(&[-1.0], &[1.0]), Space::vector(&[-2.0], &[2.0]));
    let look = |actions: Vec<f64>, has_env_actions: bool| {
        let width = RowShape::vector(actions.len() as u32 / 2);
        let mut rows = steps(1, 0, 2, true);
        rows.insert(OBS.name(), ColumnData::new(vec![0.1_f64, -1.0], RowShape::vector(1)).unwrap()).unwrap();
        rows.insert(ACTIONS.name(), ColumnData::new(actions, width).unwrap()).unwrap();
        let mut problems = Problems::new(1);
        let at = At { has_env_actions, ..At::default() };
        Check::new(Some(RowSpaces::new(pendulum.clone()))).batch(&rows.into(), at, &mut problems);
        let found = problems.found();
        assert!(!found.contains_key("batches with 'obs' outside of the space"), "{found:?}");
        found.get("batches with 'actions' outside of the space").map(|problem| problem.places[0].clone())
    };
    assert_eq!((look(vec![0.5, 3.0], false), look(vec![0.5, 2.0], true)), (None, None));
    assert_eq!(look(vec![0.5, 2.1], true).as_deref(), Some("row 1"));
    assert!(look(vec![0.5; 4], false).unwrap().contains("they are float64 (2), not rows of Box"));
}

#[test]
fn actions_of_policies_in_tuples_may_be_out_of_the_bounds_of_boxes() {
    let action = Space::tuple([Space::Discrete { n: 3 }, Space::vector(&[-2.0], &[2.0])]).unwrap();
    let env = EnvSpaces::with_usual_types(Space::vector(&[-1.0], &[1.0]), action);
    let look = |actions: Vec<f32>, has_env_actions: bool| {
        let mut rows = steps(1, 0, 2, true);
        rows.insert(ACTIONS.name(), ColumnData::new(actions, RowShape::vector(2)).unwrap()).unwrap();
        let mut problems = Problems::new(1);
        let at = At { has_env_actions, ..At::default() };
        Check::new(Some(RowSpaces::new(env.clone()))).batch(&rows.into(), at, &mut problems);
        problems.found().get("batches with 'actions' outside of the space").map(|problem| problem.places[0].clone())
    };
    assert_eq!(look(vec![2.0, 3.0, 0.0, -2.5], false), None);
    assert_eq!(look(vec![2.0, 1.0, 0.0, -2.5], true).as_deref(), Some("row 1"));
    assert_eq!(look(vec![2.0, 3.0, 3.0, 0.0], false).as_deref(), Some("row 1"));
}

#[test]
fn survey_finds_new_obs_that_differ_from_the_next_obs() {
    let look = |rows: SampleBatch, obs: &[f32], next: &[f32]| {
        let rows = rows.with(OBS, ColumnData::scalars(obs.to_vec())).unwrap();
        let rows = rows.with(NEW_OBS, ColumnData::scalars(next.to_vec())).unwrap();
        let mut problems = Problems::new(10);
        Check::new(None).batch(&rows.into(), At { line: Some(3), ..At::default() }, &mut problems);
        problems.found().get("steps whose 'new_obs' is not the next step's 'obs'").cloned().unwrap_or_default()
    };
    let good = look(steps(1, 0, 4, true), &[0.0, 1.0, 2.0, f32::NAN], &[1.0, 2.0, f32::NAN, 9.0]);
    assert_eq!(good, Problem::default());
    let bad = look(steps(1, 0, 4, true), &[0.0, 1.0, 2.0, 3.0], &[1.0, 2.5, 3.0, 9.0]);
    assert_eq!((bad.count, bad.places), (1, vec!["line 3, row 1".to_owned()]));
    // The last observation of an episode is not the first one of the next.
    let two = SampleBatch::concat([&steps(1, 0, 2, true), &steps(2, 0, 2, false)]).unwrap();
    assert_eq!(look(two, &[0.0, 1.0, 5.0, 6.0], &[1.0, 7.0, 6.0, 8.0]), Problem::default());
    let runs = SampleBatch::concat([&steps(1, 0, 2, false), &steps(1, 0, 2, false)]).unwrap();
    assert_eq!(look(runs, &[0.0, 1.0, 5.0, 6.0], &[1.0, 7.0, 6.0, 8.0]), Problem::default());
}

/// Returns lines of two batches, with an empty line, an invalid line, and no line end at the end.
fn text() -> Vec<u8> {
    let mut text = Vec::new();
    encode_record(&steps(1, 0, 3, true).into(), &[], &mut text).unwrap();
    text.extend(b"\n\nno batch\n");
    encode_record(&steps(2, 0, 2, true).into(), &["rewards"], &mut text).unwrap();
    text
}

/// Returns the results for a file that arrives in these pieces, and the steps of its batches.
fn inspect<'a>(longest: usize, pieces: impl Iterator<Item = &'a [u8]>) -> (Found, Vec<usize>) {
    let mut file = Inspection::new(longest, 10);
    let mut steps = Vec::new();
    for piece in pieces {
        file.push(piece).unwrap();
        steps.extend(std::iter::from_fn(|| file.next_batch()).map(|batch| batch.env_steps()));
    }
    file.finish();
    steps.extend(std::iter::from_fn(|| file.next_batch()).map(|batch| batch.env_steps()));
    (file.found(16), steps)
}

proptest! {
    #[test]
    fn it_does_not_matter_where_a_file_is_cut(size in 1usize..500) {
        let text = text();
        let (found, steps) = inspect(1 << 20, text.chunks(size));
        prop_assert_eq!(steps, [3, 2]);
        prop_assert_eq!(&found.report, &inspect(1 << 20, [&text[..]].into_iter()).0.report);
        prop_assert_eq!(found.corrupt_lines, 1);
        let places = &found.problems[NO_BATCHES].places;
        prop_assert!(places.len() == 1 && places[0].starts_with("line 3: no JSON"), "{:?}", places);
    }

    #[test]
    fn no_line_is_held_that_is_too_long(size in 1usize..5000) {
        let good = &b"{\"type\": \"SampleBatch\", \"rewards\": [1]}\n"[..];
        let text = [good, &[b'x'; 3000], b"\n", good, &[b'y'; 2000]].concat();
        let mut pieces = crate::json::JsonPieces::new(100, crate::limits::JsonLimits::default());
        let mut found = Vec::new();
        for piece in text.chunks(size) {
            pieces.push(piece);
            found.extend(std::iter::from_fn(|| pieces.next_batch()));
        }
        pieces.finish();
        found.extend(std::iter::from_fn(|| pieces.next_batch()));
        let found: Vec<String> = found.into_iter().map(|found| found.map_or_else(|error| error.to_string(), |_| "a batch".into())).collect();
        prop_assert_eq!(found.len(), 4);
        prop_assert_eq!((&*found[0], &*found[2]), ("a batch", "a batch"));
        for (line, found) in [(2, &found[1]), (4, &found[3])] {
            prop_assert!(found.starts_with(&format!("line {line} has 100 bytes or more")), "{}", found);
        }
    }
}

#[test]
fn other_formats_are_named_with_what_to_do() {
    for (start, name) in
        [(&b"\x89HDF\r\n"[..], "an HDF5 file"), (b"PAR1", "a Parquet file"), (b"PK\x03\x04", "a zip archive")]
    {
        let error = Inspection::new(1 << 20, 10).push(start).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("this is {name}, and")) && error.contains("rollmesh data convert"),
            "{error}"
        );
    }
}

#[test]
fn survey_gives_up_a_file_without_batches() {
    let text = "no batch\n".repeat(1000);
    let (found, steps) = inspect(1 << 20, text.as_bytes().chunks(700));
    assert!(steps.is_empty());
    assert!(found.gave_up.unwrap().starts_with("101 lines in a row are no batches"));
    let problem = &found.problems[NO_BATCHES];
    assert_eq!((found.corrupt_lines, problem.count, problem.places.len()), (101, 101, 10));
}
