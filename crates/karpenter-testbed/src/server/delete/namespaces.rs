//! Deletion of namespaces.

use crate::server::ApiServer;
use crate::server::delete::DeleteOptions;
use crate::server::value::map_of;
use crate::server::write::context::Context;

impl ApiServer {
    /// Continues the deletion of a namespace, in the background, if it is being deleted.
    pub(in crate::server) fn sweep_if_terminating(&self, namespace: &str) {
        let terminating = self
            .catalog
            .find("", "v1", "namespaces")
            .and_then(|n| n.collection.get(namespace))
            .is_some_and(|n| n.is_terminating());
        if terminating {
            let server = self.clone();
            let namespace = namespace.to_owned();
            tokio::spawn(async move { server.sweep(&namespace).await });
        }
    }

    /// Deletes all objects in a namespace, and the namespace once none is left.
    async fn sweep(&self, namespace: &str) {
        let ctx = Context::internal("namespace-controller", None, self.clock.now());
        let options = DeleteOptions {
            propagation: Some("Background".into()),
            ..DeleteOptions::default()
        };
        let mut left = 0;
        for served in self.catalog.stored() {
            if !served.namespaced {
                continue;
            }
            for object in served.collection.all(Some(namespace)) {
                if !object.is_terminating() {
                    // After an error an object is left.
                    let _ = self
                        .delete_key(&served, &object.key, object.name(), &options, &ctx)
                        .await;
                }
            }
            left += served.collection.all(Some(namespace)).len();
        }
        if left > 0 {
            return;
        }
        let Some(namespaces) = self.catalog.find("", "v1", "namespaces") else {
            return;
        };
        let ctx = Context {
            subresource: Some("finalize".into()),
            ..ctx
        };
        // An object may already be deleted.
        let _ = self
            .modify(&namespaces, namespace, namespace, &ctx, |object| {
                map_of(&mut object["spec"]).remove("finalizers");
                Ok(())
            })
            .await;
    }
}
