//! The shell between the pure state and the browser: collects events, reduces them once per frame, performs the
//! effects.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use leptos::prelude::*;
use rollmesh_core::{protocol::Token, time::Micros};
use rollmesh_data::survey::Found;
use wasm_bindgen::JsCast as _;
use web_sys::{Element, File, FileList, HtmlCanvasElement, HtmlElement};

use crate::{
    data_file::DataFile,
    link,
    parts::{Parts, StatePart},
    player::Player,
    socket::Socket,
    state::{Action, Effect, Event, Played, State, Texts, reduce},
    tab_worker::TabWorkerHandle,
    token,
    trainer::Trainer,
};

/// The delay after which the page's address follows the charts: browsers limit how often it may change.
const LINK_DELAY: Duration = Duration::from_millis(300);
/// The name of the parameter in a link that gives the folder of the policy to play.
const POLICY: &str = "policy";
/// The largest number of events that a frame applies while fewer than [`MANY_EVENTS`] wait.
const EVENTS_OF_FRAME: usize = 32;
/// The number of waiting events from which on a frame applies all, as when the hub sends its whole state to a new page.
const MANY_EVENTS: usize = 512;
/// The delay of events while the page is hidden, when there are no frames.
const HIDDEN_FRAME: Duration = Duration::from_millis(250);

/// The state of the page, and the way to change it. Given to all views as a context.
#[derive(Clone, Copy)]
pub(crate) struct Store {
    shell: StoredValue<Rc<Shell>, LocalStorage>,
}

#[derive(Default)]
struct Shell {
    state: RefCell<State>,
    parts: Parts,
    waiting: RefCell<Vec<Event>>,
    is_scheduled: Cell<bool>,
    token: Cell<Option<Token>>,
    socket: RefCell<Option<Socket>>,
    /// The Web Workers by number.
    tab_workers: RefCell<BTreeMap<u32, TabWorkerHandle>>,
    trainer: RefCell<Option<Trainer>>,
    data_file: RefCell<Option<DataFile>>,
    player: RefCell<Option<Player>>,
    link: RefCell<Option<Texts>>,
}

impl Store {
    /// Creates the store, applies the page's address and listens to the window's events.
    pub(crate) fn start() -> Self {
        let store = Self { shell: StoredValue::new_local(Rc::default()) };
        let found = token::take();
        store.shell.with_value(|shell| shell.token.set(found));
        if let Some(texts) = link::read() {
            if let Some(folder) = texts.get(POLICY) {
                store.play(|player| player.fetch(folder));
            }
            store.dispatch(Event::Linked(texts));
        }
        store.dispatch(Event::Started { token: found.is_some() });
        store.listen();
        store
    }

    /// Returns a signal of a part of the state. Views that show it update only when the part changes.
    pub(crate) fn select<T: PartialEq + Send + Sync + 'static>(
        self,
        part: impl Fn(&State) -> T + 'static,
    ) -> RwSignal<T> {
        self.part(None, Box::new(part))
    }

    /// Returns a signal of a part of the state that only messages about a worker change; it is recomputed only after
    /// such a message.
    pub(crate) fn of_worker<T: PartialEq + Send + Sync + 'static>(
        self,
        worker: u32,
        part: impl Fn(&State) -> T + 'static,
    ) -> RwSignal<T> {
        self.part(Some(worker), Box::new(part))
    }

    fn part<T: PartialEq + Send + Sync + 'static>(self, worker: Option<u32>, part: StatePart<T>) -> RwSignal<T> {
        let (key, shown) = self.shell.with_value(|shell| shell.parts.add(worker, &shell.state.borrow(), part));
        on_cleanup(move || self.shell.with_value(|shell| shell.parts.remove(key)));
        shown
    }

    /// Reads the state without a subscription to its changes.
    pub(crate) fn peek<T>(self, look: impl FnOnce(&State) -> T) -> T {
        self.shell.with_value(|shell| look(&shell.state.borrow()))
    }

    /// Queues an event, which is applied with the next frame.
    pub(crate) fn dispatch(self, event: Event) {
        self.shell.with_value(|shell| shell.waiting.borrow_mut().push(event));
        self.schedule();
    }

    fn schedule(self) {
        if self.shell.with_value(|shell| shell.is_scheduled.replace(true)) {
            return;
        }
        if document().hidden() {
            set_timeout(move || self.flush(), HIDDEN_FRAME);
        } else {
            request_animation_frame(move || self.flush());
        }
    }

    /// Handles an action of the user.
    pub(crate) fn act(self, action: Action) {
        self.dispatch(Event::Act(action));
    }

    /// Stores and uses the token that the user entered.
    pub(crate) fn use_token(self, token: Token) {
        token::keep(&token);
        self.shell.with_value(|shell| shell.token.set(Some(token)));
        self.dispatch(Event::TokenFound);
    }

    /// Removes the token from the tab's storage.
    pub(crate) fn forget_token(self) {
        token::forget();
        self.shell.with_value(|shell| shell.token.set(None));
        self.dispatch(Event::TokenForgotten);
    }

    /// Opens files that the user chose or dropped: the player plays a policy's files, any other file replaces the open
    /// one.
    pub(crate) fn open_files(self, files: &FileList) {
        for file in (0..files.length()).filter_map(|index| files.get(index)) {
            if file.name().ends_with(".safetensors") || file.name() == "policy.json" {
                self.play(|player| player.open(&file));
            } else {
                self.read_file(file, 0, None);
            }
        }
    }

    /// Reads the opened file again and keeps its steps from the given episode on.
    pub(crate) fn replay_file(self, episode: u32) {
        let file = self.shell.with_value(|shell| shell.data_file.borrow().as_ref().map(DataFile::file));
        let known = self.peek(|state| state.file.as_ref().map(|file| file.found.clone()));
        if let Some(file) = file {
            self.read_file(file, episode, known);
        }
    }

    fn read_file(self, file: File, episode: u32, known: Option<Arc<Found>>) {
        self.shell.with_value(|shell| shell.data_file.replace(Some(DataFile::start(self, file, episode, known))));
    }

    /// Plays the current policy of the run in this tab.
    pub(crate) fn play_run(self) {
        self.play(|_| {});
        self.shell.with_value(|shell| shell.trainer.borrow().iter().for_each(Trainer::play));
    }

    /// Calls the player, for example to give it a policy; starts it if necessary.
    pub(crate) fn play(self, with: impl FnOnce(&Player)) {
        self.shell.with_value(|shell| with(shell.player.borrow_mut().get_or_insert_with(|| Player::start(self))));
        self.dispatch(Event::Played(Played::default()));
    }

    /// Lets the player draw on this canvas.
    pub(crate) fn draw_player(self, canvas: &HtmlCanvasElement) {
        self.shell.with_value(|shell| shell.player.borrow().iter().for_each(|player| player.draw_on(canvas)));
    }

    /// Takes an action in place of the policy that plays, until `None`.
    pub(crate) fn take_over(self, action: Option<u32>) {
        self.shell.with_value(|shell| shell.player.borrow().iter().for_each(|player| player.act(action)));
    }

    /// Ends the player.
    pub(crate) fn close_player(self) {
        self.shell.with_value(|shell| drop(shell.player.take()));
        self.dispatch(Event::PlayerClosed);
    }

    fn flush(self) {
        let waiting = self.shell.with_value(|shell| {
            shell.is_scheduled.set(false);
            let mut waiting = shell.waiting.take();
            // A hub sends its changes ten times a second; the frames in between share their events.
            if (EVENTS_OF_FRAME..MANY_EVENTS).contains(&waiting.len()) && !document().hidden() {
                shell.waiting.replace(waiting.split_off(EVENTS_OF_FRAME));
            }
            waiting
        });
        if waiting.is_empty() {
            return;
        }
        if self.shell.with_value(|shell| !shell.waiting.borrow().is_empty()) {
            self.schedule();
        }
        let shell = self.shell.get_value();
        let apply = |event| reduce(&mut shell.state.borrow_mut(), event);
        let effects: Vec<Effect> = waiting.into_iter().flat_map(apply).collect();
        let workers = shell.state.borrow_mut().take_touched();
        shell.parts.update(&shell.state.borrow(), &workers);
        effects.into_iter().for_each(|effect| self.perform(effect));
    }

    fn perform(self, effect: Effect) {
        let shell = self.shell.get_value();
        match effect {
            Effect::Connect { role } => {
                // The old socket and its handlers are dropped first, so that its close event is not attributed to the
                // new one.
                shell.socket.take();
                *shell.socket.borrow_mut() = shell.token.get().and_then(|token| Socket::open(self, role, token));
            }
            Effect::Disconnect => drop(shell.socket.take()),
            Effect::RetryIn { delay } => self.later(delay, Event::RetryDue),
            Effect::Send(message) if self.peek(State::is_tab) => {
                if let Some(trainer) = &*shell.trainer.borrow() {
                    trainer.send(&message);
                }
            }
            Effect::Send(message) => {
                if let Some(socket) = &*shell.socket.borrow() {
                    socket.send(&message);
                }
            }
            Effect::StartTab { worker, job, token } => {
                let handle = TabWorkerHandle::start(self, worker, &job, token);
                shell.tab_workers.borrow_mut().extend(handle.map(|handle| (worker, handle)));
            }
            Effect::StopTab { worker } => drop(shell.tab_workers.borrow_mut().remove(&worker)),
            Effect::StartTrainer => {
                // The old trainer is dropped first, so that no message of it arrives after the start of the new one.
                shell.trainer.take();
                *shell.trainer.borrow_mut() = Trainer::start(self);
            }
            Effect::StopTrainer => drop(shell.trainer.take()),
            Effect::Save { file } => {
                if let Some(trainer) = &*shell.trainer.borrow() {
                    trainer.save(file);
                }
            }
            Effect::ShowLink(texts) => {
                if shell.link.replace(Some(texts)).is_none() {
                    set_timeout(move || shell.link.take().iter().for_each(link::show), LINK_DELAY);
                }
            }
            // This frame re-creates the form.
            Effect::ShowForm => request_animation_frame(show_form),
            Effect::CloseFile => drop(shell.data_file.take()),
            Effect::ExpireToast { id, delay } => self.later(delay, Event::ToastGone(id)),
        }
    }

    fn later(self, delay: Micros, event: Event) {
        set_timeout(move || self.dispatch(event), delay.into());
    }

    fn listen(self) {
        // These live as long as the page.
        let _ = window_event_listener(leptos::ev::online, move |_| self.dispatch(Event::Woke));
        let _ = window_event_listener(leptos::ev::visibilitychange, move |_| {
            // Frames stop when the page becomes hidden, so events that were scheduled for the next frame are applied
            // here.
            self.flush();
            let is_hidden = document().hidden();
            self.shell.with_value(|shell| {
                shell.trainer.borrow().iter().for_each(|trainer| trainer.set_hidden(is_hidden));
            });
            if !is_hidden {
                self.dispatch(Event::Woke);
            }
        });
        let _ = window_event_listener(leptos::ev::hashchange, move |_| {
            if let Some(token) = token::take_from_url() {
                self.use_token(token);
            } else if let Some(texts) = link::read() {
                self.dispatch(Event::Linked(texts));
            }
        });
    }
}

/// Scrolls to the form of a run.
fn show_form() {
    unfolded(".start-form").iter().for_each(Element::scroll_into_view);
}

/// Goes to the first field of the form of a run whose text is not allowed.
pub(crate) fn focus_wrong_field() {
    if let Some(field) = unfolded(".start-form [aria-invalid]").and_then(|field| field.dyn_into::<HtmlElement>().ok()) {
        // Does not fail for an element on the page.
        let _ = field.focus();
    }
}

/// Returns the first element that the selector matches, and opens the `details` that contain it.
fn unfolded(selector: &str) -> Option<Element> {
    let found = document().query_selector(selector).ok()??;
    if let Ok(Some(folded)) = found.closest("details") {
        // A browser that cannot open it shows it closed.
        let _ = folded.set_attribute("open", "");
    }
    Some(found)
}
