//! Named metrics that share a chart, with a line for each policy, agent or worker.

/// The lines of a chart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Family {
    /// Title of the chart.
    pub title: String,
    /// Label of each line, and the name of its metric.
    pub lines: Vec<(String, String)>,
}

/// Groups names: the metrics of policies by metric, everything else by the part before the last slash.
pub fn families<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for name in names {
        let (title, line) = place(name);
        match all.iter_mut().find(|family| family.title == title) {
            Some(family) => family.lines.push((line, name.into())),
            None => all.push(Family { title, lines: vec![(line, name.into())] }),
        }
    }
    all
}

/// Returns the title of the chart, and the label of the line in it.
fn place(name: &str) -> (String, String) {
    let alone = || (name.to_owned(), name.to_owned());
    match name.split_once('/') {
        // Values of callbacks have nothing in common.
        None | Some(("custom", _)) => alone(),
        Some(("policies", rest)) => match rest.rsplit_once('/') {
            Some((policy, metric)) => (format!("{metric} of policies"), policy.into()),
            None => alone(),
        },
        Some(_) => name.rsplit_once('/').map_or_else(alone, |(family, line)| (family.into(), line.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_policies_workers_and_episodes_are_lines_of_one_chart() {
        let names = [
            "custom/a",
            "custom/b",
            "custom_metrics/fuel/max",
            "custom_metrics/fuel/mean",
            "lag_mean",
            "policies/left/entropy",
            "policies/right/entropy",
            "policy_reward_mean/left",
            "steps_per_s_of_workers/1",
            "steps_per_s_of_workers/2",
        ];
        let all = families(names.into_iter());
        let shown: Vec<_> = all.iter().map(|family| (&*family.title, family.lines.len())).collect();
        let wanted = [
            ("custom/a", 1),
            ("custom/b", 1),
            ("custom_metrics/fuel", 2),
            ("lag_mean", 1),
            ("entropy of policies", 2),
            ("policy_reward_mean", 1),
            ("steps_per_s_of_workers", 2),
        ];
        assert_eq!(shown, wanted);
        assert_eq!(all[4].lines[1], ("right".into(), "policies/right/entropy".into()));
    }
}
