//! Tests of the effects of a failing or leaving rank on the others.

use std::{
    io::{Read as _, Write as _},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::policy::{AllReduce as _, AllReduceError};

use super::{
    super::{
        HEARTBEAT, SILENCE,
        frame::{self, Frame},
    },
    MANY, by_hand, each, ranks, values,
};

#[test]
fn rank_that_leaves_is_missed_by_the_others() {
    for leaver in 0..3 {
        let results = each(ranks(3), move |rank, mut group| {
            let mut own = values(rank, MANY);
            group.all_reduce("last that all make", &mut own, 1.0).unwrap();
            if rank == leaver { None } else { group.all_reduce("one more", &mut own, 1.0).err() }
        });
        for (rank, result) in (0..).zip(results) {
            // If rank 0 leaves, the others do not learn about further ranks.
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
        // All later calls return the same error.
        assert_eq!(group.all_gather("other", &[], 0), Err(first.clone()));
        first
    });
    let reason = |reason: &str| AllReduceError::GaveUp { rank: 1, reason: reason.into() };
    assert_eq!(errors, [reason("no batch at all"), reason("no batch\nat all"), reason("no batch at all")]);
    assert_eq!(errors[0].to_string(), "rank 1 gave up: no batch at all");
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
        (vec![1, 255, 255, 255, 255], "a frame that is too long"),
        (begin(f64::NAN), "a frame without meaning"),
        (data(256 << 10).repeat(200), "more than"),
    ];
    let in_a_call =
        [(data(4), "data before a call"), ([begin(1.0), data(4)].concat(), "a piece of a message that is none")];
    for (bytes, wanted) in at_once.into_iter().chain(in_a_call.clone()) {
        let (mut stream, first) = by_hand();
        let mut first = first.join().unwrap();
        let mut to = stream.try_clone().unwrap();
        // The peer does not read all of it.
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

/// Lets a rank send only heartbeats for longer than the silence limit, and then nothing at all.
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
    // Leaving does not wait for the lost rank.
    let leaving = Instant::now();
    drop(waiting.join().unwrap());
    assert!(leaving.elapsed() < SILENCE);
}

#[test]
fn closed_connection_is_noticed_immediately() {
    let (stream, first) = by_hand();
    let mut first = first.join().unwrap();
    drop(stream);
    let error = first.all_reduce("values", &mut [1.0], 1.0).unwrap_err();
    assert!(
        matches!(&error, AllReduceError::Lost { rank: 1, reason } if reason.contains("its process has ended")),
        "{error}"
    );
}

/// Checks that rank 0 notifies a waiting rank of another one's end, even while rank 0 computes.
#[test]
fn waiting_ranks_are_notified_of_an_exited_one() {
    let mut all = ranks(3);
    let (mut waits, goes, first) = (all.pop().unwrap(), all.pop().unwrap(), all.pop().unwrap());
    let waiting = thread::spawn(move || waits.all_reduce("values", &mut [1.0], 1.0).unwrap_err());
    drop(goes);
    assert_eq!(waiting.join().unwrap(), AllReduceError::Left { rank: 1 });
    drop(first);
}

/// Writes more than the system buffers to a peer that does not read.
#[test]
fn rank_that_does_not_read_does_not_keep_another_from_leaving() {
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
