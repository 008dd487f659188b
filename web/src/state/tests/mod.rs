//! Scripted sequences through the reducer.

mod comparison;
mod connection;
mod run;
mod tab;

use rollmesh_core::{
    config::Config,
    protocol::{
        Message, Phase, RefusalCode, Role, Token, TokenAction, TokenHash, WorkerState,
        message::{
            EnvClip, EvaluationPoint, HostReport, HubCertificate, Iteration, LedgerReport, LogLine, ManageTokens,
            NewToken, Notice, Refused, Reply, Request, RunHistory, RunHistoryRequest, RunList, RunRow, RunSchema,
            RunStatus, SavedRunRequest, StartRun, Welcome, WorkerGone, WorkerLocation, WorkerLog, WorkerRow,
            WorkerToken,
        },
    },
    run::schema::{json_schema, object_schema},
    time::Micros,
};

use super::{
    Action, ClipSource, Connection, Differences, Effect, Event, FileStatus, Level, OpenedFile, RunKey, Source, State,
    TabJob, TabStatus, Texts, ViewChange, XAxis, evaluator, reduce,
};

fn welcome() -> Event {
    Event::Received(Message::Welcome(Welcome {
        protocol: 1,
        peer: 9,
        resume_id: [0; 16],
        credit: 0,
        server: "rollmesh 0.1.0".into(),
    }))
}

fn status(run: u32, phase: Phase) -> Event {
    Event::Received(Message::RunStatus(RunStatus { run, phase: phase as u8, ..RunStatus::default() }))
}

fn iteration(run: u32, iteration: u64) -> Event {
    let env_steps = iteration * 2_048;
    Event::Received(Message::Iteration(Iteration { run, iteration, env_steps, ..Iteration::default() }))
}

fn worker(worker: u32) -> Event {
    Event::Received(Message::WorkerRow(WorkerRow { worker, ..WorkerRow::default() }))
}

fn worker_in(worker: u32, state: WorkerState, reason: &str) -> Event {
    let (state, reason) = (state.to_wire(), reason.into());
    Event::Received(Message::WorkerRow(WorkerRow { worker, state, reason, ..WorkerRow::default() }))
}

fn clip(run: u32) -> EnvClip {
    EnvClip { run, steps: vec![0; 8], ..EnvClip::default() }
}

fn reply(request: u32, error: &str) -> Event {
    Event::Received(Message::Reply(Reply { request, error: error.into(), run: 0 }))
}

fn send(message: Message) -> Effect {
    Effect::Send(Box::new(message))
}

fn connect(role: Role) -> Effect {
    Effect::Connect { role }
}

fn retry_in(ms: u64) -> Effect {
    Effect::RetryIn { delay: Micros::from_millis(ms) }
}

fn after(events: impl IntoIterator<Item = Event>) -> State {
    let mut state = State::default();
    for event in events {
        reduce(&mut state, event);
    }
    state
}

fn online() -> State {
    after([Event::Started { token: true }, welcome(), status(1, Phase::Running)])
}

fn trainer(message: Message) -> Event {
    Event::Trainer(message)
}

fn schema() -> Message {
    let schema = json_schema(&[("CartPole-v1".into(), Some(475.0))].into(), &[("ppo".into(), object_schema([]))]);
    Message::RunSchema(RunSchema { schema: schema.to_string() })
}
