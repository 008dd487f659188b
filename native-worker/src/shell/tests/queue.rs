//! The queue: nothing is dropped, sampling ahead is bounded, and stopping does not wait for space.

use std::time::Duration;

use rollmesh_core::{
    batch::{REWARDS, SampleBatch},
    column::ColumnData,
    episode::{Losses, Quarantined},
    sampler::{Position, ResumePoint},
};

use super::*;

/// Yields numbered batches of one row, and reports when one is begun.
struct Numbers {
    next: u32,
    begun: Sender<u32>,
    stopped: Sender<()>,
}

fn numbers() -> (Numbers, Receiver<u32>, Receiver<()>) {
    let ((begun, notes), (stopped, stops)) = (channel(), channel());
    (Numbers { next: 0, begun, stopped }, notes, stops)
}

impl InputReader for Numbers {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let number = self.next;
        self.next += 1;
        let _ = self.begun.send(number);
        Ok(SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![number as f32]))?.into())
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        vec![RolloutMetrics { length: self.next, ..RolloutMetrics::default() }]
    }

    fn losses(&mut self) -> Losses {
        losses(self.next)
    }

    fn resume_point(&self) -> ResumePoint {
        let mut point = ResumePoint::default();
        point.state = at(self.next).as_bytes().to_vec();
        point
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        self.next = position.read()?;
        Ok(())
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        let _ = self.stopped.send(());
        Ok(())
    }
}

fn at(next: u32) -> Position {
    Position::new(&next)
}

fn losses(next: u32) -> Losses {
    let quarantined = vec![Quarantined { env: next as usize, reason: "no power".into() }];
    Losses { env_steps: next.into(), agent_steps: 1, quarantined, ..Losses::default() }
}

fn number(batch: Result<AnyBatch, SampleError>) -> f32 {
    batch.unwrap().single().unwrap().get(REWARDS).unwrap()[0]
}

#[test]
fn ahead_sampling_is_bounded_and_drops_no_batch() {
    let (sampler, begun, _) = numbers();
    let mut bench = Bench::new(sampler);
    // The queue, and one that waits for space.
    let ahead = AsyncSampler::QUEUE as u32 + 1;
    let mut latest = None;
    for wanted in 0..50 {
        assert_eq!(number(bench.data()), wanted as f32);
        assert_eq!(bench.sampler.metrics().iter().map(|episode| episode.length).collect::<Vec<_>>(), [wanted + 1]);
        // Steps are reported once, and a quarantine as long as it lasts.
        let Losses { quarantined, .. } = losses(wanted + 1);
        assert_eq!(bench.sampler.losses(), losses(wanted + 1));
        assert_eq!(bench.sampler.losses(), Losses { quarantined, ..Losses::default() });
        // It continues by itself until the queue is full.
        while latest < Some(wanted + ahead) {
            latest = Some(begun.recv().unwrap());
        }
        assert_eq!((latest, begun.try_recv().ok()), (Some(wanted + ahead), None));
    }
}

#[test]
fn stopping_does_not_wait_for_queue_capacity_and_is_idempotent() {
    let (sampler, begun, stops) = numbers();
    let mut bench = Bench::new(sampler);
    bench.data().unwrap();
    while begun.recv().unwrap() < AsyncSampler::QUEUE as u32 + 1 {}
    assert_eq!((bench.sampler.stop(), bench.sampler.stop()), (Ok(()), Ok(())));
    // The sampler was stopped once, and the thread has ended: nothing more is begun.
    assert_eq!((stops.try_iter().count(), begun.try_recv().is_err()), (1, true));
    assert_eq!(bench.data(), Err(SampleError::Stopped));
    assert_eq!(bench.sampler.set_position(&at(0)), Err(SampleError::Stopped));
    drop(bench);
    assert!(stops.recv().is_err() && begun.recv().is_err());
}

#[test]
fn one_that_is_dropped_stops_and_one_that_never_began_too() {
    for calls in 0..2 {
        let (sampler, begun, stops) = numbers();
        let mut bench = Bench::new(sampler);
        (0..calls).for_each(|wanted| assert_eq!(number(bench.data()), wanted as f32));
        drop(bench);
        assert_eq!(stops.iter().count(), 1);
        assert_eq!(begun.iter().count() > 0, calls > 0);
    }
}

/// Yields an empty batch, and then a fragment that lasts until it is interrupted.
struct Endless {
    begun: bool,
    steps: Sender<()>,
}

impl InputReader for Endless {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        if !core::mem::replace(&mut self.begun, true) {
            return Ok(SampleBatch::new().into());
        }
        loop {
            host.check_interrupt()?;
            let _ = self.steps.send(());
        }
    }
}

#[test]
fn stopping_interrupts_a_fragment() {
    let (steps, seen) = channel();
    let mut bench = Bench::new(Endless { begun: false, steps });
    bench.data().unwrap();
    seen.recv().unwrap();
    assert_eq!(bench.sampler.stop(), Ok(()));
    assert_eq!(bench.data(), Err(SampleError::Stopped));
}

#[test]
fn sample_with_a_budget_returns_in_time_and_loses_no_batch() {
    let (sampler, _, _) = numbers();
    let mut bench = Bench::new(sampler);
    for wanted in 0..50 {
        let batch = loop {
            match bench.data_within(Micros(wanted % 3)) {
                Ok(Some(batch)) => break batch,
                nothing => assert_eq!(nothing, Ok(None)),
            }
        };
        assert_eq!(number(Ok(batch)), wanted as f32);
    }
    let (steps, seen) = channel();
    let mut bench = Bench::new(Endless { begun: false, steps });
    bench.data().unwrap();
    seen.recv().unwrap();
    // There never is a second one.
    assert_eq!(bench.data_within(Micros(100)), Ok(None));
}

/// Yields an empty batch, and then rounds of which the first ends when the gate is opened.
struct Gated {
    begun: bool,
    waits: Sender<()>,
    gate: Receiver<()>,
}

impl InputReader for Gated {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        if !core::mem::replace(&mut self.begun, true) {
            return Ok(SampleBatch::new().into());
        }
        loop {
            host.check_interrupt()?;
            let _ = self.waits.send(());
            // A gate that is already open does not block.
            let _ = self.gate.recv();
        }
    }
}

#[test]
fn wait_for_an_endless_round_ends_at_its_timeout() {
    let ((waits, waiting), (opened, gate), (said, heard)) = (channel(), channel(), channel());
    let mut bench = Bench::new(Gated { begun: false, waits, gate });
    bench.data().unwrap();
    waiting.recv().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || said.send(bench.data_within(Micros(0))).unwrap());
        assert!(heard.recv_timeout(Duration::from_millis(100)).is_err(), "its budget is long over");
        drop(opened);
        assert_eq!(heard.recv(), Ok(Ok(None)));
    });
}

#[test]
fn the_state_is_that_of_the_batch_before() {
    let (sampler, begun, _) = numbers();
    let mut bench = Bench::new(sampler);
    assert_eq!(bench.sampler.position(), Some(at(0)));
    for _ in 0..3 {
        bench.data().unwrap();
    }
    while begun.recv().unwrap() < 7 {}
    assert_eq!(bench.sampler.position(), Some(at(3)));
    for wanted in [3.0, 4.0] {
        assert_eq!(number(bench.data()), wanted);
    }
    let wrong = bench.sampler.set_position(&Position::from_bytes(vec![0x80]));
    assert!(matches!(wrong, Err(SampleError::Input(_))), "{wrong:?}");
    assert_eq!(number(bench.data()), 5.0);
    bench.sampler.losses();
    bench.sampler.set_position(&at(3)).unwrap();
    // Batches that had been sampled ahead are among the losses, except those without steps.
    let lost = bench.sampler.losses();
    assert!(lost.agent_steps > 1 && lost.quarantined == losses(3).quarantined, "{lost:?}");
    for wanted in [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0] {
        assert_eq!(number(bench.data()), wanted);
    }
    // Accessing the environments loses nothing.
    bench.sampler.for_each_env(&mut |_| panic!("there are none"));
    for wanted in 11..30 {
        assert_eq!(number(bench.data()), wanted as f32);
    }
}
