//! Files of logged experience, opened in the page.

use std::collections::BTreeMap;

use leptos::{ev::DragEvent, html, prelude::*};

use rollmesh_data::survey::{ColumnSurvey, PolicyReport, Problem, Spread};

use super::{histogram::Histogram, live::Watched, show_card};
use crate::{
    format,
    shell::Store,
    state::{ClipSource, Event, FileStatus, OpenedFile},
};

/// A panel that opens a chosen file, or one that is dropped anywhere on the page, and reports its contents.
#[component]
pub(crate) fn DataFile() -> impl IntoView {
    let store = expect_context::<Store>();
    let file = store.select(|state| state.file.clone());
    let is_over = RwSignal::new(false);
    listen_for_drops(store, is_over);
    view! {
        <section
            class="card late data-file"
            aria-labelledby="data-title"
            data-testid="data-file"
            data-over=move || is_over.get().to_string()
        >
            <div class="card-head">
                <h2 id="data-title">"Logged experience"</h2>
                <span class="detail">"read in this tab, sent nowhere"</span>
            </div>
            {move || match file.get() {
                Some(file) => view! { <Opened file/> }.into_any(),
                None => view! {
                    <p class="hint">
                        "Drop a file on this page, or choose one: RLlib's sample files, JSON with a batch per line, plain or compressed; "
                        "Parquet; HDF5 of D4RL or Minari. Of folders and of pages that Zstandard compresses "
                        <code>"rollmesh data inspect"</code> " says the same. The two files of a policy, "
                        <code>"policy.json"</code> " and " <code>"weights.safetensors"</code> ", play here."
                    </p>
                }.into_any(),
            }}
            <Replay file/>
            <div class="buttons">
                <Choose/>
                <Show when=move || file.with(Option::is_some)>
                    <button
                        type="button"
                        class="button"
                        data-testid="data-close"
                        on:click=move |_| store.dispatch(Event::FileClosed)
                    >
                        "Close"
                    </button>
                </Show>
            </div>
        </section>
    }
}

/// A form that replays the steps of the file from an episode on, in the panel of the live environment.
#[component]
fn Replay(
    /// The file.
    file: RwSignal<Option<OpenedFile>>,
) -> impl IntoView {
    let store = expect_context::<Store>();
    let Watched(watched) = expect_context::<Watched>();
    let input = NodeRef::<html::Input>::new();
    let is_read = move || file.with(|file| file.as_ref().is_some_and(|file| file.status == FileStatus::Read));
    let replayed = Memo::new(move |_| file.with(|file| file.as_ref().and_then(OpenedFile::replayed)));
    // The episode that was requested last, until it is shown, and the error of an invalid request.
    let wanted = RwSignal::new(None::<u32>);
    let refused = RwSignal::new(None::<String>);
    let replay = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let Some(input) = input.get_untracked().filter(|_| untrack(is_read)) else { return };
        let episode = episode_of(&input.value());
        refused.set(episode.clone().err());
        wanted.set(episode.ok());
        let is_other = |episode: &u32| replayed.get_untracked() != Some(*episode);
        wanted.get_untracked().filter(is_other).into_iter().for_each(|episode| store.replay_file(episode));
    };
    Effect::new(move |_| {
        if wanted.get().is_some() && wanted.get() == replayed.get() {
            wanted.set(None);
            watched.set(ClipSource::File);
            show_card("live");
        }
    });
    let problem = move || {
        let missing = |file: &OpenedFile| format!("The file has no episode {} of a single agent.", file.episode);
        let is_missing = |file: &&OpenedFile| file.status == FileStatus::Read && file.clip.is_none();
        refused.get().or_else(|| file.with(|file| file.as_ref().filter(is_missing).map(missing)))
    };
    Effect::new(move |before: Option<String>| {
        let name = file.with(|file| file.as_ref().map(|file| file.name.clone()).unwrap_or_default());
        if before.is_some_and(|before| before != name) {
            wanted.set(None);
            refused.set(None);
            input.get_untracked().into_iter().for_each(|input| input.set_value("0"));
        }
        name
    });
    let can_be_read = |file: &OpenedFile| !matches!(file.status, FileStatus::Failed(_));
    // While the file is read again, the form stays and keeps the focus and the typed text.
    view! {
        <Show when=move || file.with(|file| file.as_ref().is_some_and(can_be_read))>
            <form class="buttons" on:submit=replay>
                <label class="inline-field">
                    "Episode"
                    <input node_ref=input type="number" class="short" min="0" value="0" data-testid="data-episode"/>
                </label>
                // A disabled button would lose the focus.
                <button
                    type="submit"
                    class="button"
                    data-testid="data-replay"
                    aria-disabled=move || (!is_read()).to_string()
                >
                    "Replay"
                </button>
                <span class="hint" role="status" data-testid="data-no-episode">{problem}</span>
            </form>
        </Show>
    }
}

/// Reads the number of an episode.
///
/// # Errors
/// A message that says what to enter, if the text is not the number of an episode.
fn episode_of(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "Enter the number of an episode, 0 for the first one.".into())
}

/// The browser's file picker, styled as a button.
#[component]
fn Choose() -> impl IntoView {
    let store = expect_context::<Store>();
    let input = NodeRef::<html::Input>::new();
    let choose = move |_| {
        let Some(input) = input.get_untracked() else { return };
        if let Some(files) = input.files() {
            store.open_files(&files);
        }
        // The same file can be chosen again.
        input.set_value("");
    };
    view! {
        <label class="button">
            "Open a file…"
            <input node_ref=input type="file" multiple=true class="hidden" data-testid="data-choose" on:change=choose/>
        </label>
    }
}

/// Opens files that are dropped anywhere on the page: without this, the browser would replace the page with the file.
fn listen_for_drops(store: Store, is_over: RwSignal<bool>) {
    let has_file = |event: &DragEvent| {
        let kinds = event.data_transfer().map(|transfer| transfer.types());
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.as_string().as_deref() == Some("Files")))
    };
    // These listeners live as long as the page.
    let _ = window_event_listener(leptos::ev::dragover, move |event| {
        if has_file(&event) {
            event.prevent_default();
            is_over.set(true);
        }
    });
    let _ = window_event_listener(leptos::ev::dragleave, move |event| {
        // The pointer has left the window, not only an element of the page.
        if event.related_target().is_none() {
            is_over.set(false);
        }
    });
    let _ = window_event_listener(leptos::ev::drop, move |event| {
        is_over.set(false);
        if has_file(&event) {
            event.prevent_default();
            if let Some(files) = event.data_transfer().and_then(|transfer| transfer.files()) {
                store.open_files(&files);
            }
        }
    });
}

#[component]
fn Opened(
    /// The file, as far as it was read.
    file: OpenedFile,
) -> impl IntoView {
    let said = file.say();
    let OpenedFile { name, bytes, read, found, status, .. } = file;
    let (state, class) = match &status {
        FileStatus::Reading => ("reading", "hint"),
        FileStatus::Read => ("read", "hint"),
        FileStatus::Failed(_) => ("failed", "field-error"),
    };
    let has_failed = state == "failed";
    let (report, several) = (&found.report, found.report.policies.len() > 1);
    view! {
        <p class="file-name"><b data-testid="data-name">{name}</b>" "<span class="detail">{size(bytes)}</span></p>
        <p class=class role="status" data-testid="data-status" data-status=state>{said}</p>
        <progress max=bytes.to_string() value=read.to_string() aria-label="Read" hidden={state != "reading"}></progress>
        <dl class="lines" hidden=has_failed>
            <Line id="data-batches" name="Batches" value=format::count(report.batches)/>
            <Line id="data-env-steps" name="Env steps" value=format::count(report.env_steps)/>
        </dl>
        {report.policies.iter().map(|(id, policy)| view! {
            <Policy id=several.then(|| id.clone()) policy=policy.clone()/>
        }).collect_view()}
        <Problems found=found.problems.clone()/>
    }
}

#[component]
fn Policy(
    /// The policy's id, if there are several policies.
    id: Option<String>,
    /// The report on the policy's rows.
    policy: PolicyReport,
) -> impl IntoView {
    let unfinished = match policy.unfinished {
        0 => String::new(),
        n => format!(", and {} that did not end", format::count(n)),
    };
    let label =
        id.as_ref().map_or_else(|| "Columns, scrollable".into(), |id| format!("Columns of policy {id}, scrollable"));
    view! {
        {id.map(|id| view! { <h3>"Policy " {id}</h3> })}
        <dl class="lines">
            <Line id="data-rows" name="Rows" value=format::count(policy.rows)/>
            <Line id="data-episodes" name="Episodes" value=format::count(policy.episodes) + &unfinished/>
            <Line id="data-return" name="Return" value=said(&policy.returns)/>
            <Line id="data-length" name="Length" value=said(&policy.lengths)/>
        </dl>
        <Histogram
            id="data-histogram"
            caption="Episodes by return"
            heads=["Return", "Share", "Episodes"]
            bars=bars(&policy).into()
        />
        <div class="table-box" tabindex="0" role="group" aria-label=label>
            <table data-testid="data-columns">
                <thead>
                    <tr>
                        <th scope="col">"Column"</th>
                        <th scope="col">"Type"</th>
                        <th scope="col" class="right">"Least"</th>
                        <th scope="col" class="right">"Mean"</th>
                        <th scope="col" class="right">"Greatest"</th>
                    </tr>
                </thead>
                <tbody>
                    {policy.columns.into_iter().map(|(name, column)| view! { <Column name column/> }).collect_view()}
                </tbody>
            </table>
        </div>
    }
}

#[component]
fn Column(
    /// Its name.
    name: String,
    /// The survey of its values.
    column: ColumnSurvey,
) -> impl IntoView {
    let ColumnSurvey { kinds, values: Spread { not_finite, min, max, mean, .. }, .. } = column;
    let odd = match not_finite {
        0 => String::new(),
        n => format!(" ({} not finite)", format::count(n)),
    };
    view! {
        <tr>
            <td class="name" title=name.clone()>{name.clone()}</td>
            <td>{kinds.join(" or ")}</td>
            <td class="right">{format::short(min)}</td>
            <td class="right">{format::short(mean)}</td>
            <td class="right">{format::short(max) + &odd}</td>
        </tr>
    }
}

#[component]
fn Problems(
    /// The problems, by their descriptions.
    found: BTreeMap<String, Problem>,
) -> impl IntoView {
    let is_none = found.is_empty();
    view! {
        <ul class="problems" data-testid="data-problems" aria-label="Problems" hidden=is_none>
            {found.into_iter().map(|(what, Problem { count, places })| {
                let more = count - places.len() as u64;
                view! {
                    <li>
                        <b>{what} ": " {format::count(count)}</b>
                        <ul>
                            {places.into_iter().map(|place| view! { <li>{place}</li> }).collect_view()}
                            {(more > 0).then(|| view! { <li>{format!("… and {} more", format::count(more))}</li> })}
                        </ul>
                    </li>
                }
            }).collect_view()}
        </ul>
    }
}

/// Returns ranges of returns with their numbers of episodes.
fn bars(policy: &PolicyReport) -> Vec<(String, u64)> {
    let PolicyReport { returns, histogram, .. } = policy;
    let range = |from: f64, to: f64| match returns.min == returns.max {
        true => format::short(returns.min),
        false => format!("{} to {}", format::short(from), format::short(to)),
    };
    histogram.iter().map(|bin| (range(bin.from, bin.to), bin.count)).collect()
}

/// A name and its value.
#[component]
fn Line(
    /// Name for tests.
    id: &'static str,
    /// Its name.
    name: &'static str,
    /// Its value as text.
    value: String,
) -> impl IntoView {
    view! {
        <div class="line">
            <dt>{name}</dt>
            <dd data-testid=id>{value}</dd>
        </div>
    }
}

fn said(spread: &Spread) -> String {
    let [mean, min, max] = [spread.mean, spread.min, spread.max].map(format::short);
    if spread.count > 0 { format!("{mean} ({min} to {max})") } else { "–".into() }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        _ => format!("{}B", format::short(bytes as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_episodes() {
        assert_eq!([" 7 ", "0"].map(episode_of), [Ok(7), Ok(0)]);
        for text in ["", "1e3", "-1", "4294967296"] {
            assert!(episode_of(text).is_err_and(|error| error.starts_with("Enter")), "{text:?}");
        }
    }
}
