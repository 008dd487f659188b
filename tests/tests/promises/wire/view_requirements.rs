//! The encoding of view requirements as JSON.

use std::{collections::BTreeMap, num::NonZeroU32};

use rollmesh_core::{
    space::Space,
    view::{Shift, ViewRequirement},
};

fn round_trip(view: &ViewRequirement) -> String {
    let json = serde_json::to_string(view).unwrap();
    assert_eq!(&serde_json::from_str::<ViewRequirement>(&json).unwrap(), view, "{json}");
    json
}

#[test]
fn json_reads_as_one_would_write_it() {
    let stack: ViewRequirement = serde_json::from_str(r#"{"data_col": "obs", "shift": "-2:0"}"#).unwrap();
    assert_eq!(stack, ViewRequirement::shifted("obs", Shift::range(-2, 0, 1).unwrap()));
    assert_eq!(serde_json::from_str::<ViewRequirement>("{}").unwrap(), ViewRequirement::default());
    let json = round_trip(&stack.only_for_training());
    assert!(json.contains(r#""data_col":"obs","shift":"-2:0","batch_repeat_value":1"#), "{json}");
    round_trip(&ViewRequirement { shift: Shift::list(vec![-4, 0]).unwrap(), ..ViewRequirement::default() });
    round_trip(&ViewRequirement::state_in(1, NonZeroU32::new(20).unwrap()));
}

#[test]
fn spaces_travel_with_their_bounds() {
    let parts = [
        Space::vector(&[-1.0, f32::NEG_INFINITY], &[1.0, f32::INFINITY]),
        Space::Discrete { n: 3 },
        Space::MultiDiscrete { nvec: vec![2, 3] },
        Space::MultiBinary { n: 4 },
    ];
    let named = Space::Dict(BTreeMap::from([("all".to_string(), Space::Tuple(parts.to_vec()))]));
    for space in parts.into_iter().chain([named]) {
        round_trip(&ViewRequirement { space: Some(space), ..ViewRequirement::default() });
    }
}

#[test]
fn json_of_invalid_view_requirements_is_refused() {
    for (json, word) in [
        (r#"{"shift": "2:0"}"#, "smaller offset"),
        (r#"{"shift": []}"#, "empty"),
        (r#"{"batch_repeat_value": 0}"#, "nonzero"),
        (
            r#"{"space": {"type": "box", "dtype": "float32", "shape": [2], "low": [0, 0, 0], "high": [1, 1, 1]}}"#,
            "not one for each",
        ),
        (r#"{"space": {"type": "box", "dtype": "text", "shape": [], "low": [0], "high": [1]}}"#, "no element type"),
    ] {
        let error = serde_json::from_str::<ViewRequirement>(json).unwrap_err().to_string();
        assert!(error.contains(word), "{json}: {error}");
    }
}
