use core::num::NonZeroU32;

use proptest::prelude::*;

use super::{super::Message, *};
use crate::{
    batch::*,
    column::{BytesColumn, Column, ColumnData, DType, Granularity, RowShape},
    env::EnvSpaces,
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    lease::{Lease, LeasedSlot, SlotSource},
    prelude::*,
    protocol::message::FragmentUpload,
    run::RunConfig,
    sampler::{FragmentLayout, RecurrentShape, SlotState},
    space::Space,
};

const RUN: u32 = 3;

fn spec(rows: u32) -> RunConfig {
    RunConfig::new("CartPole-v1").slots(64).rollout_fragment_length(rows)
}

fn limits(rows: u32, num_actions: u32) -> FragmentLimits {
    let spaces = EnvSpaces {
        observation: Space::vector(&[-1.0; 4], &[1.0; 4]),
        observation_type: DType::F32,
        action: Space::Discrete { n: num_actions },
        action_type: DType::I64,
    };
    FragmentLimits::new(&spec(rows), &FragmentLayout::Lane { spaces, recurrent: RecurrentShape::default() })
}

/// Returns a fragment with these cuts and values that depend on the seed.
fn fragment(slot: u32, cuts: &[(u32, CutReason)], num_actions: u32, seed: u32) -> SlotFragment {
    let rows = cuts.last().map_or(0, |cut| cut.0);
    let number = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 1e6 - 8.0;
    let floats = |n: u32, salt: u32| (0..n).map(|i| number(i ^ salt)).collect::<Vec<f32>>();
    let flags = |reason| (1..=rows).map(|end| cuts.contains(&(end, reason))).collect::<Vec<bool>>();
    let obs = |n: u32, salt| ColumnData::new(floats(4 * n, salt), RowShape::vector(4)).unwrap();
    let actions = (0..rows).map(|i| i64::from((i + seed) % num_actions)).collect();
    let columns = SampleBatch::new()
        .with(OBS, obs(rows, 1 << 20))
        .and_then(|b| b.with(ACTIONS, ColumnData::scalars(actions)))
        .and_then(|b| b.with(REWARDS, ColumnData::scalars(floats(rows, 2 << 20))))
        .and_then(|b| b.with(TERMINATEDS, ColumnData::scalars(flags(CutReason::Terminated))))
        .and_then(|b| b.with(TRUNCATEDS, ColumnData::scalars(flags(CutReason::Truncated))))
        .and_then(|b| b.with(ACTION_LOGP, ColumnData::scalars(floats(rows, 3 << 20))))
        .and_then(|b| b.with(VF_PREDS, ColumnData::scalars(floats(rows, 4 << 20))))
        .unwrap();
    let cuts: Vec<Cut> = cuts
        .iter()
        .map(|&(end, reason)| {
            let bootstrap_value = if reason == CutReason::Terminated { 0.0 } else { number(end) };
            Cut { end, reason, bootstrap_value }
        })
        .collect();
    let (first_episode, first_t) = (seed % 1000, seed % 77);
    let finished = super::pieces::finished_episodes(first_episode, first_t, &cuts).unwrap();
    let episodes = finished
        .into_iter()
        .map(|(episode, len)| EpisodeMetrics {
            episode,
            len,
            episode_return: f64::from(number(len)),
            ..EpisodeMetrics::default()
        })
        .collect();
    let (episode, t) = super::pieces::next_step(first_episode, first_t, &cuts).unwrap();
    let env = (0..seed % 80).map(|i| i as u8).collect();
    SlotFragment {
        slot: SlotId(slot),
        fragment: FragmentNo(5),
        weights_version: WeightsVersion(4),
        first_episode,
        first_t,
        rows: columns,
        final_obs: SampleBatch::new().with(OBS, obs(cuts.len() as u32, 5 << 20)).unwrap(),
        cuts,
        episodes,
        agents: None,
        state: SlotState { episode, t, episode_return: 1.5, env, recurrent: Vec::new() }.encode(),
    }
}

/// Returns the shape of two states, and sequences of at most three steps.
fn recurrent() -> RecurrentShape {
    RecurrentShape { state_lens: vec![2, 1], max_seq_len: NonZeroU32::new(3).unwrap() }
}

/// Returns the same fragment from a recurrent policy.
fn recurrent_fragment(mut fragment: SlotFragment) -> SlotFragment {
    let state = SlotState::decode(&fragment.state).unwrap();
    fragment.state = SlotState { recurrent: vec![0.25, -1.0, 3.0], ..state }.encode();
    let shape = recurrent();
    let lens: Vec<i32> = fragment.pieces().flat_map(|(piece, _)| shape.seq_lens(piece.len())).collect();
    let states = shape.state_lens.iter().enumerate().map(|(index, len)| {
        let values = (0..len * lens.len()).map(|i| i as f32 - fragment.slot.0 as f32).collect();
        (state_in(index), ColumnData::new(values, RowShape::vector(*len as u32)).unwrap().into())
    });
    fragment.rows = fragment.rows.clone().in_sequences(ColumnData::scalars(lens.clone()), states);
    fragment
}

fn lease_of(fragments: &[SlotFragment]) -> Lease {
    let slots = fragments.iter().map(|fragment| LeasedSlot::new(fragment.slot, SlotSource::Held));
    Lease { id: LeaseId(9), fragment: FragmentNo(5), weights_version: WeightsVersion(4), slots: slots.collect() }
}

use CutReason::{FragmentEnd, Terminated, Truncated};

/// Returns slots 2 and 7 with eight rows each.
fn two_slots() -> Vec<SlotFragment> {
    vec![
        fragment(2, &[(3, Terminated), (8, FragmentEnd)], 2, 10),
        fragment(7, &[(1, Truncated), (6, Terminated), (8, Truncated)], 2, 33),
    ]
}

fn upload(fragments: &[SlotFragment]) -> FragmentUpload {
    fragment_upload(RUN, LeaseId(9), fragments).unwrap()
}

fn decode(upload: &FragmentUpload) -> Result<Vec<SlotFragment>, UploadError> {
    slot_fragments(upload, RUN, &lease_of(&two_slots()), &limits(8, 2))
}

#[test]
fn fragments_travel_unchanged() {
    assert_eq!(decode(&upload(&two_slots())), Ok(two_slots()));
}

#[test]
fn fragments_with_memory_travel_in_their_sequences() {
    let fragments: Vec<_> = two_slots().into_iter().map(recurrent_fragment).collect();
    assert_eq!(fragments[1].rows.seq_lens(), Some(&[1, 3, 2, 2][..]));
    let limits = FragmentLimits { recurrent: recurrent(), ..limits(8, 2) };
    let decode = |upload: &FragmentUpload| slot_fragments(upload, RUN, &lease_of(&two_slots()), &limits);
    let sent = upload(&fragments);
    // Three sequences of one slot and four of the other, three elements each.
    assert_eq!(sent.data.len(), upload(&two_slots()).data.len() + 7 * 3 * 4);
    assert_eq!(decode(&sent), Ok(fragments.clone()));
    for part in fragments.chunks(1) {
        assert_eq!(decode(&upload(part)).as_deref(), Ok(part));
    }

    let changed = |change: &dyn Fn(&mut FragmentUpload)| {
        let mut upload = sent.clone();
        change(&mut upload);
        decode(&upload).unwrap_err().to_string()
    };
    let nan = changed(&|u| u.data.splice(u.data.len() - 4.., f32::NAN.to_le_bytes()).for_each(drop));
    assert_eq!(nan, "column 'state_in' of slot 2 holds a value that is not finite");
    assert!(changed(&|u| u.data.truncate(u.data.len() - 12)).starts_with("the table 'data' has"));
    // A claimed size that no upload could have allocates no memory.
    assert!(changed(&|u| u.cut_ends[0] = u32::MAX).starts_with("the table 'data' has"));
    // Slots with and without recurrent states, and states that do not fit.
    let mixed = [fragments[0].clone(), two_slots().remove(1)];
    assert_eq!(fragment_upload(RUN, LeaseId(9), &mixed), Err(EncodeError::ColumnCount(SlotId(7))));
    let mut forgotten = fragments.clone();
    forgotten[1].state = two_slots()[1].state.clone();
    assert_eq!(decode(&upload(&forgotten)), Err(UploadError::State(SlotId(7))));
    assert!(decode(&upload(&two_slots())).is_err() && super::fragment_tests::decode(&sent).is_err());
}

/// Decodes two rows of these observations and actions.
fn decode_rows(spaces: &EnvSpaces, obs: &Column, actions: &Column) -> Result<(), String> {
    let mut fragment = fragment(2, &[(2, FragmentEnd)], 2, 1);
    for (name, column) in [("obs", obs), ("actions", actions)] {
        fragment.rows.insert(name, column.clone()).unwrap();
    }
    fragment.final_obs.remove("obs");
    fragment.final_obs.insert("obs", obs.slice(1..2)).unwrap();
    let lease = lease_of(core::slice::from_ref(&fragment));
    let limits = FragmentLimits::new(
        &spec(2),
        &FragmentLayout::Lane { spaces: spaces.clone(), recurrent: RecurrentShape::default() },
    );
    let decoded = slot_fragments(&upload(core::slice::from_ref(&fragment)), RUN, &lease, &limits);
    decoded.map(|decoded| assert_eq!(decoded, [fragment])).map_err(|error| error.to_string())
}

#[test]
fn rows_of_all_spaces_travel_and_are_checked() {
    let ints = |values: [i64; 4]| Column::from(ColumnData::new(values.to_vec(), RowShape::vector(2)).unwrap());
    let bytes = |values: [u8; 4]| Column::from(ColumnData::new(values.to_vec(), RowShape::vector(2)).unwrap());
    let floats = |values: [f32; 4]| Column::from(ColumnData::new(values.to_vec(), RowShape::vector(2)).unwrap());
    let many = Space::MultiDiscrete { nvec: vec![3, 500] };
    let spaces = EnvSpaces::with_usual_types(many.clone(), Space::vector(&[-1.0; 2], &[1.0; 2]));
    let floats_of_any_size = floats([0.5, -7.0, 1.0, 0.0]);
    assert_eq!(decode_rows(&spaces, &ints([2, 499, 0, 0]), &floats_of_any_size), Ok(()));
    for (obs, wrong) in [([0, 0, 3, 0], 3), ([0, 500, 0, 0], 500), ([-1, 0, 0, 0], -1)] {
        let error = decode_rows(&spaces, &ints(obs), &floats_of_any_size).unwrap_err();
        assert_eq!(error, format!("column 'obs' of slot 2 holds {wrong}, which is outside of its space"));
    }
    let spaces = EnvSpaces::with_usual_types(Space::MultiBinary { n: 2 }, many);
    assert_eq!(decode_rows(&spaces, &bytes([0, 1, 1, 0]), &ints([0, 7, 2, 300])), Ok(()));
    let error = decode_rows(&spaces, &bytes([0, 1, 2, 0]), &ints([0; 4])).unwrap_err();
    assert_eq!(error, "column 'obs' of slot 2 holds 2, which is outside of its space");
    let images = Space::uniform(DType::U8, RowShape::vector(2), 0.0, 255.0);
    let spaces = EnvSpaces::with_usual_types(images.clone(), images);
    assert_eq!(decode_rows(&spaces, &bytes([0, 255, 9, 1]), &bytes([7, 8, 9, 255])), Ok(()));
}

#[test]
fn a_part_of_a_lease_travels_by_itself() {
    for part in two_slots().chunks(1) {
        assert_eq!(decode(&upload(part)).as_deref(), Ok(part));
    }
}

#[test]
fn a_state_must_be_one_of_the_next_step() {
    let mut fragments = two_slots();
    let state = SlotState::decode(&fragments[1].state).unwrap();
    fragments[1].state = SlotState { t: state.t + 1, ..state }.encode();
    assert_eq!(decode(&upload(&fragments)), Err(UploadError::State(SlotId(7))));
    fragments[1].state = vec![1, 2, 3];
    let error = decode(&upload(&fragments)).unwrap_err();
    assert_eq!(error.to_string(), "slot 7: the slot state is damaged");
}

#[test]
fn slots_share_the_buffers_of_their_upload() {
    let fragments = decode(&upload(&two_slots())).unwrap();
    let [a, b] = [0, 1].map(|i: usize| fragments[i].rows.data(OBS).unwrap().shared());
    assert!(Arc::ptr_eq(a, b));
}

#[test]
fn a_cart_pole_row_costs_at_most_40_bytes() {
    // Episodes of an untrained policy: 12 to 20 steps, so two or three ends in 32 rows.
    let cuts = [(12, Terminated), (26, Terminated), (32, FragmentEnd)];
    let fragments: Vec<_> = (0..16).map(|slot| fragment(slot, &cuts, 2, 32)).collect();
    // Four 64-bit floats and the header of the open episode: the state of a cart-pole.
    assert!(fragments.iter().all(|fragment| fragment.state.len() == 44));
    let bytes = Message::FragmentUpload(upload(&fragments)).encode().len();
    assert!(bytes <= 40 * 16 * 32, "{} bytes a row", bytes as f64 / (16.0 * 32.0));
}

/// A change, and the expected error.
type Case<'a> = (&'a dyn Fn(&mut FragmentUpload), &'a str);

#[test]
fn whatever_is_wrong_is_named() {
    // Index of an element in the data: columns of two slots with eight rows each follow one another.
    const ACTION: usize = 16 * 16;
    const REWARD: usize = ACTION + 16;
    const TERMINATED: usize = REWARD + 4 * 16;
    const BOOTSTRAP: usize = TERMINATED + 16 + 16 + 4 * 16 + 4 * 16;
    const FINAL_OBS: usize = BOOTSTRAP + 4 * 5;
    fn put(upload: &mut FragmentUpload, place: usize, value: f32) {
        upload.data[place..place + 4].copy_from_slice(&value.to_le_bytes());
    }
    let cases: [Case<'_>; 40] = [
        (&|u| u.run = 4, "the upload is for run 4, not 3"),
        (&|u| u.lease = 1, "the upload is for lease 1, not 9"),
        (&|u| u.fragment = 6, "the upload is for fragment 6, not 5"),
        (&|u| u.weights_version = 0, "the upload is for weights version 0, not 4"),
        (&|u| u.slots.clear(), "an upload without slots"),
        (&|u| u.slots.truncate(1), "the table 'rows' has 2 entries, not 1"),
        (&|u| u.first_ts.push(0), "the table 'first_ts' has 3 entries, not 2"),
        (&|u| u.cuts[0] = u32::MAX, "the table 'cut_ends' has 5 entries, not 4294967298"),
        (&|u| u.slots[1] = 8, "slot 8 is none of the lease, or not in its order"),
        (&|u| u.slots.swap(0, 1), "slot 2 is none of the lease, or not in its order"),
        (&|u| u.rows[1] = 9, "slot 7 has 9 rows, not 8"),
        (&|u| u.column_types.truncate(6), "the table 'column_types' has 6 entries, not 7"),
        (
            &|u| u.column_names = u.column_names.replace("vf_preds", "extra"),
            "a column that is not asked for, or is there twice, at place 6",
        ),
        (
            &|u| u.column_names = u.column_names.replace("vf_preds", "rewards"),
            "a column that is not asked for, or is there twice, at place 6",
        ),
        (&|u| u.column_names.push_str("\nextra"), "a column that is not asked for, or is there twice, at place 7"),
        (&|u| u.column_types[1] = 99, "column 'actions': 0x63 is no wire type of a column that this version knows"),
        (&|u| u.column_types[1] = 1, "column 'actions' does not hold int64 in rows of shape ()"),
        (&|u| u.column_dims[0] = 5, "column 'obs' does not hold float32 in rows of shape (4)"),
        (&|u| u.column_ranks[0] = 200, "column 'obs' does not hold float32 in rows of shape (4)"),
        (&|u| u.column_dims.push(1), "the table 'column_dims' has 1 entries, not 0"),
        (&|u| u.data.truncate(595), "the table 'data' has 595 entries, not 596"),
        (&|u| put(u, 16 * 9, f32::NAN), "column 'obs' of slot 7 holds a value that is not finite"),
        (&|u| put(u, REWARD, f32::INFINITY), "column 'rewards' of slot 2 holds a value that is not finite"),
        (&|u| u.data[ACTION + 8] = 2, "column 'actions' of slot 7 holds 2, which is outside of its space"),
        (&|u| u.data[TERMINATED] = 2, "column 'terminateds' of slot 2 holds a truth value 2"),
        (&|u| u.data[TERMINATED] = 1, "the cuts of slot 2 do not agree with its flags before row 3"),
        (&|u| u.data[TERMINATED + 2] = 0, "the cuts of slot 2 do not agree with its flags before row 3"),
        (&|u| put(u, BOOTSTRAP + 8, f32::NAN), "column 'bootstrap_value' of slot 7 holds a value that is not finite"),
        (&|u| put(u, BOOTSTRAP, 1.0), "the cuts of slot 2 give a value to what follows a terminated episode at row 3"),
        (&|u| put(u, FINAL_OBS + 16, f32::NAN), "column 'obs' of slot 2 holds a value that is not finite"),
        (&|u| u.cut_ends[3] = 1, "the cuts of slot 7 do not ascend at row 1"),
        (&|u| u.cut_ends[1] = 7, "the cuts of slot 2 note a full fragment at row 7, before its end"),
        (&|u| u.cut_reasons[4] = 3, "the cuts of slot 7 have an unknown reason"),
        (
            &|u| u.first_ts[0] = u32::MAX,
            "slot 2 starts at episode 10 and t 4294967295, which leaves no room for its rows",
        ),
        (&|u| u.episode_returns.truncate(31), "the returns of slot 7 are missing"),
        (&|u| u.episode_returns[..8].fill(0xff), "column 'episode_return' of slot 2 holds a value that is not finite"),
        (&|u| u.state_ends[1] = 5, "the state of slot 7 is missing, or not that of the step after its last row"),
        (&|u| u.episode_returns.push(0), "the table 'episode_returns' has 1 entries, not 0"),
        (&|u| u.states.push(0), "the table 'states' has 68 entries, not 67"),
        (&|u| u.cut_ends[4] = 7, "the cuts of slot 7 do not end with its last row"),
    ];
    for (change, message) in cases {
        let mut upload = upload(&two_slots());
        change(&mut upload);
        assert_eq!(decode(&upload).expect_err(message).to_string(), message);
    }
}

#[test]
fn an_episode_may_terminate_in_the_step_of_its_time_limit() {
    let mut fragments = two_slots();
    let mut truncateds = fragments[0].rows.data(TRUNCATEDS).unwrap().clone();
    truncateds.values_mut()[2] = true;
    fragments[0].rows.insert(TRUNCATEDS.name(), truncateds).unwrap();
    assert_eq!(decode(&upload(&fragments)), Ok(fragments));
}

#[test]
fn columns_that_are_no_arrays_are_not_sent() {
    let mut fragments = two_slots();
    fragments[1].rows.compress_columns(Granularity::Bulk, &["rewards"]).unwrap();
    let error = fragment_upload(RUN, LeaseId(9), &fragments).unwrap_err();
    assert_eq!(error.to_string(), "column 'rewards' of slot 7 is no array: decompress it, or leave it out");
    let mut fragments = two_slots();
    for SlotFragment { rows, .. } in &mut fragments {
        rows.insert(INFOS, BytesColumn::json(vec!["{}"; rows.len()]).unwrap()).unwrap();
    }
    let error = fragment_upload(RUN, LeaseId(9), &fragments).unwrap_err();
    assert_eq!(error.to_string(), "column 'infos' of slot 2 is no array: decompress it, or leave it out");
}

#[test]
fn fragments_that_do_not_belong_together_are_not_sent() {
    assert_eq!(fragment_upload(RUN, LeaseId(9), &[]), Err(EncodeError::Empty));
    type Mistake<'a> = (&'a dyn Fn(&mut SlotFragment), EncodeError);
    let cases: [Mistake<'_>; 5] = [
        (&|f| f.weights_version.0 += 1, EncodeError::Mixed(SlotId(7))),
        (
            &|f| f.rows = f.rows.clone().with(T, ColumnData::scalars(vec![0; 8])).unwrap(),
            EncodeError::ColumnCount(SlotId(7)),
        ),
        (
            &|f| f.rows.insert("rewards", ColumnData::scalars(vec![0.0f64; 8])).unwrap(),
            EncodeError::Columns { slot: SlotId(7), column: "rewards".into() },
        ),
        (&|f| f.final_obs = SampleBatch::new(), EncodeError::Columns { slot: SlotId(7), column: "obs".into() }),
        (&|f| f.episodes[0].len += 1, EncodeError::Episodes(SlotId(7))),
    ];
    for (change, error) in cases {
        let mut fragments = two_slots();
        change(&mut fragments[1]);
        assert_eq!(fragment_upload(RUN, LeaseId(9), &fragments), Err(error));
    }
}

/// Generates cuts of eight to forty rows: bits determine where and how an episode ends.
fn any_cuts(rows: u32) -> impl Strategy<Value = Vec<(u32, CutReason)>> {
    proptest::collection::vec(0u8..8, rows as usize).prop_map(move |ends| {
        let end = |(row, kind): (usize, u8)| match kind {
            0 => Some((row as u32 + 1, Terminated)),
            1 => Some((row as u32 + 1, Truncated)),
            _ => (row as u32 + 1 == rows).then_some((rows, FragmentEnd)),
        };
        ends.into_iter().enumerate().filter_map(end).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_fragments_travel_unchanged(
        (rows, cuts) in (1u32..40).prop_flat_map(|rows| (Just(rows), proptest::collection::vec(any_cuts(rows), 1..5))),
        num_actions in 1u32..70_000,
        seed in any::<u32>(),
        has_memory in any::<bool>(),
    ) {
        let fragment = |(i, cuts): (u32, &Vec<_>)| fragment(3 * i, cuts, num_actions, seed.wrapping_add(i));
        let mut fragments: Vec<_> = (0u32..).zip(&cuts).map(fragment).collect();
        let mut limits = limits(rows, num_actions);
        if has_memory {
            fragments = fragments.into_iter().map(recurrent_fragment).collect();
            limits.recurrent = recurrent();
        }
        let bytes = Message::FragmentUpload(upload(&fragments)).encode();
        let Ok(Message::FragmentUpload(arrived)) = Message::decode(&bytes) else { panic!("it was encoded here") };
        let decoded = slot_fragments(&arrived, RUN, &lease_of(&fragments), &limits);
        prop_assert_eq!(decoded, Ok(fragments));
    }
}
