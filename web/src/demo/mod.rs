//! A rollout in this tab, for a page without a hub. It speaks to the page as a hub would.

mod rollout;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use leptos::{leptos_dom::helpers::IntervalHandle, prelude::*};

use self::rollout::{FRAGMENT_MS, Rollout};
use crate::{
    shell::Store,
    state::{DemoRun, Event},
};

/// A running demo. Dropping it ends it.
pub(crate) struct Demo {
    rollout: Rc<RefCell<Rollout>>,
    /// None once it has stopped.
    interval: Rc<Cell<Option<IntervalHandle>>>,
}

impl Demo {
    /// Starts a rollout at the pace at which it is watched.
    pub(crate) fn start(store: Store, run: DemoRun) -> Option<Self> {
        let rollout = match Rollout::new(run, (js_sys::Math::random() * 1e6) as u64) {
            Ok(rollout) => Rc::new(RefCell::new(rollout)),
            Err(error) => {
                leptos::logging::error!("the demo does not start: {error}");
                return None;
            }
        };
        let stepped = rollout.clone();
        let started = js_sys::Date::now();
        let sample = move || {
            let sampled = stepped.borrow_mut().sample((js_sys::Date::now() - started).max(0.0) as u64);
            match sampled {
                Ok(messages) => messages.into_iter().for_each(|message| store.dispatch(Event::Demo(message))),
                Err(error) => {
                    leptos::logging::error!("the demo has stopped: {error}");
                    return false;
                }
            }
            true
        };
        if !sample() {
            return None;
        }
        let interval = Rc::new(Cell::new(None::<IntervalHandle>));
        let running = interval.clone();
        let step = move || {
            if !sample() {
                stop(&running);
            }
        };
        interval.set(Some(set_interval_with_handle(step, Duration::from_millis(FRAGMENT_MS.into())).ok()?));
        Some(Self { rollout, interval })
    }

    /// Shows another slot.
    pub(crate) fn watch(&self, slot: u32) {
        self.rollout.borrow_mut().watch(slot);
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        stop(&self.interval);
    }
}

fn stop(interval: &Cell<Option<IntervalHandle>>) {
    if let Some(interval) = interval.take() {
        interval.clear();
    }
}
