//! No bytes of a peer make the protocol panic, or allocate much more memory than their length.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, RandomState},
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
    test_runner::RngSeed,
};
use rollmesh_core::{
    env::multi_agent::AgentRows,
    ids::LeaseId,
    kernels::Kernels,
    protocol::{
        CHUNK_BYTES, Inbox, Kind, Message, Role,
        convert::{self, AgentTable, FragmentLimits, RowKind},
        message::*,
    },
    sampler::RecurrentShape,
    worker::{CommandError, Registry, WorkerAnswer, WorkerCommand, WorkerSession, WorkerSetup},
};

use super::samples::{RUN, agent_fragments, identity, lease, limits, messages, recurrent, spec, table};

/// Asserts that an accepted body of a call can be encoded again, and that decoding allocates memory in proportion to
/// its length.
fn accept_call<T>(
    body: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, CommandError>,
    encode: impl Fn(&T) -> Result<Vec<u8>, CommandError>,
) -> Result<(), TestCaseError> {
    let decoded = std::cell::RefCell::new(None);
    let memory = allocation_counter::measure(|| *decoded.borrow_mut() = decode(body).ok());
    let allowed = 256 * body.len() as u64 + 65_536;
    prop_assert!(memory.bytes_max <= allowed, "{} bytes for a body of {}", memory.bytes_max, body.len());
    if let Some(decoded) = decoded.into_inner() {
        let bytes = encode(&decoded).unwrap();
        prop_assert_eq!(encode(&decode(&bytes).unwrap()).unwrap(), bytes);
    }
    Ok(())
}

/// Asserts that accepted rows of a client encode to the same bytes.
fn accept_rows(kind: RowKind, bytes: &[u8]) -> Result<(), TestCaseError> {
    let (mut rows, mut again) = (AgentRows::new(), Vec::new());
    if table().read_rows(kind, bytes, &mut rows).is_ok() {
        table().write_rows(kind, &rows, &mut again).unwrap();
        prop_assert_eq!(&again, bytes);
    }
    Ok(())
}

fn accept_returns(message: &LogReturns) -> Result<(), TestCaseError> {
    if let Ok(returns) = table().read_returns(&message.returns) {
        let mut again = Vec::new();
        returns.iter().for_each(|of| table().write_return(of, &mut again).unwrap());
        prop_assert_eq!(&again, &message.returns);
    }
    if let Ok(infos) = table().read_infos(&message.infos) {
        let mut again = Vec::new();
        infos.iter().for_each(|(agent, info)| table().write_info(agent, info, &mut again).unwrap());
        prop_assert_eq!(&again, &message.infos);
    }
    Ok(())
}

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Truncate(Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    // Bytes at which lengths and floats often fail.
    let byte = select(vec![0x00, 0x01, 0x7f, 0x80, 0xff]);
    prop_oneof![
        3 => (any::<Index>(), 0u32..8).prop_map(|(at, bit)| Mutation::Flip(at, 1 << bit)),
        3 => (any::<Index>(), byte).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => (any::<Index>(), vec(any::<u8>(), 1..12)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        1 => (any::<Index>(), 1usize..12).prop_map(|(at, count)| Mutation::Remove(at, count)),
        1 => any::<Index>().prop_map(Mutation::Truncate),
    ]
}

fn mutate(frame: &mut Vec<u8>, mutations: &[Mutation]) {
    for mutation in mutations {
        let len = frame.len();
        if len == 0 {
            return;
        }
        match mutation {
            Mutation::Flip(at, bits) => frame[at.index(len)] ^= bits,
            Mutation::Set(at, byte) => frame[at.index(len)] = *byte,
            Mutation::Insert(at, bytes) => drop(frame.splice(at.index(len)..at.index(len), bytes.iter().copied())),
            Mutation::Remove(at, count) => drop(frame.drain(at.index(len)..len.min(at.index(len) + count))),
            Mutation::Truncate(at) => frame.truncate(at.index(len)),
        }
    }
}

/// Passes a frame to every function that takes a peer's bytes.
fn expose(frame: &[u8]) -> Result<(), TestCaseError> {
    let decoded = std::cell::RefCell::new(None);
    let memory = allocation_counter::measure(|| *decoded.borrow_mut() = Some(Message::decode(frame)));
    let allowed = 16 * frame.len() as u64 + 1024;
    prop_assert!(memory.bytes_max <= allowed, "{} bytes for a frame of {}", memory.bytes_max, frame.len());

    let peers = [Role::Worker, Role::Operator, Role::Client, Role::Launcher].map(Inbox::of_peer);
    for mut inbox in peers.into_iter().chain([Inbox::of_hub()]) {
        let _ = inbox.handle_frame(frame);
    }
    let _ = Inbox::of_peer(Role::Relay).receive(frame, None);
    match decoded.into_inner() {
        Some(Ok(Message::FragmentUpload(upload))) => accept_upload(&upload)?,
        Some(Ok(Message::WeightsUpdate(update))) => {
            if let Ok(weights) = convert::weights(&update) {
                prop_assert_eq!(convert::weights(&convert::weights_update(RUN, &weights)), Ok(weights));
            }
        }
        Some(Ok(Message::HalfWeightsUpdate(update))) => {
            if let Ok(weights) = convert::half_weights(&update) {
                prop_assert_eq!(convert::half_weights(&convert::half_weights_update(RUN, &weights)), Ok(weights));
            }
        }
        Some(Ok(Message::CompressedUpload(upload))) => {
            if let Ok(Message::FragmentUpload(upload)) = convert::decompressed(&upload) {
                accept_upload(&upload)?;
            }
        }
        Some(Ok(Message::LeaseGrant(grant))) => {
            let mut run = spec();
            run.rollout.restart_failed_sub_environments = true;
            if let Ok(lease) = convert::lease(&grant, &run) {
                prop_assert_eq!(convert::lease(&convert::lease_grant(RUN, &lease), &run), Ok(lease));
            }
        }
        Some(Ok(Message::RunAnswer(answer))) => {
            let read = answer.read();
            let text = read.as_ref().err().map_or_else(String::new, ToString::to_string);
            prop_assert!(text.chars().count() < 600 && !text.contains(char::is_control), "{text:?}");
            prop_assert_eq!(RunAnswer::new(RUN, read.as_ref().copied()).read(), read);
        }
        Some(Ok(Message::WorkerSetup(setup))) => _ = WorkerSetup::read(&setup),
        Some(Ok(Message::Call(call))) => accept_call(&call.body, WorkerCommand::decode, WorkerCommand::encode)?,
        Some(Ok(Message::CallResult(result))) => {
            let _ = WorkerAnswer::read(&result);
            accept_call(&result.body, WorkerAnswer::decode, WorkerAnswer::encode)?;
        }
        Some(Ok(Message::AgentUpload(upload))) => accept_agent_upload(&upload)?,
        Some(Ok(Message::Spaces(spaces))) => {
            if let Ok(table) = AgentTable::of(&spaces) {
                prop_assert_eq!(AgentTable::of(&table.spaces(1).unwrap()), Ok(table));
            }
        }
        Some(Ok(Message::GetAction(asked))) => accept_rows(RowKind::Observation, &asked.observations)?,
        Some(Ok(Message::EndEpisode(ended))) => accept_rows(RowKind::Observation, &ended.observations)?,
        Some(Ok(Message::Actions(answer))) => accept_rows(RowKind::Action, &answer.actions)?,
        Some(Ok(Message::LogReturns(returns))) => accept_returns(&returns)?,
        Some(Ok(Message::LogAction(logged))) => {
            accept_rows(RowKind::Observation, &logged.observations)?;
            accept_rows(RowKind::Action, &logged.actions)?;
        }
        _ => {}
    }
    Ok(())
}

/// Asserts that an accepted upload can be encoded, and is accepted again.
fn accept_upload(upload: &FragmentUpload) -> Result<(), TestCaseError> {
    for limits in [RecurrentShape::default(), RecurrentShape::of(&recurrent())].map(limits) {
        let decoded = std::cell::RefCell::new(None);
        let memory = allocation_counter::measure(|| {
            *decoded.borrow_mut() = convert::slot_fragments(upload, RUN, &lease(), &limits).ok();
        });
        let allowed = 16 * upload.data.len() as u64 + (16 << 10);
        prop_assert!(memory.bytes_max <= allowed, "{} bytes for {}", memory.bytes_max, upload.data.len());
        if let Some(fragments) = decoded.into_inner() {
            let again = convert::fragment_upload(RUN, LeaseId(2), &fragments).unwrap();
            prop_assert_eq!(convert::slot_fragments(&again, RUN, &lease(), &limits), Ok(fragments));
        }
    }
    Ok(())
}

/// Asserts the same as [`accept_upload`], for several agents.
fn accept_agent_upload(upload: &AgentUpload) -> Result<(), TestCaseError> {
    static LIMITS: std::sync::LazyLock<FragmentLimits> = std::sync::LazyLock::new(|| agent_fragments().1);
    let decoded = std::cell::RefCell::new(None);
    let limits = &*LIMITS;
    let memory = allocation_counter::measure(|| {
        *decoded.borrow_mut() = convert::agent_fragments(upload, RUN, &lease(), limits).ok();
    });
    let texts = upload.metric_names.len() + upload.metric_values.len() + upload.episode_returns.len();
    let bytes = (upload.batches.len() + upload.states.len() + texts) as u64;
    prop_assert!(memory.bytes_max <= 16 * bytes + (16 << 10), "{} bytes for {bytes}", memory.bytes_max);
    if let Some(fragments) = decoded.into_inner() {
        let again = convert::agent_upload(RUN, LeaseId(2), &fragments).unwrap();
        prop_assert_eq!(convert::agent_fragments(&again, RUN, &lease(), limits), Ok(fragments));
    }
    Ok(())
}

/// Returns a configuration with the given number of cases, the same each time; with `ROLLMESH_LONG=1` a hundred times
/// as many random ones. The printed `ROLLMESH_FUZZ_SEED` repeats them.
fn config(cases: u32) -> ProptestConfig {
    let is_long = std::env::var_os("ROLLMESH_LONG").is_some_and(|value| value == "1");
    let seed = std::env::var("ROLLMESH_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| if is_long { RandomState::new().hash_one(()) } else { 1 });
    println!("ROLLMESH_FUZZ_SEED={seed}");
    let cases = if is_long { 100 * cases } else { cases };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn there_is_a_proper_message_of_every_kind() {
    let seen: BTreeSet<u8> = messages().iter().map(|message| message.kind().to_wire()).collect();
    let unseen: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !seen.contains(&kind.to_wire())).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}

#[test]
fn every_truncation_is_an_error() {
    for message in messages() {
        let frame = message.encode();
        for len in 0..frame.len() {
            assert!(Message::decode(&frame[..len]).is_err(), "{:?} at {len}", message.kind());
        }
    }
}

#[test]
fn a_length_without_bytes_takes_no_memory() {
    for &kind in Kind::ALL {
        // The largest number, repeated, so that every length and every count is as large as possible.
        let mut frame = vec![b'R', b'M', 1, 0, kind.to_wire(), 0, 0, 0];
        frame.extend([0xff, 0xff, 0xff, 0xff, 0x0f].repeat(60));
        expose(&frame).unwrap();
    }
}

#[test]
fn an_announced_length_takes_no_memory() {
    let mut data = vec![0; CHUNK_BYTES as usize];
    data[..8].copy_from_slice(&[b'R', b'M', 1, 0, Kind::WeightsUpdate.to_wire(), 0, 0, 0]);
    let chunk = Message::Chunk(Chunk { stream: 0, total: 60 << 20, offset: 0, data }).encode();
    let mut inbox = Inbox::of_peer(Role::Worker);
    let memory = allocation_counter::measure(|| assert_eq!(inbox.handle_frame(&chunk), Ok(None)));
    assert!(memory.bytes_max <= 4 * u64::from(CHUNK_BYTES), "{} bytes", memory.bytes_max);
}

proptest! {
    #![proptest_config(config(3000))]

    #[test]
    fn mutated_frames_are_harmless(message in select(messages()), mutations in vec(mutation(), 1..6)) {
        let mut frame = message.encode();
        mutate(&mut frame, &mutations);
        expose(&frame)?;
    }

    #[test]
    fn noise_is_harmless(kind in select(Kind::ALL), noise in vec(any::<u8>(), 0..300)) {
        let mut frame = vec![b'R', b'M', 1, 0, kind.to_wire(), 0, 0, 0];
        frame.extend(noise);
        expose(&frame)?;
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn a_worker_survives_any_hub(
        frames in vec((select(messages()), prop_oneof![2 => Just(vec![]), 1 => vec(mutation(), 1..3)]), 1..12),
    ) {
        let mut session = WorkerSession::new(identity(), Registry::builtin(), Kernels::PORTABLE);
        session.handle_frame(&messages()[5].encode());
        for (message, mutations) in frames {
            let mut frame = message.encode();
            mutate(&mut frame, &mutations);
            session.handle_frame(&frame);
            session.work(3, rollmesh_core::time::Micros(0));
            while session.poll_frame().is_some() {}
        }
    }
}
