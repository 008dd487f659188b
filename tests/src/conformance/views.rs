//! Runs `views.*`: views of trajectories by view requirements.

use rollmesh_core::{
    batch::{ACTIONS, NEW_OBS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS},
    view::{AgentCollector, TrajectoryStart, ViewError, ViewRequirement, ViewRequirements, ViewRow},
};
use serde_json::{Map, Value, json};

use super::{
    Answer, Fault,
    values::{bad, column_json, float, integer},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    if name != "build" {
        return Err(Fault::UnknownOperation);
    }
    let views = args["view_requirements"].as_object().ok_or_else(|| bad("view requirements"))?;
    let views = views.iter().map(|(name, view)| Ok((name.clone(), requirement(view)?)));
    let mut agent = AgentCollector::new(views.collect::<Result<ViewRequirements, Fault>>()?);
    let start = TrajectoryStart { eps_id: 0, agent_index: 0, env_id: 0, t: 0 };
    let init_obs = float(&input["init_obs"])? as f32;
    agent.add_init_obs(start, &[(OBS.name(), ViewRow::from(&init_obs))]).map_err(fault)?;
    let fragments = input["fragments"].as_array().ok_or_else(|| bad("a list of fragments"))?;
    (0..).zip(fragments).map(|(unroll_id, steps)| fragment(&mut agent, steps, unroll_id)).collect()
}

/// Converts the requirement to its serialised form.
fn requirement(view: &Value) -> Result<ViewRequirement, Fault> {
    let mut form = view.as_object().ok_or_else(|| bad("a view requirement"))?.clone();
    if let Some(repeat) = form.remove("repeat") {
        form.insert("batch_repeat_value".into(), repeat);
    }
    serde_json::from_value(form.into()).map_err(|_| Fault::InvalidArgument)
}

fn fragment(agent: &mut AgentCollector, steps: &Value, unroll_id: i64) -> Answer {
    for step in steps.as_array().ok_or_else(|| bad("a list of steps"))? {
        let flag = |name: &str| step[name].as_bool().ok_or_else(|| bad("true or false"));
        let (obs, action) = (float(&step["obs"])? as f32, integer::<i64>(&step["action"])?);
        let reward = float(&step["reward"])? as f32;
        let (terminated, truncated) = (flag("terminated")?, flag("truncated")?);
        let values = [
            (NEW_OBS.name(), ViewRow::from(&obs)),
            (ACTIONS.name(), ViewRow::from(&action)),
            (REWARDS.name(), ViewRow::from(&reward)),
            (TERMINATEDS.name(), ViewRow::from(&terminated)),
            (TRUNCATEDS.name(), ViewRow::from(&truncated)),
        ];
        agent.add_action_reward_next_obs(&values).map_err(fault)?;
    }
    let views = agent.build_for_training(unroll_id).map_err(fault)?;
    let columns = views.columns().filter_map(|(name, column)| Some((name.to_string(), column_json(column)?)));
    Ok(json!({"columns": columns.collect::<Map<_, _>>()}))
}

fn fault(error: ViewError) -> Fault {
    match error {
        ViewError::MissingColumn { .. } | ViewError::UnknownLayout { .. } => Fault::MissingColumn,
        ViewError::Mismatch { .. } => Fault::ShapeMismatch,
        _ => Fault::InvalidArgument,
    }
}
