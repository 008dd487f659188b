//! A run in this tab, as a hub of the protocol: it handles an operator's requests, and replies and reports.

use std::collections::VecDeque;

use rollmesh_core::{
    hub::{RunEnd, RunLoop},
    kernels::Kernels,
    protocol::{
        Message, Phase,
        message::{self, NamedMetrics, Notice, Reply, Request, StartRun, Watch},
    },
    run::RunConfig,
    time::Micros,
    worker::Registry,
};
use rollmesh_learner::{ALGORITHMS, InlineRun, InlineWork, run_schema};
use rollmesh_web_registry::registry;
use serde_json::{Value, json};

/// Steps of all slots between two looks at the clock.
const VECTOR_STEPS: u32 = 16;
/// The page is sent the state of a run this often.
const REPORT_EVERY: Micros = Micros::from_millis(100);
/// The watched slot is drawn this often.
const DRAW_EVERY: Micros = Micros::from_secs(1);
/// Parts of the settings that are of no use in a tab, which has one worker, no files and no processes.
const OTHER_SECTIONS: [&str; 3] = ["Evaluation and checkpoints", "Environment processes", "Logged data"];
/// The same of single settings.
const OTHER_SETTINGS: [&str; 4] = ["num_workers", "num_envs", "mode", "hung_worker_timeout_s"];

/// The two files of a policy, as a run's directory has them.
const POLICY_FILE: &str = "policy.json";
const WEIGHTS_FILE: &str = "weights.safetensors";

/// Something for the page.
#[derive(Debug, PartialEq)]
pub(crate) enum Report {
    /// What a hub would send.
    Message(Box<Message>),
    /// What a run has learned that has ended and not failed.
    Hash {
        /// The run's number.
        run: u32,
        /// Of the weights, as `rollmesh train` prints it.
        weights_hash: String,
    },
    /// A file of the run's policy as it is now, as `rollmesh train` writes it.
    File {
        /// Its name in a run's directory.
        name: &'static str,
        /// What is in it.
        bytes: Vec<u8>,
    },
}

/// One run at a time, which [`work`](Self::work) drives.
pub(crate) struct TabHub {
    registry: Registry,
    run: Option<InlineRun>,
    /// The number of the latest run.
    number: u32,
    /// The run waits for a request, or has ended.
    is_idle: bool,
    reported: Micros,
    drawn: Micros,
    outbox: VecDeque<Report>,
}

impl TabHub {
    /// Makes a hub without a run. It reports the settings that a run may have. Its runs have numbers above this one: those of
    /// another trainer of the same page must differ.
    pub(crate) fn new(number: u32) -> Self {
        let registry = registry();
        let schema = message::RunSchema { schema: tab_schema(&registry).to_string() };
        let mut hub = Self {
            registry,
            run: None,
            number,
            is_idle: true,
            reported: Micros(0),
            drawn: Micros(0),
            outbox: VecDeque::new(),
        };
        hub.send(Message::RunSchema(schema));
        hub
    }

    /// Handles a request, and replies to it.
    pub(crate) fn handle(&mut self, message: Message, now: Micros) {
        let (request, done) = match message {
            Message::StartRun(StartRun { request, settings }) => (request, self.start(&settings, now)),
            Message::Pause(Request { request }) => (request, self.change(|run| run.pause(now))),
            Message::Resume(Request { request }) => (request, self.change(|run| run.resume(now))),
            Message::Stop(Request { request }) => (request, self.change(|run| stop(run, now))),
            Message::Drain(Request { request }) => (request, self.change(drain)),
            Message::Watch(Watch { request, slot }) => (request, self.change(|run| watch(run, slot))),
            // The page asks for nothing else.
            _ => return,
        };
        // It finds out by itself that there is nothing to do.
        self.is_idle = self.run.is_none();
        self.report(now);
        let run = if done.is_ok() { self.number } else { 0 };
        self.send(Message::Reply(Reply { request, error: done.err().unwrap_or_default(), run }));
    }

    fn start(&mut self, settings: &str, now: Micros) -> Result<(), String> {
        if self.run.as_ref().is_some_and(|run| !run.state().is_over()) {
            return Err("a run is going on; stop it first".into());
        }
        let config = RunConfig::of_wire_settings(settings).map_err(|error| error.to_string())?;
        // One that is refused leaves the policy of the last run.
        let run = InlineRun::new(self.number + 1, config, &self.registry, Kernels::PORTABLE, now);
        self.run = Some(run.map_err(|error| error.to_string())?);
        self.number += 1;
        Ok(())
    }

    fn change(&mut self, change: impl FnOnce(&mut RunLoop) -> Result<(), &'static str>) -> Result<(), String> {
        let run = self.run.as_mut().filter(|run| !run.state().is_over()).ok_or("no run is going on")?;
        Ok(change(run.state_mut())?)
    }

    /// True while there is something to do without a request.
    pub(crate) fn has_work(&self) -> bool {
        !self.is_idle
    }

    /// Does a piece of the run.
    pub(crate) fn work(&mut self, now: Micros) {
        let Some(run) = &mut self.run else { return };
        match run.work(VECTOR_STEPS, now) {
            Ok(InlineWork::Sampled) => {}
            Ok(InlineWork::Learned(point)) => {
                let quantiles = [("episode_return_p10", 0.1), ("episode_return_p90", 0.9)];
                let episodes = run.state().episodes();
                let named = quantiles
                    .into_iter()
                    .filter_map(|(name, part)| Some((name.into(), episodes.return_quantile(part)?)));
                let named = NamedMetrics::new(point.run, point.iteration, named);
                self.send(Message::Iteration(*point));
                self.send(Message::NamedMetrics(named));
            }
            // The status says what has failed.
            Ok(InlineWork::Paused | InlineWork::Over) | Err(_) => self.is_idle = true,
        }
        if self.is_idle || now.since(self.reported) >= REPORT_EVERY {
            self.report(now);
        }
    }

    /// Reports a file of the policy as it is now, if there is a run.
    pub(crate) fn give_file(&mut self, name: &str) {
        let file = match (&self.run, name) {
            (None, _) => Err("it was lost with the trainer of its run".into()),
            (Some(run), WEIGHTS_FILE) => run.state().weights().to_safetensors().map_err(|error| error.to_string()),
            (Some(run), _) => serde_json::to_vec_pretty(&run.policy_file()).map_err(|error| error.to_string()),
        };
        match file {
            Ok(bytes) => {
                let name = if name == WEIGHTS_FILE { WEIGHTS_FILE } else { POLICY_FILE };
                self.outbox.push_back(Report::File { name, bytes });
            }
            Err(error) => {
                let text = format!("the policy cannot be saved: {error}");
                self.send(Message::Notice(Notice { level: 2, text }));
            }
        }
    }

    /// Returns what the page has to be sent next.
    pub(crate) fn poll(&mut self) -> Option<Report> {
        self.outbox.pop_front()
    }

    fn report(&mut self, now: Micros) {
        let Some(run) = &mut self.run else { return };
        self.reported = now;
        let is_due = self.is_idle || now.since(self.drawn) >= DRAW_EVERY;
        // A worker that cannot be made could not have made the run.
        let clip = if is_due { run.draw().ok().flatten() } else { None };
        self.drawn = if clip.is_some() { now } else { self.drawn };
        let state = run.state();
        let mut messages = vec![Message::RunStatus(state.status(now)), Message::LedgerReport(state.ledger_report())];
        messages.extend(clip.map(Message::SlotClip));
        let has_result = self.is_idle && state.iteration() > 0 && state.is_over() && state.phase() != Phase::Failed;
        let hash =
            has_result.then(|| Report::Hash { run: state.number(), weights_hash: state.weights_hash().to_string() });
        messages.into_iter().for_each(|message| self.send(message));
        self.outbox.extend(hash);
    }

    fn send(&mut self, message: Message) {
        self.outbox.push_back(Report::Message(Box::new(message)));
    }
}

fn stop(run: &mut RunLoop, now: Micros) -> Result<(), &'static str> {
    run.end(&RunEnd::Stopped, now);
    Ok(())
}

fn drain(run: &mut RunLoop) -> Result<(), &'static str> {
    run.drain();
    Ok(())
}

fn watch(run: &mut RunLoop, slot: u32) -> Result<(), &'static str> {
    if slot >= run.config().num_slots() {
        return Err("the run has no such slot");
    }
    run.watched_slot = slot;
    Ok(())
}

/// Returns the schema of the settings that a run in a tab may have. Its algorithms learn from what they sample.
fn tab_schema(registry: &Registry) -> Value {
    let mut schema = run_schema(registry);
    if let Some(settings) = schema["properties"].as_object_mut() {
        let is_other = |schema: &Value| schema["x-section"].as_str().is_some_and(|it| OTHER_SECTIONS.contains(&it));
        settings.retain(|name, schema| !OTHER_SETTINGS.contains(&&**name) && !is_other(schema));
        if let Some(names) = settings["algorithm"]["anyOf"][1]["enum"].as_array_mut() {
            let is_offline = |name: &Value| ALGORITHMS.iter().any(|spec| spec.is_offline && *name == *spec.name);
            names.retain(|name| !is_offline(name));
        }
        settings["num_slots"]["default"] = json!(RunConfig::default().num_slots());
        settings["num_slots"]["description"] = json!("Environments of the run, which are stepped together.");
    }
    schema
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{config::Config, protocol::message::RunStatus};

    use super::*;

    const SMALL: &str = r#"{"env": "CartPole-v1", "num_slots": 4, "seed": 5, "rollout_fragment_length": 20,
        "model_config": {"fcnet_hiddens": [8]}, "stop": {"env_steps": 400}}"#;

    fn start(settings: &str) -> (TabHub, Vec<Report>) {
        let mut hub = TabHub::new(0);
        let first = reports(&mut hub);
        assert!(matches!(first.first().and_then(message), Some(Message::RunSchema(_))));
        hub.handle(Message::StartRun(StartRun { request: 1, settings: settings.into() }), Micros(0));
        let started = reports(&mut hub);
        (hub, started)
    }

    fn reports(hub: &mut TabHub) -> Vec<Report> {
        std::iter::from_fn(|| hub.poll()).collect()
    }

    /// Works until the hub waits or the run is over, a millisecond at a time.
    fn finish(hub: &mut TabHub) -> Vec<Report> {
        let mut now = Micros(0);
        while hub.has_work() {
            now = Micros(now.0 + 1_000);
            hub.work(now);
        }
        reports(hub)
    }

    fn message(report: &Report) -> Option<&Message> {
        match report {
            Report::Message(message) => Some(message),
            Report::Hash { .. } | Report::File { .. } => None,
        }
    }

    fn last_status(reports: &[Report]) -> RunStatus {
        let status = |report: &Report| match message(report) {
            Some(Message::RunStatus(status)) => Some(status.clone()),
            _ => None,
        };
        reports.iter().rev().find_map(status).expect("a status")
    }

    fn reply(reports: &[Report]) -> String {
        let error = |report: &Report| match message(report) {
            Some(Message::Reply(reply)) => Some(reply.error.clone()),
            _ => None,
        };
        reports.iter().rev().find_map(error).expect("a reply")
    }

    #[test]
    fn a_run_is_reported_until_it_ends_with_its_hash() {
        let (mut hub, started) = start(SMALL);
        assert_eq!(reply(&started), "");
        let reports = finish(&mut hub);
        let status = last_status(&reports);
        assert_eq!((status.phase, status.env_steps, status.iteration), (Phase::Finished.to_wire(), 400, 5));
        let count = |is: fn(&Message) -> bool| reports.iter().filter_map(message).filter(|it| is(it)).count();
        assert_eq!(count(|message| matches!(message, Message::Iteration(_))), 5);
        let has_pictures = |message: &Message| matches!(message, Message::SlotClip(clip) if !clip.film.is_empty());
        assert!(count(has_pictures) > 0);
        let weights_hash = hub.run.as_ref().expect("a run").state().weights_hash().to_string();
        assert_eq!(reports.last(), Some(&Report::Hash { run: 1, weights_hash }));
        for file in [WEIGHTS_FILE, POLICY_FILE] {
            hub.give_file(file);
            let given = super::tests::reports(&mut hub);
            assert!(matches!(&given[..], [Report::File { name, bytes }] if *name == file && bytes.len() > 100));
        }
    }

    #[test]
    fn a_run_pauses_resumes_and_stops_and_only_then_begins_another() {
        let (mut hub, _) = start(SMALL);
        hub.work(Micros(1));
        hub.handle(Message::Pause(Request { request: 2 }), Micros(2));
        assert_eq!(last_status(&finish(&mut hub)).phase, Phase::Paused.to_wire());
        hub.handle(Message::StartRun(StartRun { request: 3, settings: "{}".into() }), Micros(3));
        assert_eq!(reply(&finish(&mut hub)), "a run is going on; stop it first");
        hub.handle(Message::Resume(Request { request: 4 }), Micros(4));
        hub.handle(Message::Watch(Watch { request: 5, slot: 3 }), Micros(5));
        hub.work(Micros(6));
        assert_eq!(last_status(&reports(&mut hub)).watched_slot, 3);
        hub.handle(Message::Stop(Request { request: 6 }), Micros(7));
        assert_eq!(last_status(&finish(&mut hub)).phase, Phase::Stopped.to_wire());
        // A start that is refused leaves the policy of the last run.
        let settings = r#"{"env": "CartPole-v1", "policy_config": {"lr": -1}}"#.into();
        hub.handle(Message::StartRun(StartRun { request: 8, settings }), Micros(8));
        assert!(reply(&reports(&mut hub)).contains("lr"));
        hub.give_file(WEIGHTS_FILE);
        assert!(matches!(reports(&mut hub)[..], [Report::File { name: WEIGHTS_FILE, .. }]));
        hub.handle(Message::StartRun(StartRun { request: 7, settings: SMALL.into() }), Micros(8));
        assert_eq!(last_status(&finish(&mut hub)).run, 2);
        hub.handle(Message::Pause(Request { request: 8 }), Micros(9));
        assert_eq!(reply(&finish(&mut hub)), "no run is going on");
    }

    #[test]
    fn settings_that_cannot_be_run_are_answered() {
        for (settings, wanted) in [
            ("{", "settings"),
            (r#"{"env": "None-v0"}"#, "None-v0"),
            (r#"{"num_slots": 0}"#, "num_slots"),
            (r#"{"algorithm": "bc"}"#, "logged experience"),
        ] {
            let (hub, started) = start(settings);
            let error = reply(&started);
            assert!(error.contains(wanted) && !hub.has_work(), "{settings}: {error}");
        }
    }

    #[test]
    fn every_environment_of_the_schema_learns() {
        let schema = tab_schema(&registry());
        assert_eq!(schema["properties"]["num_slots"]["default"], 16);
        assert_eq!(schema["properties"]["algorithm"]["anyOf"][1]["enum"], json!(["pg", "a2c", "ppo"]));
        assert!(schema["properties"].get("evaluation").is_none() && schema["properties"].get("mode").is_none());
        let envs = schema["properties"]["env"]["anyOf"][1]["enum"].as_array().expect("names").clone();
        for env in envs {
            let small: Config =
                r#"{"num_slots": 2, "rollout_fragment_length": 8, "preset": "none", "stop": {"env_steps": 16},
                "model_config": {"fcnet_hiddens": [4]}}"#
                    .parse()
                    .expect("settings");
            let (mut hub, started) = start(&small.with_at("env", env.clone()).to_string());
            assert_eq!(reply(&started), "", "{env}");
            let status = last_status(&finish(&mut hub));
            assert_eq!((status.error.as_str(), status.iteration > 0), ("", true), "{env}");
        }
    }
}
