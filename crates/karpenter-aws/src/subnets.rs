//! Subnets of a node class, and which one of each zone a launch uses.
//!
//! EC2 tells free addresses with a delay, so launches take theirs off the last number until the next one arrives.
//!
//! UPSTREAM: pkg/providers/subnet/subnet.go

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types::Filter;
use karpenter_api::labels::CAPACITY_TYPE;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::PODS;
use tokio::time::Instant;

use crate::api::{EC2NodeClass, Subnet};
use crate::sdk::pages::each_page;
use crate::sdk::terms::{ClassVersion, Remembered, tag_filters};
use crate::sdk::{Aws, AwsError};

/// Largest page of DescribeSubnets that is worth asking for.
const PAGE: i32 = 500;

/// Free addresses of a subnet.
#[derive(Clone, Copy, Debug)]
struct Free {
    /// What EC2 said last.
    told: u32,
    /// What launches since then took.
    taken: u32,
    /// Counts EC2's answers, so that what was taken before an answer is not given back after it.
    answer: u64,
    until: Instant,
}

impl Free {
    fn left(self) -> u32 {
        self.told.saturating_sub(self.taken)
    }
}

#[derive(Debug)]
struct Shared {
    free: Mutex<HashMap<String, Free>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Free>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The subnets of node classes.
#[derive(Clone, Debug)]
pub struct Subnets {
    aws: Aws,
    found: Arc<Remembered<ClassVersion, Arc<[Subnet]>>>,
    free_for: Duration,
    shared: Arc<Shared>,
}

impl Subnets {
    /// Subnets that are asked for anew after `refresh`.
    #[must_use]
    pub fn new(aws: Aws, refresh: Duration) -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            aws,
            found: Arc::new(Remembered::for_(refresh)),
            free_for: minutes(5).max(refresh + minutes(4)),
            shared: Arc::new(Shared {
                free: Mutex::default(),
            }),
        }
    }

    /// The subnets the node class selects, those with the most free addresses first.
    ///
    /// # Errors
    /// When EC2 cannot be asked.
    pub async fn list(&self, class: &EC2NodeClass) -> Result<Arc<[Subnet]>, AwsError> {
        let version = crate::sdk::terms::class_version(class);
        if let Some(found) = self.found.get(&version) {
            return Ok(found);
        }
        let terms = &class.spec.subnet_selector_terms;
        let ids: Vec<String> = terms.iter().filter_map(|t| t.id.clone()).collect();
        let mut questions: Vec<Vec<Filter>> = terms
            .iter()
            .filter(|t| t.id.is_none())
            .filter_map(|t| t.tags.as_ref().map(tag_filters))
            .collect();
        if !ids.is_empty() {
            questions.push(vec![
                Filter::builder()
                    .name("subnet-id")
                    .set_values(Some(ids))
                    .build(),
            ]);
        }
        let answers = questions.into_iter().map(|filters| self.describe(filters));
        let mut subnets: BTreeMap<String, (u32, Subnet)> = BTreeMap::new();
        for answer in futures::future::join_all(answers).await {
            for (free, subnet) in answer? {
                subnets.insert(subnet.id.clone(), (free, subnet));
            }
        }
        let now = Instant::now();
        let mut known = self.shared.lock();
        known.retain(|_, free| now < free.until);
        for (id, (told, _)) in &subnets {
            let answer = known.get(id).map_or(0, |free| free.answer + 1);
            let free = Free {
                told: *told,
                taken: 0,
                answer,
                until: now + self.free_for,
            };
            known.insert(id.clone(), free);
        }
        drop(known);
        let mut subnets: Vec<(u32, Subnet)> = subnets.into_values().collect();
        subnets.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.id.cmp(&b.1.id)));
        let subnets: Arc<[Subnet]> = subnets.into_iter().map(|(_, subnet)| subnet).collect();
        self.found.put(version, Arc::clone(&subnets));
        Ok(subnets)
    }

    async fn describe(&self, filters: Vec<Filter>) -> Result<Vec<(u32, Subnet)>, AwsError> {
        let filters = &filters;
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeSubnets", move |client| {
                client
                    .describe_subnets()
                    .set_filters(Some(filters.clone()))
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        let mut found = Vec::new();
        each_page(ask, |page| {
            found.extend(page.subnets().iter().filter_map(|raw| {
                let free = u32::try_from(raw.available_ip_address_count().unwrap_or(0));
                let subnet = Subnet {
                    id: raw.subnet_id()?.to_owned(),
                    zone: raw.availability_zone()?.to_owned(),
                    zone_id: raw.availability_zone_id().map(str::to_owned),
                };
                Some((free.unwrap_or(0), subnet))
            }));
        })
        .await?;
        Ok(found)
    }

    /// Takes note that a subnet has no addresses left.
    pub fn exhausted(&self, id: &str) {
        if let Some(free) = self.shared.lock().get_mut(id) {
            free.taken = free.told;
        }
    }

    /// The subnet of each zone with the most free addresses left. Each is charged with what the smallest machine that may be
    /// launched there needs, until the launch [settles](Reserved::settle).
    ///
    /// # Errors
    /// When the node class has no subnet.
    pub fn for_launch(
        &self,
        subnets: &[Subnet],
        types: &[InstanceType],
        capacity_type: &str,
    ) -> Result<Reserved, NoSubnet> {
        if subnets.is_empty() {
            return Err(NoSubnet);
        }
        let needed = addresses(types, capacity_type);
        let now = Instant::now();
        let mut known = self.shared.lock();
        let left = |known: &HashMap<String, Free>, id: &str| {
            let free = known.get(id).filter(|free| now < free.until);
            free.map_or(0, |free| free.left())
        };
        let mut chosen: BTreeMap<String, Subnet> = BTreeMap::new();
        for subnet in subnets {
            let better = chosen
                .get(&subnet.zone)
                .is_none_or(|other| left(&known, &subnet.id) > left(&known, &other.id));
            if better {
                chosen.insert(subnet.zone.clone(), subnet.clone());
            }
        }
        let mut charged = Vec::new();
        for subnet in chosen.values() {
            if let (Some(free), Some(addresses)) =
                (known.get_mut(&subnet.id), needed.get(&subnet.zone))
            {
                free.taken = free.taken.saturating_add(*addresses);
                charged.push((subnet.id.clone(), *addresses, free.answer));
            }
        }
        drop(known);
        Ok(Reserved {
            zones: chosen,
            charged,
            shared: Arc::clone(&self.shared),
        })
    }
}

/// The node class has no subnet.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no subnets matched selector")]
pub struct NoSubnet;

/// Addresses the smallest machine of each zone needs: one a pod.
fn addresses(types: &[InstanceType], capacity_type: &str) -> HashMap<String, u32> {
    let mut needed: HashMap<String, u32> = HashMap::new();
    for t in types {
        let pods = u32::try_from(t.capacity.get(PODS)).unwrap_or(0);
        let sold = t
            .offerings
            .iter()
            .filter(|o| o.available && o.single(CAPACITY_TYPE) == Some(capacity_type));
        for zone in sold.filter_map(|o| o.zone()) {
            needed
                .entry(zone.to_owned())
                .and_modify(|least| *least = pods.min(*least))
                .or_insert(pods);
        }
    }
    needed
}

/// The subnets of a launch, with addresses set aside in each. What is not used is given back when it is dropped.
#[derive(Debug)]
pub struct Reserved {
    zones: BTreeMap<String, Subnet>,
    charged: Vec<(String, u32, u64)>,
    shared: Arc<Shared>,
}

impl Reserved {
    /// The subnet of a zone.
    #[must_use]
    pub fn of(&self, zone: &str) -> Option<&Subnet> {
        self.zones.get(zone)
    }

    /// The launch is done: addresses in the subnets it used stay taken, the others are free again.
    pub fn settle(mut self, used: &BTreeSet<String>) {
        self.charged.retain(|(id, ..)| !used.contains(id));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut known = self.shared.lock();
        for (id, addresses, answer) in &self.charged {
            if let Some(free) = known.get_mut(id).filter(|free| free.answer == *answer) {
                free.taken = free.taken.saturating_sub(*addresses);
            }
        }
    }
}
