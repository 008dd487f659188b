//! A rollout in this tab, for a page without a hub. It speaks to the page as a hub would.

mod rollout;

use std::{cell::RefCell, rc::Rc, time::Duration};

use leptos::{leptos_dom::helpers::IntervalHandle, prelude::*};

use self::rollout::{FRAGMENT_LENGTH, Rollout, STEPS_PER_S};
use crate::{shell::Store, state::Event};

/// A running demo. Dropping it ends it.
pub(crate) struct Demo {
    rollout: Rc<RefCell<Rollout>>,
    interval: IntervalHandle,
}

impl Demo {
    /// Starts a rollout in the environments' own time, so that the one on the canvas moves as it would.
    pub(crate) fn start(store: Store) -> Option<Self> {
        let rollout = match Rollout::new((js_sys::Math::random() * 1e6) as u64) {
            Ok(rollout) => Rc::new(RefCell::new(rollout)),
            Err(error) => {
                leptos::logging::error!("the demo does not start: {error}");
                return None;
            }
        };
        let stepped = rollout.clone();
        let started = js_sys::Date::now();
        let step = move || match stepped.borrow_mut().sample((js_sys::Date::now() - started).max(0.0) as u64) {
            Ok(messages) => messages.into_iter().for_each(|message| store.dispatch(Event::Demo(message))),
            Err(error) => leptos::logging::error!("the demo has stopped: {error}"),
        };
        step();
        let every = Duration::from_millis(u64::from(1_000 * FRAGMENT_LENGTH / STEPS_PER_S));
        let interval = set_interval_with_handle(step, every).ok()?;
        Some(Self { rollout, interval })
    }

    /// Shows another slot.
    pub(crate) fn watch(&self, slot: u32) {
        self.rollout.borrow_mut().watch(slot);
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.interval.clear();
    }
}
