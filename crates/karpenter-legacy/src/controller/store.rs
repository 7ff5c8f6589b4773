//! The watched objects: the inputs of the projection and the projected objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use karpenter_aws::api::EC2NodeClass;
use karpenter_kube::controller::Queue;
use karpenter_kube::watch_failure_log::WatchFailureLog;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher, watcher as watch};
use kube::{Api, Client, Resource};
use parking_lot::RwLock;

use super::reconcile::Everything;
use crate::v1alpha1::AWSNodeTemplate;
use crate::v1alpha5::Provisioner;

/// Objects of a kind by name; `None` until they are listed or the kind is found to be missing.
type Objects = Option<BTreeMap<String, Arc<DynamicObject>>>;

/// The objects of one kind. They are parsed one by one, so that a malformed one does not hide others.
#[derive(Clone, Default)]
pub(super) struct Store(Arc<RwLock<Objects>>);

impl Store {
    /// Returns the objects, once they are listed.
    pub(super) fn objects(&self) -> Option<Vec<Arc<DynamicObject>>> {
        let objects = self.0.read();
        objects.as_ref().map(|all| all.values().cloned().collect())
    }

    fn replace(&self, all: BTreeMap<String, Arc<DynamicObject>>) {
        *self.0.write() = Some(all);
    }

    fn change(&self, name: String, object: Option<DynamicObject>) {
        let mut objects = self.0.write();
        let Some(all) = objects.as_mut() else { return };
        match object {
            Some(object) => all.insert(name, Arc::new(object)),
            None => all.remove(&name),
        };
    }

    async fn follow(&self, watched: Watched, queue: &Queue<Everything>) {
        let Watched { api, mut outage } = watched;
        let config = watcher::Config::default().any_semantic();
        let events = watch(api, config).modify(|object| object.metadata.managed_fields = None);
        let events = events.backoff(watcher::DefaultBackoff::default());
        pin_mut!(events);
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            let name = |object: &DynamicObject| object.metadata.name.clone().unwrap_or_default();
            let missing = event.as_ref().is_err_and(is_missing);
            if !missing {
                outage.saw(&event);
            }
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(name(&object), Arc::new(object));
                    continue;
                }
                Ok(Event::InitDone) => self.replace(std::mem::take(&mut listed)),
                Ok(Event::Apply(object)) => self.change(name(&object), Some(object)),
                Ok(Event::Delete(object)) => self.change(name(&object), None),
                Err(_) if missing => self.replace(BTreeMap::new()),
                Err(_) => continue,
            }
            queue.add(Everything);
        }
        // INVARIANT: the watcher's stream does not end.
        tokio::time::sleep(Duration::MAX).await;
    }
}

/// Returns whether the kind is not installed.
fn is_missing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.is_not_found(),
        _ => false,
    }
}

/// The watched kind and the state of its failure logs.
struct Watched {
    api: Api<DynamicObject>,
    outage: WatchFailureLog,
}

fn watched<K: Resource<DynamicType = ()>>(client: &Client, kind: &'static str) -> Watched {
    Watched {
        api: dynamic::<K>(client),
        outage: WatchFailureLog::new("legacy", kind),
    }
}

#[derive(Clone, Default)]
pub(super) struct Stores {
    pub(super) provisioners: Store,
    pub(super) templates: Store,
    pub(super) node_classes: Store,
}

impl Stores {
    pub(super) async fn follow(&self, client: Client, queue: &Queue<Everything>) {
        tokio::join!(
            self.provisioners
                .follow(watched::<Provisioner>(&client, Provisioner::KIND), queue),
            self.templates.follow(
                watched::<AWSNodeTemplate>(&client, AWSNodeTemplate::KIND),
                queue
            ),
            self.node_classes
                .follow(watched::<EC2NodeClass>(&client, EC2NodeClass::KIND), queue),
        );
    }
}

/// Returns the API of a kind for objects of any content.
pub(crate) fn dynamic<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}
