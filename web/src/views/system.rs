//! The load of the hosts.

use leptos::prelude::*;
use rollmesh_core::protocol::message::HostReport;

use crate::{format, shell::Store, state::State};

/// A host as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    name: String,
    detail: String,
    meters: Vec<Meter>,
}

/// A part of a whole, in percent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Meter {
    name: String,
    percent: u32,
    text: String,
}

/// CPUs, memory and GPUs of each host.
#[component]
pub(crate) fn System() -> impl IntoView {
    let store = expect_context::<Store>();
    let hosts = store.select(hosts);
    view! {
        <section class="card late" aria-labelledby="system-title" data-testid="system">
            <div class="card-head">
                <h2 id="system-title">"Hosts"</h2>
                <span class="detail" data-testid="system-count">{move || hosts.with(Vec::len)}</span>
            </div>
            <ul class="hosts">
                {move || hosts.get().into_iter().map(|host| view! {
                    <li>
                        <p><strong>{host.name}</strong>" "<span class="detail">{host.detail}</span></p>
                        {host.meters.into_iter().map(|meter| view! {
                            <div class="meter">
                                <span>{meter.name.clone()}</span>
                                <progress max="100" value=meter.percent.to_string() aria-label=meter.name></progress>
                                <span class="number">{meter.text}</span>
                            </div>
                        }).collect_view()}
                    </li>
                }).collect_view()}
            </ul>
            <p class="empty" hidden=move || hosts.with(|hosts| !hosts.is_empty())>"No host has reported yet."</p>
        </section>
    }
}

fn hosts(state: &State) -> Vec<Host> {
    state.monitoring.hosts().into_iter().map(|(report, processes)| shown(&report, processes)).collect()
}

fn shown(report: &HostReport, processes: usize) -> Host {
    let HostReport { host, version, cpus, cpu_percent, memory_used, memory_total, gpus, .. } = report;
    let mut meters = Vec::new();
    if cpu_percent.is_finite() {
        meters.push(Meter {
            name: "CPU".into(),
            percent: cpu_percent.round() as u32,
            text: format!("{cpu_percent:.0} %"),
        });
    }
    meters.extend(memory("Memory", *memory_used, *memory_total));
    for gpu in gpus {
        if gpu.percent.is_finite() {
            let (percent, text) = (gpu.percent.round() as u32, format!("{:.0} %", gpu.percent));
            meters.push(Meter { name: gpu.name.clone(), percent, text });
        }
        meters.extend(memory(&format!("{} memory", gpu.name), gpu.memory_used, gpu.memory_total));
    }
    let name = if host.is_empty() { "unnamed".into() } else { host.clone() };
    let processes = if processes == 1 { "1 process".into() } else { format!("{processes} processes") };
    let cpus = if *cpus > 0 { format!(", {cpus} CPUs") } else { String::new() };
    Host { name, detail: format!("{version}, {processes}{cpus}"), meters }
}

fn memory(name: &str, used: u64, total: u64) -> Option<Meter> {
    let percent = (used.saturating_mul(100)).checked_div(total)?.min(100) as u32;
    let text = format!("{}B of {}B", format::short(used as f64), format::short(total as f64));
    Some(Meter { name: name.into(), percent, text })
}
