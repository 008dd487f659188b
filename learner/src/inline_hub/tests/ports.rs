//! The messages that ports accept from their peers.

use rollmesh_core::protocol::{
    HEADER_BYTES, Inability, InabilityKind, Kind, MAGIC, allow,
    message::{Chunk, RunAnswer},
};

use super::*;

/// Returns the roles in a page, which has no relays.
fn roles() -> impl Iterator<Item = Role> + Clone {
    Role::ALL.iter().copied().filter(|role| *role != Role::Relay)
}

/// Returns every role with every kind of message.
fn cases() -> impl Iterator<Item = (Role, Kind)> {
    roles().flat_map(|role| Kind::ALL.iter().map(move |kind| (role, *kind)))
}

/// Returns a frame of this kind with a body of that many zeros.
fn zeros(kind: Kind, body: usize) -> Vec<u8> {
    let mut frame = vec![MAGIC[0], MAGIC[1], 1, 0, kind.to_wire(), 0, 0, 0];
    assert_eq!(frame.len(), HEADER_BYTES);
    frame.resize(HEADER_BYTES + body, 0);
    frame
}

/// Returns the message of this kind whose fields are zero or empty.
fn blank(kind: Kind) -> Vec<u8> {
    let mut frames = (0..256).map(|body| zeros(kind, body));
    frames.find(|frame| Message::decode(frame).is_ok()).unwrap_or_else(|| panic!("{kind:?} has no blank message"))
}

impl Page {
    /// Opens a port of this role, for a peer that it admits.
    fn admitted(&mut self, role: Role) -> PortId {
        let (port, token) = self.hub.open_port(role);
        let admission = self.say(port, &identity(role, token).hello().encode());
        assert_eq!(admission, None, "{role:?}");
        port
    }

    /// Sends a frame to a port. Returns the reason why the port is closed, if it is.
    fn say(&mut self, port: PortId, frame: &[u8]) -> Option<String> {
        self.hub.handle_frame(port, frame, self.now);
        self.exchange();
        let reason = |bytes: &FrameBytes| match Message::decode(bytes) {
            Ok(Message::Goodbye(goodbye)) => goodbye.reason,
            Ok(Message::Refused(refused)) => refused.reason,
            _ => String::new(),
        };
        let is_closed = self.closed.contains(&port);
        is_closed.then(|| self.last.get(&port).map(reason).unwrap_or_default())
    }
}

#[test]
fn port_admits_its_own_role_and_token_and_nothing_before_them() {
    let mut page = Page::new(0);
    let (_, operators) = page.hub.open_port(Role::Operator);
    for hello in [
        |_: Token, operators: Token| identity(Role::Operator, operators).hello().encode(),
        |token: Token, _: Token| identity(Role::Operator, token).hello().encode(),
        |_: Token, _: Token| blank(Kind::Goodbye),
    ] {
        let (port, token) = page.hub.open_port(Role::Worker);
        assert!(page.say(port, &hello(token, operators)).is_some());
        assert!(matches!(Message::decode(&page.last[&port]), Ok(Message::Refused(_))));
    }
}

#[test]
fn port_takes_the_kinds_that_the_table_allows_its_role_and_is_closed_by_any_other() {
    let mut page = Page::new(0);
    for (role, kind) in cases() {
        let port = page.admitted(role);
        if !allow(role, kind) {
            let reason = page.say(port, &zeros(kind, 0)).unwrap_or_default();
            assert!(reason.contains("may not send"), "{role:?}, {kind:?}: {reason}");
            continue;
        }
        let reason = page.say(port, &blank(kind));
        // A peer that says goodbye is not answered, and a chunk is never empty.
        let ends = matches!(kind, Kind::Goodbye | Kind::Chunk);
        assert_eq!(reason.is_some(), ends, "{role:?}, {kind:?}: {reason:?}");
        page.hub.handle_closed(port, "it has said enough", page.now);
        page.exchange();
    }
}

#[test]
fn body_above_the_cap_of_its_kind_closes_the_port() {
    let mut page = Page::new(0);
    // Nothing was called, so no result is taken at all.
    let sent = cases().filter(|(role, kind)| allow(*role, *kind) && *kind != Kind::CallResult);
    for (role, kind) in sent {
        for excess in [0, 1] {
            let body = kind.body_cap() as usize + excess;
            let frame = if kind.may_be_split() {
                let total = (HEADER_BYTES + body) as u32;
                Message::Chunk(Chunk { stream: 0, total, offset: 0, data: zeros(kind, 8) }).encode()
            } else {
                zeros(kind, body)
            };
            let port = page.admitted(role);
            let reason = page.say(port, &frame).unwrap_or_default();
            let is_too_large = ["allowed", "must come in chunks"].iter().any(|words| reason.contains(words));
            assert_eq!(is_too_large, excess == 1, "{role:?}, {kind:?} with a body of {body}: {reason}");
            page.hub.handle_closed(port, "it has said enough", page.now);
            page.exchange();
        }
    }
}

#[test]
fn invited_worker_that_does_not_answer_the_run_is_ended() {
    let mut page = Page::new(0);
    assert_eq!(page.start(SMALL), "");
    let port = page.admitted(Role::Worker);
    // After a minute it counts as hung, and after another one it is ended.
    for (seconds, is_ended) in [(60, false), (59, false), (1, true)] {
        page.now = page.now + Micros::from_secs(seconds);
        page.work();
        assert_eq!(page.closed.contains(&port), is_ended, "after {}", page.now);
    }
}

#[test]
fn run_whose_only_worker_is_unable_fails_after_five_seconds_with_the_reason() {
    let mut page = Page::new(0);
    assert_eq!(page.start(SMALL), "");
    let port = page.admitted(Role::Worker);
    let unable = Inability::new(InabilityKind::UnknownEnv, "there is no such environment");
    assert_eq!(page.say(port, &Message::RunAnswer(RunAnswer::new(1, Err(&unable))).encode()), None);
    for (seconds, phase) in [(0, Phase::Running), (4, Phase::Running), (1, Phase::Failed)] {
        page.now = page.now + Micros::from_secs(seconds);
        page.work();
        assert_eq!(page.phase(), phase, "after {}", page.now);
    }
    let error = page.status().error;
    assert!(error.contains("none of the 1 connected workers") && error.contains("no such environment"), "{error}");
}

#[test]
fn invalid_frames_end_their_port_alone() {
    let settings = SMALL.replace("400", "8000");
    let wanted = hash_of(&settings);
    let mut page = Page::new(1);
    assert_eq!(page.start(&settings), "");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    page.work_until(|page| page.count(|message| matches!(message, Message::Iteration(_))) > 1);
    // The kinds that the worker of this run has sent, those that other roles may send, and those of the hub.
    let permitted = cases().filter(|(role, kind)| allow(*role, *kind)).map(|(role, kind)| (role, blank(kind)));
    let sent = page.said.iter().map(|frame| (Role::Worker, frame.clone())).chain(permitted);
    let mut seeds: BTreeMap<Role, Vec<Vec<u8>>> = BTreeMap::new();
    sent.for_each(|(role, frame)| seeds.entry(role).or_default().push(frame));
    let shown: Vec<Vec<u8>> = page.shown.iter().map(Message::encode).collect();
    let (mut taken, mut refused) = (0, 0);
    for (number, role) in (0..400).zip(roles().cycle()) {
        let port = page.admitted(role);
        if number % 4 == 0 {
            page.work();
        }
        for _ in 0..20 {
            let seeds = if next() % 16 == 0 { &shown } else { &seeds[&role] };
            let mut frame = seeds[next() % seeds.len()].clone();
            for _ in 0..next() % 4 {
                let place = next() % frame.len();
                frame[place] = next() as u8;
            }
            if next() % 8 == 0 {
                frame.truncate(1 + next() % frame.len());
            }
            let message = Message::decode(&frame);
            let is_valid = message.is_ok_and(|message| allow(role, message.kind()));
            // An operator's valid requests change the run.
            if is_valid && role == Role::Operator {
                continue;
            }
            let reason = page.say(port, &frame);
            assert!(is_valid || reason.is_some(), "{role:?}: {:?}", &frame[..frame.len().min(40)]);
            (taken, refused) = if is_valid { (taken + 1, refused) } else { (taken, refused + 1) };
            if reason.is_some() {
                break;
            }
        }
        page.hub.handle_closed(port, "it has said enough", page.now);
        page.exchange();
    }
    assert!(taken > 200 && refused > 300, "{taken} frames were valid, {refused} were not");
    assert_eq!(page.ask(&Message::Pause(Request { request: 2 })), "", "{:?}", page.status());
    assert_eq!(page.ask(&Message::Resume(Request { request: 3 })), "");
    assert_eq!((page.workers.len(), page.finish()), (1, wanted), "{:?}", page.status());
}
