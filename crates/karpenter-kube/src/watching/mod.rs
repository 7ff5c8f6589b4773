//! Watches objects that users write: an object that cannot be parsed hides no others, and failures are reported.

use std::fmt::Debug;

use futures::future::ready;
use futures::{StreamExt, TryStreamExt, pin_mut};
use karpenter_api::events;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::events::{Event as UserEvent, Recorder, reference};
use crate::logging;
use crate::watch_failure_log::WatchFailureLog;

mod guarded;

pub(crate) use guarded::Guarded;

/// Describes a watch for logs and events.
#[derive(Debug, Clone)]
pub struct Watching {
    /// The logger of its log lines.
    pub logger: &'static str,
    /// The kind that is watched, for log lines.
    pub kind: &'static str,
    /// Publishes events about objects that cannot be parsed.
    pub recorder: Recorder,
}

impl Watching {
    /// Returns the object; reports on it and returns `None` if it cannot be parsed.
    pub(crate) fn read<K>(&self, object: Guarded<K>) -> Option<K>
    where
        K: Resource<DynamicType = ()>,
    {
        let invalid = match object.0 {
            Ok(mut object) => {
                object.meta_mut().managed_fields = None;
                return Some(object);
            }
            Err(invalid) => invalid,
        };
        let name = invalid.metadata.name.clone().unwrap_or_default();
        let namespace = invalid.metadata.namespace.clone();
        let error = invalid.error;
        tracing::error!(
            logger = self.logger,
            object.kind = self.kind,
            object = logging::object(namespace.as_deref(), &name),
            error,
            "ignoring an object that cannot be read"
        );
        let about = reference(&PartialObjectMeta::<K> {
            types: None,
            metadata: invalid.metadata,
            _phantom: std::marker::PhantomData,
        });
        let message = format!("Ignored because it cannot be read: {error}");
        self.recorder.publish(
            UserEvent::warning(about, events::INVALID_OBJECT, message).dedupe_by_message(),
        );
        None
    }

    /// Keeps a store up to date forever, and calls back with each change once the store has it. If an object cannot be
    /// parsed any more, its last valid version stays.
    pub async fn follow<K>(
        &self,
        client: Client,
        config: watcher::Config,
        writer: Writer<K>,
        mut changed: impl FnMut(&Event<K>),
    ) where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let store = writer.as_reader();
        let known = |object: &Guarded<K>| {
            let meta = object.meta();
            let mut key = ObjectRef::new(meta.name.as_deref().unwrap_or_default());
            key.namespace.clone_from(&meta.namespace);
            store.get(&key).map(|object| (*object).clone())
        };
        let mut outage = WatchFailureLog::new(self.logger, self.kind);
        let events = watcher::watcher(Api::<Guarded<K>>::all(client), config)
            .default_backoff()
            .filter_map(move |event| {
                outage.saw(&event);
                ready(match event {
                    Ok(Event::Init) => Some(Ok(Event::Init)),
                    Ok(Event::InitApply(object)) => {
                        self.read(object).map(|object| Ok(Event::InitApply(object)))
                    }
                    Ok(Event::InitDone) => Some(Ok(Event::InitDone)),
                    Ok(Event::Apply(object)) => {
                        self.read(object).map(|object| Ok(Event::Apply(object)))
                    }
                    // The store finds the object by its last valid version.
                    Ok(Event::Delete(object)) => {
                        let last = known(&object).or(object.0.ok());
                        last.map(|object| Ok(Event::Delete(object)))
                    }
                    Err(_) => None,
                })
            });
        let stored = reflector(writer, events);
        pin_mut!(stored);
        while let Ok(Some(event)) = stored.try_next().await {
            changed(&event);
        }
    }
}
