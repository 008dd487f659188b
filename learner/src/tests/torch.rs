//! Losses, gradients and steps of every algorithm and model against PyTorch's, which `tests/peers/losses.py` has computed.

use super::{super::*, golden};

#[test]
fn losses_and_gradients_of_every_algorithm_and_model_are_those_of_pytorch() {
    let mut algorithms = std::collections::BTreeSet::new();
    for case in golden::cases(include_str!("../../../tests/golden/losses.json")) {
        algorithms.insert(case.get("algorithm").as_str().unwrap().to_owned());
        let mut learner = case.learner().with_old_policy(OldPolicy::Batch);
        learner.set_env_steps(case.get("env_steps").as_u64().unwrap());
        case.check_gradients(&mut learner);
        let after = case.get("after");
        if !after.is_null() {
            let (weights, stats) = learner.update(&case.batch()).unwrap();
            case.check_losses(&stats.learn_info(), &after["losses"]);
            case.check_tensors(&weights, &after["weights"]);
        }
    }
    assert!(ALGORITHMS.iter().all(|spec| algorithms.contains(spec.name)), "{algorithms:?}");
}
