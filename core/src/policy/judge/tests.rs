use super::*;
use crate::{
    batch::{REWARDS, TRUNCATEDS},
    column::RowShape,
    env::EnvRegistry,
    estimate::Estimator,
    kernels::Kernels,
    policy::{NetPolicy, PolicyContext, RandomPolicy},
};

fn spaces(env: &str) -> EnvSpaces {
    EnvRegistry::builtin().spec(env).unwrap().spaces().unwrap()
}

fn net(env: &str) -> (NetPolicy, EnvSpaces) {
    let spaces = spaces(env);
    (NetPolicy::for_context(&PolicyContext::new(spaces.clone(), 3, Kernels::PORTABLE)).unwrap(), spaces)
}

/// Returns the rows of two episodes, of which the first terminates and the second does not.
fn rows() -> SampleBatch {
    let obs = (0..20).map(|i| i as f32 / 10.0).collect();
    let scalars = |values: [f32; 5]| ColumnData::scalars(values.to_vec());
    SampleBatch::new()
        .with(OBS, ColumnData::new(obs, RowShape::vector(4)).unwrap())
        .and_then(|rows| rows.with(ACTIONS, ColumnData::scalars(vec![0, 1, 1, 0, 1])))
        .and_then(|rows| rows.with(REWARDS, scalars([1.0; 5])))
        .and_then(|rows| rows.with(TERMINATEDS, ColumnData::scalars(vec![false, true, false, false, false])))
        .and_then(|rows| rows.with(TRUNCATEDS, ColumnData::scalars(vec![false, false, false, false, true])))
        .and_then(|rows| rows.with(EPS_ID, ColumnData::scalars(vec![0, 0, 1, 1, 1])))
        .and_then(|rows| rows.with(ACTION_LOGP, scalars([-0.5; 5])))
        .unwrap()
}

/// Action 1 is worth the first number of an observation, action 0 nothing.
struct First;

impl QModel for First {
    fn fit(&mut self, transitions: &Transitions) -> Result<f64, EstimateError> {
        transitions.check().map(|()| 0.0)
    }

    fn q_values(&mut self, obs: &[f32], q: &mut [f32]) -> Result<(), EstimateError> {
        for (q, obs) in q.chunks_exact_mut(2).zip(obs.chunks_exact(4)) {
            q.copy_from_slice(&[0.0, obs[0]]);
        }
        Ok(())
    }
}

fn probs(rows: &SampleBatch) -> Vec<f64> {
    rows.column(NEW_ACTION_PROB).unwrap().typed::<f64>().unwrap().values().to_vec()
}

#[test]
fn small_probabilities_are_not_rounded_to_nothing() {
    for logp in [-79.0f32, -81.0, -110.0, -300.0, 85.0] {
        let expected = f64::from(logp).exp();
        assert!((prob(logp) / expected - 1.0).abs() < 1e-5, "{logp}: {} {expected}", prob(logp));
    }
    assert_eq!((prob(f32::NEG_INFINITY), prob(f32::INFINITY)), (0.0, f64::INFINITY));
    let mut rows = SampleBatch::new().with(ACTION_LOGP, ColumnData::scalars(vec![-110.0])).unwrap();
    Judge::add_logged_probs(&mut rows).unwrap();
    assert!(rows.column(ACTION_PROB.name()).and_then(Column::numbers).unwrap()[0] > 0.0);
}

#[test]
fn probabilities_are_the_policys_and_may_be_mixed_with_chance() {
    let (mut policy, spaces) = net("CartPole-v1");
    let mut own = rows();
    Judge::new(&mut policy, &spaces).add_probs(&mut own).unwrap();
    let logged = own.column(ACTION_PROB.name()).and_then(Column::numbers).unwrap();
    assert!(logged.iter().all(|prob| (prob - 0.606_530_7).abs() < 1e-6));
    let mut greedy = rows();
    let mut judge = Judge::new(&mut policy, &spaces).with_epsilon(0.5).unwrap();
    judge.add_probs(&mut greedy).unwrap();
    for (own, mixed) in probs(&own).into_iter().zip(probs(&greedy)) {
        assert!((mixed - (0.5 * own + 0.25)).abs() < 1e-12);
    }
    let other = judge.all_probs(column(&rows(), OBS.name()).unwrap(), 2).unwrap();
    assert!(other.chunks(2).all(|both| (both[0] + both[1] - 1.0).abs() < 1e-6));
}

#[test]
fn models_see_what_follows() {
    let (mut policy, spaces) = net("CartPole-v1");
    let mut judge = Judge::new(&mut policy, &spaces);
    let found = judge.transitions(&rows()).unwrap();
    // The successor of the last row is not known.
    assert_eq!((found.len(), found.terminateds.as_slice()), (4, &[false, true, false, false][..]));
    assert_eq!((found.new_obs[0], found.new_obs[8], found.actions[2]), (0.4, 1.2, 1));
    found.check().unwrap();
    let next = ColumnData::new(vec![9.0; 20], RowShape::vector(4)).unwrap();
    let found = judge.transitions(&rows().with(NEW_OBS, next).unwrap()).unwrap();
    assert_eq!((found.len(), found.new_obs[0]), (5, 9.0));
}

#[test]
fn values_are_means_over_the_policys_actions() {
    let (mut policy, spaces) = net("CartPole-v1");
    let mut judge = Judge::new(&mut policy, &spaces);
    let mut rows = rows();
    judge.add_probs(&mut rows).unwrap();
    judge.add_values(&mut rows, &mut First).unwrap();
    let column = |name: &str| rows.column(name).unwrap().typed::<f64>().unwrap().values().to_vec();
    let (v, q, probs) = (column(V_VALUES), column(Q_VALUES), probs(&rows));
    assert_eq!(q[..2], [0.0, f64::from(0.4f32)]);
    assert!((v[1] - q[1] * probs[1]).abs() < 1e-6 && (v[3] - f64::from(1.2f32) * (1.0 - probs[3])).abs() < 1e-6);
    Estimator::DoublyRobust.estimate(&rows, 0.9, true).unwrap();
}

#[test]
fn other_types_of_actions_are_read_and_foreign_actions_named() {
    let (mut policy, spaces) = net("CartPole-v1");
    let mut judge = Judge::new(&mut policy, &spaces);
    let mut with = |actions: Column| {
        let mut rows = rows();
        rows.insert(ACTIONS.name(), actions).unwrap();
        judge.add_probs(&mut rows).map(|()| probs(&rows))
    };
    let usual = with(ColumnData::scalars(vec![0i64, 1, 1, 0, 1]).into()).unwrap();
    assert_eq!(with(ColumnData::scalars(vec![0i32, 1, 1, 0, 1]).into()).unwrap(), usual);
    assert_eq!(with(ColumnData::scalars(vec![0f32, 1.0, 1.0, 0.0, 1.0]).into()).unwrap(), usual);
    for bad in [-1.0, 2.0, 0.5, f32::NAN] {
        let error = with(ColumnData::scalars(vec![0.0, 1.0, bad, 1.0, 0.0]).into()).unwrap_err().to_string();
        assert_eq!(error, "the action at row 2 is not in the policy's action space Discrete(2)", "{bad}");
    }
}

#[test]
fn judge_refuses_unsuitable_policies_and_rows() {
    let (mut policy, spaces) = net("Pendulum-v1");
    let error = Judge::new(&mut policy, &spaces).with_epsilon(0.1).err().unwrap().to_string();
    assert!(error.starts_with("epsilon-greedy needs a Discrete action space, not Box("), "{error}");
    assert!(matches!(
        Judge::new(&mut policy, &spaces).transitions(&rows()),
        Err(JudgeError::NotDiscrete { what: "a model of values", .. })
    ));
    assert_eq!(Judge::new(&mut policy, &spaces).with_epsilon(1.5).err(), Some(JudgeError::Epsilon(1.5)));
    let (mut policy, spaces) = net("CartPole-v1");
    let mut unlogged = rows();
    unlogged.remove(ACTION_LOGP.name());
    let judged = Judge::new(&mut policy, &spaces).add_probs(&mut unlogged);
    assert_eq!(judged.unwrap_err(), JudgeError::NoLoggedProbs);
    let mut random = RandomPolicy::new(2, 1);
    let judged = Judge::new(&mut random, &spaces).add_probs(&mut rows());
    assert_eq!(judged.unwrap_err(), JudgeError::NoDistribution);
}
