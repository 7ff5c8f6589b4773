//! The connection to the API server, and its failures as sentences that name what to do.

use std::fmt;

use anyhow::{Context as _, anyhow};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use crate::flags::KubectlFlags;

/// How many objects are listed at a time.
const PAGE: u32 = 500;

/// A connection to an API server, as one user.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    /// The URL of the API server.
    pub url: String,
    /// The namespace of `-n`, or of the context.
    pub namespace: String,
    /// The user of `--as`, or the name of the context's user in the kubeconfig.
    pub user: Option<String>,
}

impl Cluster {
    /// Calls `see` with each object of a kind that has these labels, page by page. A kind that is `optional` need not be served.
    ///
    /// # Errors
    /// If the objects cannot be listed.
    pub async fn each<K>(
        &self,
        selector: Option<&str>,
        optional: bool,
        mut see: impl FnMut(K),
    ) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let mut params = ListParams {
            label_selector: selector.map(str::to_owned),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        loop {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if optional && status.is_not_found() => {
                    return Ok(());
                }
                Err(error) => {
                    let access = Access {
                        verb: "list",
                        group: &K::group(&()),
                        resource: &K::plural(&()),
                        namespace: None,
                        name: None,
                    };
                    return Err(access.failed(self, error));
                }
            };
            page.items.into_iter().for_each(&mut see);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}

/// Reads the kubeconfig that the options select; `None` if there is none, as in a pod.
///
/// # Errors
/// If it cannot be read.
pub fn kubeconfig(flags: &KubectlFlags) -> anyhow::Result<Option<Kubeconfig>> {
    if let Some(path) = &flags.kubeconfig {
        let read = Kubeconfig::read_from(path);
        return read
            .map(Some)
            .with_context(|| format!("cannot read the kubeconfig `{}`", path.display()));
    }
    match Kubeconfig::read() {
        Ok(found) => Ok(Some(found)),
        Err(KubeconfigError::FindPath) => Ok(None),
        Err(KubeconfigError::ReadConfig(error, _))
            if error.kind() == std::io::ErrorKind::NotFound
                && std::env::var_os("KUBECONFIG").is_none() =>
        {
            Ok(None)
        }
        Err(error) => Err(error).context("cannot read the kubeconfig"),
    }
}

impl KubectlFlags {
    /// Connects to the API server that the options select. No request is made yet.
    ///
    /// # Errors
    /// If the kubeconfig cannot be read, or lacks what the options name.
    pub async fn connect(&self) -> anyhow::Result<Cluster> {
        let (mut config, user) = match kubeconfig(self)? {
            Some(kubeconfig) => {
                let user = self.user_of(&kubeconfig);
                let options = KubeConfigOptions {
                    context: self.context.clone(),
                    cluster: self.cluster.clone(),
                    user: self.user.clone(),
                };
                let config = Config::from_custom_kubeconfig(kubeconfig, &options);
                let config = config.await.map_err(|error| self.explain(error))?;
                (config, user)
            }
            None => {
                let config = Config::incluster();
                let missing = "there is no kubeconfig: set KUBECONFIG, or pass --kubeconfig PATH";
                (config.map_err(|_| anyhow!(missing))?, None)
            }
        };
        if let Some(user) = &self.as_user {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = Some(self.as_groups.clone());
        }
        if let Some(timeout) = self.request_timeout.0 {
            config.read_timeout = Some(timeout);
            config.connect_timeout = Some(timeout);
        }
        let url = config.cluster_url.to_string();
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        self.report(&format!("using the API server {url}"));
        let client = Client::try_from(config).context("cannot use the kubeconfig")?;
        Ok(Cluster {
            client,
            url,
            namespace,
            user: self.as_user.clone().or(user),
        })
    }

    /// Returns the name of the kubeconfig's user that the options select.
    fn user_of(&self, kubeconfig: &Kubeconfig) -> Option<String> {
        self.user.clone().or_else(|| {
            let context = self.selected_context(kubeconfig)?;
            context.context.as_ref()?.user.clone()
        })
    }

    /// Returns the context of the kubeconfig that the options select.
    pub fn selected_context<'a>(
        &self,
        kubeconfig: &'a Kubeconfig,
    ) -> Option<&'a kube::config::NamedContext> {
        let selected = self
            .context
            .as_ref()
            .or(kubeconfig.current_context.as_ref())?;
        kubeconfig
            .contexts
            .iter()
            .find(|named| named.name == *selected)
    }

    fn explain(&self, error: KubeconfigError) -> anyhow::Error {
        match error {
            KubeconfigError::CurrentContextNotSet => {
                anyhow!("the kubeconfig has no current context: pass --context NAME")
            }
            KubeconfigError::LoadContext(name) => anyhow!(
                "unknown context `{name}`: `kubectl config get-contexts` lists the contexts"
            ),
            KubeconfigError::LoadClusterOfContext(name) => {
                anyhow!("unknown cluster `{name}`: the kubeconfig does not define it")
            }
            error => anyhow!(error).context("cannot use the kubeconfig"),
        }
    }
}

/// A request, for messages: what failed, and which right it needs.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// The verb of RBAC: `get`, `list`, `patch` …
    pub verb: &'a str,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The resource, with a subresource if there is one: `nodepools`, `pods/portforward`.
    pub resource: &'a str,
    /// The namespace; `None` for cluster-scoped resources.
    pub namespace: Option<&'a str>,
    /// The name of the object; `None` for lists.
    pub name: Option<&'a str>,
}

impl fmt::Display for Access<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(name) = self.name {
            write!(f, " \"{name}\"")?;
        }
        match self.namespace {
            Some(namespace) => write!(f, " in namespace \"{namespace}\""),
            None => Ok(()),
        }
    }
}

impl Access<'_> {
    /// Writes the missing rule of RBAC, and where it belongs.
    pub fn rule(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            match self.namespace {
                Some(namespace) => write!(f, "a Role in namespace \"{namespace}\"")?,
                None => f.write_str("a ClusterRole")?,
            }
            write!(
                f,
                " with the rule {{apiGroups: [\"{}\"], resources: [\"{}\"], verbs: [\"{}\"]}}",
                self.group, self.resource, self.verb
            )
        })
    }

    /// Explains why the request failed.
    pub fn failed(&self, cluster: &Cluster, error: kube::Error) -> anyhow::Error {
        let status = match error {
            kube::Error::Api(status) => status,
            kube::Error::Auth(error) => {
                return anyhow!(
                    "cannot {self}: the kubeconfig's credentials cannot be used: {}; log in again",
                    causes(&error)
                );
            }
            error => {
                let (url, causes) = (&cluster.url, causes(&error));
                return anyhow!(
                    "cannot reach the API server {url}: {causes}; check --context, and `kubectl cluster-info`"
                );
            }
        };
        match status.code {
            401 => anyhow!(
                "cannot {self}: the API server does not accept the kubeconfig's credentials; log in again"
            ),
            403 => anyhow!("cannot {self}: forbidden; it needs {}", self.rule()),
            404 if self.name.is_none()
                || status.details.as_ref().is_none_or(|d| d.name.is_empty()) =>
            {
                anyhow!(
                    "cannot {self}: the cluster has no such resource; is Karpenter installed in the cluster of this context?"
                )
            }
            404 => anyhow!("cannot {self}: not found"),
            _ => anyhow!("cannot {self}: {}", status.message),
        }
    }
}

/// Returns the error with its causes; a cause that repeats the one before it is left out.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}
