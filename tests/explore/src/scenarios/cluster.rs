//! The cluster of a scenario.
//!
//! Objects get the names by which states are compared (`nc-0001`, `pd-0001`). What Karpenter itself would have written and the file
//! leaves out is added: finalizers, the name of a NodeClaim's Node, the hostname. The instance of each launched NodeClaim runs.

use std::collections::BTreeMap;

use anyhow::anyhow;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod as CorePod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{HOSTNAME, finalizers};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::pod::Pod;
use serde_json::Value;

use super::{Input, Scenario, decode};
use crate::world::change::Change;
use crate::world::cloud::{Instance, provider_id};
use crate::world::objects::Kind;
use crate::world::{Faults, World};
use crate::worlds::cluster;

/// The new names of NodeClaims, which are also those of their Nodes and instances, and of pods, by the old ones.
type Names = BTreeMap<String, String>;

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// Returns an object with new names, and without fields that are null, as the API server has it.
fn renamed(object: &Value, names: &Names) -> Value {
    fn rename(key: &str, value: &mut Value, names: &Names) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|it| rename(key, it, names)),
            Value::Object(all) => {
                all.retain(|_, value| !value.is_null());
                all.iter_mut().for_each(|(key, it)| rename(key, it, names));
            }
            Value::String(text) => {
                let own = text.strip_prefix("fake:///").unwrap_or(text);
                *text = match names.get(own) {
                    Some(new) if key == "providerID" => provider_id(new),
                    Some(new) => new.clone(),
                    None => return,
                };
            }
            _ => {}
        }
    }
    let mut object = object.clone();
    rename("", &mut object, names);
    let new = name(&object);
    let uid = match kind(&object) {
        "Node" => format!("node/{new}"),
        _ => new.to_owned(),
    };
    object["metadata"]["uid"] = uid.into();
    object
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
    pub fn world(&self) -> anyhow::Result<World> {
        let objects = &self.environment_state.objects;
        let (mut names, mut numbers) = (Names::new(), [0, 0]);
        let later = self.user_inputs.iter().map(|input| &input.object);
        for object in objects.iter().chain(later) {
            let (prefix, number) = match kind(object) {
                "NodeClaim" => ("nc", &mut numbers[0]),
                "Pod" => ("pd", &mut numbers[1]),
                _ => continue,
            };
            names.entry(name(object).to_owned()).or_insert_with(|| {
                *number += 1;
                format!("{prefix}-{number:04}")
            });
        }
        let inputs = self.user_inputs.iter().enumerate();
        let changes = inputs
            .map(|(index, input)| change(&format!("userInputs[{index}]"), input, &names))
            .collect::<anyhow::Result<Vec<Change>>>()?;
        let intervals = self.tuning.staleness_intervals.iter();
        let intervals = intervals.map(|it| ("stalenessIntervals", &it.kind));
        let reads = self.tuning.stale_reads.values();
        let reads = reads.flatten().map(|kind| ("staleReads", kind));
        let mut kinds = Vec::new();
        for (field, kind) in intervals.chain(reads) {
            kinds.extend(stale_kind(&format!("tuning.{field}"), kind)?);
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
            world.put_object(&field, &renamed(object, &names))?;
        }
        world.numbers = numbers;
        Ok(world.with_faults(faults))
    }
}

fn stale_kind(field: &str, kind: &str) -> anyhow::Result<Option<Kind>> {
    Ok(Some(match kind {
        "core/Pod" => Kind::Pod,
        "core/Node" => Kind::Node,
        "karpenter.sh/NodeClaim" => Kind::NodeClaim,
        "karpenter.sh/NodePool" => Kind::NodePool,
        "karpenter.test.sh/TestNodeClass" => return Ok(None),
        other => return Err(anyhow!("{field}: unknown kind `{other}`")),
    }))
}

fn change(field: &str, input: &Input, names: &Names) -> anyhow::Result<Change> {
    let (at, object) = (format!("{field}.object"), renamed(&input.object, names));
    let deletes = match input.operation.as_str() {
        "CREATE" | "UPDATE" => false,
        "DELETE" => true,
        other => {
            return Err(anyhow!("{field}.type: unknown operation `{other}`"));
        }
    };
    Ok(match (kind(&object), deletes) {
        ("Pod", true) => Change::EndPod(name(&object).to_owned()),
        ("Pod", false) => Change::PutPod(Box::new(pod(&at, &object)?)),
        ("NodePool", false) => Change::PutPool(Box::new(decode(&object, &at)?)),
        ("NodeClaim", true) => Change::DeleteClaim(name(&object).to_owned()),
        ("Node", true) => Change::DeleteNode(name(&object).to_owned()),
        ("TestNodeClass", false) => Change::SetClassReady(is_ready(&object)),
        (kind, _) => {
            let operation = &input.operation;
            return Err(anyhow!("{at}.kind: cannot {operation} `{kind}`"));
        }
    })
}

fn pod(field: &str, object: &Value) -> anyhow::Result<Pod> {
    let mut pod = Pod::parse(&decode::<CorePod>(object, field)?);
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
    fn put_object(&mut self, field: &str, object: &Value) -> anyhow::Result<()> {
        match kind(object) {
            "TestNodeClass" => self.apply_change(&Change::SetClassReady(is_ready(object))),
            "NodePool" => {
                self.put(decode::<NodePool>(object, field)?);
            }
            "Pod" => {
                let mut pod = pod(field, object)?;
                pod.created_at.get_or_insert(self.now.into());
                if pod.node_name.is_some() {
                    pod.ready = true;
                }
                self.put(pod);
            }
            "NodeClaim" => {
                let mut claim: NodeClaim = decode(object, field)?;
                let name = claim.name().to_owned();
                if claim.is_true(types::LAUNCHED) {
                    let launched = Instance::launched_at(self.now);
                    self.instances.insert(name.clone(), launched);
                    let held = || vec![finalizers::TERMINATION.to_owned()];
                    claim.metadata.finalizers.get_or_insert_with(held);
                }
                if claim.is_true(types::REGISTERED) {
                    claim.status.node_name.get_or_insert(name);
                }
                self.put(claim);
            }
            "Node" => {
                let mut node: Node = decode(object, field)?;
                let name = node.metadata.name.clone().unwrap_or_default();
                let held = || vec![finalizers::TERMINATION.to_owned()];
                node.metadata.finalizers.get_or_insert_with(held);
                node.metadata
                    .labels
                    .get_or_insert_default()
                    .entry(HOSTNAME.to_owned())
                    .or_insert(name);
                self.put(node);
            }
            other => {
                return Err(anyhow!("{field}.kind: unknown kind `{other}`"));
            }
        }
        Ok(())
    }
}
