//! Valid messages, and mutations of them into hostile frames.

use rollmesh_core::protocol::{
    Kind, Message, Role, Token, allow,
    message::{
        AbandonEpisode, Ask, AskCancel, CallProgress, Chunk, Credit, EndEpisode, FragmentUpload, GetAction, Goodbye,
        LeaseRefused, LogAction, LogReturns, ManageTokens, Progress, Request, RunAnswer, StartEpisode, Watch,
        WeightsApplied,
    },
};

use crate::support::client::hello;

/// Random numbers, always the same ones.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % sides
    }
}

/// Returns the messages that a peer of this role may send, without those that end the run or revoke a token.
pub(crate) fn proper(role: Role) -> Vec<Vec<u8>> {
    let upload =
        FragmentUpload { run: 1, lease: 3, slots: vec![0, 1], data: vec![7; 600], ..FragmentUpload::default() };
    let messages = [
        Message::Hello(hello(role, Token::new([5; 32]))),
        Message::Goodbye(Goodbye { reason: "bye".into() }),
        Message::Chunk(Chunk { stream: 0, total: 600_000, offset: 0, data: vec![1; 500] }),
        Message::Credit(Credit { bytes: 1 << 18 }),
        Message::LeaseRefused(LeaseRefused { lease: 9, reason: "no".into(), failed: None }),
        Message::Progress(Progress { lease: 9, env_steps: 100 }),
        Message::FragmentUpload(upload),
        Message::WeightsApplied(WeightsApplied { run: 1, version: 3 }),
        Message::RunAnswer(RunAnswer { run: 1, code: 5, reason: "no".into() }),
        Message::CallProgress(CallProgress { call: 3 }),
        Message::Watch(Watch { request: 1, slot: 3 }),
        Message::WorkerTokenRequest(Request { request: 5 }),
        Message::ManageTokens(ManageTokens { request: 5, ..ManageTokens::default() }),
        Message::StartEpisode(StartEpisode { episode: 1, training: true }),
        Message::GetAction(GetAction { episode: 1, observations: vec![0; 40] }),
        Message::LogAction(LogAction { episode: 1, observations: vec![0; 40], actions: vec![1; 9] }),
        Message::LogReturns(LogReturns { episode: 1, returns: vec![0; 20], infos: vec![] }),
        Message::EndEpisode(EndEpisode { episode: 1, truncated: true, observations: vec![0; 40] }),
        Message::AbandonEpisode(AbandonEpisode { episode: 1 }),
        Message::Ask(Ask { ask: 3, name: "eval-1".into(), body: vec![35; 500] }),
        Message::AskCancel(AskCancel { ask: 3 }),
    ];
    messages.iter().map(Message::encode).collect()
}

/// Returns a frame with one to four changes, of which none makes it a command that ends the run.
pub(crate) fn mutated(frames: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut frame = frames[dice.roll(frames.len())].clone();
    for _ in 0..=dice.roll(4) {
        let len = frame.len();
        if len < 2 {
            break;
        }
        let at = dice.roll(len);
        match dice.roll(6) {
            0 | 1 => frame[at] ^= 1 << dice.roll(8),
            2 => frame[at] = [0x00, 0x01, 0x7f, 0x80, 0xff][dice.roll(5)],
            3 => drop(frame.splice(at..at, (0..dice.roll(12)).map(|i| (i as u8).wrapping_mul(37)))),
            4 => drop(frame.drain(at..len.min(at + 1 + dice.roll(12)))),
            _ => frame.truncate(at),
        }
    }
    let ends_the_run = |kind: &Kind| {
        let harmless = [Kind::Watch, Kind::WorkerTokenRequest, Kind::ManageTokens, Kind::Goodbye];
        allow(Role::Operator, *kind) && !harmless.contains(kind)
    };
    if let Some(kind) = frame.get(4).and_then(|kind| Kind::try_from(*kind).ok()).filter(ends_the_run) {
        frame[4] = if kind == Kind::Stop { 0xee } else { 0xef };
    }
    frame
}
