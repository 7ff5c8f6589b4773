//! Discovers the served kinds and watches the metadata of their objects.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::MetaApi;
use super::graph::Kind;
use crate::loops::driver::Context;

/// A change from the watcher of one kind.
pub(super) enum Seen {
    Listed(Arc<Kind>, Vec<ObjectMeta>),
    Applied(Arc<Kind>, ObjectMeta),
    Removed(Arc<Kind>, ObjectMeta),
}

/// Returns every kind that can be listed, watched and deleted, in its preferred version.
pub(super) async fn discover(client: Client) -> Result<Vec<Kind>, kube::Error> {
    let discovery = Discovery::new(client).run().await?;
    let kinds = discovery
        .groups()
        .flat_map(kube::discovery::ApiGroup::resources_by_stability)
        .filter(|(resource, capabilities)| {
            let can = |verb| capabilities.supports_operation(verb);
            // Events expire by themselves.
            can(verbs::LIST) && can(verbs::WATCH) && can(verbs::DELETE) && resource.kind != "Event"
        })
        .map(|(resource, capabilities)| Kind {
            resource,
            namespaced: capabilities.scope == Scope::Namespaced,
        })
        .collect();
    Ok(kinds)
}

pub(super) async fn watch(
    context: Context,
    kind: Arc<Kind>,
    sender: mpsc::UnboundedSender<Seen>,
    token: CancellationToken,
) {
    let api: MetaApi = Api::all_with(context.client(), &kind.resource);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default().any_semantic()));
    let mut listed = Vec::new();
    let mut failures = 0u32;
    loop {
        let event = tokio::select! {
            biased;
            () = token.cancelled() => return,
            event = events.next() => event,
        };
        let seen = match event {
            Some(Ok(event)) => {
                failures = 0;
                match event {
                    watcher::Event::Init => {
                        listed.clear();
                        continue;
                    }
                    watcher::Event::InitApply(object) => {
                        listed.push(object.metadata);
                        continue;
                    }
                    watcher::Event::InitDone => {
                        Seen::Listed(kind.clone(), std::mem::take(&mut listed))
                    }
                    watcher::Event::Apply(object) => Seen::Applied(kind.clone(), object.metadata),
                    watcher::Event::Delete(object) => Seen::Removed(kind.clone(), object.metadata),
                }
            }
            Some(Err(error)) => {
                tracing::debug!(kind = kind.resource.kind, %error, "watch failed");
                let pause = Duration::from_millis(100u64 << failures.min(8));
                failures += 1;
                tokio::select! {
                    biased;
                    () = token.cancelled() => return,
                    () = context.clock.sleep(pause) => {}
                }
                continue;
            }
            None => return,
        };
        if sender.send(seen).is_err() {
            return;
        }
    }
}
