//! Samples of a group whose worker's network fails in every way.

use std::{
    thread,
    time::{Duration, Instant},
};

use rollmesh::{WorkerGroup, worker_group::ParallelSample};

use super::proxy::{InjectedFault, Proxy, Way, Weather};

const SOON: Duration = Duration::from_secs(60);

/// A fault of the network, persistent or injected once.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Weather(Weather),
    Injected(InjectedFault),
}

/// Checks that late and repeated messages change no sample, and that a worker whose connection is lost or silent samples
/// again. `calm` is the same group in this process.
pub(crate) fn check_samples_under_faults(mut behind: WorkerGroup, mut calm: WorkerGroup, proxy: &Proxy) {
    let late = Way::Late(Duration::from_millis(20));
    assert!(behind.wait_for_workers(1, SOON).unwrap());
    for (fault, is_harmless) in [
        (Fault::Weather(Weather { up: late, down: late }), true),
        (Fault::Weather(Weather { up: Way::Clear, down: late }), true),
        (Fault::Injected(InjectedFault::Twice), true),
        (Fault::Injected(InjectedFault::Cut), false),
        (Fault::Injected(InjectedFault::ResetMidFrame), false),
        (Fault::Injected(InjectedFault::Replay), false),
        // Its lease expires.
        (Fault::Weather(Weather { up: Way::Held, down: Way::Held }), false),
    ] {
        match fault {
            Fault::Weather(weather) => proxy.set(weather),
            // A reconnecting worker may not have reached the network yet.
            Fault::Injected(fault) => {
                let start = Instant::now();
                while !proxy.hit(fault) {
                    assert!(start.elapsed() < SOON, "{fault:?}");
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
        let mut found = behind.synchronous_parallel_sample(ParallelSample::default());
        let expected = calm.synchronous_parallel_sample(ParallelSample::default()).unwrap();
        proxy.set(Weather::CLEAR);
        if is_harmless {
            assert!(found.unwrap() == expected, "{fault:?}");
            continue;
        }
        // A sample in transit may be lost with the connection.
        for _ in 0..10 {
            if found.is_ok() {
                break;
            }
            assert!(behind.wait_for_workers(1, SOON).unwrap(), "{fault:?}");
            found = behind.synchronous_parallel_sample(ParallelSample::default());
        }
        assert_eq!(found.unwrap()[0].env_steps(), expected[0].env_steps(), "{fault:?}");
    }
    behind.stop();
}
