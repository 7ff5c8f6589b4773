//! `/_admin`: changing the stand-in over HTTP, for a shell beside the playground and for tests in other languages.
//!
//! `POST` with a JSON object changes what its keys name; an unknown key or a value of the wrong type changes nothing and is
//! answered with 400.
//!
//! | key | value |
//! |---|---|
//! | `settings` | fields of [`AwsFakeSettings`] to change |
//! | `faults` | list of [`Fault`], replaces the list |
//! | `ice` | list of [`Shortage`], replaces the list |
//! | `clusters` | list of [`Cluster`], added or replaced by name |
//! | `versions` | the control plane's version of Kubernetes by cluster |
//! | `status` | [`StatusReport`] by instance id |
//! | `interrupt_spot` | list of instance ids |

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::wire::set;
use crate::{AwsFake, AwsFakeSettings, Cluster, Fault, Shortage, StatusReport};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Command {
    settings: Map<String, Value>,
    faults: Option<Vec<Fault>>,
    ice: Option<Vec<Shortage>>,
    clusters: Vec<Cluster>,
    versions: BTreeMap<String, String>,
    status: BTreeMap<String, StatusReport>,
    interrupt_spot: Vec<String>,
}

impl AwsFake {
    /// Handles a request to `/_admin`.
    pub(crate) fn admin(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let (status, body) = match *request.method() {
            Method::POST => match self.command(request.body()) {
                Ok(()) => (StatusCode::OK, json!({})),
                Err(why) => (StatusCode::BAD_REQUEST, json!({"error": why})),
            },
            _ => (StatusCode::METHOD_NOT_ALLOWED, json!({"error": "POST"})),
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        set(&mut response, "content-type", "application/json");
        response
    }

    fn command(&self, body: &[u8]) -> Result<(), String> {
        let command: Command = serde_json::from_slice(body).map_err(|e| e.to_string())?;
        // What can be refused is parsed before anything is changed.
        let settings = self.changed_settings(command.settings)?;
        self.set(|s| *s = settings);
        if let Some(faults) = command.faults {
            self.state().faults = faults;
        }
        if let Some(ice) = command.ice {
            self.set_shortages(ice);
        }
        for cluster in command.clusters {
            self.add_cluster(cluster);
        }
        for (name, version) in command.versions {
            self.upgrade(&name, &version);
        }
        for (id, status) in command.status {
            self.set_status(&id, status);
        }
        for id in command.interrupt_spot {
            self.interrupt_spot(&id);
        }
        Ok(())
    }

    /// Returns the settings with some fields changed.
    fn changed_settings(&self, changes: Map<String, Value>) -> Result<AwsFakeSettings, String> {
        let mut all = serde_json::to_value(&self.state().settings).map_err(|e| e.to_string())?;
        if let Some(all) = all.as_object_mut() {
            all.extend(changes);
        }
        serde_json::from_value(all).map_err(|e| e.to_string())
    }
}
