//! All steps, in the order in which they run: cheap steps that find many errors come first.

use crate::{
    additions, artifacts, checks, chromium, cuda, licences,
    plan::Step,
    suites,
    toolchain::{self, BARE, WASM},
    tools,
};

const fn step(
    name: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    run: fn(&crate::job::Job) -> anyhow::Result<()>,
) -> Step {
    Step { name, about, needs, long: false, early: false, run }
}

const fn long(step: Step) -> Step {
    Step { long: true, ..step }
}

/// Returns a step that compiles and takes minutes.
const fn minutes(name: &'static str, about: &'static str, run: fn(&crate::job::Job) -> anyhow::Result<()>) -> Step {
    long(step(name, about, &["fetch"], run))
}

const fn early(step: Step) -> Step {
    Step { early: true, ..step }
}

pub(crate) const STEPS: &[Step] = &[
    step("fmt", "formatting", &[], checks::fmt),
    step(
        "layers",
        "architecture: which crate may use which, what core may not use, links, controls",
        &[],
        checks::layers,
    ),
    step("fetch", "crates into cargo's cache", &[], artifacts::fetch),
    step("licences", "licences and sources of all crates", &["fetch"], licences::check),
    step("bare-target", "the compiler's target without operating system", &[], |job| toolchain::ensure(job, BARE)),
    step("no-std", "core without operating system", &["fetch", "bare-target"], checks::no_std),
    step("clippy", "clippy, native crates", &["fetch"], checks::clippy),
    step("docs", "links in the documentation", &["fetch"], checks::docs),
    step("wasm-target", "the compiler's target for browsers", &[], |job| toolchain::ensure(job, WASM)),
    step(
        "clippy-wasm",
        "clippy, crates for browsers, learner and data formats among them",
        &["fetch", "wasm-target"],
        checks::clippy_wasm,
    ),
    step("test", "tests of the native crates", &["fetch"], |job| suites::tests(job, "--no-fail-fast")),
    step("test-web", "tests of the crates for browsers that need none", &["fetch"], suites::native_web),
    early(step("binary", "binary in release mode (some minutes the first time)", &[], artifacts::binary)),
    step("test-release", "same bits in release mode", &["fetch"], suites::release),
    early(step("wasm-bindgen", "wasm-bindgen (some minutes the first time)", &[], tools::wasm_bindgen)),
    step("node", "wasm in Node against the binary", &["binary", "wasm-target", "wasm-bindgen"], suites::node),
    step("wasm-opt", "wasm-opt", &[], tools::wasm_opt),
    step(
        "npm-package",
        "the npm package, packed",
        &["wasm-target", "wasm-bindgen", "wasm-opt"],
        artifacts::npm_package,
    ),
    step("npm", "the npm package in Node", &["binary", "npm-package"], suites::npm),
    step("python", "Python", &[], tools::python),
    step("clients", "clients in Rust, Python and Node against the program", &["fetch", "python"], |job| {
        suites::tests(job, "--test languages clients::")
    }),
    step("gymnasium", "Gymnasium in a virtual environment", &["python"], tools::gymnasium),
    step("python-envs", "environments of Python", &["fetch", "gymnasium"], suites::python_envs),
    step("manifests", "manifests by the schemas of Kubernetes", &["python"], suites::manifests),
    step("maturin", "maturin in a virtual environment", &["python"], tools::maturin),
    step("wheel", "the Python package in a fresh virtual environment", &["binary", "maturin"], suites::wheel),
    early(step("trunk", "trunk (some minutes the first time)", &[], tools::trunk)),
    step("page", "dashboard", &["fetch", "wasm-target", "wasm-bindgen", "wasm-opt", "trunk"], artifacts::page),
    step("chromium", "Chromium and its driver", &[], chromium::ensure),
    step("wasm-chromium", "wasm in Chromium", &["wasm-target", "wasm-bindgen", "chromium"], suites::chromium),
    step("axe", "axe-core", &[], tools::axe),
    step("e2e", "the page end to end in Chromium", &["binary", "npm-package", "page", "chromium", "axe"], suites::e2e),
    long(step("load", "the page under an hour's updates of 200 workers", &["page", "chromium"], suites::load)),
    long(step(
        "trunk-serve",
        "the page of `trunk serve` in Chromium",
        &["binary", "page", "chromium", "axe"],
        suites::trunk_serve,
    )),
    long(step(
        "own-crate",
        "a user's crate with its page in Chromium",
        &["fetch", "wasm-target", "wasm-bindgen", "wasm-opt", "trunk", "chromium", "axe"],
        suites::own_crate,
    )),
    long(step("npm-long", "the npm package through bundlers, and its memory", &["npm-package"], suites::npm_long)),
    long(step("onnx", "policies in ONNX Runtime", &["fetch", "python"], |job| {
        suites::with_packages(job, "onnx", &["onnxruntime"])
    })),
    long(step(
        "python-packages",
        "environments of Box2D, ALE and PettingZoo",
        &["fetch", "python"],
        suites::python_packages,
    )),
    long(step("wheel-launcher", "workers on a local Ray", &["binary", "maturin"], |job| {
        suites::wheel_with(job, &["ray[default]"], "long_launcher.py")
    })),
    long(step("wheel-torch", "the Python package with PyTorch and mypy", &["binary", "maturin"], |job| {
        suites::wheel_with(job, &["torch", "stable-baselines3", "mypy"], "long_torch.py")
    })),
    long(step("wheel-ray", "the Python package with RLlib", &["binary", "maturin"], |job| {
        suites::wheel_with(job, &["torch", "ray[rllib]", "msgpack", "msgpack_numpy"], "long_ray.py")
    })),
    // Long, because other features recompile most dependencies.
    minutes(
        "few-features",
        "clippy, the program without Parquet, and the library without command line",
        checks::few_features,
    ),
    minutes("packages", "the published crates, each compiled from its package", artifacts::packages),
    minutes("additions", "an example of each addition that CONTRIBUTING lists, applied and compiled", additions::check),
    long(step("cuda", "the program for NVIDIA's GPUs, compiled without one", &["fetch", "python"], cuda::check)),
    minutes(
        "other-systems",
        "core, learner and data formats for Windows and macOS, without their libraries",
        checks::other_systems,
    ),
    minutes("aarch64", "the same rollouts and learned weights on an emulated ARM processor", suites::aarch64),
    minutes("simulator", "the group in the simulator, ten times the seeds", suites::simulator),
    minutes("test-debug", "long rollouts without optimisation", suites::debug),
    minutes("test-native-cpu", "long rollouts for this CPU", suites::native_cpu),
    minutes("kills", "hubs killed at hundreds of points, in runs of every kind", |job| {
        suites::long(job, "--release --package rollmesh --test program -- resume:: --nocapture")
    }),
    minutes("failures", "failures of users' code in every command, and killed ranks", |job| {
        suites::long(job, "--release --package rollmesh --test own_program -- failures:: --nocapture")?;
        suites::long(job, "--release --package rollmesh --test program -- data_parallel:: --nocapture")
    }),
    minutes("fuzz", "decoders, with many mutated messages", |job| {
        suites::long(job, "--release --package rollmesh-tests --test promises hostile_bytes -- --nocapture")
    }),
    minutes("damage", "readers of data sets, with many damaged files", |job| {
        suites::long(job, "--package rollmesh-data --package rollmesh --test data_sets --test program damage::")?;
        suites::long(job, "--package rollmesh --lib data::sink::")
    }),
    minutes("matrix", "runs of every kind, each with ten workers killed", |job| {
        suites::long(
            job,
            "--release --package rollmesh --package rollmesh-example-own-env --test program one_hash_for_any_workers -- --nocapture",
        )
    }),
    minutes("chaos", "workers killed, stopped and cut off for minutes", |job| {
        suites::long(job, "--release --package rollmesh --test own_program -- chaos:: --nocapture")
    }),
    long(step("network", "a hub, workers and a relay in network namespaces", &["binary"], suites::network)),
    minutes("security", "crowds and a million hostile frames", |job| {
        suites::long(job, "--release --package rollmesh --test program -- security:: control:: --nocapture")
    }),
    minutes("coverage", "intervals of estimators, a hundred times each", |job| {
        suites::long(job, "--release --package rollmesh --test program -- ope_coverage:: --nocapture")
    }),
    minutes("learning", "returns that presets and defaults reach", |job| {
        suites::long(job, "--release --package rollmesh --test program -- learning:: --nocapture")?;
        suites::long(job, "--release --package rollmesh-example-worker-group --test program")
    }),
    long(step(
        "figures",
        "speeds that are promised, on an idle machine",
        &["fetch", "binary", "wasm-target", "wasm-bindgen"],
        suites::figures,
    )),
    long(step("program", "the binary with the page inside, in target/dist", &["page"], artifacts::program)),
    long(step(
        "dist",
        "everything that is given away: binary, page, crates, wheel, npm package",
        &["program", "maturin", "npm-package"],
        artifacts::dist,
    )),
];

#[cfg(test)]
mod tests {
    use super::STEPS;

    #[test]
    fn names_are_unique_and_what_a_step_needs_stands_before_it() {
        for (index, step) in STEPS.iter().enumerate() {
            let earlier = &STEPS[..index];
            assert!(earlier.iter().all(|other| other.name != step.name), "{} stands there twice", step.name);
            for needed in step.needs {
                assert!(earlier.iter().any(|other| other.name == *needed), "{} before {needed}", step.name);
            }
            assert!(!step.early || step.needs.is_empty(), "{} is begun before what it needs", step.name);
        }
    }
}
