//! Reconciles, on the leader, the certificate in the Secret and its CA bundle in the definitions.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use karpenter_kube::controller::Backoff;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::watcher::watcher as watch;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::material::{Material, MaterialError, RENEWED_BEFORE};
use super::{Place, only};
use crate::conversion::Kind;
use crate::crd;

/// How often the expiry of the certificate is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// How long changes are collected.
const BATCH_WINDOW: Duration = Duration::from_millis(200);
/// The delay of a retry after a failure.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: Duration::from_secs(60),
};

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("{doing}: {source}")]
    Api {
        doing: String,
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Material(#[from] MaterialError),
}

fn doing(doing: String) -> impl FnOnce(kube::Error) -> KeepError {
    move |source| KeepError::Api {
        doing,
        source: Box::new(source),
    }
}

/// Reconciles certificate and definitions until the task is aborted.
pub(super) async fn run(client: Client, place: Place) {
    let keeper = Keeper::new(client, place);
    let mut changes = keeper.changes();
    // The delay is jittered, so that replicas that failed together do not retry together.
    let replica = RandomState::new().build_hasher().finish();
    let mut failures = 0;
    loop {
        let wait = match keeper.reconcile(Timestamp::now()).await {
            Ok(()) => {
                failures = 0;
                CHECK_INTERVAL
            }
            Err(error) => {
                tracing::error!(logger = "webhook", error = %error, "failed reconciling certificate of conversion webhook");
                failures += 1;
                RETRY.of(&replica, failures)
            }
        };
        // All changes in the meantime cause one more pass; after a failure, not before the delay.
        let failed = wait != CHECK_INTERVAL;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            Some(()) = changes.next(), if !failed => {
                // Changes often come in bursts, such as a first list.
                tokio::time::sleep(BATCH_WINDOW).await;
                while changes.next().now_or_never().is_some() {}
            }
        }
    }
}

struct Keeper {
    place: Place,
    secrets: Api<Secret>,
    definitions: Api<DynamicObject>,
}

impl Keeper {
    fn new(client: Client, place: Place) -> Self {
        let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
        Self {
            secrets: Api::namespaced(client.clone(), &place.namespace),
            definitions: Api::all_with(client, &ApiResource::from_gvk(&kind)),
            place,
        }
    }

    /// Returns a stream with an item for each change of the Secret or the definitions.
    fn changes(&self) -> BoxStream<'static, ()> {
        let secret = watch(self.secrets.clone(), only(&self.place.secret()))
            .backoff(watcher::DefaultBackoff::default())
            .map(|_| ())
            .boxed();
        let definitions = Kind::ALL.map(|kind| {
            let api = self.definitions.clone();
            watch(api, only(&name(kind)))
                .backoff(watcher::DefaultBackoff::default())
                .map(|_| ())
                .boxed()
        });
        stream::select_all(definitions.into_iter().chain([secret])).boxed()
    }

    /// Runs one pass over certificate and definitions.
    async fn reconcile(&self, now: Timestamp) -> Result<(), KeepError> {
        let mut users = Vec::new();
        for kind in Kind::ALL {
            let name = name(kind);
            let found = self.definitions.get_opt(&name).await;
            let found = found.map_err(doing(format!("reading definition {name}")))?;
            users.extend(found.filter(uses_service));
        }
        if users.is_empty() {
            return Ok(());
        }
        let secret = self.place.secret();
        let stored = self.secrets.get_opt(&secret).await;
        let stored = stored.map_err(doing(format!("reading secret {secret}")))?;
        let data = stored.as_ref().and_then(|s| s.data.as_ref());
        let held = data.and_then(Material::from_secret);
        let host = self.place.host();
        let lasts = |held: &&Material| {
            let later = now.checked_add(RENEWED_BEFORE).unwrap_or(Timestamp::MAX);
            held.is_good(&host, now) && held.is_good(&host, later)
        };
        if let Some(held) = held.as_ref().filter(lasts) {
            return self.point(&users, held).await;
        }
        let made = Material::new(&self.place.hosts(), now, held.as_ref())?;
        // The CA bundle is updated before the served certificate.
        self.point(&users, &made).await?;
        self.store(stored, &made).await?;
        tracing::info!(logger = "webhook", Secret = %secret, "created certificate of conversion webhook");
        Ok(())
    }

    /// Sets address and CA bundle of this webhook in the definitions.
    async fn point(&self, definitions: &[DynamicObject], to: &Material) -> Result<(), KeepError> {
        let wanted = json!({
            "caBundle": STANDARD.encode(&to.authorities),
            "service": {
                "namespace": self.place.namespace,
                "name": self.place.service,
                "path": crd::PATH,
                "port": self.place.port,
            },
        });
        for definition in definitions {
            if definition.data["spec"]["conversion"]["webhook"]["clientConfig"] == wanted {
                continue;
            }
            let name = definition.metadata.name.as_deref().unwrap_or_default();
            let patch =
                json!({ "spec": { "conversion": { "webhook": { "clientConfig": wanted } } } });
            self.definitions
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map_err(doing(format!(
                    "pointing definition {name} at {}",
                    self.place
                )))?;
        }
        Ok(())
    }

    async fn store(&self, stored: Option<Secret>, made: &Material) -> Result<(), KeepError> {
        let name = self.place.secret();
        let mut secret = stored.clone().unwrap_or_default();
        secret.data = Some(made.to_secret());
        if stored.is_some() {
            let patch = json!({
                "metadata": { "resourceVersion": secret.metadata.resource_version },
                "data": secret.data,
            });
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let written = self.secrets.patch(&name, &params, &patch).await;
            written.map_err(doing(format!("writing secret {name}")))?;
            return Ok(());
        }
        secret.metadata.name = Some(name.clone());
        secret.type_ = Some("Opaque".to_owned());
        let created = self.secrets.create(&PostParams::default(), &secret).await;
        created.map_err(doing(format!(
            "creating secret {name}, which the chart creates"
        )))?;
        Ok(())
    }
}

fn name(kind: Kind) -> String {
    let plural = match kind {
        Kind::NodePool => "nodepools",
        Kind::NodeClaim => "nodeclaims",
        Kind::EC2NodeClass => "ec2nodeclasses",
    };
    format!("{plural}.{}", kind.group())
}

/// Returns whether a definition uses a webhook by a service in the cluster. One with a URL is not managed here.
fn uses_service(definition: &DynamicObject) -> bool {
    let conversion: &Value = &definition.data["spec"]["conversion"];
    let client = &conversion["webhook"]["clientConfig"];
    conversion["strategy"] == "Webhook"
        && client["service"].is_object()
        && client["service"]["path"] == crd::PATH
}
