//! `/_admin`: changing the stand-in over HTTP, for tests in other processes and other languages.
//!
//! `GET` returns the state. `POST` with a JSON object changes what its keys name; an unknown key or a value of the
//! wrong type changes nothing and is answered with 400.
//!
//! | key | value |
//! |---|---|
//! | `settings` | fields of [`AwsFakeSettings`] to change |
//! | `faults` | list of [`Fault`], replaces the list |
//! | `ice` | list of [`Shortage`], replaces the list |
//! | `capacity` | list of `{type, zone, spot, nodes}`, sets single pools |
//! | `prices` | on-demand price by type |
//! | `spot_prices` | list of `{type, zone, price}`; a null price means that the pool has no spot offering |
//! | `ssm` | value by parameter name; null removes |
//! | `reservations` | list of [`CapacityReservation`], added or replaced by id |
//! | `clusters` | list of [`Cluster`], added or replaced by name |
//! | `versions` | the control plane's version of Kubernetes by cluster |
//! | `roles` | list of role names to add |
//! | `status` | [`StatusReport`] by instance id |
//! | `free_addresses` | free addresses by subnet id |
//! | `price_list` | price list entries to return, null for the catalog's |
//! | `policy` | an IAM policy document to enforce, null for none |
//! | `interrupt_spot`, `interrupt_reservation`, `rebalance`, `stop`, `terminate` | list of instance ids |
//! | `protect` | whether termination protection is enabled, by instance id |
//! | `health` | `{instances, code, start}` |
//! | `send` | `{queue, body}` |
//! | `advance_s` | seconds to move a manual clock |
//! | `forget_calls` | true forgets the recorded calls |

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::wire::set;
use crate::{
    AwsFake, AwsFakeSettings, CapacityReservation, Cluster, Fault, Policy, Shortage, StatusReport,
    calls,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    settings: Option<serde_json::Map<String, Value>>,
    faults: Option<Vec<Fault>>,
    ice: Option<Vec<Shortage>>,
    capacity: Option<Vec<Capacity>>,
    prices: Option<BTreeMap<String, f64>>,
    spot_prices: Option<Vec<SpotPrice>>,
    ssm: Option<BTreeMap<String, Option<String>>>,
    reservations: Option<Vec<CapacityReservation>>,
    clusters: Option<Vec<Cluster>>,
    versions: Option<BTreeMap<String, String>>,
    roles: Option<Vec<String>>,
    status: Option<BTreeMap<String, StatusReport>>,
    free_addresses: Option<BTreeMap<String, u32>>,
    /// Present with null resets to the catalog.
    #[serde(default, deserialize_with = "present")]
    price_list: Option<Option<Vec<Value>>>,
    #[serde(default, deserialize_with = "present")]
    policy: Option<Option<Value>>,
    interrupt_spot: Option<Vec<String>>,
    interrupt_reservation: Option<Vec<String>>,
    rebalance: Option<Vec<String>>,
    stop: Option<Vec<String>>,
    terminate: Option<Vec<String>>,
    protect: Option<BTreeMap<String, bool>>,
    health: Option<Health>,
    send: Option<Send>,
    advance_s: Option<f64>,
    forget_calls: Option<IgnoredAny>,
}

fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capacity {
    #[serde(rename = "type")]
    instance_type: String,
    zone: String,
    #[serde(default)]
    spot: bool,
    instances: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpotPrice {
    #[serde(rename = "type")]
    instance_type: String,
    zone: String,
    price: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Health {
    instances: Vec<String>,
    code: String,
    start: Timestamp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    queue: String,
    body: String,
}

impl AwsFake {
    /// Handles a request to `/_admin`.
    pub(crate) fn admin(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let (status, body) = match *request.method() {
            Method::GET => (StatusCode::OK, self.overview()),
            Method::POST => match self.command(request.body()) {
                Ok(()) => (StatusCode::OK, self.overview()),
                Err(why) => (StatusCode::BAD_REQUEST, json!({"error": why})),
            },
            _ => (
                StatusCode::METHOD_NOT_ALLOWED,
                json!({"error": "GET or POST"}),
            ),
        };
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        set(&mut response, "content-type", "application/json");
        response
    }

    fn overview(&self) -> Value {
        let now = self.inner.clock.now();
        let mut state = self.current();
        let counts = calls::counts(&state.calls);
        let calls = serde_json::to_value(&state.calls).unwrap_or_default();
        let settings = serde_json::to_value(&state.settings).unwrap_or_default();
        let faults = serde_json::to_value(&state.faults).unwrap_or_default();
        let profiles = serde_json::to_value(state.iam.profiles.values().collect::<Vec<_>>());
        let enforced = state.policy.is_some();
        let mut out = json!({
            "now": now,
            "settings": settings,
            "faults": faults,
            "policy_enforced": enforced,
            "instance_profiles": profiles.unwrap_or_default(),
            "call_counts": counts,
            "calls": calls,
        });
        if let Some(region) = state.home() {
            let instances: Vec<_> = region.ec2.instances.all().collect();
            let templates: Vec<Value> = region
                .ec2
                .templates
                .values()
                .map(
                    |t| json!({"id": t.id, "name": t.name, "tags": t.tags, "versions": t.versions}),
                )
                .collect();
            let queues: BTreeMap<&String, Vec<&str>> = region
                .queues
                .0
                .iter()
                .map(|(name, q)| (name, q.bodies().collect()))
                .collect();
            out["region"] = json!(region.ec2.region);
            out["instances"] = serde_json::to_value(instances).unwrap_or_default();
            out["launch_templates"] = json!(templates);
            out["queues"] = json!(queues);
            out["ice"] = serde_json::to_value(&region.ec2.pools.shortages).unwrap_or_default();
            out["ssm"] = json!(region.ssm.all());
            out["reservations"] =
                serde_json::to_value(region.ec2.reservations.values().collect::<Vec<_>>())
                    .unwrap_or_default();
        }
        out
    }

    fn command(&self, body: &[u8]) -> Result<(), String> {
        let command: Command = serde_json::from_slice(body).map_err(|e| e.to_string())?;
        // Everything that can be refused is parsed before anything is changed.
        let settings = command
            .settings
            .map(|s| self.changed_settings(s))
            .transpose()?;
        let policy = match command.policy {
            None => None,
            Some(None) => Some(None),
            Some(Some(document)) => Some(Some(
                Policy::parse(&document.to_string()).map_err(|e| e.to_string())?,
            )),
        };
        if let Some(settings) = settings {
            self.set(|s| *s = settings);
        }
        if let Some(policy) = policy {
            self.set_policy(policy);
        }
        if let Some(faults) = command.faults {
            self.state().faults = faults;
        }
        if let Some(ice) = command.ice {
            self.set_shortages(ice);
        }
        for c in command.capacity.into_iter().flatten() {
            self.set_capacity(&c.instance_type, &c.zone, c.spot, c.instances);
        }
        for (name, price) in command.prices.into_iter().flatten() {
            self.set_price(&name, price);
        }
        for p in command.spot_prices.into_iter().flatten() {
            self.set_spot_price(&p.instance_type, &p.zone, p.price);
        }
        for (name, value) in command.ssm.into_iter().flatten() {
            match value {
                Some(value) => self.put_parameter(&name, &value),
                None => self.remove_parameter(&name),
            }
        }
        for reservation in command.reservations.into_iter().flatten() {
            self.add_capacity_reservation(reservation);
        }
        for cluster in command.clusters.into_iter().flatten() {
            self.add_cluster(cluster);
        }
        for (name, version) in command.versions.into_iter().flatten() {
            self.upgrade(&name, &version);
        }
        for role in command.roles.into_iter().flatten() {
            self.add_role(&role);
        }
        for (id, status) in command.status.into_iter().flatten() {
            self.set_status(&id, status);
        }
        for (id, free) in command.free_addresses.into_iter().flatten() {
            self.set_free_addresses(&id, free);
        }
        if let Some(list) = command.price_list {
            self.set_price_list(list);
        }
        for id in command.interrupt_spot.into_iter().flatten() {
            self.interrupt_spot(&id);
        }
        for id in command.interrupt_reservation.into_iter().flatten() {
            self.interrupt_reservation(&id);
        }
        for id in command.rebalance.into_iter().flatten() {
            self.recommend_rebalance(&id);
        }
        for id in command.stop.into_iter().flatten() {
            self.stop_instance(&id);
        }
        for id in command.terminate.into_iter().flatten() {
            self.terminate(&id);
        }
        for (id, protected) in command.protect.into_iter().flatten() {
            self.protect(&id, protected);
        }
        if let Some(h) = command.health {
            let ids: Vec<&str> = h.instances.iter().map(String::as_str).collect();
            self.announce_maintenance(&ids, &h.code, h.start);
        }
        if let Some(s) = command.send
            && !self.send_message(&s.queue, &s.body)
        {
            return Err(format!("unknown queue `{}`", s.queue));
        }
        if let Some(s) = command.advance_s {
            let by = Duration::try_from_secs_f64(s).map_err(|e| e.to_string())?;
            self.clock().advance(by);
            self.changed();
        }
        if command.forget_calls.is_some() {
            self.forget_calls();
        }
        Ok(())
    }

    /// Returns the settings with some fields changed.
    fn changed_settings(
        &self,
        changes: serde_json::Map<String, Value>,
    ) -> Result<AwsFakeSettings, String> {
        let mut all = serde_json::to_value(&self.state().settings).map_err(|e| e.to_string())?;
        if let Some(all) = all.as_object_mut() {
            all.extend(changes);
        }
        serde_json::from_value(all).map_err(|e| e.to_string())
    }
}
