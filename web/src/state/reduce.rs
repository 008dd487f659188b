//! The state transitions.

use std::sync::Arc;

use rollmesh_core::{
    config::Config,
    protocol::{
        Message, Phase, RefusalCode, TokenHash,
        message::{
            self, EnvClip, EvaluationPoint, Iteration, NewToken, OtherPeers, Refused, Reply, RunList, WorkerRow,
            WorkerToken,
        },
        reconnect_delay,
    },
    time::Micros,
};

use super::{
    Action, ChartView, Clip, ClipSource, Comparison, Connection, Curves, Effect, Event, Fragment, Level, RunKey,
    RunSchema, Source, State, TabJob, TabRun, TabStatus, Toast, WORKER_RATE, chart_view::CHART, curves::MAX_NAMED,
};

/// Maximum number of toasts on the page; older ones are removed.
const MAX_TOASTS: usize = 4;
/// Maximum number of consecutive attempts to reach a hub that has never answered: the browser's console logs each.
const MAX_TRIES: u32 = 12;

/// Applies an event and returns the effects that the shell must execute, in order.
pub fn reduce(state: &mut State, event: Event) -> Vec<Effect> {
    match event {
        Event::Started { token: true } | Event::TokenFound => {
            state.is_viewer = false;
            connect(state, 0)
        }
        Event::Started { token: false } => start_trainer(state),
        Event::TokenForgotten => {
            state.connection = Connection::NoToken;
            state.is_viewer = false;
            // Without a token the page trains, also after a hub that refused the token.
            if state.source == Source::Hub {
                forget_hub(state);
                state.source = Source::None;
            }
            [Effect::Disconnect].into_iter().chain(start_trainer(state)).collect()
        }
        Event::Received(message) => receive(state, message),
        Event::Closed { random } => close(state, random),
        Event::Woke | Event::RetryDue => match state.connection {
            Connection::Waiting { attempt } => connect(state, attempt),
            _ => vec![],
        },
        Event::Unreadable(error) => {
            let reason = format!("The hub sent something that this page cannot read ({error}). Reload the page.");
            refuse(state, reason, vec![Effect::Disconnect])
        }
        Event::Linked(mut texts) => {
            state.charts = ChartView::of_texts(&texts);
            state.comparison = Comparison::of_texts(&texts);
            texts.retain(|name, _| !name.starts_with(CHART));
            state.linked = texts;
            ask_for_run(state).into_iter().collect()
        }
        Event::Charts(change) => {
            state.charts.change(change);
            vec![Effect::ShowLink(state.link())]
        }
        // Late messages are from a trainer that was stopped.
        Event::Trainer(_) | Event::Trained { .. } | Event::TrainerFailed(_) if !state.is_tab() => vec![],
        // The trainer has admitted the page that started it.
        Event::Trainer(Message::Welcome(welcome)) => {
            state.peer = welcome.peer;
            vec![]
        }
        Event::Trainer(message) => receive(state, message),
        Event::Trained { run, weights_hash } => {
            state.tab_run.weights_hash = Some((run, weights_hash));
            vec![]
        }
        Event::TrainerFailed(reason) => fail_trainer(state, reason),
        Event::Act(action) => act(state, action),
        Event::Tab { worker, status } => handle_tab(state, worker, status),
        Event::FileRead(file) => {
            state.file = Some(file);
            vec![]
        }
        Event::FileClosed => {
            state.file = None;
            vec![Effect::CloseFile]
        }
        Event::Played(played) => {
            state.played = Some(played);
            vec![]
        }
        Event::PlayerClosed => {
            state.played = None;
            vec![]
        }
        Event::ToastGone(id) => {
            state.toasts.retain(|toast| toast.id != id);
            vec![]
        }
    }
}

fn connect(state: &mut State, attempt: u32) -> Vec<Effect> {
    state.connection = Connection::Connecting { attempt };
    vec![Effect::Connect { role: state.role() }]
}

fn start_trainer(state: &mut State) -> Vec<Effect> {
    if state.source != Source::None {
        return vec![];
    }
    state.source = Source::Tab;
    vec![Effect::StartTrainer]
}

/// Removes what a hub, or the trainer of this tab, has sent about itself, its runs and its workers.
fn forget_hub(state: &mut State) {
    state.schema = None;
    state.run = None;
    state.runs = RunList::default();
    state.saved = None;
    state.fragment = None;
    state.curves.clear();
    state.comparison.forget_all();
    forget_workers(state);
    state.others = OtherPeers::default();
    state.certificate = None;
    state.clips.clear();
    state.evaluations.clear();
    state.invitation = None;
}

/// Removes the data of workers that have ended with their hub, or belong to another hub.
fn forget_workers(state: &mut State) {
    state.touched.extend(state.workers.keys());
    state.workers.clear();
    state.places.clear();
    state.monitoring.forget_all();
    state.ledger = None;
}

/// Ends the run of the trainer that failed. Another trainer takes the next run, unless this one failed to start: it
/// would fail again.
fn fail_trainer(state: &mut State, reason: String) -> Vec<Effect> {
    state.requests.drain().for_each(drop);
    forget_workers(state);
    let is_active = state.phase().is_active();
    let (next, text) = match state.schema.take() {
        Some(_) => (Effect::StartTrainer, format!("The trainer of this tab failed and is started again: {reason}")),
        None => (Effect::StopTrainer, format!("This tab cannot train: {reason}")),
    };
    match state.run.as_mut().filter(|_| is_active) {
        // The run's error shows the reason.
        Some(run) => {
            run.phase = Phase::Failed.to_wire();
            run.error = reason;
            vec![next]
        }
        None => [next].into_iter().chain(toast(state, Level::Error, text)).collect(),
    }
}

fn receive(state: &mut State, message: Message) -> Vec<Effect> {
    match message {
        Message::Welcome(welcome) => {
            let effects = if state.is_tab() { vec![Effect::StopTrainer] } else { vec![] };
            if state.is_tab() {
                state.requests.drain().for_each(drop);
                state.tab_run = TabRun::default();
            }
            state.peer = welcome.peer;
            state.connection = Connection::Online { server: welcome.server };
            state.source = Source::Hub;
            // The hub sends its whole state, and the page's may be from another hub.
            forget_hub(state);
            effects.into_iter().chain(revoke_unused(state)).collect()
        }
        Message::Refused(Refused { code, .. }) if code == RefusalCode::Busy.to_wire() => vec![],
        // Tokens do not contain their role: one that is not an operator's may be a viewer's.
        Message::Refused(Refused { code, .. }) if code == RefusalCode::Token.to_wire() && !state.is_viewer => {
            state.is_viewer = true;
            connect(state, state.connection.attempt())
        }
        Message::Refused(refused) => {
            state.is_viewer = false;
            refuse(state, refused.reason, vec![])
        }
        Message::Goodbye(goodbye) => toast(state, Level::Info, format!("The hub is leaving: {}", goodbye.reason)),
        Message::Reply(reply) => receive_reply(state, reply),
        Message::WorkerToken(WorkerToken { request, token }) | Message::NewToken(NewToken { request, token, .. }) => {
            let job = match state.requests.answer(request) {
                Some(Action::Invite(role)) => {
                    state.invitation = Some((role, token));
                    return vec![];
                }
                action => action.and_then(Action::into_job),
            };
            let Some(job) = job else { return vec![] };
            let is_evaluator = matches!(job, TabJob::Evaluate(_));
            let name = Some(TokenHash::of(&token).id()).filter(|_| is_evaluator);
            if state.tab.job() == Some(&job) && state.tab.is_joining() {
                state.tab_token = name;
                let start = |worker| Effect::StartTab { worker, job: job.clone(), token };
                return state.tab.start().into_iter().map(start).collect();
            }
            // The tab has left before the token arrived.
            name.map(|name| Effect::Send(Box::new(state.requests.revoke(name)))).into_iter().collect()
        }
        Message::RunHistory(history) => {
            let effects = match state.requests.answer(history.request) {
                Some(Action::Clone { run }) => state.clone_settings(&format!("run {run}"), &history),
                Some(Action::CloneSaved { id }) => state.clone_settings(&id, &history),
                Some(Action::Compare { run }) => {
                    state.comparison.add(run, history);
                    vec![]
                }
                Some(_) | None => vec![],
            };
            effects.into_iter().chain(ask_for_run(state)).collect()
        }
        Message::SavedRuns(runs) => {
            if state.requests.answer(runs.request).is_some() {
                state.saved = Some(runs);
            }
            vec![]
        }
        Message::FragmentReport(report) => {
            if state.requests.answer(report.request).is_none() {
                return vec![];
            }
            match Fragment::read(report) {
                Ok(fragment) => {
                    state.fragment = Some(fragment);
                    vec![]
                }
                Err(error) => toast(state, Level::Error, format!("The fragment cannot be read: {error}")),
            }
        }
        message => show(state, message),
    }
}

/// Requests the next compared run that the page lacks. Only one at a time, since curves are large: the next request
/// follows the answer.
fn ask_for_run(state: &mut State) -> Option<Effect> {
    if !state.has_hub() || state.requests.is_waiting_for_history() {
        return None;
    }
    let action = Action::Compare { run: state.run_to_ask_for()? };
    state.requests.ask(action).map(|message| Effect::Send(Box::new(message)))
}

fn list_saved(state: &mut State) -> Option<Effect> {
    if !state.is_online() || state.requests.is_waiting(&Action::ListSaved) {
        return None;
    }
    state.requests.ask(Action::ListSaved).map(|message| Effect::Send(Box::new(message)))
}

/// Applies a message that only contains something to show.
fn show(state: &mut State, message: Message) -> Vec<Effect> {
    match message {
        Message::RunStatus(status) => {
            let before = state.run.as_ref().map(|run| run.run);
            let is_new = before != Some(status.run);
            if let Some(run) = before.filter(|_| is_new) {
                state.clips.clear();
                state.fragment = None;
                // The run's curves have grown since the hub sent them.
                state.comparison.forget(&RunKey::Hub(run));
            }
            state.curves.begin(status.run);
            state.evaluations.begin(status.run);
            state.run = Some(status);
            if is_new {
                return ask_for_run(state).into_iter().collect();
            }
        }
        Message::RunSchema(message::RunSchema { schema }) => match RunSchema::parse(&schema) {
            Ok(schema) => state.schema = Some(Arc::new(schema)),
            Err(error) => return toast(state, Level::Error, format!("The settings of runs cannot be read: {error}")),
        },
        Message::RunList(runs) => {
            state.runs = runs;
            return ask_for_run(state).into_iter().collect();
        }
        Message::OtherPeers(others) => state.others = others,
        Message::HubCertificate(certificate) => state.certificate = Some(certificate),
        Message::LedgerReport(ledger) => state.ledger = Some(ledger),
        Message::Iteration(iteration) => {
            state.curves.push(iteration);
            let (run, number) = (iteration.run, iteration.iteration);
            // The workers' present rates do not apply to past iterations, which the hub sends to a new page.
            let is_latest = state.run.as_ref().is_some_and(|status| (status.run, status.iteration) == (run, number));
            if is_latest && !state.workers.is_empty() {
                let rate = |(id, row): (&u32, &WorkerRow)| (format!("{WORKER_RATE}/{id}"), row.steps_per_s);
                state.curves.add_values(run, number, state.workers.iter().take(MAX_NAMED).map(rate));
            }
        }
        Message::NamedMetrics(metrics) => state.curves.add_named(&metrics),
        Message::WorkerRow(row) => {
            state.touched.insert(row.worker);
            state.monitoring.add_rate(row.worker, row.steps_per_s);
            state.workers.insert(row.worker, row);
        }
        Message::WorkerLocation(place) => {
            state.touched.insert(place.worker);
            state.places.insert(place.worker, place);
        }
        Message::WorkerGone(gone) => {
            state.touched.insert(gone.worker);
            state.workers.remove(&gone.worker);
            state.monitoring.forget_worker(gone.worker);
            state.places.remove(&gone.worker);
        }
        Message::HostReport(report) => {
            state.touched.insert(report.worker);
            state.monitoring.add_host(report);
        }
        Message::WorkerLog(log) => {
            state.touched.insert(log.worker);
            state.touched.extend(state.monitoring.add_log(log));
        }
        Message::Evaluation(point) => {
            let point = evaluated(point, &state.curves);
            state.evaluations.push(point);
        }
        Message::SlotClip(clip) => state.add_clip(ClipSource::Slot, clip),
        Message::EvaluationClip(clip) => state.add_clip(ClipSource::LatestEvaluation, clip),
        Message::BestEvaluationClip(clip) => state.add_clip(ClipSource::BestEvaluation, clip),
        Message::Notice(notice) => {
            let level = match notice.level {
                0 => Level::Info,
                1 => Level::Warning,
                _ => Level::Error,
            };
            return toast(state, level, notice.text);
        }
        // The other messages are for workers, or the socket has handled them.
        _ => {}
    }
    vec![]
}

/// Returns an evaluation as a point of curves, at the wall time of its iteration.
pub(super) fn evaluated(point: EvaluationPoint, curves: &Curves) -> Iteration {
    let EvaluationPoint { run, iteration, env_steps, episode_return_mean, episode_len_mean, .. } = point;
    let wall_ms = curves.wall_ms_at(iteration);
    Iteration { run, iteration, env_steps, wall_ms, episode_return_mean, episode_len_mean, ..Iteration::default() }
}

impl State {
    fn add_clip(&mut self, source: ClipSource, clip: EnvClip) {
        self.clips.insert(source, Arc::new(Clip::read(clip)));
    }
}

fn refuse(state: &mut State, reason: String, mut effects: Vec<Effect>) -> Vec<Effect> {
    state.connection = Connection::Refused { reason };
    effects.extend(give_up_requests(state));
    effects.extend(start_trainer(state));
    effects
}

fn close(state: &mut State, random: u32) -> Vec<Effect> {
    if matches!(state.connection, Connection::NoToken | Connection::Refused { .. }) {
        return vec![];
    }
    let attempt = state.connection.attempt().saturating_add(1);
    state.connection = Connection::Waiting { attempt };
    let mut effects = vec![];
    if attempt < MAX_TRIES || state.source == Source::Hub {
        effects.push(Effect::RetryIn { delay: reconnect_delay(attempt, random) });
    }
    effects.extend(give_up_requests(state));
    effects.extend(start_trainer(state));
    effects
}

fn give_up_requests(state: &mut State) -> Vec<Effect> {
    // The trainer still answers its requests.
    if state.is_tab() {
        return vec![];
    }
    let given_up: Vec<Action> = state.requests.drain().collect();
    state.tab.give_up_joining();
    let say = |action: Action| {
        toast(
            state,
            Level::Warning,
            format!("Not confirmed: the hub went away. {}, as far as is known.", action.failed()),
        )
    };
    // Compared runs are requested again once a hub is connected.
    let is_command =
        |action: &Action| !matches!(action, Action::Compare { .. } | Action::ListSaved | Action::ShowFragment { .. });
    given_up.into_iter().filter(is_command).flat_map(say).collect()
}

fn act(state: &mut State, action: Action) -> Vec<Effect> {
    if state.requests.is_waiting(&action) {
        return vec![];
    }
    if let Some(obstacle) = state.obstacle(&action) {
        return toast(state, Level::Warning, format!("{}: {obstacle}", action.failed()));
    }
    match action {
        Action::Leave { worker } => {
            let stop = |worker| Effect::StopTab { worker };
            return state.tab.leave(worker).into_iter().map(stop).chain(revoke_unused(state)).collect();
        }
        Action::Save { file } => return vec![Effect::Save { file }],
        Action::Compare { run } => {
            state.comparison.toggle(run);
            let link = Effect::ShowLink(state.link());
            return ask_for_run(state).into_iter().chain([link]).collect();
        }
        Action::Join { workers } => state.tab.join(TabJob::Sample, workers),
        Action::Start(_) => state.start_error = None,
        Action::Evaluate(ref evaluator) => state.tab.join(TabJob::Evaluate(evaluator.clone()), 1),
        _ => {}
    }
    state.requests.ask(action).map(|message| Effect::Send(Box::new(message))).into_iter().collect()
}

/// Writes the settings of a run that has begun in this tab into the page's address and the form of the next run.
fn begin_tab_run(state: &mut State, settings: &Config) -> Option<Effect> {
    let schema = state.schema.as_ref().filter(|_| state.is_tab())?;
    state.tab_run = TabRun { settings: schema.values(settings), weights_hash: None };
    state.linked = state.tab_run.link();
    Some(Effect::ShowLink(state.link()))
}

fn receive_reply(state: &mut State, reply: Reply) -> Vec<Effect> {
    let Some(action) = state.requests.answer(reply.request) else { return vec![] };
    if reply.error.is_empty() {
        let next = match &action {
            Action::Start(settings) => begin_tab_run(state, settings),
            // The list has changed.
            Action::ResumeSaved { .. } | Action::DeleteSaved { .. } => list_saved(state),
            _ => None,
        };
        let toast_effects = action.done().map(|text| toast(state, Level::Info, text.into())).unwrap_or_default();
        return next.into_iter().chain(toast_effects).collect();
    }
    if matches!(action, Action::Start(_)) {
        state.start_error = Some(reply.error);
        return vec![];
    }
    let failed = action.failed();
    let mut effects = vec![];
    if let Action::Compare { run } = &action {
        state.comparison.give_up(run.clone());
        effects.extend(ask_for_run(state));
    }
    if action.into_job().is_some() {
        state.tab.give_up_joining();
    }
    effects.extend(toast(state, Level::Error, format!("{failed}: {}", reply.error)));
    effects
}

fn handle_tab(state: &mut State, worker: u32, status: TabStatus) -> Vec<Effect> {
    let (has_ended, reason) = (status.has_ended(), status.reason.clone());
    if !state.tab.record(worker, status) || !has_ended {
        return vec![];
    }
    let what = match state.tab.job() {
        Some(TabJob::Evaluate(_)) => "evaluates",
        Some(TabJob::Sample) | None => "works for the run",
    };
    state.tab.leave(Some(worker));
    let left = if state.tab.is_out() { "This tab no longer" } else { "A worker of this tab no longer" };
    let mut effects = vec![Effect::StopTab { worker }];
    effects.extend(revoke_unused(state));
    effects.extend(toast(state, Level::Warning, format!("{left} {what}: {reason}")));
    effects
}

/// Revokes the token of a tab that has left; delayed until a hub is connected.
fn revoke_unused(state: &mut State) -> Option<Effect> {
    if !state.tab.is_out() || !state.is_online() || state.is_viewer {
        return None;
    }
    let token = state.tab_token.take()?;
    Some(Effect::Send(Box::new(state.requests.revoke(token))))
}

/// Shows a toast, unless the last one has the same text.
pub(super) fn toast(state: &mut State, level: Level, text: String) -> Vec<Effect> {
    if state.toasts.last().is_some_and(|last| last.text == text) {
        return vec![];
    }
    let id = state.next_toast;
    state.next_toast = id.wrapping_add(1);
    if state.toasts.len() == MAX_TOASTS {
        state.toasts.remove(0);
    }
    state.toasts.push(Toast { id, level, text });
    let delay = Micros::from_secs(match level {
        Level::Info => 6,
        Level::Warning => 10,
        Level::Error => 15,
    });
    vec![Effect::ExpireToast { id, delay }]
}
