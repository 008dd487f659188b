//! Tests of joining, also among foreign connections.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use rollmesh_core::{
    hash::Hash128,
    policy::AllReduce as _,
    protocol::Token,
    time::Micros,
    worker::{DataParallelError, JoinRequest},
};

use super::{
    super::{TcpAllReduce, VERSION, frame::Frame, hello::Hello},
    MANY, TOKEN, connect_as_rank, each, free_address, join_all, request,
};

/// Checks both sides: rank 0 detects the difference first, since the others connect to it.
#[test]
fn disagreement_of_ranks_is_reported_to_both() {
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
    request.config.join_timeout = Micros::from_secs(1);
    request
}

#[test]
fn missing_ranks_are_named() {
    let address = free_address();
    let results = join_all([0, 2].map(|rank| soon(request(&address, rank, 4))).into());
    let errors: Vec<_> = results.into_iter().map(|result| result.map(drop).unwrap_err()).collect();
    let missing = "1, 3".to_owned();
    assert_eq!(errors[0], DataParallelError::Missing { missing, address: address.clone(), seconds: 1, hint: "" });
    // It was refused, or came too late.
    let is_notified =
        matches!(&errors[1], DataParallelError::Lost { rank: 0, reason } if reason.contains("rank 1, 3 has not"));
    assert!(is_notified || matches!(errors[1], DataParallelError::Unreachable { .. }), "{}", errors[1]);

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
    // The second one is refused while the others still wait.
    assert_eq!(results.recv().unwrap(), (1, Err(DataParallelError::Duplicate(1))));
    let mut late = TcpAllReduce::join(&request(&address, 2, 3)).unwrap();
    let rest: Vec<_> = [results.recv().unwrap(), results.recv().unwrap()].into();
    assert!(rest.iter().all(|(_, result)| result.is_ok()), "{rest:?}");
    assert!(late.all_gather("no other rank is there", &[], 0).is_err());

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
    let mut stream = connect_as_rank(&address);
    let mut hello = Hello::of(&request(&address, 1, 2)).encode(&TOKEN).unwrap();
    hello[4] = 77;
    stream.write_all(&hello).unwrap();
    let refused = Frame::read(&mut stream).unwrap();
    assert_eq!(refused, Frame::Refused(DataParallelError::Version { rank: 1, found: 77, wanted: VERSION }));
    let error = rank.join().unwrap().to_string();
    assert!(error.contains("(one of another version was turned away)"), "{error}");
}

#[test]
fn hostile_visitors_do_not_keep_ranks_from_coming_together() {
    let address = free_address();
    let first = thread::spawn({
        let request = request(&address, 0, 2);
        move || TcpAllReduce::join(&request).unwrap()
    });
    let head = Hello::of(&request(&address, 1, 2)).encode(&TOKEN).unwrap();
    let mut endless = head[..74].to_vec();
    endless.extend(u32::MAX.to_le_bytes());
    let mut visitors = Vec::new();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096], &head[..50], &endless] {
        let mut stream = connect_as_rank(&address);
        stream.write_all(bytes).unwrap();
        // They stay connected.
        visitors.push(stream);
    }
    let second = TcpAllReduce::join(&request(&address, 1, 2)).unwrap();
    let sums = each(vec![first.join().unwrap(), second], |rank, mut group| {
        let mut own = [rank as f32];
        group.all_reduce("values", &mut own, 1.0).map(|()| own)
    });
    assert_eq!(sums, [Ok([0.5]), Ok([0.5])]);
}

/// Returns an address that leads to this machine and is not one of the loopback device.
fn free_public_address() -> String {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap().local_addr().unwrap().to_string()
}

/// Connects to `address` for a caller of the returned address; keeps what both sides send.
fn wiretap(address: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let (here, heard) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let hears = heard.clone();
    thread::spawn(move || {
        let (near, far) = (listener.accept().unwrap().0, connect_as_rank(&address));
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            let hears = hears.clone();
            move || {
                let mut bytes = [0; 4096];
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    hears.lock().unwrap().extend_from_slice(&bytes[..n]);
                    if to.write_all(&bytes[..n]).is_err() {
                        break;
                    }
                }
            }
        };
        thread::spawn(pass(near.try_clone().unwrap(), far.try_clone().unwrap()));
        thread::spawn(pass(far, near));
    });
    (here, heard)
}

#[test]
fn ranks_of_other_machines_encrypt() {
    let address = free_public_address();
    let (tapped, heard) = wiretap(address.clone());
    let joined = join_all(vec![request(&address, 0, 3), request(&address, 1, 3), request(&tapped, 2, 3)]);
    let sums = each(joined.into_iter().map(Result::unwrap).collect(), |rank, mut group| {
        let mut own = vec![rank as f32; MANY];
        group.all_reduce("a secret step", &mut own, 1.0).map(|()| own)
    });
    assert!(sums.iter().all(|sum| *sum == Ok(vec![1.0; MANY])));
    let heard = heard.lock().unwrap();
    let is_heard = |secret: &[u8]| heard.windows(secret.len()).any(|bytes| bytes == secret);
    assert!(heard.len() > 4 * MANY && !is_heard(TOKEN.to_hex().as_bytes()) && !is_heard(b"secret"));
}

#[test]
fn rank_with_another_token_is_turned_away_before_it_shows_its_own() {
    let address = free_public_address();
    let (tapped, heard) = wiretap(address.clone());
    let mut other = request(&tapped, 1, 2);
    other.config.token = Token::new([4; 32]);
    let results = join_all(vec![soon(request(&address, 0, 2)), other]);
    let errors: Vec<_> = results.into_iter().map(|result| result.map(drop).unwrap_err()).collect();
    assert_eq!(errors[1], DataParallelError::Token);
    let hint = " (one with another token was turned away)";
    assert!(matches!(&errors[0], DataParallelError::Missing { hint: found, .. } if *found == hint), "{}", errors[0]);
    assert!(heard.lock().unwrap().len() < 4096);
}
