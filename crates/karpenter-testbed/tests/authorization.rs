//! Service accounts may do what the roles bound to them allow, and are denied everything else with Kubernetes' messages.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use http::Request;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_testbed::Testbed;
use karpenter_testbed::server::ServedOverHttps;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{GroupVersionKind, Status};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

struct Cluster {
    testbed: Testbed,
    _served: ServedOverHttps,
    robot: Client,
}

async fn client(served: &ServedOverHttps, token: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&served.kubeconfig_with(token)).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}

impl Cluster {
    /// Creates the service account `robots/robot`, and these rules in the ClusterRole `robot`, which is not bound.
    async fn start(rules: Value) -> Self {
        let testbed = Testbed::builder().seed(1).start().await;
        let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let token = served.service_account_token("robots", "robot");
        let robot = client(&served, &token).await;
        let cluster = Self {
            testbed,
            _served: served,
            robot,
        };
        for namespace in ["robots", "others"] {
            let object = json!({ "metadata": { "name": namespace } });
            cluster.create("", "Namespace", None, object).await;
        }
        let role = json!({ "metadata": { "name": "robot" }, "rules": rules });
        cluster.create(RBAC, "ClusterRole", None, role).await;
        cluster
    }

    async fn create(&self, group: &str, kind: &str, namespace: Option<&str>, object: Value) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        let client = self.testbed.client();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let mut object = object;
        object["apiVersion"] = resource.api_version.as_str().into();
        object["kind"] = kind.into();
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// Binds the ClusterRole to the account, in one namespace or cluster-wide.
    async fn bind(&self, namespace: Option<&str>) {
        let kind = match namespace {
            Some(_) => "RoleBinding",
            None => "ClusterRoleBinding",
        };
        let binding = json!({
            "metadata": { "name": "robot" },
            "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": "robot" },
            "subjects": [{ "kind": "ServiceAccount", "name": "robot", "namespace": "robots" }],
        });
        self.create(RBAC, kind, namespace, binding).await;
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.robot.clone(), namespace)
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.robot.clone(), "robots")
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";

#[track_caller]
fn refused<T: std::fmt::Debug>(result: kube::Result<T>) -> Box<Status> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 403 && status.reason == "Forbidden" => {
            status
        }
        other => panic!("not denied: {other:?}"),
    }
}

fn pod(name: &str) -> Pod {
    let pod = karpenter_fixtures::pod(name).remove("/metadata/namespace");
    pod.as_written().build()
}

#[tokio::test]
async fn an_account_without_roles_is_denied_with_kubernetes_message() {
    let cluster = Cluster::start(json!([])).await;
    let nodes: Api<Node> = Api::all(cluster.robot.clone());
    let status = refused(nodes.list(&ListParams::default()).await);
    assert_eq!(
        status.message,
        "nodes is forbidden: User \"system:serviceaccount:robots:robot\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"
    );
    let status = refused(cluster.leases().get("one").await);
    assert_eq!(
        status.message,
        "leases.coordination.k8s.io \"one\" is forbidden: User \"system:serviceaccount:robots:robot\" cannot get resource \"leases\" in API group \"coordination.k8s.io\" in the namespace \"robots\""
    );
    let details = status.details.unwrap();
    assert_eq!(
        (&*details.name, &*details.group, &*details.kind),
        ("one", "coordination.k8s.io", "leases")
    );
    assert_eq!(
        cluster.testbed.server().refusals().len(),
        2,
        "both are recorded"
    );
}

#[tokio::test]
async fn verbs_and_resources_of_a_bound_role_are_allowed() {
    let rules = json!([
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
        { "apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"] },
    ]);
    let cluster = Cluster::start(rules).await;
    cluster.bind(None).await;
    let admin: Api<Pod> = Api::namespaced(cluster.testbed.client(), "others");
    admin
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap();
    let pods = cluster.pods("others");
    assert_eq!(pods.get("a").await.unwrap().metadata.name.unwrap(), "a");
    refused(pods.create(&PostParams::default(), &pod("b")).await);
    let status = refused(pods.delete("a", &Default::default()).await);
    assert!(
        status.message.contains("cannot delete resource \"pods\""),
        "{}",
        status.message
    );
    // A subresource needs its own permission.
    pods.evict("a", &Default::default()).await.unwrap();
    let scaled = pods
        .patch_status(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({ "status": {} })),
        )
        .await;
    assert!(
        refused(scaled)
            .message
            .contains("cannot patch resource \"pods/status\"")
    );
}

#[tokio::test]
async fn a_rule_with_resource_names_is_for_these_and_lists_of_one_of_them() {
    let rules = json!([{
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["mine"], "verbs": ["*"],
    }]);
    let cluster = Cluster::start(rules).await;
    cluster.bind(None).await;
    let leases = cluster.leases();
    assert!(leases.get_opt("mine").await.unwrap().is_none());
    refused(leases.get_opt("other").await);
    refused(leases.list(&ListParams::default()).await);
    let one = ListParams::default().fields("metadata.name=mine");
    assert!(leases.list(&one).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn an_apply_that_creates_an_object_needs_the_create_permission() {
    let rules = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["patch"] }]);
    let cluster = Cluster::start(rules).await;
    cluster.bind(None).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "mine" }, "spec": { "holderIdentity": "robot" },
    });
    let apply = PatchParams::apply("robot");
    let leases = cluster.leases();
    let status = refused(leases.patch("mine", &apply, &Patch::Apply(&lease)).await);
    assert!(
        status.message.contains("cannot create resource \"leases\""),
        "{}",
        status.message
    );
    let admin: Api<Lease> = Api::namespaced(cluster.testbed.client(), "robots");
    let made = serde_json::from_value(json!({ "metadata": { "name": "mine" } })).unwrap();
    admin.create(&PostParams::default(), &made).await.unwrap();
    leases
        .patch("mine", &apply, &Patch::Apply(&lease))
        .await
        .unwrap();
}

#[tokio::test]
async fn all_accounts_may_discover_the_api_and_review_their_own_permissions() {
    let rules = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }]);
    let cluster = Cluster::start(rules).await;
    cluster.bind(None).await;
    cluster.robot.apiserver_version().await.unwrap();
    cluster.robot.list_api_groups().await.unwrap();
    let request = Request::get("/metrics").body(Vec::new()).unwrap();
    let status = refused(cluster.robot.request_text(request).await);
    assert!(
        status.message.ends_with("cannot get path \"/metrics\""),
        "{}",
        status.message
    );

    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.robot.clone());
    let mut answers = Vec::new();
    for verb in ["list", "delete"] {
        let review = serde_json::from_value(json!({
            "metadata": {},
            "spec": { "resourceAttributes": { "verb": verb, "group": "", "resource": "pods", "namespace": "others" } },
        }))
        .unwrap();
        let answer = reviews.create(&PostParams::default(), &review).await;
        answers.push(answer.unwrap().status.unwrap().allowed);
    }
    assert_eq!(answers, [true, false]);
}

#[tokio::test]
async fn an_unknown_token_is_unauthorized() {
    let testbed = Testbed::builder().start().await;
    let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let stranger = client(&served, "guessed").await;
    let error = stranger.apiserver_version().await.unwrap_err();
    assert!(
        matches!(error, kube::Error::Api(status) if status.code == 401),
        "401"
    );
}
