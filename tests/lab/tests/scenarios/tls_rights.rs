//! Decisions over TLS: what answers and refusals say about objects that the user may not see, and what a stalled client costs.

use karpenter_kwok::KwokNodeClass;
use serde_json::{Value, json};

use crate::decisions::{free_port, serving};
use crate::tls::{AUDIENCE, PREFIX, Trust, account, first_pod, guarded, rules, token, world};
use crate::world::{World, pool};

const ZONE: &str = "topology.kubernetes.io/zone";

#[tokio::test(start_paused = true)]
async fn an_object_of_another_namespace_is_refused_whether_it_exists_or_not() {
    let (trust, port) = (Trust::new(), free_port());
    let world = world(&trust, port).await;
    guarded(&world, "shop", "web", 1, &Value::Null);
    guarded(&world, "pay", "ledger", 1, &Value::Null);
    world.until_running(2, 120).await;
    // Changes are made for pods that are pending.
    world.cluster.testbed.load([json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "lost", "namespace": "shop" },
        "spec": {
            "schedulerName": "default-scheduler", "nodeSelector": { "example.com/zone": "nowhere" },
            "containers": [{ "name": "c", "image": "i" }],
        },
    })]);
    world.pass(30).await;
    let mut all = rules(&["*"]);
    all[0]["verbs"] = json!(["*"]);
    account(&world, "admin", None, &all);
    account(&world, "team", Some("shop"), &rules(&["pods/explanation"]));
    account(
        &world,
        "team",
        None,
        &json!([
            { "apiGroups": [AUDIENCE], "resources": ["decisions"], "verbs": ["list"] },
            { "apiGroups": [AUDIENCE], "resources": ["plans"], "verbs": ["create"] },
        ]),
    );
    let admin = token(&world, "admin", Some(AUDIENCE)).await;
    let team = token(&world, "team", Some(AUDIENCE)).await;
    let what_if =
        |name: &str| format!("namespaces/shop/pods/lost/explanation?if=without-pdb%3D{name}");

    assert_eq!(
        trust
            .get(port, &admin, &what_if("pay/ledger-guard"))
            .await
            .code,
        200
    );
    assert_eq!(
        trust.get(port, &admin, &what_if("pay/none")).await.code,
        400
    );
    let there = trust.get(port, &team, &what_if("pay/ledger-guard")).await;
    let not_there = trust.get(port, &team, &what_if("pay/none")).await;
    assert_eq!((there.code, there.message()), (403, not_there.message()));
    let no_namespace = trust.get(port, &team, &what_if("none/none")).await;
    assert_eq!(no_namespace.code, 403);
    assert_eq!(
        trust
            .get(port, &team, &what_if("shop/web-guard"))
            .await
            .code,
        200
    );
    assert_eq!(
        trust.get(port, &team, &what_if("shop/none")).await.code,
        400
    );

    let of = |subject: &str| format!("decisions?subject={subject}");
    assert_eq!(trust.get(port, &team, &of("shop%2Fweb-1")).await.code, 200);
    assert_eq!(
        trust.get(port, &team, &of("pay%2Fledger-1")).await.code,
        403
    );

    let plan = |token: &str| {
        format!(
            "Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
        )
    };
    let path = format!("{PREFIX}/plans");
    let planned = trust.send(port, "POST", &path, &plan(&admin)).await;
    assert_eq!(
        (planned.code, &planned.json()["kind"]),
        (200, &json!("Plan"))
    );
    let refused = trust.send(port, "POST", &path, &plan(&team)).await;
    assert!(
        refused.code == 403 && refused.message().ends_with("at the cluster scope"),
        "it depends on the objects of all namespaces: {refused:?}"
    );
    world.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_right_to_one_pod_shows_no_other_name_of_its_namespace() {
    let (trust, port) = (Trust::new(), free_port());
    let world = World::bare(serving(free_port(), |options| trust.serve(options, port))).await;
    world.create(&KwokNodeClass::new("default")).await;
    let one_zone = json!([{ "key": ZONE, "operator": "In", "values": ["test-zone-a"] }]);
    let spec = json!({ "template": { "spec": { "requirements": one_zone } } });
    world.create(&pool("default", spec)).await;
    let alone = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": ZONE, "labelSelector": { "matchLabels": { "app": "web" } } },
    ] } });
    guarded(&world, "shop", "vault", 1, &alone);
    world.until_running(1, 300).await;
    let vault = first_pod(&world, "shop").await;
    guarded(&world, "shop", "web", 1, &Value::Null);
    world.pass(30).await;
    let mut pods = world
        .pods()
        .await
        .into_iter()
        .filter_map(|pod| pod.metadata.name);
    let own = pods.find(|name| *name != vault).unwrap();
    account(&world, "team", Some("shop"), &rules(&["pods/explanation"]));
    let mut one = rules(&["pods/explanation"]);
    one[0]["resourceNames"] = json!([own]);
    account(&world, "owner", Some("shop"), &one);
    let team = token(&world, "team", Some(AUDIENCE)).await;
    let owner = token(&world, "owner", Some(AUDIENCE)).await;

    let path = format!("namespaces/shop/pods/{own}/explanation?timeout=5s");
    let all = trust.get(port, &team, &path).await;
    assert!(all.body.contains("Deployment shop/vault"), "{all:?}");
    let shown = trust.get(port, &owner, &path).await;
    assert_eq!(
        shown.json()["metadata"],
        json!({ "namespace": "shop", "name": own, "uid": all.json()["metadata"]["uid"] })
    );
    assert!(!shown.body.contains("vault"), "{shown:?}");
    assert!(shown.body.contains("(other namespace)"), "{shown:?}");
    world.cluster.shutdown().await;
}
