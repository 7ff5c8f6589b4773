//! Memory and throughput of the embedded control plane: `cargo xtask bench testbed`.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::core::v1::Pod;
use karpenter_bench::Suite;
use karpenter_testbed::Testbed;
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tower::Service;

fn pod(i: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("inflate-7d9c6b8f5-{i:06}"),
            "labels": {"app": "inflate", "pod-template-hash": "7d9c6b8f5"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "inflate-7d9c6b8f5",
                "uid": "0b5f9b2e-6b9f-4c53-8f0c-0c6f7d1c9a11", "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "nodeSelector": {"karpenter.sh/capacity-type": "spot"},
            "containers": [{
                "name": "inflate", "image": "public.ecr.aws/eks-distro/kubernetes/pause:3.7",
                "resources": {"requests": {"cpu": "1", "memory": "256Mi"}},
            }],
        },
    })
}

fn node(i: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": format!("node-{i:05}"), "labels": {
            "kubernetes.io/hostname": format!("node-{i:05}"), "topology.kubernetes.io/zone": "test-zone-a",
            "node.kubernetes.io/instance-type": "c-4x-amd64-linux", "karpenter.sh/capacity-type": "spot",
        }},
        "spec": {"providerID": format!("kwok://node-{i:05}")},
        "status": {"capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                   "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

async fn post(testbed: &Testbed, path: &str, body: &Value) {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from(
            serde_json::to_vec(body).unwrap(),
        )))
        .unwrap();
    let response = testbed.server().service(false).call(request).await.unwrap();
    assert_eq!(response.status(), 201);
    response.into_body().collect().await.unwrap();
}

async fn fill(testbed: &Testbed, pods: std::ops::Range<usize>) {
    for i in pods {
        post(testbed, "/api/v1/namespaces/default/pods", &pod(i)).await;
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut suite = Suite::from_args("testbed");
    for (name, clients) in [("creates", 8), ("creates-one-by-one", 1)] {
        suite.case(name, |run| {
            const PODS: usize = 4_000;
            run.parameter("pods", PODS);
            run.parameter("kube, typed clients", clients);
            run.measure(PODS, || {
                runtime.block_on(async {
                    let testbed = Testbed::builder().start().await;
                    let mut creators = tokio::task::JoinSet::new();
                    for client in 0..clients {
                        let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
                        creators.spawn(async move {
                            for i in (client..PODS).step_by(clients) {
                                let pod: Pod = serde_json::from_value(pod(i)).unwrap();
                                pods.create(&PostParams::default(), &pod).await.unwrap();
                            }
                        });
                    }
                    creators.join_all().await;
                });
            });
        });
    }
    suite.case("watch", |run| {
        const PODS: usize = 10_000;
        run.parameter("pods", PODS);
        run.parameter("client", "kube, typed watch from the first revision");
        let testbed = runtime.block_on(async {
            let testbed = Testbed::builder().start().await;
            fill(&testbed, 0..PODS).await;
            testbed
        });
        run.measure(PODS, || {
            runtime.block_on(async {
                let pods: Api<Pod> = Api::namespaced(testbed.client(), "default");
                let mut watch = pods
                    .watch(&WatchParams::default().timeout(60), "1")
                    .await
                    .unwrap()
                    .boxed();
                for _ in 0..PODS {
                    let event = watch.next().await.unwrap().unwrap();
                    assert!(matches!(event, WatchEvent::Added(_)));
                }
            });
        });
    });
    suite.case("resident", |run| {
        const PODS: usize = 100_000;
        const NODES: usize = 5_000;
        run.parameter("pods", PODS);
        run.parameter("nodes", NODES);
        run.measure_once(PODS + NODES, || {
            runtime.block_on(async {
                let testbed = Testbed::builder().start().await;
                for i in 0..NODES {
                    post(&testbed, "/api/v1/nodes", &node(i)).await;
                }
                fill(&testbed, 0..PODS).await;
                testbed
            })
        });
    });
}
