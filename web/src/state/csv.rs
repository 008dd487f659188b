//! The points of the charts as a CSV table.

use rollmesh_core::protocol::message::Iteration;

use super::{Curves, FieldValue, Metric, RunKey, State};

/// The numbers that every iteration has, by name.
const FIELDS: [(&str, FieldValue); 7] = [
    ("episode_return_mean", |point| point.episode_return_mean),
    ("episode_len_mean", |point| point.episode_len_mean),
    ("steps_per_s", |point| point.steps_per_s),
    ("policy_loss", |point| point.policy_loss),
    ("vf_loss", |point| point.vf_loss),
    ("entropy", |point| point.entropy),
    ("kl", |point| point.kl),
];

impl State {
    /// Returns the points of the charts as CSV, with a line per iteration and evaluation. Missing values are empty
    /// cells.
    #[must_use]
    pub fn csv(&self) -> String {
        let names: Vec<&str> = self.curves.names().collect();
        let fields = FIELDS.map(|(name, _)| name);
        let header =
            ["run", "kind", "iteration", "env_steps", "wall_s"].into_iter().chain(fields).chain(names.iter().copied());
        let mut text = header.map(quoted).collect::<Vec<_>>().join(",") + "\n";
        for (run, curves, evaluations) in self.tables() {
            let run = match run {
                RunKey::Hub(run) => run.to_string(),
                RunKey::Saved(id) => quoted(&id),
            };
            text += &lines(&format!("{run},training"), curves, &names);
            text += &lines(&format!("{run},evaluation"), evaluations, &names);
        }
        text
    }

    /// Returns whether the table has a line below its header.
    #[must_use]
    pub fn has_points(&self) -> bool {
        self.tables().any(|(_, curves, evaluations)| curves.last().is_some() || evaluations.last().is_some())
    }

    /// Returns the runs of the charts with their iterations and evaluations, the current one first.
    fn tables(&self) -> impl Iterator<Item = (RunKey, &Curves, &Curves)> {
        let number = self.run.as_ref().map_or(0, |run| run.run);
        let own = (RunKey::Hub(number), &self.curves, &self.evaluations);
        let others = self.other_runs().map(|(key, run)| (key.clone(), &run.curves, &run.evaluations));
        [own].into_iter().chain(others)
    }
}

/// Returns lines that begin with a run and a kind.
fn lines(head: &str, curves: &Curves, names: &[&str]) -> String {
    let fields = FIELDS.into_iter().map(|(_, value)| Metric::Field(value));
    let metrics = fields.chain(names.iter().map(|name| Metric::Named((*name).to_owned())));
    let mut columns: Vec<_> = metrics.map(|metric| curves.values(&metric).collect::<Vec<_>>().into_iter()).collect();
    let line = |point: &Iteration| {
        let Iteration { iteration, env_steps, wall_ms, .. } = point;
        let values = columns.iter_mut().map(|column| cell(column.next().unwrap_or(f64::NAN)));
        let values: Vec<String> = values.collect();
        format!("{head},{iteration},{env_steps},{},{}\n", *wall_ms as f64 / 1e3, values.join(","))
    };
    curves.points().iter().map(line).collect()
}

/// Returns the shortest text of the value as a 32-bit number; empty if it is not finite.
fn cell(value: f64) -> String {
    if value.is_finite() { (value as f32).to_string() } else { String::new() }
}

/// Returns a name that spreadsheets read as text, even if a user's name looks like a formula.
fn quoted(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./ ".contains(c)) && !name.starts_with('-');
    if is_plain { name.into() } else { format!("\"'{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::message::{NamedMetrics, RunStatus};

    use super::*;

    #[test]
    fn table_has_iterations_evaluations_and_metrics_with_names() {
        let run = RunStatus { run: 3, ..RunStatus::default() };
        let mut state = State { run: Some(run), ..State::default() };
        assert!(!state.has_points());
        let point = |iteration, episode_return_mean| Iteration {
            run: 3,
            iteration,
            env_steps: iteration * 100,
            wall_ms: 1_500,
            episode_return_mean,
            ..Iteration::default()
        };
        state.curves.push(point(1, f32::NAN));
        state.curves.push(point(2, 20.1));
        state.curves.add_named(&NamedMetrics::new(3, 2, [("=SUM(A1)".into(), 0.5)]));
        state.evaluations.push(point(2, 30.0));
        let wanted = "run,kind,iteration,env_steps,wall_s,episode_return_mean,episode_len_mean,steps_per_s,policy_loss,vf_loss,entropy,kl,\"'=SUM(A1)\"
3,training,1,100,1.5,,0,0,0,0,0,0,
3,training,2,200,1.5,20.1,0,0,0,0,0,0,0.5
3,evaluation,2,200,1.5,30,0,0,0,0,0,0,
";
        assert_eq!(state.csv(), wanted);
        assert!(state.has_points());
    }
}
