//! Ranks on threads: what they agree on, and what happens to the others when something happens to one.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use rollmesh_core::{
    hash::Hash128,
    ids::PolicyId,
    policy::{AllReduce as _, AllReduceError},
    protocol::Token,
    time::Micros,
    worker::{DataParallelConfig, DataParallelError, JoinRequest, JoiningPolicy},
};

use super::{frame::Frame, hello::Hello, *};

const TOKEN: Token = Token::new([3; 32]);

fn free_address() -> String {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().to_string()
}

fn request(address: &str, rank: u32, world_size: u32) -> JoinRequest {
    let config = DataParallelConfig::new(address, rank, world_size, TOKEN);
    let policy = JoiningPolicy { id: PolicyId::DEFAULT, layout: Hash128([1; 16]), settings: Hash128([2; 16]) };
    JoinRequest { config, policies: vec![policy], max_message: 16 << 20 }
}

fn join_all(requests: Vec<JoinRequest>) -> Vec<Result<TcpAllReduce, DataParallelError>> {
    let threads: Vec<_> =
        requests.into_iter().map(|request| thread::spawn(move || TcpAllReduce::join(&request))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// So many ranks, in their order.
pub(crate) fn ranks(world_size: u32) -> Vec<TcpAllReduce> {
    loop {
        let address = free_address();
        let joined = join_all((0..world_size).map(|rank| request(&address, rank, world_size)).collect());
        // Somebody else may have taken the port meanwhile.
        if !matches!(joined[0], Err(DataParallelError::Listen { .. })) {
            return joined.into_iter().map(Result::unwrap).collect();
        }
    }
}

/// Lets every rank do something on a thread of its own, and gives what comes of it in the order of ranks.
pub(crate) fn each<R: Send + 'static>(
    ranks: Vec<TcpAllReduce>,
    f: impl Fn(u32, TcpAllReduce) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let threads: Vec<_> = (0..)
        .zip(ranks)
        .map(|(rank, group)| {
            let f = f.clone();
            thread::spawn(move || f(rank, group))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// More than one piece of a message.
const MANY: usize = 100_000;

fn values(rank: u32, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 * 0.37 + rank as f32) * 1.7).sin()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn means_are_weighted_and_the_same_everywhere() {
    for n in [0, 1, 7, MANY] {
        let weights = [3.0, 0.0, 5.0];
        let all = each(ranks(3), move |rank, mut group| {
            let mut own = values(rank, n);
            if rank == 1 {
                own.fill(f32::NAN);
            }
            group.all_reduce("values", &mut own, weights[rank as usize]).unwrap();
            own
        });
        let want: Vec<f32> = (0..n)
            .map(|i| {
                let sum = 3.0 * f64::from(values(0, n)[i]) + 5.0 * f64::from(values(2, n)[i]);
                (sum / 8.0) as f32
            })
            .take(50)
            .collect();
        assert_eq!(all[0][..want.len()], want);
        assert!(all.iter().all(|other| bits(other) == bits(&all[0])), "{n}");
    }
}

#[test]
fn values_of_no_weight_become_0() {
    let all = each(ranks(2), |_, mut group| {
        let mut own = [f32::INFINITY, 1.0];
        group.all_reduce("values", &mut own, 0.0).map(|()| own)
    });
    assert_eq!(all, [Ok([0.0; 2]), Ok([0.0; 2])]);
}

#[test]
fn bytes_of_all_ranks_come_in_their_order() {
    let all = each(ranks(3), |rank, mut group| {
        let own = vec![rank as u8; [0, 5, 600_000][rank as usize]];
        let first = group.all_gather("bytes", &own, 1_000_000).unwrap();
        (first, group.all_gather("none", &[], 0).unwrap())
    });
    let want: Vec<Vec<u8>> = vec![vec![], vec![1; 5], vec![2; 600_000]];
    assert!(all.iter().all(|(first, none)| *first == want && *none == [[0u8; 0]; 3]));
}

#[test]
fn one_rank_needs_nobody() {
    let mut alone = TcpAllReduce::join(&request("nobody looks at this", 0, 1)).unwrap();
    let mut own = [1.5, -2.0];
    alone.all_reduce("values", &mut own, 2.0).unwrap();
    assert_eq!(own, [1.5, -2.0]);
    assert_eq!(alone.all_gather("bytes", &[1, 2], 2), Ok(vec![vec![1, 2]]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// Whoever comes first: the sum is that of one loop over the ranks in their order.
    #[test]
    fn sums_are_made_in_the_order_of_ranks(
        scales in proptest::collection::vec((-1e6f32..1e6, 0.0f64..1e3), 2..5),
    ) {
        let world_size = scales.len() as u32;
        let mine = scales.clone();
        let all = each(ranks(world_size), move |rank, mut group| {
            let (scale, weight) = mine[rank as usize];
            let mut own: Vec<f32> = values(rank, 33).iter().map(|value| value * scale).collect();
            group.all_reduce("values", &mut own, weight).map(|()| own)
        });
        let total = scales.iter().fold(0.0, |total, (_, weight)| total + weight);
        let want: Vec<f32> = (0..33).map(|i| {
            let mut sum = 0.0f64;
            for (rank, (scale, weight)) in (0..).zip(&scales) {
                if *weight > 0.0 {
                    sum += weight * f64::from(values(rank, 33)[i] * scale);
                }
            }
            if total > 0.0 { (sum / total) as f32 } else { 0.0 }
        }).collect();
        for own in all {
            prop_assert_eq!(bits(&own.unwrap()), bits(&want));
        }
    }
}

#[test]
fn other_calls_are_named_to_all() {
    let errors = each(ranks(3), |rank, mut group| {
        let step = if rank == 2 { "other step" } else { "step" };
        group.all_reduce(step, &mut [1.0; 3], 1.0).unwrap_err()
    });
    for error in &errors {
        assert!(matches!(error, AllReduceError::OutOfStep { rank: 2, .. }), "{error}");
    }
    let wanted = "rank 2 is out of step: it is at 'other step' with 12 bytes, call 0, rank 0 at 'step' with 12 bytes, \
                  call 0; let all ranks call the same methods in the same order";
    assert_eq!(errors[1].to_string(), wanted);

    let errors =
        each(ranks(2), |rank, mut group| group.all_reduce("step", &mut vec![1.0; 3 + rank as usize], 1.0).unwrap_err());
    assert!(errors.iter().all(|error| matches!(error, AllReduceError::OutOfStep { rank: 1, .. })), "{errors:?}");

    let errors = each(ranks(2), |rank, mut group| match rank {
        0 => group.all_reduce("step", &mut [1.0], 1.0).unwrap_err(),
        _ => group.all_gather("step", &[0; 4], 4).unwrap_err(),
    });
    assert!(errors.iter().all(|error| matches!(error, AllReduceError::OutOfStep { rank: 1, .. })), "{errors:?}");
}

#[test]
fn whoever_leaves_is_missed_by_those_who_go_on() {
    for leaver in 0..3 {
        let results = each(ranks(3), move |rank, mut group| {
            let mut own = values(rank, MANY);
            group.all_reduce("last that all make", &mut own, 1.0).unwrap();
            if rank == leaver { None } else { group.all_reduce("one more", &mut own, 1.0).err() }
        });
        for (rank, result) in (0..).zip(results) {
            // If rank 0 is the one, the others hear of nobody else.
            let wanted = (rank != leaver).then_some(AllReduceError::Left { rank: leaver });
            match (&result, leaver) {
                (Some(AllReduceError::Left { rank: 1 | 2 }), 0) => {}
                _ => assert_eq!(result, wanted, "{rank} of {leaver}"),
            }
        }
    }
}

#[test]
fn a_rank_that_gives_up_says_why() {
    let errors = each(ranks(3), |rank, mut group| {
        if rank == 1 {
            group.give_up("no batch\nat all");
            group.give_up("something else");
        }
        let first = group.all_reduce("step", &mut [1.0], 1.0).unwrap_err();
        // And ever after.
        assert_eq!(group.all_gather("other", &[], 0), Err(first.clone()));
        first
    });
    let reason = |reason: &str| AllReduceError::GaveUp { rank: 1, reason: reason.into() };
    assert_eq!(errors, [reason("no batch at all"), reason("no batch\nat all"), reason("no batch at all")]);
    assert_eq!(errors[0].to_string(), "rank 1 gave up: no batch at all");
}

#[test]
fn messages_that_are_too_large_are_refused_before_they_are_sent() {
    let errors = each(ranks(2), |rank, mut group| {
        group.all_gather("bytes", &vec![0; if rank == 1 { 11 } else { 10 }], 10).unwrap_err()
    });
    assert_eq!(errors[1], AllReduceError::TooLarge { step: "bytes".into(), bytes: 11, limit: 10 });
    assert!(matches!(&errors[0], AllReduceError::GaveUp { rank: 1, .. }), "{errors:?}");
    let errors = each(ranks(2), |_, mut group| group.all_reduce("values", &mut vec![0.0; 5 << 20], 1.0).unwrap_err());
    // Both find out, and perhaps one hears of it before.
    let is_said = |error: &AllReduceError| match error {
        AllReduceError::TooLarge { limit, .. } => *limit == 16 << 20,
        other => other.to_string().contains("'values' has 20971520 bytes, and a message takes 16777216"),
    };
    assert!(errors.iter().all(is_said), "{errors:?}");
}

/// Only rank 0 makes a mistake first, as the others come to it.
#[test]
fn what_ranks_disagree_on_is_told_to_both() {
    let address = free_address();
    type Change = fn(&mut JoinRequest);
    let changes: [(Change, DataParallelError); 4] = [
        (|r| r.config.world_size = 3, DataParallelError::OtherWorldSize { rank: 1, found: 3, wanted: 2 }),
        (
            |r| r.policies[0].layout = Hash128([9; 16]),
            policies("names or shapes of the weights of 'default_policy' differ"),
        ),
        (|r| r.policies[0].settings = Hash128([9; 16]), policies("settings of 'default_policy' differ")),
        (|r| r.policies.clear(), policies("it does not train 'default_policy'")),
    ];
    fn policies(reason: &str) -> DataParallelError {
        DataParallelError::Policies { rank: 1, reason: reason.into() }
    }
    for (change, wanted) in changes {
        let mut other = request(&address, 1, 2);
        change(&mut other);
        let results = join_all(vec![request(&address, 0, 2), other]);
        let errors: Vec<_> = results.into_iter().map(|result| result.map(drop).unwrap_err()).collect();
        assert_eq!(errors, [wanted.clone(), wanted]);
    }
}

fn soon(mut request: JoinRequest) -> JoinRequest {
    request.config.join_timeout = Micros::from_millis(300);
    request
}

#[test]
fn missing_ranks_are_named() {
    let address = free_address();
    let results = join_all([0, 2].map(|rank| soon(request(&address, rank, 4))).into());
    let errors: Vec<_> = results.into_iter().map(|result| result.map(drop).unwrap_err()).collect();
    let missing = "1, 3".to_owned();
    assert_eq!(errors[0], DataParallelError::Missing { missing, address: address.clone(), seconds: 1, hint: "" });
    // It was turned away, or came too late.
    let is_told =
        matches!(&errors[1], DataParallelError::Lost { rank: 0, reason } if reason.contains("rank 1, 3 has not"));
    assert!(is_told || matches!(errors[1], DataParallelError::Unreachable { .. }), "{}", errors[1]);

    let error = TcpAllReduce::join(&soon(request(&address, 1, 2))).unwrap_err().to_string();
    assert!(error.starts_with(&format!("no rank 0 listened on {address} for 1 s: ")), "{error}");
}

#[test]
fn wrong_tokens_open_nothing() {
    let address = free_address();
    let mut other = request(&address, 1, 2);
    other.config.token = Token::new([4; 32]);
    let results = join_all(vec![soon(request(&address, 0, 2)), other]);
    let errors: Vec<_> = results.into_iter().map(|result| result.map(drop).unwrap_err()).collect();
    assert_eq!(errors[1], DataParallelError::Token);
    let hint = " (one with another token was turned away)";
    assert!(matches!(&errors[0], DataParallelError::Missing { hint: found, .. } if *found == hint), "{}", errors[0]);
}

#[test]
fn a_rank_is_there_once() {
    let address = free_address();
    let requests = vec![request(&address, 0, 3), request(&address, 1, 3), request(&address, 1, 3)];
    let (joined, results) = mpsc::channel();
    for request in requests {
        let joined = joined.clone();
        thread::spawn(move || joined.send((request.config.rank, TcpAllReduce::join(&request).map(drop))));
    }
    // The second one is turned away while the others still wait.
    assert_eq!(results.recv().unwrap(), (1, Err(DataParallelError::Duplicate(1))));
    let mut late = TcpAllReduce::join(&request(&address, 2, 3)).unwrap();
    let rest: Vec<_> = [results.recv().unwrap(), results.recv().unwrap()].into();
    assert!(rest.iter().all(|(_, result)| result.is_ok()), "{rest:?}");
    assert!(late.all_gather("nobody else is there", &[], 0).is_err());

    let taken = TcpListener::bind(&*address);
    let error = TcpAllReduce::join(&request(&address, 0, 2)).map(drop);
    assert_eq!(taken.is_ok(), matches!(error, Err(DataParallelError::Listen { .. })));
}

#[test]
fn other_versions_are_turned_away() {
    let address = free_address();
    let rank = thread::spawn({
        let request = soon(request(&address, 0, 2));
        move || TcpAllReduce::join(&request).map(drop).unwrap_err()
    });
    let mut stream = knock(&address);
    let mut hello = Hello::of(&request(&address, 1, 2)).encode(&TOKEN);
    hello[4] = 77;
    stream.write_all(&hello).unwrap();
    let refused = Frame::read(&mut stream).unwrap();
    assert_eq!(refused, Frame::Refused(DataParallelError::Version { rank: 1, found: 77, wanted: VERSION }));
    let error = rank.join().unwrap().to_string();
    assert!(error.contains("(one of another version was turned away)"), "{error}");
}

/// Until somebody opens.
fn knock(address: &str) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect(address) {
            return stream;
        }
        thread::yield_now();
    }
}

#[test]
fn hostile_visitors_do_not_keep_ranks_from_coming_together() {
    let address = free_address();
    let first = thread::spawn({
        let request = request(&address, 0, 2);
        move || TcpAllReduce::join(&request).unwrap()
    });
    let head = Hello::of(&request(&address, 1, 2)).encode(&TOKEN);
    let mut endless = head[..78].to_vec();
    endless.extend(u32::MAX.to_le_bytes());
    let mut visitors = Vec::new();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096], &head[..50], &endless] {
        let mut stream = knock(&address);
        stream.write_all(bytes).unwrap();
        // They stay.
        visitors.push(stream);
    }
    let second = TcpAllReduce::join(&request(&address, 1, 2)).unwrap();
    let sums = each(vec![first.join().unwrap(), second], |rank, mut group| {
        let mut own = [rank as f32];
        group.all_reduce("values", &mut own, 1.0).map(|()| own)
    });
    assert_eq!(sums, [Ok([0.5]), Ok([0.5])]);
}

/// A rank 1 made by hand, and the rank 0 that it has joined.
fn by_hand() -> (TcpStream, thread::JoinHandle<TcpAllReduce>) {
    let address = free_address();
    let first = thread::spawn({
        let request = request(&address, 0, 2);
        move || TcpAllReduce::join(&request).unwrap()
    });
    let mut stream = knock(&address);
    stream.write_all(&Hello::of(&request(&address, 1, 2)).encode(&TOKEN)).unwrap();
    assert_eq!(Frame::read(&mut stream).unwrap(), Frame::Welcome);
    (stream, first)
}

#[test]
fn nonsense_of_a_rank_is_an_error_that_names_it() {
    let data = |n: usize| {
        let mut bytes = Vec::new();
        Frame::Data(vec![0; n]).write(&mut bytes).unwrap();
        bytes
    };
    let begin = |weight: f64| {
        let mut bytes = Vec::new();
        let (number, action, step) = (0, frame::Action::Reduce, "values".to_owned());
        Frame::Begin(frame::Begin { number, action, weight, bytes: 8, step }).write(&mut bytes).unwrap();
        bytes
    };
    let at_once = [
        (vec![9; 10], "a frame of an unknown kind"),
        (vec![4, 255, 255, 255, 255], "a frame that is too long"),
        (begin(f64::NAN), "a frame without meaning"),
        (data(256 << 10).repeat(200), "more than"),
    ];
    let in_a_call =
        [(data(4), "data before a call"), ([begin(1.0), data(4)].concat(), "a piece of a message that is none")];
    for (bytes, wanted) in at_once.into_iter().chain(in_a_call.clone()) {
        let (mut stream, first) = by_hand();
        let mut first = first.join().unwrap();
        let mut to = stream.try_clone().unwrap();
        // It does not want to hear it all.
        let talking = thread::spawn(move || to.write_all(&bytes).is_ok());
        if !in_a_call.iter().any(|(_, other)| *other == wanted) {
            while Frame::read(&mut stream).is_ok() {}
        }
        match first.all_reduce("values", &mut [1.0, 2.0], 1.0) {
            Err(AllReduceError::Protocol { rank: 1, reason }) => assert!(reason.starts_with(wanted), "{reason}"),
            other => panic!("{other:?} instead of {wanted}"),
        }
        drop(first);
        talking.join().unwrap();
    }
}

/// Heartbeats and nothing else for longer than a silence: a rank that computes. Then not even these.
#[test]
fn a_rank_may_compute_for_long_but_must_not_be_silent() {
    let (mut stream, first) = by_hand();
    let mut first = first.join().unwrap();
    let (ended, end) = mpsc::channel();
    let start = Instant::now();
    let waiting = thread::spawn(move || {
        ended.send(first.all_reduce("values", &mut [1.0], 1.0)).unwrap();
        first
    });
    let spoken = SILENCE + Duration::from_secs(1);
    while start.elapsed() < spoken {
        Frame::Alive.write(&mut stream).unwrap();
        assert!(end.recv_timeout(HEARTBEAT).is_err(), "it is alive");
    }
    let silent = Instant::now();
    let error = end.recv().unwrap().unwrap_err();
    assert!(silent.elapsed() < Duration::from_secs(5));
    let wanted = "rank 1 is lost: nothing has come from it for 3 s, so it hangs or cannot be reached; start all ranks \
                  again, from what rank 0 has saved";
    assert_eq!(error.to_string(), wanted);
    // And nobody waits for it when this rank goes.
    let leaving = Instant::now();
    drop(waiting.join().unwrap());
    assert!(leaving.elapsed() < SILENCE);
}

#[test]
fn a_closed_connection_is_noticed_at_once() {
    let (stream, first) = by_hand();
    let mut first = first.join().unwrap();
    drop(stream);
    let error = first.all_reduce("values", &mut [1.0], 1.0).unwrap_err();
    assert!(
        matches!(&error, AllReduceError::Lost { rank: 1, reason } if reason.contains("its process has ended")),
        "{error}"
    );
}

/// A rank that waits hears of another one's end from rank 0, even if that computes.
#[test]
fn an_end_is_told_to_those_who_wait() {
    let mut all = ranks(3);
    let (mut waits, goes, first) = (all.pop().unwrap(), all.pop().unwrap(), all.pop().unwrap());
    let waiting = thread::spawn(move || waits.all_reduce("values", &mut [1.0], 1.0).unwrap_err());
    drop(goes);
    assert_eq!(waiting.join().unwrap(), AllReduceError::Left { rank: 1 });
    drop(first);
}

/// Nobody reads, and more is written than the system keeps.
#[test]
fn whoever_does_not_listen_does_not_keep_a_rank_from_leaving() {
    let (mut stream, first) = by_hand();
    let mut first = first.join().unwrap();
    let mut bytes = Vec::new();
    let begin =
        |bytes: u64| frame::Begin { number: 0, action: frame::Action::Gather, weight: 0.0, bytes, step: "b".into() };
    Frame::Begin(begin(0)).write(&mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    let start = Instant::now();
    let error = first.all_gather("b", &vec![0; 16 << 20], 16 << 20).unwrap_err();
    assert!(matches!(error, AllReduceError::Lost { rank: 1, .. }), "{error}");
    drop(first);
    assert!(start.elapsed() < Duration::from_secs(5));
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
}
