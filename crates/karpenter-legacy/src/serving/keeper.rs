//! What the leader keeps in order: the certificate in the Secret, and its authority in the definitions.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use karpenter_kube::controller::Backoff;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher as watch};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::material::{Material, MaterialError, RENEWED_BEFORE};
use super::{Place, only};
use crate::conversion::Kind;
use crate::webhook;

/// How often the end of the certificate is looked at.
const CHECK: Duration = Duration::from_secs(3600);
/// How long changes are collected.
const TOGETHER: Duration = Duration::from_millis(200);
/// How soon something that failed is tried again.
const AGAIN: Backoff = Backoff {
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

/// Keeps certificate and definitions in order for ever.
pub(super) async fn keep(client: Client, place: Place) {
    let keeper = Keeper::new(client, place);
    let mut changes = keeper.changes();
    // Replicas that failed together do not try again together.
    let replica = RandomState::new().build_hasher().finish();
    let mut failures = 0;
    loop {
        let wait = match keeper.tidy(Timestamp::now()).await {
            Ok(()) => {
                failures = 0;
                CHECK
            }
            Err(error) => {
                tracing::error!(logger = "webhook", error = %error, "cannot keep the webhook's certificate");
                failures += 1;
                AGAIN.of(&replica, failures)
            }
        };
        // Whatever changed in the meantime is one more look; after a failure, not before its time.
        let failed = wait != CHECK;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            Some(()) = changes.next(), if !failed => {
                // Changes come together, such as those of a first list.
                tokio::time::sleep(TOGETHER).await;
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

    /// An item for each change of what is looked after.
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

    /// One look at everything.
    async fn tidy(&self, now: Timestamp) -> Result<(), KeepError> {
        let mut asking = Vec::new();
        for kind in Kind::ALL {
            let name = name(kind);
            let found = self.definitions.get_opt(&name).await;
            let found = found.map_err(doing(format!("reading definition {name}")))?;
            asking.extend(found.filter(asks_for_us));
        }
        if asking.is_empty() {
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
            return self.point(&asking, held).await;
        }
        let made = Material::new(&self.place.hosts(), now, held.as_ref())?;
        // First whom to trust, then what to serve.
        self.point(&asking, &made).await?;
        self.store(stored, &made).await?;
        tracing::info!(logger = "webhook", Secret = %secret, "made certificate of conversion webhook");
        Ok(())
    }

    /// Has definitions ask this webhook, and trust it.
    async fn point(&self, definitions: &[DynamicObject], to: &Material) -> Result<(), KeepError> {
        let wanted = json!({
            "caBundle": STANDARD.encode(&to.authorities),
            "service": {
                "namespace": self.place.namespace,
                "name": self.place.service,
                "path": webhook::PATH,
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
            "creating secret {name}, which the chart would have made"
        )))?;
        Ok(())
    }
}

/// The name of a kind's definition.
fn name(kind: Kind) -> String {
    let plural = match kind {
        Kind::NodePool => "nodepools",
        Kind::NodeClaim => "nodeclaims",
        Kind::EC2NodeClass => "ec2nodeclasses",
    };
    format!("{plural}.{}", kind.group())
}

/// Whether a definition asks for a webhook in the cluster. A URL is the business of whoever wrote it.
fn asks_for_us(definition: &DynamicObject) -> bool {
    let conversion: &Value = &definition.data["spec"]["conversion"];
    let client = &conversion["webhook"]["clientConfig"];
    conversion["strategy"] == "Webhook"
        && client["service"].is_object()
        && client["service"]["path"] == webhook::PATH
}
