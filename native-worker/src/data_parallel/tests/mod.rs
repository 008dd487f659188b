//! Tests with ranks on threads: their calls, and how failures affect the other ranks.

mod calls;
mod ends;
mod joining;
mod learners;
mod workers;

use std::{
    io::Write as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

use rollmesh_core::{
    hash::Hash128,
    ids::PolicyId,
    protocol::Token,
    weights::Weights,
    worker::{DataParallelConfig, DataParallelError, JoinRequest, JoiningPolicy},
};

use super::{TcpAllReduce, frame::Frame, hello::Hello};

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

/// Returns this many ranks, in order.
fn ranks(world_size: u32) -> Vec<TcpAllReduce> {
    loop {
        let address = free_address();
        let joined = join_all((0..world_size).map(|rank| request(&address, rank, world_size)).collect());
        // Another process may have taken the port meanwhile.
        if !matches!(joined[0], Err(DataParallelError::Listen { .. })) {
            return joined.into_iter().map(Result::unwrap).collect();
        }
    }
}

/// Runs a function for each rank on a thread of its own, and returns the results in the order of ranks.
fn each<R: Send + 'static>(
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

/// Connects as soon as the port is open.
fn connect_as_rank(address: &str) -> TcpStream {
    loop {
        if let Ok(stream) = TcpStream::connect(address) {
            return stream;
        }
        thread::yield_now();
    }
}

/// Returns the raw connection of a rank 1, and the rank 0 that it has joined.
fn by_hand() -> (TcpStream, thread::JoinHandle<TcpAllReduce>) {
    let address = free_address();
    let first = thread::spawn({
        let request = request(&address, 0, 2);
        move || TcpAllReduce::join(&request).unwrap()
    });
    let mut stream = connect_as_rank(&address);
    stream.write_all(&Hello::of(&request(&address, 1, 2)).encode(&TOKEN).unwrap()).unwrap();
    assert_eq!(Frame::read(&mut stream).unwrap(), Frame::Welcome);
    (stream, first)
}

/// Returns the largest difference between two weights of the same name.
fn distance(one: &Weights, other: &Weights) -> f32 {
    let pairs = one.tensors().iter().zip(other.tensors());
    let values = pairs.flat_map(|(a, b)| a.values.iter().zip(&b.values));
    values.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
