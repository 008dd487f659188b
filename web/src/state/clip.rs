//! Env steps with pictures: of the watched slot, of an evaluated episode, or of a file.

use rollmesh_core::protocol::message::EnvClip;

use super::fragment::{FragmentColumn, PolicyColumns, policies_of};

/// Maximum number of elements of an observation that is shown.
const MAX_OBSERVATION: usize = 32;

/// A source of clips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClipSource {
    /// The slot that the hub watches.
    #[default]
    Slot,
    /// An episode of the latest evaluation.
    LatestEvaluation,
    /// An episode of the evaluation with the highest mean return.
    BestEvaluation,
    /// The opened file of logged experience.
    File,
}

impl ClipSource {
    /// All sources.
    pub const ALL: [Self; 4] = [Self::Slot, Self::LatestEvaluation, Self::BestEvaluation, Self::File];

    /// Returns the name that the page shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Slot => "Slot",
            Self::LatestEvaluation => "Latest evaluation",
            Self::BestEvaluation => "Best evaluation",
            Self::File => "Opened file",
        }
    }
}

/// A clip from the hub, or from the reader of a file.
#[derive(Clone, Debug)]
pub struct Clip {
    /// The clip as it was received.
    pub report: EnvClip,
    /// Episode and `t` of each step.
    pub steps: Vec<(u32, u32)>,
    /// True if the rows are grouped by policy, each with episode and `t`; otherwise there is one row per step.
    by_policy: bool,
    policies: Vec<PolicyColumns>,
}

// The other fields are derived from the report.
impl PartialEq for Clip {
    fn eq(&self, other: &Self) -> bool {
        self.report == other.report
    }
}

impl Eq for Clip {}

/// An agent's action and reward in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentStep {
    /// Its policy and its number; empty if it is the only agent.
    pub agent: String,
    /// Its action.
    pub action: String,
    /// Probability of the action, or its density; NaN if unknown, like the next two fields.
    pub probability: f64,
    /// The value that the policy estimated.
    pub value: f64,
    /// The reward.
    pub reward: f64,
}

impl Clip {
    /// Reads a clip; it has no rows if they cannot be decoded.
    #[must_use]
    pub fn read(report: EnvClip) -> Self {
        let (by_policy, policies) = policies_of(&report.batch).unwrap_or_default();
        Self { steps: report.steps().collect(), by_policy, policies, report }
    }

    /// Returns the agents' actions and rewards in a step.
    #[must_use]
    pub fn agents(&self, step: usize) -> Vec<AgentStep> {
        let Some(&at) = self.steps.get(step) else { return vec![] };
        let rows = |policy: &PolicyColumns| -> Vec<usize> {
            if !self.by_policy {
                return vec![step];
            }
            let (Some(episodes), Some(steps)) = (policy.column("eps_id"), policy.column("t")) else { return vec![] };
            // The low half of an episode's id is its number within the slot.
            let place = |row: usize| Some((*episodes.row(row).first()? as u64 as u32, *steps.row(row).first()? as u32));
            (0..policy.rows()).filter(|row| place(*row) == Some(at)).collect()
        };
        self.policies.iter().flat_map(|policy| rows(policy).into_iter().map(|row| agent_step(policy, row))).collect()
    }

    /// Returns the only agent's observation before a step; empty if it is unknown, as in clips of hubs, or too long.
    #[must_use]
    pub fn observation(&self, step: usize) -> String {
        let column = self.policies.first().and_then(|policy| policy.column("obs"));
        column.map(|column| column.row(step)).filter(|row| row.len() <= MAX_OBSERVATION).map(text).unwrap_or_default()
    }

    /// Returns whether later steps exist and all of them belong to other episodes.
    #[must_use]
    pub fn ends_episode(&self, step: usize) -> bool {
        let Some((now, later)) = self.steps.get(step..).and_then(<[_]>::split_first) else { return false };
        !later.is_empty() && later.iter().all(|at| at.0 != now.0)
    }
}

/// Returns numbers as text, separated by spaces.
fn text(numbers: &[f64]) -> String {
    numbers.iter().map(|number| crate::format::short(*number)).collect::<Vec<_>>().join(" ")
}

fn agent_step(policy: &PolicyColumns, row: usize) -> AgentStep {
    let numbers = |name: &str| policy.column(name).map_or(&[][..], |column: &FragmentColumn| column.row(row));
    let number = |name: &str| numbers(name).first().copied().unwrap_or(f64::NAN);
    let agent = match numbers("agent_index").first() {
        Some(index) => format!("{} {index}", policy.id),
        None => String::new(),
    };
    AgentStep {
        agent,
        action: text(numbers("actions")),
        probability: number("action_logp").exp(),
        value: number("vf_preds"),
        reward: number("rewards"),
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        batch::{ACTION_LOGP, AGENT_INDEX, EPS_ID, MultiAgentBatch, REWARDS, SampleBatch, T, codec},
        column::ColumnData,
        ids::{PolicyId, SlotId, eps_id},
    };

    use super::*;

    fn steps(all: &[(u32, u32)]) -> Vec<u8> {
        all.iter().flat_map(|(episode, t)| [*episode, *t]).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn rows_of_one_agent_are_its_steps() {
        let rewards = ColumnData::scalars(vec![0.5_f32, -1.0]);
        let logp = ColumnData::scalars(vec![0.0_f32, 0.0]);
        let rows = SampleBatch::new().with(REWARDS, rewards).and_then(|rows| rows.with(ACTION_LOGP, logp));
        let batch = codec::encode(&rows.expect("two columns"));
        let clip = Clip::read(EnvClip { steps: steps(&[(3, 9), (4, 0)]), batch, ..EnvClip::default() });
        let [step] = &clip.agents(1)[..] else { panic!("one agent") };
        assert_eq!((step.reward, step.probability, &*step.agent), (-1.0, 1.0, ""));
        assert!(step.value.is_nan() && clip.agents(2).is_empty());
        assert!(clip.ends_episode(0) && !clip.ends_episode(1));
        assert_eq!(clip.observation(0), "");
        // The steps of a file's episodes may interleave.
        let clip = Clip::read(EnvClip { steps: steps(&[(0, 0), (1, 0), (0, 1), (1, 1)]), ..EnvClip::default() });
        assert_eq!([0, 1, 2, 3].map(|step| clip.ends_episode(step)), [false, false, true, false]);
    }

    #[test]
    fn rows_of_several_agents_are_found_by_episode_and_step() {
        let slot = SlotId(2);
        let ids = ColumnData::scalars(vec![eps_id(slot, 5), eps_id(slot, 5), eps_id(slot, 6)]);
        let rows = SampleBatch::new()
            .with(EPS_ID, ids)
            .and_then(|rows| rows.with(T, ColumnData::scalars(vec![0, 0, 0])))
            .and_then(|rows| rows.with(AGENT_INDEX, ColumnData::scalars(vec![0, 1, 0])))
            .and_then(|rows| rows.with(REWARDS, ColumnData::scalars(vec![1.0_f32, 2.0, 3.0])));
        let rows = [(PolicyId::new("prey"), rows.expect("four columns"))].into();
        let batch = codec::encode_multi_agent(&MultiAgentBatch::new(rows, 2));
        let report = EnvClip { steps: steps(&[(5, 0), (6, 0)]), batch, ..EnvClip::default() };
        let clip = Clip::read(report);
        let agents: Vec<_> = clip.agents(0).into_iter().map(|step| (step.agent, step.reward)).collect();
        assert_eq!(agents, [("prey 0".to_owned(), 1.0), ("prey 1".to_owned(), 2.0)]);
        assert_eq!(clip.agents(1).len(), 1);
    }
}
