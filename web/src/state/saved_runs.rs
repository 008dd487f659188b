//! The runs in the hub's directory, and forms with the settings of earlier runs.

use rollmesh_core::{
    config::Config,
    protocol::message::{RunHistory, SavedRunRow},
};

use super::{Effect, Level, RunSchema, State, Texts, form::GOAL, reduce::toast};

impl State {
    /// Fills the form with the settings of another run.
    pub(super) fn clone_settings(&mut self, name: &str, history: &RunHistory) -> Vec<Effect> {
        let config = history.config.parse::<Config>().ok();
        let texts = self.schema.as_ref().zip(config).map(|(schema, config)| cloned(schema, &config));
        let Some(texts) = texts else {
            return toast(self, Level::Error, format!("The settings of {name} cannot be read."));
        };
        self.linked = texts;
        self.form_revision += 1;
        let link = Effect::ShowLink(self.link());
        let mut effects = vec![Effect::ShowForm, link];
        effects.extend(toast(
            self,
            Level::Info,
            format!("The form has the settings of {name}. Change them and start."),
        ));
        effects
    }
}

/// Returns the texts of the settings that differ from the values of empty fields.
fn cloned(schema: &RunSchema, config: &Config) -> Texts {
    let all = schema.texts_of(config);
    let mut changed: Texts = all
        .iter()
        .filter(|(path, text)| schema.is_changed(path, text, &all))
        .map(|(a, b)| (a.clone(), b.clone()))
        .collect();
    // Without an entry, the goal would be the environment's.
    changed.entry(GOAL.into()).or_insert_with(|| all.get(GOAL).cloned().unwrap_or_default());
    changed
}

/// Returns whether a run can be resumed from its latest checkpoint.
#[must_use]
pub fn can_resume(row: &SavedRunRow) -> bool {
    matches!(&*row.state, "interrupted" | "stopped" | "drained" | "failed")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollmesh_core::{
        protocol::{
            Message,
            message::{Reply, Request, SavedRunRequest, SavedRuns},
        },
        run::{
            RunConfig,
            schema::{Kind, Setting, json_schema, object_schema},
        },
    };
    use serde_json::json;

    use super::{
        super::{Action, Connection, Event, Source, reduce},
        *,
    };

    fn online() -> State {
        let gamma = Setting::new("gamma", &[Kind::FRACTION], "Discount factor.").schema(json!(0.98));
        let envs = [("CartPole-v1".to_owned(), Some(475.0))].into();
        let schema = json_schema(&envs, &[("ppo".into(), object_schema([("gamma", gamma)]))]).to_string();
        let connection = Connection::Online { server: String::new() };
        let schema = Some(Arc::new(RunSchema::parse(&schema).expect("a schema")));
        State { connection, schema, source: Source::Hub, ..State::default() }
    }

    fn act(state: &mut State, action: Action) -> Vec<Effect> {
        reduce(state, Event::Act(action))
    }

    fn sent(message: Message) -> Vec<Effect> {
        vec![Effect::Send(Box::new(message))]
    }

    #[test]
    fn saved_run_is_cloned_into_the_form_with_what_differs_from_the_defaults() {
        let mut state = online();
        let asked = SavedRunRequest { request: 1, id: "a".into() };
        let effects = act(&mut state, Action::CloneSaved { id: "a".into() });
        assert_eq!(effects, sent(Message::SavedRunRequest(asked)));
        let config = RunConfig::new("CartPole-v1").seed(7).num_envs(3);
        let history = RunHistory { request: 1, config: config.to_wire(), ..RunHistory::default() };
        let effects = reduce(&mut state, Event::Received(Message::RunHistory(history)));
        assert!(
            matches!(effects[..], [Effect::ShowForm, Effect::ShowLink(_), Effect::ExpireToast { .. }]),
            "{effects:?}"
        );
        assert_eq!((&*state.linked["seed"], &*state.linked["num_envs"]), ("7", "3"));
        assert!(!state.linked.contains_key("num_workers") && state.form_revision == 1, "{:?}", state.linked);
        let settings = state.schema.clone().expect("a schema").settings(&state.linked).expect("they are valid");
        let again = RunConfig::of_wire_settings(&settings.to_string()).expect("they are valid");
        assert_eq!((again.rollout.seed, again.rollout.num_envs, again.stop), (7, 3, config.stop));
    }

    #[test]
    fn list_is_requested_after_a_run_was_deleted() {
        let mut state = online();
        let effects = act(&mut state, Action::ListSaved);
        assert_eq!(effects, sent(Message::SavedRunsRequest(Request { request: 1 })));
        let row = |state: &str| SavedRunRow { id: "a".into(), state: state.into(), ..SavedRunRow::default() };
        let list = SavedRuns { request: 1, left_out: 0, runs: vec![row("stopped")] };
        reduce(&mut state, Event::Received(Message::SavedRuns(list.clone())));
        assert_eq!(state.saved, Some(list));
        assert!(can_resume(&row("interrupted")) && !can_resume(&row("solved")) && !can_resume(&row("running")));
        act(&mut state, Action::DeleteSaved { id: "a".into() });
        let done = Reply { request: 2, error: String::new(), run: 0 };
        let effects = reduce(&mut state, Event::Received(Message::Reply(done)));
        assert_eq!(effects, sent(Message::SavedRunsRequest(Request { request: 3 })));
        state.is_viewer = true;
        assert!(state.obstacle(&Action::DeleteSaved { id: "a".into() }).is_some());
        assert_eq!(state.obstacle(&Action::ShowFragment { slot: 0, back: 0 }), Some("There is no run yet."));
    }
}
