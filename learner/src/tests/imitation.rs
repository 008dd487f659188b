//! Learning from logged actions.

use candle_core::Device;
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS},
    column::{Column, ColumnData, Element, RowShape},
    env::EnvSpaces,
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec, Policy as _, PolicyContext, Postprocessing},
    space::Space,
};

use super::super::{test_support::*, *};

fn learner(config: MarwilConfig) -> Learner {
    new_learner(config, &discrete(2, 2), 5, &weights(2, &[8], 2), Device::Cpu, Kernels::PORTABLE).unwrap()
}

/// Returns the preference for the action with each context's number, as a difference of logits.
fn preferences(learner: &Learner) -> [f32; 2] {
    let contexts = candle_core::Tensor::new(&[[0f32, 1.0], [1.0, 0.0]], &Device::Cpu).unwrap();
    let logits = learner.model.forward(&contexts, None).unwrap().0.to_vec2::<f32>().unwrap();
    [logits[0][0] - logits[0][1], logits[1][1] - logits[1][0]]
}

/// Returns rows of the bandit whose actions paid, with only observations and actions.
fn expert(seed: u64) -> SampleBatch {
    let batch = bandit(256, seed);
    let rewards = batch.get(ADVANTAGES).unwrap();
    let paid: Vec<u32> = (0..256).filter(|row| rewards[*row as usize] > 0.0).collect();
    let mut batch = batch.gather(&paid).unwrap();
    for key in [ACTION_LOGP, VF_PREDS, ADVANTAGES, VALUE_TARGETS] {
        batch.remove(key.name());
    }
    assert_eq!(batch.iter().map(|(name, _)| name).collect::<Vec<_>>(), [OBS.name(), ACTIONS.name()]);
    batch
}

#[test]
fn behaviour_is_cloned_from_observations_and_actions_alone() {
    let common = CommonConfig { lr: 0.02, ..MarwilConfig::bc().common };
    let mut learner = learner(MarwilConfig { common, minibatch_size: 32, ..MarwilConfig::bc() });
    let mut last = UpdateStats::default();
    for seed in 0..12 {
        last = learner.update(&expert(seed)).unwrap().1;
    }
    assert!(preferences(&learner).iter().all(|preference| *preference > 2.0), "{:?}", preferences(&learner));
    assert!(last.policy_loss < 0.2 && last.vf_loss == 0.0 && last.gradient_steps >= 4, "{last:?}");
}

#[test]
fn rewarded_actions_weigh_more_with_beta() {
    let learned = |beta| {
        let mut learner = learner(MarwilConfig {
            beta,
            common: CommonConfig { lr: 0.02, ..MarwilConfig::marwil().common },
            minibatch_size: 32,
            moving_average_sqd_adv_norm_start: 0.25,
            ..MarwilConfig::marwil()
        });
        for seed in 0..30 {
            learner.update(&bandit(256, seed)).unwrap();
        }
        preferences(&learner)
    };
    // Actions are drawn evenly, so cloning them prefers none.
    assert!(learned(0.0).iter().all(|preference| preference.abs() < 0.7), "{:?}", learned(0.0));
    assert!(learned(2.0).iter().all(|preference| *preference > 1.0), "{:?}", learned(2.0));
}

#[test]
fn the_mean_of_squared_advantages_is_kept() {
    let config = MarwilConfig {
        moving_average_sqd_adv_norm_start: 2.0,
        moving_average_sqd_adv_norm_update_rate: 0.5,
        minibatch_size: 1000,
        ..MarwilConfig::marwil()
    };
    let mut learner = learner(config.clone());
    let (_, stats) = learner.update(&bandit(64, 1)).unwrap();
    // One step of one minibatch.
    assert_eq!(learner.adaptive, 2.0 + 0.5 * (stats.vf_loss - 2.0));
    assert!(stats.explained_variance < 1.0 && stats.kl_coeff == 0.0);
    let mut other = new_learner(config, &discrete(2, 2), 5, learner.weights(), Device::Cpu, Kernels::PORTABLE).unwrap();
    other.set_state(&learner.state().unwrap()).unwrap();
    assert_eq!(other.adaptive, learner.adaptive);
    assert_eq!(bits(&other.update(&bandit(64, 2)).unwrap().0), bits(&learner.update(&bandit(64, 2)).unwrap().0));
    assert!(other.set_state(&[]).is_ok() && other.adaptive == 2.0);
}

#[test]
fn equal_batches_give_equal_bits_and_the_clock_counts_rows() {
    let run = || {
        let mut learner = learner(MarwilConfig { minibatch_size: 16, num_epochs: 2, ..MarwilConfig::marwil() });
        learner.update(&bandit(100, 1)).unwrap();
        (bits(learner.weights()), learner.env_steps)
    };
    assert_eq!(run(), run());
    assert_eq!(run().1, 100);
}

#[test]
fn policies_say_what_they_take() {
    let context = PolicyContext::new(discrete(2, 2), 1, Kernels::PORTABLE);
    let policy = |algorithm| LearningPolicy::for_context(&context, algorithm, Device::Cpu).unwrap();
    let bc = policy(MarwilConfig::bc().into());
    assert!(matches!(bc.postprocessing(), Postprocessing::None) && bc.data_parallel().is_some());
    let marwil = policy(MarwilConfig::marwil().into());
    let Postprocessing::Advantages(advantages) = marwil.postprocessing() else { panic!() };
    assert!(!advantages.use_gae && !advantages.use_critic, "returns as they are");
    assert!(marwil.data_parallel().is_none(), "ranks would weigh rows differently");
    let own = r#"{"vf_coeff": 0.25, "beta": 0.5}"#.parse().unwrap();
    let AlgorithmConfig::Marwil(config) = AlgorithmConfig::marwil(&own).unwrap() else { panic!() };
    assert_eq!((config.common.vf_loss_coeff, config.beta), (0.25, 0.5));
}

/// Returns the error of behaviour cloning in these spaces for such rows.
fn refusal<T>(spaces: &EnvSpaces, obs: &[f32], actions: &[T]) -> Option<String>
where
    T: Element,
    Column: From<ColumnData<T>>,
{
    let rows = obs.len() / spaces.observation.shape().elements();
    let spec = ModelSpec::for_spaces(spaces, &ModelConfig::default()).unwrap();
    let initial = spec.init_weights(1).unwrap();
    let mut learner =
        Learner::new(MarwilConfig::bc(), spaces, &spec, 5, &initial, Device::Cpu, Kernels::PORTABLE).unwrap();
    let column = |len: usize| RowShape::vector((len / rows) as u32);
    let mut batch = SampleBatch::new().with(OBS, ColumnData::new(obs.to_vec(), column(obs.len())).unwrap()).unwrap();
    batch.insert(ACTIONS.name(), ColumnData::new(actions.to_vec(), column(actions.len())).unwrap()).unwrap();
    learner.update(&batch).err().map(|error| error.to_string())
}

#[test]
fn logged_action_that_its_mask_forbids_is_named() {
    let cells = Space::MultiDiscrete { nvec: vec![2, 2] };
    let mask = Space::multi_binary(4).unwrap();
    let observation = Space::dict([("action_mask", mask), ("observation", Space::vector(&[-1.0], &[1.0]))]).unwrap();
    let spaces = EnvSpaces { observation, ..spaces(1, cells) };
    let obs = [1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.0, 1.0, 0.5];
    assert_eq!(refusal(&spaces, &obs, &[0i64, 0, 1, 1]), None);
    let error = refusal(&spaces, &obs, &[0i64, 0, 1, 0]).unwrap();
    let wanted = "row 1: the action_mask of its observation forbids its action 0 (component 1): leave the row out, or correct \
                  its mask";
    assert_eq!(error, wanted);
}

#[test]
fn logged_choices_of_joined_actions_are_integers() {
    let action = Space::Tuple(vec![Space::Discrete { n: 2 }, Space::vector(&[-1.0], &[1.0])]);
    let spaces = spaces(1, action);
    assert_eq!(refusal(&spaces, &[0.5], &[1.0f32, 0.25]), None);
    for (choice, text) in [(1.5, "1.5"), (f32::NAN, "NaN"), (2.0, "2"), (f32::INFINITY, "inf")] {
        let error = refusal(&spaces, &[0.5], &[choice, 0.25]).unwrap();
        assert!(error.starts_with(&format!("action {text}")) && error.ends_with("the model's, 0 to 1"), "{error}");
    }
}
