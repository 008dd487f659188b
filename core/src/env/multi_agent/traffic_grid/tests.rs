//! Guarantees of the town, and that good driving is rewarded.

use super::*;
use crate::{
    env::RowsRef,
    ids::{HomeIndex, SlotId},
    rng::{Purpose, Streams},
};

fn town(config: &str) -> Result<MultiAgentTrafficGrid, EnvError> {
    let context = EnvContext::new(HomeIndex { worker_index: 1, vector_index: 0 });
    MultiAgentTrafficGrid::new(&context.with_config(config.parse().unwrap()))
}

/// Drives as fast as it can still stop, and crosses at green if there is space.
fn good_driver(obs: &[f32]) -> i64 {
    let cells = |share: f32| (share * BLOCK as f32 + 0.5) as usize;
    let speed = (obs[0] * MAX_SPEED as f32 + 0.5) as usize;
    let (to_line, gap, green, room) = (cells(obs[1]), cells(obs[2]), obs[3] > 0.5, cells(obs[5]));
    let clear = gap == to_line;
    let safe = |speed: usize| {
        let crosses = speed > to_line;
        // After this step there must be space for the next one, in which it can be slower by one.
        let stop = speed.saturating_sub(1);
        if crosses && clear { green && room >= speed - to_line + stop } else { !crosses && gap >= speed + stop }
    };
    [speed + 1, speed]
        .into_iter()
        .filter(|next| *next <= MAX_SPEED)
        .find(|next| safe(*next))
        .map_or(0, |next| i64::from(next > speed) + 1)
}

/// Serves the longer queue, for a minimum number of steps.
fn good_light(obs: &[f32]) -> i64 {
    let (vertical, across) = (obs[0] + obs[2] + obs[4], obs[1] + obs[3] + obs[5]);
    let (served, waiting) = if obs[6] > 0.5 { (vertical, across) } else { (across, vertical) };
    i64::from(obs[8] > 0.15 && waiting > served)
}

/// Returns the mean return of cars and of lights, and mean length, of twenty episodes of at most 200 steps.
fn play(mut act: impl FnMut(&AgentId, &[f32], &mut Rng) -> i64) -> [f64; 3] {
    let mut env = town("{}").unwrap();
    let [reset, step] = [Purpose::Reset, Purpose::Action].map(|purpose| Streams::new(5, purpose));
    let (mut turn, mut actions, mut sums) = (Turn::new(), AgentRows::new(), [0.0; 3]);
    for episode in 0..20 {
        turn.clear();
        env.reset(&mut reset.at(SlotId(0), episode, 0, 0), &mut turn).unwrap();
        for t in 0..200 {
            let mut rng = step.at(SlotId(0), episode, t, 0);
            actions.clear();
            for (agent, row) in turn.obs().iter().filter(|(agent, _)| !turn.outcome(agent).is_done()) {
                actions.set(agent, RowsRef::I64(&[act(agent, f32::rows(row).unwrap(), &mut rng)]));
            }
            turn.clear();
            env.step(&actions, &mut rng, &mut turn).unwrap();
            for (agent, outcome) in turn.outcomes() {
                sums[usize::from(agent.starts_with("light_"))] += outcome.reward;
            }
            sums[2] += 1.0;
            if turn.is_over() {
                break;
            }
        }
    }
    [sums[0] / (20.0 * 25.0), sums[1] / (20.0 * 9.0), sums[2] / 20.0]
}

#[test]
fn driving_well_pays() {
    let random = play(|agent, _, rng| i64::from(rng.below(if agent.starts_with("car_") { 3 } else { 2 })));
    let reckless = play(|agent, obs, _| if agent.starts_with("car_") { 2 } else { good_light(obs) });
    let good = play(|agent, obs, _| if agent.starts_with("car_") { good_driver(obs) } else { good_light(obs) });
    assert!(good[0] > random[0] + 2.0 && good[1] > random[1] + 2.0, "good {good:?}, random {random:?}");
    assert!(good[0] > reckless[0] + 1.0, "good {good:?}, reckless {reckless:?}");
    assert!(good[2] < 50.0, "all have arrived long before the time limit: {good:?}");
}

#[test]
fn town_has_the_configured_size() {
    let small = town(r#"{"num_cars": 3, "size": 2}"#).unwrap();
    let names: Vec<String> = small.agents().iter().map(|agent| agent.to_string()).collect();
    assert_eq!(names, ["car_0", "car_1", "car_2", "light_0", "light_1", "light_2", "light_3"]);
    assert_eq!(town("{}").unwrap().agents().len(), 25 + 9);
    let error = town(r#"{"num_cars": 73}"#).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "the setting 'num_cars' is wrong: 73 is not between 1 and 72");
    assert!(town(r#"{"size": 1}"#).is_err() && town(r#"{"size": 17}"#).is_err() && town(r#"{"num_cars": 0}"#).is_err());
    assert!(small.spaces(&AgentId::name("car_3")).is_none() && small.spaces(&AgentId::Index(0)).is_none());
}

#[test]
fn invalid_actions_move_no_agent() {
    let mut env = town(r#"{"num_cars": 2, "size": 2}"#).unwrap();
    let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
    let (mut turn, mut actions) = (Turn::new(), AgentRows::new());
    env.reset(&mut rng, &mut turn).unwrap();
    turn.obs().iter().for_each(|(agent, _)| actions.set(agent, RowsRef::I64(&[1])));
    actions.set(&AgentId::name("car_0"), RowsRef::I64(&[2]));
    actions.set(&AgentId::name("light_3"), RowsRef::I64(&[2]));
    let error = env.step(&actions, &mut rng, &mut Turn::new()).unwrap_err();
    assert_eq!(error.to_string(), "lane 0: action [2] of agent light_3 is not in the action space");
    assert!(env.traffic.cars.iter().all(|car| car.speed == 0));
}
