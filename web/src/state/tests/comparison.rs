//! Compared runs, the view of the charts, and the link that restores both.

use super::*;

#[test]
fn view_of_the_charts_is_in_the_link_with_the_settings_and_comes_from_there() {
    let texts = |all: &[(&str, &str)]| -> Texts {
        all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    let mut state = after([Event::Linked(texts(&[("seed", "3"), ("chart.x", "time"), ("chart.window", "2..4")]))]);
    assert_eq!(state.linked, texts(&[("seed", "3")]), "the form of a run has no such settings");
    assert_eq!((state.charts.x, state.charts.window), (XAxis::Time, Some((2.0, 4.0))));
    let effects = reduce(&mut state, Event::Charts(ViewChange::Smoothing(50)));
    let link = [("seed", "3"), ("chart.x", "time"), ("chart.window", "2..4"), ("chart.smoothing", "50")];
    assert_eq!(effects, [Effect::ShowLink(texts(&link))]);
    let effects = reduce(&mut state, Event::Charts(ViewChange::Axis(XAxis::Steps)));
    assert_eq!(effects, [Effect::ShowLink(texts(&[("seed", "3"), ("chart.smoothing", "50")]))]);
    let effects = reduce(&mut state, Event::Charts(ViewChange::Line("run 1".into())));
    let link = texts(&[("seed", "3"), ("chart.smoothing", "50"), ("chart.hidden", "run 1")]);
    assert_eq!(effects, [Effect::ShowLink(link.clone())]);
    assert_eq!(after([Event::Linked(link)]).charts.hidden, ["run 1".to_owned()].into());
}

fn hub_run(run: u32) -> RunKey {
    RunKey::Hub(run)
}

fn compare(run: u32) -> Action {
    Action::Compare { run: hub_run(run) }
}

fn listed(runs: &[u32]) -> Event {
    let runs = runs.iter().map(|run| RunRow { run: *run, ..RunRow::default() }).collect();
    Event::Received(Message::RunList(RunList { may_wait: true, runs }))
}

fn history(request: u32, run: u32, config: &str) -> Event {
    let iterations = vec![Iteration { run, iteration: 1, env_steps: 100, wall_ms: 5, ..Iteration::default() }];
    let evaluations = vec![EvaluationPoint { run, iteration: 1, env_steps: 100, ..EvaluationPoint::default() }];
    Event::Received(Message::RunHistory(RunHistory { request, run, config: config.into(), iterations, evaluations }))
}

fn asked(request: u32, run: u32) -> Effect {
    send(Message::RunHistoryRequest(RunHistoryRequest { request, run }))
}

#[test]
fn runs_are_compared_with_the_current_one_in_groups_of_seeds_and_by_settings() {
    let mut state = online();
    reduce(&mut state, status(3, Phase::Running));
    reduce(&mut state, listed(&[1, 2, 3]));
    reduce(&mut state, iteration(3, 7));
    let link = |runs: &str| Effect::ShowLink([("chart.runs".to_owned(), runs.to_owned())].into());
    let effects = reduce(&mut state, Event::Act(compare(1)));
    assert_eq!(effects, [asked(1, 1), link("1")]);
    let effects = reduce(&mut state, Event::Act(compare(2)));
    assert_eq!(effects, [link("1,2")], "one is asked for at a time");
    let config = |seed, lr| format!(r#"{{"seed": {seed}, "policy_config": {{"lr": {lr}}}, "env": "E"}}"#);
    assert_eq!(reduce(&mut state, history(1, 1, &config(1, 0.5))), [asked(2, 2)]);
    assert_eq!(reduce(&mut state, history(2, 2, &config(2, 0.5))), [asked(3, 3)], "the current run for its settings");
    assert_eq!(reduce(&mut state, history(3, 3, &config(3, 0.1))), []);
    assert_eq!(state.run_groups(), [vec![hub_run(1), hub_run(2)], vec![hub_run(3)]]);
    let iterations = |run| state.curves_of(&hub_run(run)).map(|curves| curves.points()[0].iteration);
    assert_eq!([1, 3, 4].map(iterations), [Some(1), Some(7), None], "the current run's own curves are newer");
    let Differences { runs, rows } = state.differences();
    let row = |path: &str, values: [&str; 3]| (path.to_owned(), values.map(str::to_owned).to_vec());
    assert_eq!(runs, [1, 2, 3].map(hub_run));
    assert_eq!(rows, [row("policy_config.lr", ["0.5", "0.5", "0.1"]), row("seed", ["1", "2", "3"])]);
    assert!(state.csv().contains("\n1,evaluation,1,100,0.005,"));
    let evaluations = |run| state.evaluations_of(&hub_run(run)).map(|all| all.points().len());
    assert_eq!([1, 3, 4].map(evaluations), [Some(1), Some(0), None]);

    assert_eq!(reduce(&mut state, Event::Act(compare(2))), [link("1")]);
    assert_eq!(state.run_groups(), [vec![hub_run(1)], vec![hub_run(3)]]);
    reduce(&mut state, Event::Act(compare(1)));
    assert_eq!((state.run_groups(), state.differences()), (vec![], Differences::default()));
}

#[test]
fn compared_runs_are_re_requested_after_a_reconnect_and_at_the_end_of_the_current_run() {
    let runs: Texts = [("chart.runs".to_owned(), "1,2".to_owned())].into();
    let mut state = after([Event::Linked(runs), Event::Started { token: true }, welcome()]);
    assert_eq!(reduce(&mut state, listed(&[1, 2])), [asked(1, 1)], "a link restores them");
    assert_eq!(reduce(&mut state, listed(&[1, 2])), [], "one is asked for at a time");
    assert_eq!(reduce(&mut state, status(2, Phase::Running)), []);
    let effects = reduce(&mut state, reply(1, "the hub has no run 1 that has begun"));
    assert!(matches!(&effects[..], [ask, Effect::ExpireToast { .. }] if *ask == asked(2, 2)), "{effects:?}");
    assert!(!state.comparison.has(&hub_run(1)));
    reduce(&mut state, history(2, 2, "{}"));
    reduce(&mut state, listed(&[1, 2, 3]));
    assert_eq!(reduce(&mut state, status(3, Phase::Running)), [asked(3, 2)], "run 2 continued meanwhile");
    reduce(&mut state, Event::Closed { random: 0 });
    assert_eq!(state.toasts.len(), 1, "unanswered ones need no notice");
    reduce(&mut state, welcome());
    assert_eq!(reduce(&mut state, listed(&[1, 2, 3])), [asked(4, 2)]);
}

#[test]
fn refused_run_is_re_requested_only_if_the_user_compares_it_again() {
    let mut state = online();
    reduce(&mut state, listed(&[1, 2]));
    let again = || Event::Act(compare(2));
    let link = Effect::ShowLink([("chart.runs".to_owned(), "2".to_owned())].into());
    assert_eq!(reduce(&mut state, again()), [asked(1, 1), link.clone()], "the current run first");
    let effects = reduce(&mut state, reply(1, "it is too large"));
    assert!(matches!(&effects[..], [ask, Effect::ExpireToast { .. }] if *ask == asked(2, 2)), "{effects:?}");
    let effects = reduce(&mut state, reply(2, "it is too large"));
    assert!(matches!(effects[..], [Effect::ExpireToast { .. }]), "{effects:?}");
    assert_eq!(reduce(&mut state, listed(&[1, 2])), []);
    assert_eq!(reduce(&mut state, again()), [asked(3, 2), link]);
}

#[test]
fn saved_runs_are_compared_as_those_of_the_hub_and_are_in_the_link() {
    let mut state = online();
    reduce(&mut state, listed(&[1]));
    reduce(&mut state, status(1, Phase::Running));
    let saved = RunKey::Saved("CartPole 2".into());
    let effects = reduce(&mut state, Event::Act(Action::Compare { run: saved.clone() }));
    let texts: Texts = [("chart.saved".to_owned(), "CartPole 2".to_owned())].into();
    assert_eq!(effects, [asked(1, 1), Effect::ShowLink(texts.clone())], "the current run's settings first");
    let request = SavedRunRequest { request: 2, id: "CartPole 2".into() };
    assert_eq!(reduce(&mut state, history(1, 1, "{}")), [send(Message::SavedRunRequest(request))]);
    reduce(&mut state, history(2, 0, r#"{"env": "E"}"#));
    assert_eq!(state.run_groups(), [vec![hub_run(1)], vec![saved.clone()]]);
    assert!(state.csv().contains("\nCartPole 2,training,1,100,"), "{}", state.csv());
    reduce(&mut state, status(0, Phase::Idle));
    assert!(
        state.curves.points().is_empty() && state.has_points(),
        "without a current run there is a table of saved ones"
    );
    let state = after([Event::Linked(texts)]);
    assert!(state.comparison.has(&saved));
}

#[test]
fn viewer_may_compare_a_limited_number_of_runs() {
    let mut state = online();
    state.is_viewer = true;
    let many: Vec<u32> = (1..=20).collect();
    reduce(&mut state, listed(&many));
    many.iter().for_each(|run| drop(reduce(&mut state, Event::Act(compare(*run)))));
    assert!(state.comparison.has(&hub_run(16)) && !state.comparison.has(&hub_run(17)));
    assert_eq!(state.obstacle(&compare(17)), Some("Sixteen runs are compared already."));
}
