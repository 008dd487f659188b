//! The size of the files that a browser loads, and the order in which it does.

use serde_json::{Value, json};

use super::{dashboard::Dashboard, program::Program};

/// The modules with the largest allowed size of each as a hub sends it, in kB. docs/performance.md has the goals.
const MOST_KB: [(&str, u64); 5] = [
    ("rollmesh-web", 537),
    ("rollmesh_wasm", 911),
    ("rollmesh_trainer", 1_402),
    ("rollmesh_reader", 170),
    ("rollmesh_tables", 900),
];

/// The largest number of kB loaded before the dashboard is shown, which takes half a second at 10 Mbit/s.
const MOST_BEFORE_DASHBOARD_KB: u64 = 560;

#[tokio::test(flavor = "multi_thread")]
async fn modules_do_not_grow_and_the_dashboard_loads_few_bytes_and_none_of_the_workers_modules() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    page.browser.limit_network(10).await;
    page.go_to(hub.url()).await;
    // The files requested before the first paint and before the dashboard was shown, in order.
    let loaded = "return ['first-contentful-paint', 'dashboard'].map(name => {
            const { startTime } = performance.getEntriesByName(name)[0];
            const files = ['navigation', 'resource'].flatMap(type => performance.getEntriesByType(type))
                .filter(file => file.startTime <= startTime)
                .sort((one, other) => one.startTime - other.startTime);
            const bytes = files.filter(({ responseEnd }) => responseEnd <= startTime)
                .reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0);
            return { ms: startTime, bytes, files: files.map(({ name }) => new URL(name).pathname) };
        })";
    let loaded = page.run(loaded, vec![]).await;
    println!("first paint and dashboard at 10 Mbit/s: {loaded:#}");
    let dashboard = &loaded[1];
    assert!(
        dashboard["bytes"].as_u64().is_some_and(|bytes| bytes <= MOST_BEFORE_DASHBOARD_KB * 1_000),
        "{dashboard:#}"
    );
    let files: Vec<&str> = dashboard["files"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let position = |part: &str| files.iter().position(|file| file.contains(part));
    // The page and its style, which suffice for the first paint, are requested before the module.
    assert!(files[0] == "/" && position(".css").is_some() && position(".css") < position("_bg.wasm"), "{files:?}");
    for later in
        ["rollmesh_wasm", "rollmesh_trainer", "rollmesh_reader", "rollmesh_tables", "player", "trainer.js", "reader.js"]
    {
        assert_eq!(position(later), None, "{later} is loaded when it is used: {files:?}");
    }

    page.browser.limit_network(1_000).await;
    let sizes = "const [names, done] = arguments;
        const page = performance.getEntriesByType('resource').find(({ name }) => /rollmesh-web.*_bg[.]wasm$/.test(name));
        Promise.all(names.map(async name => {
            const url = name === 'rollmesh-web' ? page.name : new URL(`${name}_bg.wasm`, document.baseURI).href;
            const answer = await fetch(url, { cache: 'reload' });
            await answer.arrayBuffer();
            const { encodedBodySize } = performance.getEntriesByName(url).at(-1);
            return [encodedBodySize, answer.headers.get('content-encoding'), answer.headers.get('cache-control')];
        })).then(done)";
    let names = MOST_KB.map(|(name, _)| name);
    let sizes = page.browser.client.execute_async(sizes, vec![json!(names)]).await.expect("the modules are there");
    println!("{names:?}: {sizes}");
    for ((name, most), size) in MOST_KB.iter().zip(sizes.as_array().expect("a list")) {
        assert_eq!(size[1], "gzip", "{name}");
        assert!(size[0].as_u64().is_some_and(|bytes| bytes <= most * 1_000), "{name}: {size}, at most {most} kB");
    }
    // The names of the page's files have hashes.
    let is_immutable = |value: &Value| value.as_str().is_some_and(|value| value.contains("immutable"));
    assert!(is_immutable(&sizes[0][2]) && !is_immutable(&sizes[1][2]), "{sizes}");
}
