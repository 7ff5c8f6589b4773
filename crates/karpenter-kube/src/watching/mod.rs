//! Objects that users write, as the API server has them: one that cannot be read hides no others, and failures are told.

use std::fmt::Debug;

use futures::future::ready;
use futures::{StreamExt, TryStreamExt, pin_mut};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, store::Writer};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::events::{Event as UserEvent, Recorder, reference};
use crate::logging;
use crate::outage::Outage;

mod guarded;

pub(crate) use guarded::Guarded;

/// On whose behalf something is watched.
#[derive(Debug, Clone)]
pub struct Watching {
    /// The logger of what is told.
    pub logger: &'static str,
    /// What is watched, for people.
    pub kind: &'static str,
    /// Tells users of objects that cannot be read.
    pub recorder: Recorder,
}

impl Watching {
    /// The object, unless it cannot be read: then that is reported on it.
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
        self.recorder
            .publish(UserEvent::warning(about, "InvalidObject", message).dedupe_by_message());
        None
    }

    /// Keeps a store up to date for ever, and says what changed once the store has it. Of an object that can be read no longer,
    /// what was known of it stays.
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
        let mut outage = Outage::new(self.logger, self.kind);
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
                    // The store finds it by what was known.
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
