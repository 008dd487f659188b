//! The time in which two ranks reduce gradients: of two networks with hidden layers of 64 and 64, and 10 MB.
//!
//! `cargo bench -p rollmesh --bench data_parallel`. Both ranks are threads of this process; their bytes go through the
//! loopback device as those of two processes do.

use std::{hint::black_box, thread};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rollmesh::{NativeHost, data_parallel::TcpAllReduce};
use rollmesh_core::{
    policy::AllReduce as _,
    protocol::Token,
    worker::{DataParallelConfig, HostFacts as _, JoinRequest},
};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Weights of both networks of CartPole's, and 10 MB.
const SIZES: [(&str, usize); 2] = [("64x64", 9_155), ("10 MB", 2_500_000)];

fn join(port: u16, rank: u32) -> TcpAllReduce {
    let config = DataParallelConfig::new(format!("127.0.0.1:{port}"), rank, 2, Token::new([1; 32]));
    TcpAllReduce::join(&JoinRequest { config, policies: Vec::new(), max_message: 64 << 20 }).expect("a group")
}

fn all_reduce(criterion: &mut Criterion) {
    let mut bench = criterion.benchmark_group("all_reduce of 2 ranks");
    for (name, n) in SIZES {
        let port = NativeHost.free_port().expect("a port");
        let other = thread::spawn(move || {
            let mut group = join(port, 1);
            let mut values = vec![0.5f32; n];
            // Until rank 0 leaves.
            while group.all_reduce("gradients", &mut values, 1.0).is_ok() {}
        });
        let mut group = join(port, 0);
        let mut values = vec![0.5f32; n];
        bench.throughput(Throughput::Bytes(4 * n as u64));
        bench.bench_function(name, |bencher| {
            bencher.iter(|| group.all_reduce("gradients", black_box(&mut values), 1.0).expect("both are there"));
        });
        drop(group);
        other.join().expect("no panic");
    }
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
