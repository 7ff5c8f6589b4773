//! The cluster of a scenario.
//!
//! Objects get the names by which states are compared (`nc-0001`, `pd-0001`). What Karpenter itself would have written and the file
//! leaves out is added: finalizers, the name of a NodeClaim's Node, the hostname. The instance of each launched NodeClaim runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod as CorePod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{HOSTNAME, finalizers};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::pod::Pod;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Input, Invalid, Scenario};
use crate::world::change::Change;
use crate::world::cloud::Instance;
use crate::world::objects::Kind;
use crate::world::{Faults, World};
use crate::worlds::cluster;

/// The new names of NodeClaims and pods.
#[derive(Debug, Default)]
struct Names {
    claims: BTreeMap<String, String>,
    pods: BTreeMap<String, String>,
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// Removes fields that are null, as the API server does.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(without_nulls),
        Value::Object(all) => {
            all.retain(|_, value| !value.is_null());
            all.values_mut().for_each(without_nulls);
        }
        _ => {}
    }
}

impl Names {
    fn add(&mut self, object: &Value) {
        let name = name(object).to_owned();
        let (known, prefix) = match kind(object) {
            "NodeClaim" => (&mut self.claims, "nc"),
            "Pod" => (&mut self.pods, "pd"),
            _ => return,
        };
        let number = known.len() + 1;
        known
            .entry(name)
            .or_insert_with(|| format!("{prefix}-{number:04}"));
    }

    /// Renames an object and the objects that it refers to.
    fn rename(&self, object: &Value) -> Value {
        let mut object = object.clone();
        without_nulls(&mut object);
        let is_pod = kind(&object) == "Pod";
        let (old, is_node) = (name(&object).to_owned(), kind(&object) == "Node");
        if is_pod {
            if let Some(new) = self.pods.get(&old) {
                object["metadata"]["name"] = new.as_str().into();
                object["metadata"]["uid"] = new.as_str().into();
            }
            let node = object["spec"]["nodeName"]
                .as_str()
                .map(|node| self.node(node));
            if let Some(node) = node {
                object["spec"]["nodeName"] = node.into();
            }
            return object;
        }
        if is_node || kind(&object) == "NodeClaim" {
            let new = self.node(&old);
            object["metadata"]["name"] = new.as_str().into();
            object["metadata"]["uid"] = if is_node {
                format!("node/{new}").into()
            } else {
                new.as_str().into()
            };
            let at = if is_node { "spec" } else { "status" };
            if let Some(id) = object[at]["providerID"].as_str().map(|id| self.node(id)) {
                object[at]["providerID"] = format!("fake:///{id}").into();
            }
            if let Some(node) = object["status"]["nodeName"]
                .as_str()
                .map(|node| self.node(node))
            {
                object["status"]["nodeName"] = node.into();
            }
        }
        object
    }

    /// Returns the new name of a NodeClaim, by its own name, its provider id or that of its Node.
    fn node(&self, name: &str) -> String {
        let own = name.strip_prefix("fake:///").unwrap_or(name);
        self.claims
            .get(own)
            .cloned()
            .unwrap_or_else(|| own.to_owned())
    }
}

fn decode<K: DeserializeOwned>(file: &str, field: &str, object: &Value) -> Result<K, Invalid> {
    serde_path_to_error::deserialize(object)
        .map_err(|error| Invalid::new(file, format!("{field}.{}", error.path()), error.inner()))
}

/// Returns the latest time in an object.
fn latest(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Array(all) => all.iter().filter_map(latest).max(),
        Value::Object(all) => all.values().filter_map(latest).max(),
        _ => None,
    }
}

impl Scenario {
    /// Returns the first state; what the scenario disturbs may be disturbed once at any time.
    ///
    /// # Errors
    /// Fails for a kind or an operation that is not known, and for an invalid object.
    pub fn world(&self, file: &str) -> Result<World, Invalid> {
        let mut names = Names::default();
        let objects = &self.environment_state.objects;
        objects.iter().for_each(|object| names.add(object));
        self.user_inputs
            .iter()
            .for_each(|input| names.add(&input.object));
        let mut changes = Vec::new();
        for (index, input) in self.user_inputs.iter().enumerate() {
            changes.push(change(
                file,
                &format!("userInputs[{index}]"),
                input,
                &names,
            )?);
        }
        let mut kinds = Vec::new();
        for (index, interval) in self.tuning.staleness_intervals.iter().enumerate() {
            let field = format!("tuning.stalenessIntervals[{index}].kind");
            kinds.extend(stale_kind(file, &field, &interval.kind)?);
        }
        for (reconciler, stale) in self.tuning.stale_reads.iter().flatten() {
            for kind in stale {
                kinds.extend(stale_kind(
                    file,
                    &format!("tuning.staleReads.{reconciler}"),
                    kind,
                )?);
            }
        }
        kinds.sort_unstable();
        kinds.dedup();
        let crashes = u8::from(!self.tuning.fault_injection.is_empty());
        let faults = Faults {
            stale: u8::from(!kinds.is_empty()),
            answers: 0,
            crashes,
            early: 1,
            all: 2,
            changes: u8::MAX,
        };
        let start = objects.iter().filter_map(latest).max();
        let mut world = cluster(changes, kinds, start);
        for (index, object) in objects.iter().enumerate() {
            let field = format!("environmentState.objects[{index}]");
            world.put(file, &field, &names.rename(object))?;
        }
        world.numbers = [count(names.claims.len()), count(names.pods.len())];
        Ok(world.with_faults(faults))
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn stale_kind(file: &str, field: &str, kind: &str) -> Result<Option<Kind>, Invalid> {
    Ok(Some(match kind {
        "core/Pod" => Kind::Pod,
        "core/Node" => Kind::Node,
        "karpenter.sh/NodeClaim" => Kind::NodeClaim,
        "karpenter.sh/NodePool" => Kind::NodePool,
        "karpenter.test.sh/TestNodeClass" => return Ok(None),
        other => return Err(Invalid::new(file, field, format!("unknown kind `{other}`"))),
    }))
}

fn change(file: &str, field: &str, input: &Input, names: &Names) -> Result<Change, Invalid> {
    let (at, object) = (format!("{field}.object"), names.rename(&input.object));
    let deletes = match input.operation.as_str() {
        "CREATE" | "UPDATE" => false,
        "DELETE" => true,
        other => {
            return Err(Invalid::new(
                file,
                format!("{field}.type"),
                format!("unknown operation `{other}`"),
            ));
        }
    };
    Ok(match (kind(&object), deletes) {
        ("Pod", true) => Change::EndPod(name(&object).to_owned()),
        ("Pod", false) => Change::PutPod(Box::new(pod(file, &at, &object)?)),
        ("NodePool", false) => Change::PutPool(Box::new(decode(file, &at, &object)?)),
        ("NodeClaim", true) => Change::DeleteClaim(name(&object).to_owned()),
        ("Node", true) => Change::DeleteNode(name(&object).to_owned()),
        ("TestNodeClass", false) => Change::SetClassReady(is_ready(&object)),
        (kind, _) => {
            let operation = &input.operation;
            return Err(Invalid::new(
                file,
                format!("{at}.kind"),
                format!("cannot {operation} `{kind}`"),
            ));
        }
    })
}

fn pod(file: &str, field: &str, object: &Value) -> Result<Pod, Invalid> {
    let mut pod = Pod::parse(&decode::<CorePod>(file, field, object)?);
    pod.key.namespace = "default".to_owned();
    Ok(pod)
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_none_or(|all| {
        all.iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True")
    })
}

impl World {
    /// Adds an object of a scenario.
    fn put(&mut self, file: &str, field: &str, object: &Value) -> Result<(), Invalid> {
        match kind(object) {
            "TestNodeClass" => self.apply_change(&Change::SetClassReady(is_ready(object))),
            "NodePool" => {
                let pool: NodePool = decode(file, field, object)?;
                self.apply_change(&Change::PutPool(Box::new(pool)));
            }
            "Pod" => {
                let mut pod = pod(file, field, object)?;
                pod.created_at.get_or_insert(self.now.into());
                if pod.node_name.is_some() {
                    pod.ready = true;
                }
                self.put_pod(pod);
            }
            "NodeClaim" => {
                let mut claim: NodeClaim = decode(file, field, object)?;
                let name = claim.name().to_owned();
                if claim.is_true(types::LAUNCHED) {
                    let launched = Instance {
                        launched: self.now,
                        is_terminating: false,
                        is_silent: false,
                    };
                    self.instances.insert(name.clone(), launched);
                    let held = || vec![finalizers::TERMINATION.to_owned()];
                    claim.metadata.finalizers.get_or_insert_with(held);
                }
                if claim.is_true(types::REGISTERED) {
                    claim.status.node_name.get_or_insert(name);
                }
                self.put_claim(claim);
            }
            "Node" => {
                let mut node: Node = decode(file, field, object)?;
                let name = node.metadata.name.clone().unwrap_or_default();
                let held = || vec![finalizers::TERMINATION.to_owned()];
                node.metadata.finalizers.get_or_insert_with(held);
                node.metadata
                    .labels
                    .get_or_insert_default()
                    .entry(HOSTNAME.to_owned())
                    .or_insert(name);
                self.put_node(node);
            }
            other => {
                return Err(Invalid::new(
                    file,
                    format!("{field}.kind"),
                    format!("unknown kind `{other}`"),
                ));
            }
        }
        Ok(())
    }
}
