//! The dashboard in a browser: a real Chromium, and the controllers on the embedded control plane in real time.
//!
//! Skipped, with a message, without `chromium` and `chromedriver`; `.ci/run` installs them. With `KARPENTER_SCREENSHOTS=DIR`
//! every view is written to a directory, for review; with `UPDATE_PICTURES=1` the pictures of `docs/img` are.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod browser;
mod world;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_core::behavior::Behavior;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use skipped::skipped;

use browser::Browser;
use world::{World, until};

const TAB: &str = "\u{E004}";
const ENTER: &str = "\u{E007}";
const HOME: &str = "\u{E011}";
const RIGHT: &str = "\u{E014}";

/// Runs blocking work on the browser, while the controllers go on.
async fn see<T: Send + 'static>(
    browser: &std::sync::Arc<Browser>,
    work: impl FnOnce(&Browser) -> T + Send + 'static,
) -> T {
    let browser = std::sync::Arc::clone(browser);
    tokio::task::spawn_blocking(move || work(&browser))
        .await
        .unwrap()
}

async fn browser() -> Option<std::sync::Arc<Browser>> {
    let started = tokio::task::spawn_blocking(Browser::start).await.unwrap();
    started.map(std::sync::Arc::new)
}

/// The number of nodes that the map says it has.
const SQUARES: &str =
    "parseInt(document.querySelector('.map canvas')?.getAttribute('aria-label') ?? '0')";

/// Waits until the map has one square for each node. Nodes come and go in the meantime.
async fn each_node_has_one_square(world: &World, browser: &std::sync::Arc<Browser>) {
    let both = until(async || {
        let nodes = world.nodes(|nodes| nodes > 0).await.len();
        let squares = see(browser, |it| it.run(&format!("return {SQUARES}"))).await;
        (squares == nodes, (squares, nodes))
    });
    both.await;
}

/// The group of the pods that no zone takes. The others are bound in the meantime, and their group goes away.
const LOST: &str =
    "[...document.querySelectorAll('a.choice')].find((it) => it.innerText.includes('zone=z9'))";

/// A change that is rehearsed: fewer replicas, and nodes that may go.
const CHANGE: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, namespace: default}
spec:
  replicas: 20
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers: [{name: app, image: app, resources: {requests: {cpu: 1, memory: 1Gi}}}]";

/// Conformance: DASH-02, DASH-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn squares_follow_the_nodes_and_a_restart_without_a_reload() {
    let Some(browser) = browser().await else {
        return;
    };
    let mut world = World::start().await;
    let nodes = world.at("nodes");
    see(&browser, move |it| {
        it.open(&nodes);
        it.wait(
            "the page is live",
            "document.querySelector('.connection.live')",
        );
        it.wait(
            "it says that there is nothing",
            "document.querySelector('.empty')",
        );
        it.run("window.mark = 1");
    })
    .await;
    world.deploy("app", 40, json!({})).await;
    each_node_has_one_square(&world, &browser).await;

    // The page survives a restart of its server, and shows each node once.
    world.cluster.stop_controllers().await;
    see(&browser, |it| {
        it.wait(
            "the page reconnects",
            "document.querySelector('.banner')?.innerText.includes('Reconnecting')",
        );
        it.wait("the nodes stay", &format!("{SQUARES} > 0"));
    })
    .await;
    world.cluster.start_controllers();
    see(&browser, |it| {
        it.wait(
            "the page is live again",
            "document.querySelector('.connection.live') && !document.querySelector('.banner')",
        );
    })
    .await;
    each_node_has_one_square(&world, &browser).await;
    see(&browser, |it| {
        // By keyboard: what a square is, is said.
        it.run("document.querySelector('.map canvas').focus()");
        it.keys(&[HOME]);
        it.wait(
            "the square is described",
            "document.querySelector('.map canvas').ariaLabel.includes('Ready')",
        );
    })
    .await;

    // A pod cannot leave, so that the node stays while it is drained.
    let guard = json!({
        "metadata": { "name": "guard", "namespace": "default" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "app" } } },
    });
    let guard: PodDisruptionBudget = serde_json::from_value(guard).unwrap();
    let guards: Api<PodDisruptionBudget> = Api::namespaced(world.client.clone(), "default");
    world.create(&guards, &guard).await;
    let claims: Api<karpenter_api::v1::NodeClaim> = Api::all(world.client.clone());
    for claim in claims.list(&ListParams::default()).await.unwrap() {
        let name = claim.metadata.name.unwrap();
        claims
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
    }
    see(&browser, |it| {
        it.wait(
            "the square is leaving",
            "document.querySelector('.map canvas').ariaLabel.includes('Terminating')",
        );
        it.run("document.querySelector('.map canvas').blur()");
    })
    .await;
    guards
        .delete("guard", &DeleteParams::default())
        .await
        .unwrap();
    world.delete("app").await;
    world.nodes(|nodes| nodes == 0).await;
    see(&browser, |it| {
        it.wait(
            "the squares are gone",
            "document.querySelector('.empty')?.innerText === 'There are no nodes.'",
        );
        assert_eq!(
            it.run("return window.mark"),
            1,
            "the page was not loaded again"
        );
    })
    .await;
    world.cluster.shutdown().await;
}

/// Conformance: DASH-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_click_on_a_node_shows_the_reasons_in_the_words_of_the_explanation() {
    let Some(browser) = browser().await else {
        return;
    };
    let world = World::start().await;
    world.deploy("app", 2, json!({})).await;
    let name = world.nodes(|nodes| nodes == 1).await.remove(0);
    let patch = Patch::Merge(
        json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": "true" } } }),
    );
    let nodes: Api<Node> = Api::all(world.client.clone());
    nodes
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    // The pods have just started, which is a reason of its own for some moments.
    let path = format!("nodes/{name}/explanation");
    world
        .answers(&path, |explanation| {
            explanation["blockers"]
                .as_array()
                .is_some_and(|all| all.len() == 1 && all[0]["id"] == "NodeDoNotDisrupt")
        })
        .await;
    let url = world.at("nodes");
    see(&browser, move |it| {
        it.open(&url);
        it.wait("the square is there", &format!("{SQUARES} === 1"));
        it.wait("a pass has looked at it", "document.querySelector('.map canvas').getBoundingClientRect().height > 20");
        let place = it.run("const box = document.querySelector('.map canvas').getBoundingClientRect(); return [Math.round(box.left) + 8, Math.round(box.top) + 34]");
        it.click(place[0].as_i64().unwrap(), place[1].as_i64().unwrap());
        it.wait("the panel tells what blocks it", "document.querySelector('#blockers')?.innerText.includes('NodeDoNotDisrupt')");
    })
    .await;
    let explanation = tokio::task::block_in_place(|| world.ask(&path));
    let expected: Vec<String> = explanation["blockers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|blocker| {
            format!(
                "{} {}",
                blocker["id"].as_str().unwrap(),
                blocker["text"].as_str().unwrap()
            )
        })
        .collect();
    let script = "return [...document.querySelectorAll('#blockers .reason')].map((it) => it.querySelector('.chip').innerText + ' ' + it.querySelector('p').innerText)";
    let shown = see(&browser, move |it| it.run(script)).await;
    assert_eq!(shown, json!(expected));
    let title = see(&browser, |it| it.text(".panel h2")).await;
    assert_eq!(title, name);
    world.cluster.shutdown().await;
}

/// Conformance: DASH-04, DASH-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_text_stays_text_and_no_request_leaves_the_origin() {
    const HOSTILE: &str =
        "<img src=x onerror=\"window.owned=1\"><script>window.owned=1</script>'\"";
    let Some(browser) = browser().await else {
        return;
    };
    let world = World::start().await;
    // The API server does not check the values of a node affinity.
    let affinity = json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": [HOSTILE] }] }],
    } } } });
    world.deploy("lost", 1, affinity).await;
    world.deploy("app", 2, json!({})).await;
    world.nodes(|nodes| nodes > 0).await;
    let (pending, decisions) = (world.at("pending"), world.at("decisions"));
    let base = world.url.clone();
    see(&browser, move |it| {
        it.open(&pending);
        let text = "document.body.innerText.includes('<img src=x onerror=')";
        it.wait("the group has the text", text);
        // The other pods may be pending still.
        it.run("[...document.querySelectorAll('a.choice')].find((it) => it.innerText.includes('<img src=x onerror=')).click()");
        it.wait(
            "the explanation has the text",
            "document.querySelector('.panel')?.innerText.includes('<img src=x onerror=')",
        );
        it.run("location.hash = 'nodes'");
        it.wait("the map is there", "document.querySelector('.map canvas')");
        it.open("about:blank");
        it.open(&decisions);
        it.wait(
            "there are records",
            "document.querySelector('.record-head')",
        );
        it.run("document.querySelectorAll('.record-head').forEach((it) => it.click())");
        it.wait("a record has the text", text);
        it.run("document.querySelector('.theme').click()");
        assert_eq!(it.run("return window.owned ?? 0"), 0, "no script ran");
        assert_eq!(
            it.run("return document.querySelectorAll('img[src=x]').length"),
            0
        );
        assert_eq!(
            it.run("return [document.cookie, Object.keys(localStorage).join()]"),
            json!(["", "theme"])
        );
        let complaints = it.log("browser");
        assert!(complaints.is_empty(), "{complaints:?}");

        let (mut requests, mut files) = (0, 0);
        for message in it.log("performance") {
            let message: Value = serde_json::from_str(&message).unwrap();
            let (method, parameters) =
                (&message["message"]["method"], &message["message"]["params"]);
            if method == "Network.requestWillBeSent" {
                let url = parameters["request"]["url"].as_str().unwrap();
                assert!(url.starts_with(&base) || url.starts_with("about:"), "{url}");
                requests += 1;
            } else if method == "Network.responseReceived"
                && parameters["response"]["url"]
                    .as_str()
                    .unwrap()
                    .starts_with(&base)
            {
                let headers = parameters["response"]["headers"].as_object().unwrap();
                let header = |name: &str| {
                    headers
                        .iter()
                        .find(|(key, _)| key.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value)
                };
                assert_eq!(
                    header("x-content-type-options"),
                    Some(&json!("nosniff")),
                    "{parameters}"
                );
                if !parameters["response"]["url"]
                    .as_str()
                    .unwrap()
                    .contains("/apis/")
                {
                    let policy = header("content-security-policy").unwrap().as_str().unwrap();
                    assert!(
                        policy.starts_with("default-src 'self'")
                            && policy.contains("frame-ancestors 'none'")
                    );
                    files += 1;
                }
            }
        }
        assert!(
            requests > 15 && files > 12,
            "{requests} requests, {files} files"
        );
    })
    .await;
    world.cluster.shutdown().await;
}

/// Conformance: DASH-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_view_is_readable_by_keyboard_and_without_serious_faults() {
    let Some(browser) = browser().await else {
        return;
    };
    let world = World::start().await;
    world.keep_nodes().await;
    world.deploy("app", 60, json!({})).await;
    world
        .deploy(
            "lost",
            3,
            json!({ "nodeSelector": { "topology.kubernetes.io/zone": "z9" } }),
        )
        .await;
    world.nodes(|nodes| nodes > 0).await;
    let taints = json!([{ "key": "batch", "effect": "NoSchedule" }]);
    world.pool("batch", taints).await;
    let url = world.url.clone();
    see(&browser, move |it| {
        it.open(&url);
        it.wait("the page is live", "document.querySelector('.tile')");
        it.wait(
            "a NodePool without nodes is listed",
            "document.querySelector('.grid.two')?.innerText.includes('no nodes')",
        );
        it.wait("a pod has no place", "document.querySelector('.badge')");
        let names =
            "return [...document.querySelectorAll('nav a')].map((it) => it.firstChild.data)";
        for view in it.run(names).as_array().unwrap() {
            let row = format!("| {} |", view.as_str().unwrap());
            assert!(BOOK.contains(&row), "docs/dashboard.md has no {row}");
        }
        // The link to the content, the name, and the first views.
        let focus = "return document.activeElement.innerText.trim().split(/\\s/)[0]";
        let mut seen = Vec::new();
        for _ in 0..6 {
            it.keys(&[TAB]);
            seen.push(it.run(focus).as_str().unwrap().to_owned());
        }
        assert_eq!(
            seen,
            [
                "Skip",
                "Karpenter",
                "Overview",
                "Nodes",
                "Pending",
                "Decisions"
            ]
        );
        it.keys(&[ENTER]);
        it.wait("decisions", "document.querySelector('.record-head')");
        it.run("document.querySelectorAll('nav a')[1].focus()");
        it.keys(&[ENTER]);
        // Keys have no effect before the squares are drawn, which gives the canvas its height.
        it.wait(
            "nodes",
            "document.querySelector('.map canvas')?.style.height",
        );
        it.run("document.querySelector('.map canvas').focus()");
        it.keys(&[HOME, RIGHT, ENTER]);
        it.wait(
            "the panel of a node",
            "document.querySelector('.panel .facts')",
        );
        it.wait(
            "the focus is in the panel",
            "document.activeElement.closest('.panel')",
        );
        it.run("document.querySelectorAll('.segments button')[1].focus()");
        it.keys(&[ENTER]);
        it.wait(
            "the table",
            "document.querySelector('.nodes-table .rows .row')",
        );
        it.run("document.querySelectorAll('nav a')[2].focus()");
        it.keys(&[ENTER]);
        it.wait("groups", LOST);
        // An update of the list may take the focus before the key arrives.
        for _ in 0..20 {
            it.run(&format!("{LOST}.focus()"));
            if it.run(&format!("return document.activeElement === {LOST}")) == true {
                it.keys(&[ENTER]);
            }
            if it.run("return Boolean(document.querySelector('.panel'))") == true {
                break;
            }
        }
        it.wait(
            "what blocks the pod",
            "document.querySelector('.panel .stages')",
        );
    })
    .await;

    let axe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/axe-core/axe.min.js");
    let axe = std::fs::read_to_string(axe).ok();
    if axe.is_none() {
        skipped("axe-core", "it is not in target/tools");
    }
    let screenshots = std::env::var_os("KARPENTER_SCREENSHOTS").map(PathBuf::from);
    let pictures = std::env::var_os("UPDATE_PICTURES")
        .map(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/img"));
    let base = world.url.clone();
    see(&browser, move |it| {
        for (width, height) in [(1280, 860), (390, 844)] {
            for theme in ["light", "dark"] {
                it.emulate(width, height, theme);
                for (name, view, ready, then, answered) in VIEWS {
                    it.open("about:blank");
                    it.open(&format!("{base}#{view}"));
                    it.wait(name, ready);
                    it.run(&then.replace("CHANGE", &format!("{CHANGE:?}")));
                    it.wait(name, answered);
                    it.wait("the page has settled", "document.readyState === 'complete'");
                    let wide = it.run("return document.documentElement.scrollWidth - innerWidth");
                    assert!(
                        wide.as_i64() <= Some(0),
                        "{name} is {wide} too wide at {width}"
                    );
                    if let Some(directory) = &screenshots {
                        it.screenshot(&directory.join(format!("{name}-{width}-{theme}.png")));
                    }
                    if let Some(directory) = &pictures
                        && PICTURES.contains(&name)
                        && (width, theme) == (1280, "light")
                    {
                        it.screenshot(&directory.join(format!("dashboard-{name}.png")));
                    }
                    if let Some(axe) = &axe {
                        assert_eq!(faults(it, axe), json!([]), "{name}, {width}, {theme}");
                    }
                }
            }
        }
    })
    .await;
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_are_rehearsed_side_by_side() {
    let Some(browser) = browser().await else {
        return;
    };
    let world = World::start().await;
    world.deploy("app", 4, json!({})).await;
    world.nodes(|nodes| nodes > 0).await;
    let plan = world.at("plan");
    see(&browser, move |it| {
        it.open(&plan);
        it.wait("the form is there", "document.querySelector('[name=from]')");
        let options = it
            .run("return [...document.querySelector('[name=from]').options].map((it) => it.value)");
        assert_eq!(options, json!(Behavior::VERSIONS));
        it.run(
            "const from = document.querySelector('[name=from]');
             from.value = 'karpenter-1.13';
             from.dispatchEvent(new Event('change', { bubbles: true }));
             document.querySelector('.rehearsal button').click()",
        );
        it.wait(
            "both are answered",
            "document.querySelector('.versions tbody tr')",
        );
        let rows = it.run(
            "return [...document.querySelectorAll('.versions tbody th')].map((it) => it.innerText)",
        );
        assert_eq!(rows, json!(["karpenter-1.13", "this"]));
        let rules = it.run("return document.querySelector('.versions > p').innerText");
        let rules = rules.as_str().unwrap();
        let rule = "They differ in consolidate-after-applies-to-destinations (no, then yes), ";
        assert!(rules.starts_with(rule), "{rules}");
    })
    .await;
    world.cluster.shutdown().await;
}

/// The page of the book that lists the views.
const BOOK: &str = include_str!("../../../../docs/dashboard.md");

/// The views that the book and README show.
const PICTURES: [&str; 3] = ["overview", "pending", "plan"];

/// Views: name, address, what is there once they are ready, what to do then, and what is there once that has been answered.
const VIEWS: [(&str, &str, &str, &str, &str); 7] = [
    (
        "overview",
        "overview",
        "document.querySelector('.u-over')",
        "",
        // Nodes are not kept for the pods that have just been bound.
        "!document.body.innerText.includes('Nominated')",
    ),
    (
        "nodes",
        "nodes",
        "document.querySelector('.map canvas')",
        "",
        "document.querySelector('.map canvas')",
    ),
    (
        "table",
        "nodes",
        "document.querySelector('.map canvas')",
        "document.querySelectorAll('.segments button')[1].click()",
        "document.querySelector('.nodes-table .rows .row')",
    ),
    (
        "panel",
        "nodes",
        "document.querySelector('.map canvas')",
        "import('/assets/js/state.js').then(({ nodes }) => { location.hash = 'nodes/' + nodes.value[0].id })",
        "document.querySelector('.panel .facts')",
    ),
    (
        "pending",
        "pending",
        LOST,
        "[...document.querySelectorAll('a.choice')].find((it) => it.innerText.includes('zone=z9')).click()",
        "document.querySelector('.panel .stages')",
    ),
    (
        "decisions",
        "decisions",
        "document.querySelector('.record-head')",
        "document.querySelector('.record-head').click()",
        "document.querySelector('.record-body')",
    ),
    (
        "plan",
        "plan",
        "document.querySelector('.rehearsal textarea')",
        "const [manifest, settings] = document.querySelectorAll('.rehearsal textarea');
         const type = (field, text) => { field.value = text; field.dispatchEvent(new Event('input', { bubbles: true })) };
         type(manifest, CHANGE);
         type(settings, 'consolidate-after.default=30s');
         document.querySelector('.rehearsal button').click()",
        "document.querySelector('.rehearsal ~ .grid')",
    ),
];

/// Returns the serious faults that axe-core finds. The script of the test is not subject to the policy of the page.
fn faults(browser: &Browser, axe: &str) -> Value {
    browser.run(axe);
    browser.run("window.faults = undefined; axe.run(document, { resultTypes: ['violations'] }).then((found) => { window.faults = found.violations.filter((it) => ['serious', 'critical'].includes(it.impact)).map((it) => [it.id, it.nodes.map((node) => node.html)]) })");
    browser.wait("axe has run", "window.faults !== undefined");
    browser.run("return window.faults")
}
