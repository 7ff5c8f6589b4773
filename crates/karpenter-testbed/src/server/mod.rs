//! Handling of requests: verbs, admission, subresources, custom resources, HTTP.

mod access;
pub mod admission;
pub mod catalog;
pub mod custom;
mod delete;
mod identity;
mod load;
mod names;
mod owners;
mod read;
mod subresources;
mod value;
pub mod wire;
mod write;

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use http::request::Parts;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::faults::{EXEMPT_HEADER, Exempt, Fault, Faults};
use crate::present::table;
use crate::present::table::IncludeObject;
use crate::store::{DEFAULT_HISTORY, Store};
pub use access::authorization::ServiceAccount;
use access::tokens::Tokens;
use catalog::{Catalog, Served};
use identity::Identity;
use owners::Owners;
use wire::error::ApiError;
pub use wire::reply::Body;
use wire::reply::Reply;
use wire::request::{Call, Target};
pub use wire::serve::{ServeError, Served as ServedOverHttps};
use write::context::timestamp;

/// The parts of a server.
#[derive(Debug)]
pub struct Inner {
    pub(crate) store: Arc<Store>,
    pub(crate) catalog: Catalog,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    identity: Identity,
    version: RwLock<String>,
    pod_mutation: Option<PodMutation>,
    refusals: Mutex<Vec<String>>,
    tokens: RwLock<Tokens>,
    /// For garbage collection, if there is one.
    owners: Option<Mutex<Owners>>,
}

/// The API server. Cheap to clone; clones are the same server.
#[derive(Debug, Clone)]
pub struct ApiServer(Arc<Inner>);

impl Deref for ApiServer {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// The default version of Kubernetes that a server reports.
pub const VERSION: &str = "1.36";

/// Changes of new pods, as by the webhooks of a cluster's add-ons.
#[derive(Clone)]
pub struct PodMutation(pub Arc<dyn Fn(&mut Value) + Send + Sync>);

impl std::fmt::Debug for PodMutation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodMutation")
    }
}

#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub clock: Clock,
    pub faults: Faults,
    /// Seeds UIDs and generated names.
    pub seed: u64,
    /// The version of Kubernetes, such as `1.36`.
    pub version: String,
    pub pod_mutation: Option<PodMutation>,
    /// Whether dependents of deleted objects are deleted.
    pub garbage_collection: bool,
}

impl ApiServer {
    /// Returns a server with the namespaces of every cluster.
    #[must_use]
    pub fn new(settings: ServerSettings) -> Self {
        let store = Arc::new(Store::new(DEFAULT_HISTORY));
        let server = Self(Arc::new(Inner {
            catalog: Catalog::new(Arc::clone(&store)),
            store,
            clock: settings.clock,
            faults: settings.faults,
            identity: Identity::new(settings.seed),
            version: RwLock::new(settings.version),
            pod_mutation: settings.pod_mutation,
            refusals: Mutex::default(),
            tokens: RwLock::default(),
            owners: settings.garbage_collection.then(Mutex::default),
        }));
        server.populate();
        server
    }

    /// Returns the version of Kubernetes, such as `1.36`.
    pub(crate) fn version(&self) -> String {
        let version = self.version.read();
        version.clone()
    }

    pub(crate) fn set_version(&self, to: &str) {
        let mut version = self.version.write();
        to.clone_into(&mut version);
    }

    /// Handles a request whose body has been read.
    pub async fn handle(&self, parts: &Parts, body: Bytes) -> http::Response<Body> {
        let reply = match self.answer(parts, body).await {
            Ok(reply) => reply,
            Err(error) => Reply::from(error),
        };
        reply.into_response()
    }

    async fn answer(&self, parts: &Parts, body: Bytes) -> Result<Reply, ApiError> {
        let Some(target) = Target::parse(parts.uri.path()) else {
            self.authorize_path(parts)?;
            return self.answer_other(parts);
        };
        if target.plural.is_empty() {
            return Err(ApiError::no_such_path());
        }
        let Some(served) = self
            .catalog
            .find(&target.group, &target.version, &target.plural)
        else {
            return self.answer_virtual(parts, &target, &body);
        };
        let call = Call::new(parts, target, body, self.catalog.registry())?;
        let verb = verb(&call);
        self.authorize(parts, &call, verb, &served)?;
        let faults = if parts.extensions.get::<Exempt>().is_some()
            || parts.headers.contains_key(EXEMPT_HEADER)
        {
            Vec::new()
        } else {
            let resource = match &call.target.subresource {
                Some(sub) => format!("{}/{sub}", call.target.plural),
                None => call.target.plural.clone(),
            };
            self.faults.draw(verb, &resource)
        };
        let call = Call { faults, ..call };
        let mut lost = false;
        for fault in &call.faults {
            match fault {
                Fault::Latency(time) => self.clock.sleep(*time).await,
                Fault::Error(code) => return Err(injected(*code)),
                Fault::Conflict if matches!(verb, "update" | "patch" | "delete") => {
                    return Err(ApiError::modified(
                        &served,
                        call.target.name.as_deref().unwrap_or_default(),
                    ));
                }
                Fault::LostAnswer => lost = true,
                Fault::Conflict | Fault::DropWatch { .. } | Fault::Stale { .. } => {}
            }
        }
        let reply = self.dispatch(&served, call).await?;
        if lost {
            return Err(injected(500));
        }
        Ok(reply)
    }

    async fn dispatch(&self, served: &Arc<Served>, call: Call) -> Result<Reply, ApiError> {
        if call.target.namespace.is_some() && !served.namespaced {
            return Err(ApiError::no_such_path());
        }
        let name = call.target.name.clone();
        match (name.as_deref(), call.target.subresource.as_deref()) {
            (None, _) => match call.method {
                Method::GET if call.options.watch => self.watch(served, call),
                Method::GET => self.list(served, &call).await,
                Method::POST if served.namespaced && call.target.namespace.is_none() => {
                    Err(ApiError::method_not_allowed())
                }
                Method::POST => self.create(served, &call).await,
                Method::DELETE => self.delete_collection(served, &call).await,
                Method::PUT | Method::PATCH if served.is_custom() => {
                    Err(ApiError::bad_request("name must be provided"))
                }
                _ => Err(ApiError::method_not_allowed()),
            },
            (Some(_), _) if served.namespaced && call.target.namespace.is_none() => {
                Err(ApiError::no_such_path())
            }
            (Some(name), None) => match call.method {
                Method::GET if call.options.watch => self.watch(served, call),
                Method::GET => self.get(served, &call, name).await,
                Method::PUT => self.update(served, &call, name).await,
                Method::PATCH => self.patch(served, &call, name).await,
                Method::DELETE => self.delete(served, &call, name).await,
                _ => Err(ApiError::method_not_allowed()),
            },
            (Some(name), Some(sub)) => self.subresource(served, &call, name, sub).await,
        }
    }

    /// Returns how many revisions the cache is behind for this call, if a fault is injected.
    fn stale_reads(&self, call: &Call) -> Option<u64> {
        if call.options.resource_version != "0" {
            return None;
        }
        call.faults.iter().find_map(|f| match f {
            Fault::Stale { revisions } => Some(*revisions),
            _ => None,
        })
    }

    /// Returns objects as a Table.
    fn table(
        &self,
        served: &Served,
        call: &Call,
        values: &[Value],
        metadata: &Value,
        columns: bool,
    ) -> Value {
        table::table(
            served,
            values,
            metadata.clone(),
            IncludeObject::parse(&call.options.include_object).unwrap_or_default(),
            columns,
            self.clock.now(),
        )
    }

    /// Notifies other parts of the server after an object was written.
    fn after_write(&self, served: &Served, stored: &Value) {
        if served.is("apiextensions.k8s.io", "CustomResourceDefinition")
            && let Err(error) = self.catalog.define(stored)
        {
            tracing::warn!(%error, "a stored definition cannot be served");
        }
        if served.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            self.clean_up_if_terminating(value::name_of(stored));
        }
        if served.is("", "Namespace") {
            self.sweep_if_terminating(value::name_of(stored));
        }
        if let Some(owners) = &self.owners {
            let due = owners.lock().written(served, stored);
            self.collect(due);
        }
    }

    /// Notifies other parts of the server after an object was removed.
    fn after_delete(&self, served: &Served, last: &Value) {
        if served.is("apiextensions.k8s.io", "CustomResourceDefinition") {
            self.catalog.undefine(value::name_of(last));
        }
        if let Some(custom) = &served.custom {
            self.clean_up_if_terminating(&custom.crd);
        }
        if let Some(namespace) = last["metadata"]["namespace"].as_str() {
            self.sweep_if_terminating(namespace);
        }
        if let Some(owners) = &self.owners {
            let due = owners.lock().removed(last);
            self.collect(due);
        }
    }

    /// Creates the objects of every cluster.
    fn populate(&self) {
        let Some(namespaces) = self.catalog.find("", "v1", "namespaces") else {
            return;
        };
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            let mut namespace = json!({
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": name,
                    "uid": self.identity.uid(),
                    "creationTimestamp": timestamp(self.clock.now()),
                    "labels": {"kubernetes.io/metadata.name": name},
                },
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            });
            // The store is new: the names are free.
            let _ = namespaces.collection.insert(name, 0, &mut namespace);
        }
        let Some(classes) = self
            .catalog
            .find("scheduling.k8s.io", "v1", "priorityclasses")
        else {
            return;
        };
        for (name, value) in [
            ("system-cluster-critical", 2_000_000_000),
            ("system-node-critical", 2_000_001_000),
        ] {
            let mut class = json!({
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {
                    "name": name,
                    "uid": self.identity.uid(),
                    "generation": 1,
                    "creationTimestamp": timestamp(self.clock.now()),
                },
                "value": value,
                "preemptionPolicy": "PreemptLowerPriority",
            });
            let _ = classes.collection.insert(name, 0, &mut class);
        }
    }
}

fn injected(code: u16) -> ApiError {
    let (reason, message) = match code {
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later",
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
        ),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted",
        ),
        403 => ("Forbidden", "forbidden by fault injection"),
        409 => ("Conflict", "conflict by fault injection"),
        _ => ("InternalError", "an error by fault injection"),
    };
    ApiError::new(code, reason, message)
}

/// Returns the verb of a call, as in discovery and RBAC.
fn verb(call: &Call) -> &'static str {
    let named = call.target.name.is_some();
    match call.method {
        Method::GET if call.options.watch => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    }
}
