//! What all built-in environments with several agents have in common.

use crate::{
    env::{EnvContext, EnvRegistry, Frame, multi_agent::Turn},
    hash::bytes_hash,
    ids::SlotId,
    prelude::*,
    rng::{Purpose, Streams},
    run::HomeIndex,
};

fn context() -> EnvContext {
    EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 })
}

#[test]
fn settings_that_nobody_reads_are_refused() {
    for spec in EnvRegistry::builtin().iter_multi_agent() {
        let error = spec.make(&context().with_config(r#"{"nmu_cars": 3}"#.parse().unwrap())).map(|_| ()).unwrap_err();
        assert!(error.to_string().starts_with("there is no setting 'nmu_cars'; known are: "), "{}: {error}", spec.name);
    }
}

/// Every byte follows from the state, so pictures are the same on every machine.
#[test]
fn every_environment_has_a_picture() {
    let registry = EnvRegistry::builtin();
    let pictures = registry.iter_multi_agent().map(|spec| {
        let mut env = spec.make(&context()).unwrap();
        env.reset(&mut Streams::new(5, Purpose::Reset).at(SlotId(0), 0, 0, 0), &mut Turn::new()).unwrap();
        let (mut frame, mut again) = (Frame::new(), Frame::new());
        assert!(env.render(&mut frame) && env.render(&mut again) && frame == again, "{}", spec.name);
        (spec.name.clone(), [frame.width(), frame.height()], bytes_hash(frame.rgb()).to_string())
    });
    let pictures: Vec<_> = pictures.collect();
    let pictures: Vec<_> = pictures.iter().map(|(name, size, hash)| (name.as_str(), *size, hash.as_str())).collect();
    assert_eq!(pictures, GOLDEN);
}

const GOLDEN: [(&str, [u32; 2], &str); 4] = [
    ("MultiAgentCartPole-v1", [300, 200], "833ee6fd0cc1d4d3cc1a4807270ec129"),
    ("MultiAgentTrafficGrid-v0", [240, 240], "d85c898d73a9d4949196b4f538a63361"),
    ("RockPaperScissors-v0", [160, 80], "bc87023d6ed4c2b39d71550eea3b0297"),
    ("TwoStepGame-v0", [120, 120], "45861b7035ffe9f5effd0cba2ab4c49c"),
];
