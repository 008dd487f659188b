//! How much a browser loads, and how soon the page is there.

use serde_json::{Value, json};

use super::{dashboard::Dashboard, program::Program};

/// Modules, and the most bytes of each as a hub sends it, in thousands: they do not grow. docs/performance.md has the goals.
const MOST_KB: [(&str, u64); 4] =
    [("rollmesh-web", 560), ("rollmesh_wasm", 1_200), ("rollmesh_trainer", 1_600), ("rollmesh_reader", 200)];

#[tokio::test(flavor = "multi_thread")]
async fn modules_do_not_grow_and_the_dashboard_is_there_within_a_second_at_10_mbit_per_s() {
    let page = Dashboard::start().await;
    let hub = Program::start("hub", [""; 0]);
    page.browser.limit_network(10).await;
    page.go_to(hub.url()).await;
    let times =
        "return ['first-contentful-paint', 'dashboard'].map(name => performance.getEntriesByName(name)[0].startTime)";
    let times = page.run(times, vec![]).await;
    println!("first paint and dashboard at 10 Mbit/s, in ms: {times}");
    assert!(times[1].as_f64().expect("the dashboard came") < 1_000.0, "{times}");

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
    // The page's names have hashes.
    let is_immutable = |value: &Value| value.as_str().is_some_and(|value| value.contains("immutable"));
    assert!(is_immutable(&sizes[0][2]) && !is_immutable(&sizes[1][2]), "{sizes}");
}
