//! The server's TLS listener through the API server's service proxy, with a token of our own.
//!
//! The API server authenticates the user as for any request, and removes the user's credentials before it passes the request on.
//! What the server of decisions gets is a token that was made for it alone, by TokenRequest for a ServiceAccount.

use anyhow::{anyhow, bail};
use http::{HeaderValue, Method, StatusCode, Uri};
use http_body_util::BodyExt as _;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use kube::core::Status;

use super::flags::ServerFlags;
use super::leader;
use super::route::{GROUP_VERSION, Route, Sender, question};
use crate::cluster::{Access, Cluster, causes};
use crate::flags::KubectlFlags;

/// The audience of tokens for the server of decisions.
const AUDIENCE: &str = "decisions.karpenter.sh";
/// The name of the Service's port.
const PORT: &str = "https-decisions";
/// How long a token is valid, in seconds: the shortest that can be requested.
const VALID: i64 = 600;

/// Returns the route through the proxy of Karpenter's Service; `None` if no Service has the port.
pub(super) async fn route(
    kubectl: &KubectlFlags,
    flags: &ServerFlags,
) -> anyhow::Result<Option<Route>> {
    let cluster = kubectl.connect_without_retries().await?;
    let Some((namespace, service)) = find(&cluster, flags).await? else {
        kubectl.report(&format!(
            "no Service in namespace {} has the port {PORT}",
            leader::namespaces(flags).join(" or ")
        ));
        return Ok(None);
    };
    let viewer = &flags.viewer;
    let of = viewer.namespace.as_deref().unwrap_or(&namespace);
    let name = &viewer.name;
    kubectl.report(&format!(
        "using the service proxy to Service {service} in namespace {namespace}, with a token of ServiceAccount {of}/{name}"
    ));
    let token = token(&cluster, of, name).await?;
    let segment = format!("https:{service}:{PORT}");
    let prefix = format!("/api/v1/namespaces/{namespace}/services/{segment}/proxy");
    let url: Uri = format!("{}{prefix}", cluster.url.trim_end_matches('/')).parse()?;
    let route = Route {
        sender: Sender {
            client: cluster.client.clone(),
            prefix,
            token: Some(token),
        },
        url,
        forward: None,
    };
    probe(
        &route,
        &cluster,
        &namespace,
        &segment,
        &format!("{of}/{name}"),
    )
    .await?;
    Ok(Some(route))
}

/// Returns namespace and name of the Service with the port.
async fn find(cluster: &Cluster, flags: &ServerFlags) -> anyhow::Result<Option<(String, String)>> {
    for namespace in leader::namespaces(flags) {
        let services: Api<Service> = Api::namespaced(cluster.client.clone(), namespace);
        let listed = services.list(&ListParams::default()).await;
        let access = Access {
            verb: "list",
            group: "",
            resource: "services",
            namespace: Some(namespace),
            name: None,
        };
        let listed = listed.map_err(|error| access.failed(cluster, error))?;
        let has_port = |service: &Service| {
            let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
            ports
                .into_iter()
                .flatten()
                .any(|port| port.name.as_deref() == Some(PORT))
        };
        let found = listed.items.into_iter().find(has_port);
        if let Some(name) = found.and_then(|service| service.metadata.name) {
            return Ok(Some((namespace.to_owned(), name)));
        }
    }
    Ok(None)
}

/// Requests a token for the server.
async fn token(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<HeaderValue> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), namespace);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![AUDIENCE.to_owned()]),
            expiration_seconds: Some(VALID),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let access = Access {
        verb: "create",
        group: "",
        resource: "serviceaccounts/token",
        namespace: Some(namespace),
        name: Some(name),
    };
    let how = PostParams::default();
    let made = accounts.create_token_request(name, &how, &request);
    let made = match made.await {
        Ok(made) => made,
        Err(kube::Error::Api(status)) if status.code == 404 => bail!(
            "cannot {access}: not found; set decisions.viewers.create in the chart, or pass --viewer [NAMESPACE/]NAME"
        ),
        Err(error) => return Err(access.failed(cluster, error)),
    };
    let token = made.status.and_then(|status| status.token);
    let token = token.unwrap_or_default();
    let mut value = HeaderValue::from_str(&token)
        .map_err(|_| anyhow!("cannot {access}: the token is not valid in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Checks that the server answers, whatever the user may ask.
async fn probe(
    route: &Route,
    cluster: &Cluster,
    namespace: &str,
    segment: &str,
    account: &str,
) -> anyhow::Result<()> {
    let url = &route.url;
    let lost = |causes: String| {
        anyhow!("cannot reach Karpenter at {url}: {causes}; check `kubectl cluster-info`")
    };
    let request = question(&Method::GET, &format!("/apis/{GROUP_VERSION}"), Vec::new())?;
    let answer = route.sender.send(request).await;
    let (head, body) = answer
        .map_err(|error| lost(error.to_string()))?
        .into_parts();
    let body = body.collect().await.map_err(|error| lost(causes(&error)))?;
    let status: Option<Status> = serde_json::from_slice(&body.to_bytes()).ok();
    let message = status.map(|status| status.message).unwrap_or_default();
    match head.status {
        StatusCode::UNAUTHORIZED => bail!(
            "Karpenter at {url} does not accept the token of ServiceAccount {account}: check its log for failed TokenReviews"
        ),
        StatusCode::FORBIDDEN => {
            let access = Access {
                verb: "get",
                group: "",
                resource: "services/proxy",
                namespace: Some(namespace),
                name: Some(segment),
            };
            let (rule, url) = (access.rule(), &cluster.url);
            bail!("cannot {access} at {url}: forbidden; it needs {rule}")
        }
        code if code.is_server_error() => bail!(
            "Service {segment} in namespace {namespace} answers {code}: {message}; check `kubectl get pods,endpointslices -n {namespace}`"
        ),
        // The path is none that the server knows, and the token was accepted before that was found.
        _ => Ok(()),
    }
}
