//! Subnets of a node class, and the selection of one per zone for a launch.
//!
//! EC2 reports free IP addresses with a delay, so launches are deducted from the last number until the next one
//! arrives.
//!
//! UPSTREAM: pkg/providers/subnet/subnet.go

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types::Filter;
use karpenter_api::labels::CAPACITY_TYPE;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::PODS;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::{EC2NodeClass, Subnet};
use crate::sdk::pages::list_all;
use crate::sdk::terms::{ClassVersion, TtlCache, class_version, filter, tag_filters};
use crate::sdk::{Aws, AwsError};

/// Largest page of DescribeSubnets that is useful.
const PAGE: i32 = 500;

/// Free IP addresses of a subnet.
#[derive(Clone, Copy, Debug)]
struct Free {
    /// The number that EC2 reported last.
    reported: u32,
    /// The number that launches took since then.
    taken: u32,
    /// Counts EC2's answers, so that addresses taken before an answer are not released after it.
    answer: u64,
    until: Instant,
}

impl Free {
    fn left(self) -> u32 {
        self.reported.saturating_sub(self.taken)
    }
}

/// Free IP addresses by subnet.
type Known = Mutex<HashMap<String, Free>>;

/// Resolves and caches the subnets of node classes, and tracks their free IP addresses.
#[derive(Clone, Debug)]
pub struct Subnets {
    aws: Aws,
    found: Arc<TtlCache<ClassVersion, Arc<[Subnet]>>>,
    free_for: Duration,
    known: Arc<Known>,
}

impl Subnets {
    /// Creates a resolver whose results expire after `refresh`.
    #[must_use]
    pub fn new(aws: Aws, refresh: Duration) -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            aws,
            found: Arc::new(TtlCache::new(refresh)),
            free_for: minutes(5).max(refresh + minutes(4)),
            known: Arc::default(),
        }
    }

    /// Returns the subnets the node class selects, those with the most free IP addresses first.
    ///
    /// # Errors
    /// If a call to EC2 fails.
    pub async fn list(&self, class: &EC2NodeClass) -> Result<Arc<[Subnet]>, AwsError> {
        let version = class_version(class);
        if let Some(found) = self.found.get(&version) {
            return Ok(found);
        }
        let terms = &class.spec.subnet_selector_terms;
        let ids: Vec<&str> = terms.iter().filter_map(|t| t.id.as_deref()).collect();
        let mut queries: Vec<Vec<Filter>> = terms
            .iter()
            .filter(|t| t.id.is_none())
            .filter_map(|t| t.tags.as_ref().map(tag_filters))
            .collect();
        if !ids.is_empty() {
            queries.push(vec![filter("subnet-id", ids)]);
        }
        let answers = queries.into_iter().map(|filters| self.describe(filters));
        let mut subnets: BTreeMap<String, (u32, Subnet)> = BTreeMap::new();
        for answer in futures::future::join_all(answers).await {
            for (free, subnet) in answer? {
                subnets.insert(subnet.id.clone(), (free, subnet));
            }
        }
        let now = Instant::now();
        let mut known = self.known.lock();
        known.retain(|_, free| now < free.until);
        for (id, (reported, _)) in &subnets {
            let answer = known.get(id).map_or(0, |free| free.answer + 1);
            let free = Free {
                reported: *reported,
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
        let read = |raw: aws_sdk_ec2::types::Subnet| {
            let free = u32::try_from(raw.available_ip_address_count.unwrap_or(0));
            let subnet = Subnet {
                id: raw.subnet_id?,
                zone: raw.availability_zone?,
                zone_id: raw.availability_zone_id,
            };
            Some((free.unwrap_or(0), subnet))
        };
        list_all(ask, |page| {
            let subnets = page.subnets.unwrap_or_default().into_iter();
            subnets.filter_map(read)
        })
        .await
    }

    /// Returns the number of free IP addresses of a subnet; `None` if EC2 has not reported it lately.
    #[must_use]
    pub fn free(&self, id: &str) -> Option<u32> {
        let now = Instant::now();
        let known = self.known.lock();
        let free = known.get(id).filter(|free| now < free.until);
        free.map(|free| free.left())
    }

    /// Records that a subnet has no free IP addresses.
    pub fn exhausted(&self, id: &str) {
        if let Some(free) = self.known.lock().get_mut(id) {
            free.taken = free.reported;
        }
    }

    /// Returns for each zone the subnet with the most free IP addresses. The addresses that the smallest instance of
    /// the zone needs are deducted from each, until the launch [commits](Reserved::commit).
    ///
    /// # Errors
    /// If the node class has no subnet.
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
        let mut known = self.known.lock();
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
            known: Arc::clone(&self.known),
        })
    }
}

/// The node class has no subnet to launch into.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no subnets matched selector")]
pub struct NoSubnet;

/// Returns the number of IP addresses that the smallest instance of each zone needs: one per pod.
fn addresses(types: &[InstanceType], capacity_type: &str) -> HashMap<String, u32> {
    let mut needed: HashMap<String, u32> = HashMap::new();
    for t in types {
        let pods = u32::try_from(t.capacity.get(PODS)).unwrap_or(0);
        let available = t
            .offerings
            .iter()
            .filter(|o| o.available && o.single(CAPACITY_TYPE) == Some(capacity_type));
        for zone in available.filter_map(|o| o.zone()) {
            needed
                .entry(zone.to_owned())
                .and_modify(|least| *least = pods.min(*least))
                .or_insert(pods);
        }
    }
    needed
}

/// The subnets of a launch, with IP addresses reserved in each. Reserved addresses that are not committed are released
/// on drop.
#[derive(Debug)]
pub struct Reserved {
    zones: BTreeMap<String, Subnet>,
    charged: Vec<(String, u32, u64)>,
    known: Arc<Known>,
}

impl Reserved {
    #[must_use]
    pub fn of(&self, zone: &str) -> Option<&Subnet> {
        self.zones.get(zone)
    }

    /// Completes the launch: addresses in the used subnets stay taken, the others are released.
    pub fn commit(mut self, used: &BTreeSet<String>) {
        self.charged.retain(|(id, ..)| !used.contains(id));
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        for (id, addresses, answer) in &self.charged {
            if let Some(free) = known.get_mut(id).filter(|free| free.answer == *answer) {
                free.taken = free.taken.saturating_sub(*addresses);
            }
        }
    }
}
