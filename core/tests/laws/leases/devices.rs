//! Fragments in which a policy on a device acted: an audit replays their actions and compares within a tolerance.

use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, REWARDS, SlotFragment, VF_PREDS},
    column::{ColumnData, RowShape},
    group::{AuditTask, Principal, Verdict},
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    kernels::Kernels,
    lease::{FragmentStart, Lease, LeasedSlot, SlotSource},
    policy::{Forward, ForwardFactory, Input, NetPolicy, Output, Policy, PolicyContext, PolicyError},
    run::RunConfig,
    sampler::SlotState,
    weights::{Tensor, Weights},
    worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner, core_fingerprint, device_fingerprint},
};

/// Computes what the kernels do, but for the last bits.
#[derive(Debug)]
struct Device(NetPolicy);

impl Forward for Device {
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.0.set_weights(weights)
    }

    fn forward(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        let Output { dist_inputs, values, state } = out;
        let out = Output { dist_inputs: &mut *dist_inputs, values: &mut *values, state: &mut *state };
        self.0.compute_outputs(input, out)?;
        dist_inputs.iter_mut().chain(values).chain(state).for_each(|number| *number += 2e-6);
        Ok(())
    }
}

fn device() -> ForwardFactory {
    ForwardFactory::new(|context, _, weights| {
        let mut policy = NetPolicy::for_context(&PolicyContext { forward: None, ..context.clone() })?;
        policy.set_weights(weights)?;
        Ok(Box::new(Device(policy)))
    })
}

fn builder(on_device: bool) -> RolloutWorkerBuilder {
    let mut registry = Registry::builtin();
    if on_device {
        registry.policies.act_with(device());
    }
    RolloutWorkerBuilder::new(registry)
}

fn run(env: &str, model: &str) -> RunConfig {
    let mut run = RunConfig::new(env).seed(3).slots(2).num_envs(2).rollout_fragment_length(40);
    run.rollout.model_config = model.parse().unwrap();
    RunConfig { preset: "none".into(), device_rows: true, ..run }
}

#[test]
fn device_has_a_fingerprint_of_its_own() {
    let fingerprint = || {
        let forward = device();
        device_fingerprint(forward, Kernels::PORTABLE).unwrap().0
    };
    assert_eq!(fingerprint(), fingerprint());
    assert!(fingerprint() != core_fingerprint(Kernels::PORTABLE));
}

/// Returns two fragments of slot 1, and the weights.
fn sampled(run: &RunConfig) -> (Vec<SlotFragment>, Weights) {
    let parts = builder(false).learning_parts(run).unwrap();
    let weights = Weights::of_run(WeightsVersion(0), parts.policies.iter().map(|(id, policy)| (id, policy.weights())));
    let weights = weights.unwrap();
    (sampled_with(run, &weights), weights)
}

fn sampled_with(run: &RunConfig, weights: &Weights) -> Vec<SlotFragment> {
    let mut runner = SlotRunner::new(run, builder(true)).unwrap();
    runner.set_weights(weights).unwrap();
    let fragments = [SlotSource::New, SlotSource::Held].into_iter().zip(0..).map(|(source, number)| {
        let slots = (0..2).map(|slot| LeasedSlot::new(SlotId(slot), source.clone())).collect();
        let id = LeaseId(number + 1);
        runner.begin(Lease { id, fragment: FragmentNo(number), weights_version: WeightsVersion(0), slots }).unwrap();
        let Advance::Done { mut fragments, .. } = runner.advance(u32::MAX) else { panic!("all steps were allowed") };
        fragments.swap_remove(1)
    });
    fragments.collect()
}

/// Replays the second of two fragments by the kernels.
fn audit(run: &RunConfig, first: &SlotFragment, second: SlotFragment, weights: &Weights) -> (Verdict, Verdict) {
    let start = FragmentStart { state: Some(first.state.clone()), ..FragmentStart::default() };
    let task = AuditTask { number: 1, principal: Principal(1), worker: WorkerId(1), start, fragment: second };
    let mut runner = SlotRunner::new(run, builder(false)).unwrap();
    let replayed = runner.replay_actions(task.lease(), weights, task.actions().unwrap()).unwrap();
    let verdicts = (task.verdict_of_actions(&replayed[0]), task.verdict(&replayed[0]));
    // The runner draws its own actions again.
    let own = runner.replay(task.lease(), weights).unwrap();
    assert_eq!(own, SlotRunner::new(run, builder(false)).unwrap().replay(task.lease(), weights).unwrap());
    verdicts
}

#[test]
fn replayed_actions_agree_within_the_tolerance_and_every_change_differs() {
    let memory = r#"{"fcnet_hiddens": [8], "use_lstm": true, "lstm_cell_size": 6, "lstm_use_prev_action": true}"#;
    for (env, model) in [
        ("CartPole-v1", r#"{"fcnet_hiddens": [8]}"#),
        ("Pendulum-v1", r#"{"fcnet_hiddens": [8]}"#),
        ("StatelessCartPole-v1", memory),
    ] {
        let run = run(env, model);
        let (fragments, weights) = sampled(&run);
        let [first, second] = &fragments[..] else { panic!("two fragments") };
        assert_eq!(audit(&run, first, second.clone(), &weights), (Verdict::Agrees, Verdict::Differs), "{env}");
        let changed = |change: &dyn Fn(&mut SlotFragment)| {
            let mut fragment = second.clone();
            change(&mut fragment);
            audit(&run, first, fragment, &weights).0
        };
        type Change<'a> = (&'a str, &'a dyn Fn(&mut SlotFragment));
        let changes: [Change<'_>; 6] = [
            ("reward", &|fragment| fragment.rows.get_mut(REWARDS).unwrap()[7] += 1e-6),
            ("logp", &|fragment| fragment.rows.get_mut(ACTION_LOGP).unwrap()[7] += 1e-3),
            ("value", &|fragment| fragment.rows.get_mut(VF_PREDS).unwrap()[39] -= 1e-2),
            ("bootstrap value", &|fragment| fragment.cuts.last_mut().unwrap().bootstrap_value += 1e-2),
            ("NaN", &|fragment| fragment.rows.get_mut(VF_PREDS).unwrap()[0] = f32::NAN),
            ("state", &|fragment| {
                let state = SlotState::decode(&fragment.state).unwrap();
                fragment.state = SlotState { t: state.t + 1, ..state }.encode();
            }),
        ];
        for (what, change) in changes {
            assert_eq!(changed(change), Verdict::Differs, "{env}: {what}");
        }
        // Another action leads elsewhere.
        let another = changed(&|fragment| match env {
            "Pendulum-v1" => {
                let actions = fragment.rows.column(ACTIONS.name()).unwrap().clone();
                let mut actions = actions.typed::<f32>().unwrap().values().to_vec();
                actions[7] += 0.5;
                let column = ColumnData::new(actions, RowShape::vector(1));
                fragment.rows.insert(ACTIONS.name(), column.unwrap()).unwrap();
            }
            _ => {
                let actions = fragment.rows.column(ACTIONS.name()).unwrap().clone();
                let mut actions = actions.typed::<i64>().unwrap().values().to_vec();
                actions[7] = 1 - actions[7];
                fragment.rows.insert(ACTIONS.name(), ColumnData::scalars(actions)).unwrap();
            }
        });
        assert_eq!(another, Verdict::Differs, "{env}");
    }
}

/// The last bits of a device's mean change the log-probability of an action by as much as the distribution is narrow.
#[test]
fn narrow_distributions_agree_and_what_their_width_does_not_explain_differs() {
    let run = run("Pendulum-v1", r#"{"fcnet_hiddens": [8]}"#);
    let parts = builder(false).learning_parts(&run).unwrap();
    let first = Weights::of_run(WeightsVersion(0), parts.policies.iter().map(|(id, policy)| (id, policy.weights())));
    let mut tensors = first.unwrap().tensors().to_vec();
    let is_heads = |tensor: &&mut Tensor| tensor.name.starts_with("policy.") && tensor.shape == [2];
    let bias = tensors.iter_mut().rfind(is_heads).unwrap();
    // A standard deviation of a thousandth.
    bias.values[1] = -7.0;
    let weights = Weights::new(WeightsVersion(0), tensors).unwrap();
    let fragments = sampled_with(&run, &weights);
    let [first, second] = &fragments[..] else { panic!("two fragments") };
    assert_eq!(audit(&run, first, second.clone(), &weights).0, Verdict::Agrees);
    let mut fragment = second.clone();
    fragment.rows.get_mut(ACTION_LOGP).unwrap()[7] += 0.2;
    assert_eq!(audit(&run, first, fragment, &weights).0, Verdict::Differs);
}
