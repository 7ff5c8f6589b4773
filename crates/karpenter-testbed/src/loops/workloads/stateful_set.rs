//! The StatefulSet controller: numbered pods with their own claims, in order or in parallel.
//!
//! Not implemented: ControllerRevision objects (the revision is a hash of the template), claim retention policies, update strategies
//! other than the default one, a first ordinal other than 0.
//!
//! UPSTREAM: pkg/controller/statefulset

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume,
};
use kube::Api;
use kube::api::PostParams;

use super::pods::{
    PodControl, available_at, from_template, label, labeled, report, tally, template_hash,
};
use crate::loops::cache::{Change, Key, PodRecord, api};
use crate::loops::driver::{Context, Controller, Next};
use crate::loops::outcome::ignore_conflict_of_existence;

const REVISION: &str = "controller-revision-hash";

/// The actions of a pass.
#[derive(Debug, Default, PartialEq)]
struct Plan {
    create: Vec<i32>,
    delete: Vec<i32>,
}

/// The relevant state of a pod.
#[derive(Debug, Clone, Copy)]
struct Member {
    available: bool,
    terminating: bool,
    ended: bool,
    current: bool,
}

fn plan(spec: &StatefulSetSpec, members: &BTreeMap<i32, Member>) -> Plan {
    let end = spec.replicas.unwrap_or(1);
    let ordered = spec.pod_management_policy.as_deref() != Some("Parallel");
    let mut plan = Plan::default();
    for ordinal in 0..end {
        match members.get(&ordinal) {
            None => plan.create.push(ordinal),
            Some(m) if m.ended && !m.terminating => plan.delete.push(ordinal),
            Some(m) if m.available && !m.terminating => continue,
            Some(_) => {}
        }
        if ordered {
            return plan;
        }
    }
    let condemned: Vec<i32> = members
        .keys()
        .rev()
        .copied()
        .filter(|o| *o >= end)
        .collect();
    for ordinal in condemned {
        if !members[&ordinal].terminating {
            plan.delete.push(ordinal);
        }
        if ordered {
            return plan;
        }
    }
    if !plan.create.is_empty() {
        return plan;
    }
    for ordinal in (0..end).rev() {
        let Some(member) = members.get(&ordinal) else {
            return plan;
        };
        if !member.current && !member.terminating {
            plan.delete.push(ordinal);
            return plan;
        }
        if !member.available || member.terminating {
            return plan;
        }
    }
    plan
}

fn ordinal(set: &str, pod: &str) -> Option<i32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

fn pod(set: &StatefulSet, spec: &StatefulSetSpec, number: i32, revision: &str) -> Pod {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let pod_name = format!("{name}-{number}");
    let mut pod = from_template(&spec.template, set, &number.to_string());
    label(
        &mut pod.metadata,
        "statefulset.kubernetes.io/pod-name",
        &pod_name,
    );
    label(
        &mut pod.metadata,
        "apps.kubernetes.io/pod-index",
        &number.to_string(),
    );
    label(&mut pod.metadata, REVISION, revision);
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(pod_name.clone());
    pod_spec.subdomain = spec.service_name.clone();
    let volumes = pod_spec.volumes.get_or_insert_with(Vec::new);
    for template in spec.volume_claim_templates.iter().flatten() {
        let volume_name = template.metadata.name.clone().unwrap_or_default();
        volumes.retain(|v| v.name != volume_name);
        volumes.push(Volume {
            name: volume_name.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: format!("{volume_name}-{pod_name}"),
                read_only: None,
            }),
            ..Volume::default()
        });
    }
    pod
}

pub(crate) struct StatefulSets {
    context: Context,
    control: PodControl,
}

impl StatefulSets {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            control: PodControl::default(),
        }
    }

    async fn create_claims(
        &self,
        set: &StatefulSet,
        spec: &StatefulSetSpec,
        number: i32,
    ) -> Result<(), kube::Error> {
        let key = Key::of(&set.metadata);
        let claims: Api<PersistentVolumeClaim> = api(&self.context.client(), &key);
        for template in spec.volume_claim_templates.iter().flatten() {
            let prefix = template.metadata.name.as_deref().unwrap_or_default();
            let name = format!("{prefix}-{}-{number}", key.name);
            if self
                .context
                .cache
                .claims
                .get(&Key::new(&key.namespace, &name))
                .is_some()
            {
                continue;
            }
            let mut claim = template.clone();
            claim.metadata.name = Some(name);
            claim.metadata.namespace = Some(key.namespace.to_string());
            claim.status = None;
            let selected = spec.selector.match_labels.clone().unwrap_or_default();
            claim
                .metadata
                .labels
                .get_or_insert_with(BTreeMap::new)
                .extend(selected);
            ignore_conflict_of_existence(claims.create(&PostParams::default(), &claim).await)?;
        }
        Ok(())
    }

    async fn carry_out(
        &self,
        set: &StatefulSet,
        spec: &StatefulSetSpec,
        plan: Plan,
        pods: &BTreeMap<i32, Arc<PodRecord>>,
        revision: &str,
    ) -> Result<(), kube::Error> {
        let owner = set.metadata.uid.as_deref().unwrap_or_default();
        for number in &plan.create {
            self.create_claims(set, spec, *number).await?;
        }
        let new = plan
            .create
            .iter()
            .map(|n| pod(set, spec, *n, revision))
            .collect();
        self.control.create(&self.context, owner, new).await?;
        let old: Vec<_> = plan
            .delete
            .iter()
            .filter_map(|n| pods.get(n).cloned())
            .collect();
        self.control.delete(&self.context, owner, &old).await
    }
}

impl Controller for StatefulSets {
    const NAME: &'static str = "statefulset";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Pod(diff) => keys.extend(self.control.observe(diff, "StatefulSet")),
            Change::StatefulSet(diff) => keys.push(diff.key()),
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(set) = self.context.cache.stateful_sets.get(key) else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        let spec = set.spec.clone().unwrap_or_default();
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        let revision = template_hash(&spec.template, 0);
        let pods: BTreeMap<i32, Arc<PodRecord>> = self
            .context
            .cache
            .pods_of(uid)
            .into_iter()
            .filter_map(|p| Some((ordinal(&key.name, p.name())?, p)))
            .collect();
        let current = |p: &PodRecord| labeled(&p.meta, REVISION) == Some(&revision);
        let members = pods
            .iter()
            .map(|(number, p)| {
                let member = Member {
                    available: available_at(p, min_ready).is_some_and(|at| at <= now),
                    terminating: p.is_terminating(),
                    ended: p.is_terminal(),
                    current: current(p),
                };
                (*number, member)
            })
            .collect();
        if set.metadata.deletion_timestamp.is_none() && self.control.expectations_met(uid, now) {
            let plan = plan(&spec, &members);
            self.carry_out(&set, &spec, plan, &pods, &revision).await?;
        }
        let counted = tally(pods.values().filter(|p| p.is_active()), min_ready, now);
        let updated = pods
            .values()
            .filter(|p| p.is_active() && current(p))
            .count();
        let updated = i32::try_from(updated).unwrap_or(i32::MAX);
        let name = format!("{}-{revision}", key.name);
        let old_revision = set.status.as_ref().and_then(|s| s.current_revision.clone());
        let rolled = updated == counted.replicas && counted.ready == counted.replicas;
        let current_revision = match old_revision {
            Some(old) if !rolled => old,
            _ => name.clone(),
        };
        let current_replicas = if current_revision == name {
            updated
        } else {
            counted.replicas - updated
        };
        let new = StatefulSetStatus {
            observed_generation: set.metadata.generation,
            replicas: counted.replicas,
            ready_replicas: Some(counted.ready),
            available_replicas: Some(counted.available),
            current_replicas: Some(current_replicas),
            updated_replicas: Some(updated),
            current_revision: Some(current_revision),
            update_revision: Some(name),
            ..set.status.clone().unwrap_or_default()
        };
        report(&self.context, &*set, set.status.as_ref(), &new).await?;
        Ok(Next::at(now, counted.next))
    }
}
