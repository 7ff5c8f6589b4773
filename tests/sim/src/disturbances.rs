//! Random disturbances of the cluster: those of the API server, the cloud, instances, replicas and all kinds of objects. What a user
//! does to a single pod, Node or NodeClaim, `karpenter-explore` tries at every moment.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_kwok::CapacityPool;
use karpenter_kwok::catalogue::ZONES;
use karpenter_testbed::faults::{Fault, Rule};
use karpenter_testbed::loops::node_agent::NodeFault;
use serde_json::{Value, json};

use crate::chance::Chance;
use crate::driver::{Kind, Simulation};
use crate::world;

impl Simulation {
    /// Makes one random disturbance.
    pub(crate) async fn disturb(&mut self) {
        match self.chance.between(0, 99) {
            0..=29 => self.scales().await,
            30..=37 => self.new_or_old_deployment().await,
            38..=41 => self.budget_of_pods().await,
            42..=47 => self.bad_api_server(),
            48..=49 => self.cluster.testbed.compact(),
            50..=57 => self.cloud_trouble(),
            58..=63 => self.node_trouble().await,
            64..=66 => self.restart().await,
            67..=71 => self.kill().await,
            72 => self.loses_lease().await,
            73..=82 => self.pool_changes().await,
            83..=91 => self.rollout().await,
            92..=95 => self.pool_comes_or_goes().await,
            96..=97 => self.stateful_set_changes().await,
            _ => self.extra_changes().await,
        }
    }

    async fn scales(&mut self) {
        if let Some(name) = self.any::<Deployment>().await {
            let replicas = match self.chance.between(0, 4) {
                0 => 0,
                1 => self.chance.between(10, 40),
                _ => self.chance.between(1, 10),
            };
            self.patch::<Deployment>(&name, json!({"spec": {"replicas": replicas}}))
                .await;
        }
    }

    async fn new_or_old_deployment(&mut self) {
        let names = self.names::<Deployment>().await;
        if names.len() < 6 && self.chance.happens(0.6) {
            self.new_deployment().await;
        } else if let Some(name) = self.chance.of(&names) {
            self.delete::<PodDisruptionBudget>(&name).await;
            self.delete::<Deployment>(&name).await;
        }
    }

    async fn budget_of_pods(&mut self) {
        if let Some(name) = self.any::<Deployment>().await {
            self.toggle::<PodDisruptionBudget>(&name, world::pdb).await;
        }
    }

    /// Deletes the object of this name, or creates it if there is none.
    async fn toggle<K: Kind>(&mut self, name: &str, new: fn(&mut Chance, &str) -> Value) {
        if self.names::<K>().await.iter().any(|known| known == name) {
            self.delete::<K>(name).await;
        } else {
            let object = new(&mut self.chance, name);
            self.create::<K>(object).await;
        }
    }

    fn bad_api_server(&mut self) {
        let share = self.chance.one([0.02, 0.1, 0.3]);
        let code = self.chance.one([429, 500, 503, 504]);
        let mut faults = vec![
            Fault::Error(code),
            Fault::Conflict,
            Fault::LostAnswer,
            Fault::Latency(Duration::from_millis(self.chance.between(10, 4000))),
            Fault::DropWatch {
                after: self.chance.between(0, 50),
            },
            Fault::Stale {
                revisions: self.chance.between(1, 200),
            },
        ];
        faults.retain(|_| self.chance.happens(0.5));
        self.trace.add(&format!(
            "> API server faults {faults:?} for {share} of all requests"
        ));
        let rules = faults.into_iter().map(|f| Rule::new(f).rate(share));
        self.cluster.testbed.faults().set(rules.collect());
        self.faults_until = Some(self.after(10.0, 3600.0));
    }

    fn cloud_trouble(&mut self) {
        let cloud = self.cluster.cloud.clone();
        match self.chance.between(0, 4) {
            0 => {
                let pool = CapacityPool {
                    instance_type: None,
                    zone: self.chance.some(ZONES),
                    capacity_type: self.chance.some(["spot", "on-demand"]),
                };
                self.trace.add(&format!("> no capacity for {pool:?}"));
                cloud.exhaust(pool);
                // Longer shortages only repeat the attempts: a round of launches whenever the provider's cache expires.
                self.shortage_until = Some(self.after(10.0, 1800.0));
            }
            1 => self.restock(),
            2 => {
                let times = self.chance.between(1, 40);
                self.trace.add(&format!("> {times} launches fail"));
                cloud.fail_launches(u32::try_from(times).unwrap_or(1));
            }
            trouble => {
                let joins = trouble == 3;
                self.trace.add(&format!("> instances join: {joins}"));
                cloud.never_register(!joins);
            }
        }
    }

    async fn node_trouble(&mut self) {
        let nodes = self.list::<Node>().await;
        let Some(node) = self.chance.of(&nodes) else {
            return;
        };
        let name = node.metadata.name.unwrap_or_default();
        let faults = &self.cluster.node_faults;
        let id = node.spec.and_then(|s| s.provider_id).unwrap_or_default();
        let trouble = self.chance.between(0, 5);
        let mut instances = self.cluster.cloud.instances().into_iter();
        if !instances.any(|m| m.answer.status.provider_id.as_ref() == Some(&id)) {
            // A terminated instance cannot be restored.
            return;
        }
        match trouble {
            0..=2 => {
                self.trace
                    .add(&format!("> instance of {name} is terminated"));
                faults.set(&name, NodeFault::Dead);
                self.cluster.cloud.kill(&id);
            }
            3 => {
                self.trace.add(&format!("> node {name} hangs"));
                faults.set(&name, NodeFault::Dead);
            }
            4 => {
                self.trace.add(&format!("> node {name} is slow"));
                faults.set(&name, NodeFault::Slow(20.0));
            }
            _ => {
                self.trace.add(&format!("> node {name} recovers"));
                faults.clear(&name);
            }
        }
    }

    async fn pool_changes(&mut self) {
        let Some(name) = self.any::<NodePool>().await else {
            return;
        };
        self.generation += 1;
        let patch = match self.chance.between(0, 3) {
            0 => {
                let label = json!({"sim/generation": self.generation.to_string()});
                json!({"spec": {"template": {"metadata": {"labels": label}}}})
            }
            1 => {
                json!({"spec": {"disruption": {"budgets": world::budgets(&mut self.chance)}}})
            }
            2 if name == world::STATIC => {
                json!({"spec": {"replicas": self.chance.between(0, 4)}})
            }
            2 => json!({"spec": {"weight": self.chance.between(1, 100)}}),
            _ if name == world::STATIC => return,
            _ => {
                let after = self.chance.one(["0s", "1m", "10m", "Never"]);
                json!({"spec": {"disruption": {"consolidateAfter": after}}})
            }
        };
        self.patch::<NodePool>(&name, patch).await;
    }

    async fn pool_comes_or_goes(&mut self) {
        let name = self.chance.one(world::OTHERS);
        self.toggle::<NodePool>(name, world::other_pool).await;
    }

    /// Creates, scales or deletes a StatefulSet.
    async fn stateful_set_changes(&mut self) {
        let names = self.names::<StatefulSet>().await;
        match self.chance.of(&names) {
            Some(name) if self.chance.happens(0.2) => self.delete::<StatefulSet>(&name).await,
            Some(name) if names.len() > 1 || self.chance.happens(0.7) => {
                let replicas = self.chance.between(0, 5);
                self.patch::<StatefulSet>(&name, json!({"spec": {"replicas": replicas}}))
                    .await;
            }
            _ => {
                self.serial += 1;
                let name = format!("data{}", self.serial);
                let set = world::stateful_set(&mut self.chance, &name);
                self.create::<StatefulSet>(set).await;
            }
        }
    }

    /// Creates or deletes a CapacityBuffer or a NodeOverlay.
    async fn extra_changes(&mut self) {
        let deployment = self.any::<Deployment>().await;
        match deployment.filter(|_| self.chance.happens(0.5)) {
            Some(name) => {
                self.toggle::<CapacityBuffer>(&name, world::capacity_buffer)
                    .await
            }
            None => {
                let name = self.chance.one(["first", "second"]);
                self.toggle::<NodeOverlay>(name, world::overlay).await;
            }
        }
    }

    async fn rollout(&mut self) {
        if let Some(name) = self.any::<Deployment>().await {
            self.generation += 1;
            let label = json!({"sim": self.generation.to_string()});
            let template = json!({"metadata": {"labels": label}});
            self.patch::<Deployment>(&name, json!({"spec": {"template": template}}))
                .await;
        }
    }
}
