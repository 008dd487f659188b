use super::{
    super::{
        Outbox,
        message::{CallResult, Chunk, Goodbye, Request, WeightsUpdate},
    },
    *,
};

fn large() -> Message {
    let values = vec![7; 3 * CHUNK_BYTES as usize];
    let (names, ranks, dims) = (String::from("w"), vec![1], vec![values.len() as u32 / 4]);
    Message::WeightsUpdate(WeightsUpdate { run: 1, version: 2, names, ranks, dims, values })
}

fn chunks() -> Vec<Chunk> {
    let mut outbox = Outbox::new(u32::MAX);
    outbox.push(&large()).unwrap();
    let frames = core::iter::from_fn(|| outbox.poll_frame());
    frames
        .map(|frame| match Message::decode(&frame) {
            Ok(Message::Chunk(chunk)) => chunk,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn handle(inbox: &mut Inbox, chunk: &Chunk) -> Result<Option<Message>, InboxError> {
    inbox.handle_frame(&Message::Chunk(chunk.clone()).encode())
}

#[test]
fn before_the_handshake_there_is_only_hello() {
    let mut inbox = Inbox::of_hub();
    let pause = Message::Pause(Request { request: 1 });
    let error = inbox.handle_frame(&pause.encode()).unwrap_err();
    assert_eq!(error.to_string(), "the first message must be a Hello of at most 4096 bytes, not Pause of 9");
    let mut hello = vec![0; 5000];
    hello[..8].copy_from_slice(b"RM\x01\0\x01\0\0\0");
    assert_eq!(inbox.handle_frame(&hello), Err(InboxError::HelloExpected { kind: Kind::Hello, bytes: 5000 }));
    inbox.admit(Role::Operator);
    assert_eq!(inbox.handle_frame(&pause.encode()), Ok(Some(pause)));
    let again = inbox.handle_frame(&hello).unwrap_err();
    assert_eq!(again.to_string(), "a peer with role Operator may not send Hello");
}

#[test]
fn roles_bind_both_sides_and_chunks_too() {
    let mut hub = Inbox::of_hub();
    hub.admit(Role::Worker);
    let error = handle(&mut hub, &chunks()[0]).unwrap_err();
    assert_eq!(error, InboxError::NotAllowed { role: Role::Worker, kind: Kind::WeightsUpdate });
    let pause = Message::Pause(Request { request: 1 }).encode();
    let error = Inbox::of_peer(Role::Worker).handle_frame(&pause).unwrap_err();
    assert_eq!(error.to_string(), "the hub sent Pause, which a peer with role Worker does not expect");
}

#[test]
fn chunks_must_follow_each_other() {
    let parts = chunks();
    let mut inbox = Inbox::of_peer(Role::Worker);
    assert!(matches!(handle(&mut inbox, &parts[1]), Err(InboxError::ChunkOutOfOrder { .. })));
    let changes: [fn(&mut Chunk); 3] = [|c| c.stream += 1, |c| c.total += 1, |c| c.offset += 1];
    for change in changes {
        let mut inbox = Inbox::of_peer(Role::Worker);
        handle(&mut inbox, &parts[0]).unwrap();
        let mut next = parts[1].clone();
        change(&mut next);
        let error = handle(&mut inbox, &next).unwrap_err();
        assert!(error.to_string().ends_with("does not follow: 0@262144 of 786453 bytes comes next"), "{error}");
    }
}

#[test]
fn sizes_are_checked_before_anything_is_kept() {
    let part = chunks().swap_remove(0);
    let with = |change: &dyn Fn(&mut Chunk)| {
        let mut chunk = part.clone();
        change(&mut chunk);
        handle(&mut Inbox::of_peer(Role::Worker), &chunk).unwrap_err()
    };
    let error = with(&|c| c.total = u32::MAX);
    assert_eq!(error.to_string(), "WeightsUpdate of 4294967287 bytes is larger than the 67108864 allowed");
    assert!(matches!(with(&|c| c.data.clear()), InboxError::ChunkSize { bytes: 0, .. }));
    assert!(matches!(with(&|c| c.total = 9), InboxError::ChunkSize { total: 9, .. }));
    assert!(matches!(with(&|c| c.data.push(0)), InboxError::ChunkSize { .. }));
    assert!(matches!(with(&|c| c.data.truncate(5)), InboxError::Decode(DecodeError::Short { bytes: 5 })));
    let chunk_in_chunk = with(&|c| c.data[4] = Kind::Chunk.to_wire());
    assert_eq!(chunk_in_chunk, InboxError::NotSplittable { kind: Kind::Chunk });
}

#[test]
fn a_large_message_may_not_come_in_one_frame() {
    let error = Inbox::of_peer(Role::Worker).handle_frame(&large().encode()).unwrap_err();
    assert!(matches!(error, InboxError::FrameTooLarge { kind: Kind::WeightsUpdate, .. }), "{error}");
}

#[test]
fn a_message_in_parts_is_announced_by_the_first_and_leaves_no_buffer() {
    let mut inbox = Inbox::of_peer(Role::Worker);
    let frames: Vec<_> = chunks().into_iter().map(|chunk| Message::Chunk(chunk).encode()).collect();
    let small = Message::Goodbye(Goodbye { reason: "x".into() }).encode();
    for (place, frame) in frames.iter().enumerate() {
        let announced = (Kind::WeightsUpdate, large().encode().len());
        assert_eq!(inbox.announced(frame), (place == 0).then_some(announced));
        assert_eq!((inbox.announced(&small), inbox.announced(b"")), (None, None));
        inbox.handle_frame(frame).unwrap();
        assert_eq!(inbox.is_joining(), place + 1 < frames.len());
        let joined = inbox.joining.iter().map(|joining| match &joining.parts {
            JoinedParts::Joined(joined) => joined.capacity(),
            JoinedParts::Weights(_) | JoinedParts::Passed => 0,
        });
        assert!(joined.sum::<usize>() + inbox.spare.capacity() <= large().encode().len());
    }
    assert_eq!(inbox.spare.capacity(), 0);
}

#[test]
fn results_of_calls_are_larger_than_other_messages_and_allocated_as_they_arrive() {
    let mut inbox = Inbox::of_hub();
    inbox.admit(Role::Worker);
    let whole = Message::CallResult(CallResult { call: 7, ok: true, body: vec![5; 3 * AHEAD_BYTES / 2] });
    let mut outbox = Outbox::new(u32::MAX);
    outbox.push(&whole).unwrap();
    let mut arrived = None;
    while let Some(frame) = outbox.poll_frame() {
        assert_eq!(arrived, None);
        arrived = inbox.handle_frame(&frame).unwrap();
        inbox.take_credit_due();
    }
    assert!(arrived == Some(whole), "it arrives as it was sent");

    let head = vec![b'R', b'M', 1, 0, Kind::CallResult.to_wire(), 0, 0, 0];
    let total = Kind::CallResult.body_cap() + HEADER_BYTES as u32;
    let mut data = vec![0; CHUNK_BYTES as usize];
    data[..HEADER_BYTES].copy_from_slice(&head);
    for offset in (0..8 * CHUNK_BYTES).step_by(CHUNK_BYTES as usize) {
        assert_eq!(handle(&mut inbox, &Chunk { stream: 1, total, offset, data: data.clone() }), Ok(None));
        inbox.take_credit_due();
        let Some(Joining { parts: JoinedParts::Joined(joined), .. }) = &inbox.joining else {
            panic!("a part of it is there")
        };
        assert!(joined.capacity() <= AHEAD_BYTES, "{}", joined.capacity());
    }
    let mut other = Inbox::of_hub();
    other.admit(Role::Worker);
    let more = Chunk { stream: 0, total: total + 1, offset: 0, data };
    assert!(matches!(handle(&mut other, &more), Err(InboxError::Decode(DecodeError::TooLarge { .. }))));
}

#[test]
fn refused_chunks_are_not_announced() {
    let head = |kind: Kind| vec![b'R', b'M', 1, 0, kind.to_wire(), 0, 0, 0];
    let chunk = |kind, total, offset| Message::Chunk(Chunk { stream: 0, total, offset, data: head(kind) }).encode();
    let most = Kind::FragmentUpload.body_cap() + HEADER_BYTES as u32;
    let upload = chunk(Kind::FragmentUpload, most, 0);
    let admitted = |role| {
        let mut inbox = Inbox::of_hub();
        inbox.admit(role);
        inbox
    };
    assert_eq!(admitted(Role::Worker).announced(&upload), Some((Kind::FragmentUpload, most as usize)));
    assert_eq!(admitted(Role::Worker).handle_frame(&upload), Ok(None));
    let refused = [
        (Role::Viewer, upload),
        (Role::Viewer, chunk(Kind::Watch, u32::MAX, 0)),
        (Role::Worker, chunk(Kind::FragmentUpload, most + 1, 0)),
        (Role::Worker, chunk(Kind::FragmentUpload, u32::MAX, 0)),
        (Role::Worker, chunk(Kind::FragmentUpload, most, 8)),
        (Role::Worker, chunk(Kind::LeaseGrant, 1 << 20, 0)),
        (Role::Worker, chunk(Kind::Progress, 1 << 20, 0)),
    ];
    for (role, frame) in refused {
        let mut inbox = admitted(role);
        assert_eq!(inbox.announced(&frame), None);
        assert!(inbox.handle_frame(&frame).is_err(), "{role:?}");
    }
}

#[test]
fn sender_stays_within_its_credit() {
    let mut inbox = Inbox::of_peer(Role::Worker);
    let parts = chunks();
    for chunk in &parts {
        handle(&mut inbox, chunk).unwrap();
    }
    let error = handle(&mut inbox, &Chunk { stream: 1, ..parts[0].clone() }).unwrap_err();
    assert_eq!(error.to_string(), "a chunk of 262144 bytes, but only 262123 bytes were granted");
    assert_eq!(inbox.take_credit_due(), Some(Credit { bytes: parts.iter().map(|c| c.data.len() as u32).sum() }));
    assert_eq!(inbox.take_credit_due(), None);
}

#[test]
fn garbage_is_named() {
    let mut inbox = Inbox::of_peer(Role::Viewer);
    assert!(matches!(inbox.handle_frame(b""), Err(InboxError::Decode(DecodeError::Short { bytes: 0 }))));
    let mut goodbye = Message::Goodbye(Goodbye { reason: "x".into() }).encode();
    goodbye.push(0);
    let error = inbox.handle_frame(&goodbye).unwrap_err();
    assert_eq!(error.to_string(), "Goodbye is followed by 1 bytes that do not belong to it");
}
