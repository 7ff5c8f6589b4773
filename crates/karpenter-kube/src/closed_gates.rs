//! Warns about objects that have no effect because their feature gate is off.
//!
//! DIFFERS: upstream ignores NodeOverlays and CapacityBuffers without a word while their gate is off.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::events;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event as Change, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::controller::is_not_found;
use crate::events::{Event, reference};
use crate::logging;

/// How many objects of a kind are reported at most.
const REPORTED: usize = 100;
/// How often the event about an object is repeated: the API server keeps an event for an hour.
const EVENT_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How often a cluster without the CRD is asked again.
const ABSENT: Duration = Duration::from_secs(10 * 60);

/// Publishes a Warning for each object of a kind whose feature gate is off as soon as it is created, and logs it once. Only metadata is
/// watched.
pub(crate) async fn warn<K>(cx: Arc<Context>, gate: &'static str, stop: CancellationToken)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(cx.clients.api.clone());
    let mut changes = watcher(api, Config::default()).default_backoff().boxed();
    let mut repeat = tokio::time::interval(cx.clock.real_duration(EVENT_INTERVAL));
    let mut reported: BTreeMap<String, ObjectReference> = BTreeMap::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = repeat.tick() => {
                for object in reported.values() {
                    cx.recorder.publish(event::<K>(object.clone(), gate));
                }
            }
            change = changes.next() => match change {
                Some(Ok(Change::Apply(object) | Change::InitApply(object))) => {
                    let uid = object.metadata.uid.clone().unwrap_or_default();
                    if reported.len() < REPORTED && !reported.contains_key(&uid) {
                        log(&object, gate);
                        reported.insert(uid, reference(&object));
                        cx.recorder.publish(event::<K>(reference(&object), gate));
                    }
                }
                Some(Ok(Change::Delete(object))) => {
                    reported.remove(object.metadata.uid.as_deref().unwrap_or_default());
                }
                Some(Err(Error::InitialListFailed(error))) if is_not_found(&error) => {
                    let absent = tokio::time::sleep(cx.clock.real_duration(ABSENT));
                    if stop.run_until_cancelled(absent).await.is_none() {
                        return;
                    }
                }
                Some(_) => {}
                None => return,
            },
        }
    }
}

fn event<K: Resource<DynamicType = ()>>(about: ObjectReference, gate: &str) -> Event {
    let kind = K::kind(&());
    let message = format!("{kind} has no effect, because the feature gate {gate} is off");
    Event::warning(about, events::FEATURE_GATE_CLOSED, message)
}

fn log<K: Resource<DynamicType = ()>>(object: &PartialObjectMeta<K>, gate: &str) {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    tracing::warn!(
        object.kind = %K::kind(&()),
        object = logging::object(object.metadata.namespace.as_deref(), name),
        feature_gate = gate,
        "ignoring an object whose feature gate is off"
    );
}
