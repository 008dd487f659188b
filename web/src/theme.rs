//! The light and the dark theme: the system's choice, unless the user made one.

use leptos::prelude::*;
use wasm_bindgen::{JsCast as _, prelude::Closure};

const STORAGE_KEY: &str = "rollmesh-theme";

/// The theme of the page. Given to all views as a context.
#[derive(Clone, Copy)]
pub(crate) struct Theme {
    is_dark: RwSignal<bool>,
}

impl Theme {
    /// Applies the stored choice, or follows the system's if there is none.
    pub(crate) fn start() -> Self {
        let theme = Self { is_dark: RwSignal::new(false) };
        if let Some(name) = stored() {
            show(&name);
        }
        theme.read();
        theme.follow_system();
        theme
    }

    /// Returns whether the page is dark. Subscribes the caller to changes.
    pub(crate) fn is_dark(self) -> bool {
        self.is_dark.get()
    }

    /// Changes to the other theme and stores the choice.
    pub(crate) fn toggle(self) {
        let name = if self.is_dark.get_untracked() { "light" } else { "dark" };
        show(name);
        if let Ok(Some(storage)) = window().local_storage() {
            // A browser without storage follows the system's theme after a reload.
            let _ = storage.set_item(STORAGE_KEY, name);
        }
        self.read();
    }

    fn read(self) {
        let is_dark = match chosen().as_deref() {
            Some(name) => name == "dark",
            None => system_is_dark(),
        };
        self.is_dark.set(is_dark);
    }

    fn follow_system(self) {
        let Ok(Some(query)) = window().match_media(DARK_QUERY) else { return };
        let on_change = Closure::<dyn FnMut()>::new(move || self.read());
        query.set_onchange(Some(on_change.as_ref().unchecked_ref()));
        // Both live as long as the page.
        on_change.forget();
        std::mem::forget(query);
    }
}

const DARK_QUERY: &str = "(prefers-color-scheme: dark)";

fn system_is_dark() -> bool {
    window().match_media(DARK_QUERY).ok().flatten().is_some_and(|query| query.matches())
}

/// Returns whether the user prefers reduced motion.
pub(crate) fn reduced_motion() -> bool {
    window().match_media("(prefers-reduced-motion: reduce)").ok().flatten().is_some_and(|query| query.matches())
}

fn stored() -> Option<String> {
    let name = window().local_storage().ok()??.get_item(STORAGE_KEY).ok()??;
    matches!(name.as_str(), "light" | "dark").then_some(name)
}

fn chosen() -> Option<String> {
    document().document_element()?.get_attribute("data-theme")
}

fn show(name: &str) {
    if let Some(root) = document().document_element() {
        // `data-theme` is a valid name for an attribute.
        let _ = root.set_attribute("data-theme", name);
    }
}
