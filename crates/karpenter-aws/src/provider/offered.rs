//! What can be bought for a node class now: the resolver with what it looks at, and what keeps that up to date.
//!
//! UPSTREAM: pkg/providers/instancetype/instancetype.go, pkg/controllers/providers

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::clock::Clock;
use tokio_util::sync::CancellationToken;

use crate::api::EC2NodeClass;
use crate::instance_types::{
    DiscoveredMemory, Market, PlacementGroup, Resolved, Resolver, ResolverSettings, Shape,
};
use crate::launch_templates::Reserved;
use crate::pricing::Pricing;
use crate::reservations::ReservationCounts;
use crate::sdk::{Aws, AwsError, catalogue};
use crate::shifted_zones::ShiftedZones;
use crate::unavailable::Unavailable;

/// How often EC2 is asked for instance types, zones and on-demand prices.
const CATALOGUE: Duration = Duration::from_secs(12 * 3600);
/// How often EC2 is asked for spot prices if nothing is said.
// DIFFERS: upstream asks every 12 hours, while prices move by the minute.
pub const SPOT: Duration = Duration::from_secs(5 * 60);
/// How often marks are looked at whose time is over.
const MARKS: Duration = Duration::from_secs(10);
/// How soon a question is asked again that was not answered.
const AGAIN: Duration = Duration::from_secs(60);

struct State {
    resolver: Resolver,
    pricing: Pricing,
    discovered: DiscoveredMemory,
    /// When EC2 last told its instance types.
    types_told: Option<Timestamp>,
}

/// What can be bought.
pub struct Offered {
    aws: Aws,
    state: Mutex<State>,
    unavailable: Arc<Mutex<Unavailable>>,
    shifted: ShiftedZones,
    counts: ReservationCounts,
    /// Whether the price list can be asked.
    price_list: bool,
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offered").finish_non_exhaustive()
    }
}

impl Offered {
    /// Nothing yet, apart from the prices that are built in.
    #[must_use]
    pub fn new(
        aws: Aws,
        settings: ResolverSettings,
        unavailable: Arc<Mutex<Unavailable>>,
        shifted: ShiftedZones,
        counts: ReservationCounts,
        isolated_vpc: bool,
    ) -> Self {
        let state = State {
            pricing: Pricing::new(aws.region()),
            resolver: Resolver::new(settings),
            discovered: DiscoveredMemory::default(),
            types_told: None,
        };
        Self {
            price_list: crate::pricing::api_region(aws.region(), isolated_vpc).is_some(),
            aws,
            state: Mutex::new(state),
            unavailable,
            shifted,
            counts,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is out of capacity.
    #[must_use]
    pub fn unavailable(&self) -> &Arc<Mutex<Unavailable>> {
        &self.unavailable
    }

    /// The zones that are shifted away.
    #[must_use]
    pub fn shifted(&self) -> &ShiftedZones {
        &self.shifted
    }

    /// Machines left in reservations.
    #[must_use]
    pub fn counts(&self) -> &ReservationCounts {
        &self.counts
    }

    /// Looks at, or changes, the memory that nodes turned out to have.
    pub fn with_discovered<T>(&self, change: impl FnOnce(&mut DiscoveredMemory) -> T) -> T {
        change(&mut self.lock().discovered)
    }

    /// Looks at, or changes, the prices.
    pub fn with_pricing<T>(&self, change: impl FnOnce(&mut Pricing) -> T) -> T {
        change(&mut self.lock().pricing)
    }

    /// Looks at, or changes, the resolver.
    pub fn with_resolver<T>(&self, change: impl FnOnce(&mut Resolver) -> T) -> T {
        change(&mut self.lock().resolver)
    }

    /// The instance types of a node class with all that belongs to them; the same list while nothing changes.
    ///
    /// # Errors
    /// When something is not known yet, or the node class' kubelet settings cannot be used.
    pub fn resolve(
        &self,
        class: &EC2NodeClass,
        group: Option<PlacementGroup>,
        now: Timestamp,
    ) -> Result<Resolved, CloudProviderError> {
        let shape = Shape::of(class, group).map_err(|problems| {
            CloudProviderError::other(format!("kubelet settings, {}", problems.join("; ")))
        })?;
        let uid = class.metadata.uid.as_deref().unwrap_or_default();
        let shifted = self.shifted.ids();
        let mut unavailable = self
            .unavailable
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unavailable.expire(now);
        let mut state = self.lock();
        let State {
            resolver,
            pricing,
            discovered,
            ..
        } = &mut *state;
        let market = Market {
            pricing,
            unavailable: &unavailable,
            shifted_zones: &shifted,
            reservation_counts: &|id| self.counts.left(id),
        };
        resolver
            .resolve(uid, &shape, discovered, &market)
            .map_err(|error| CloudProviderError::Other(Box::new(error)))
    }

    /// The instance types of a node class; the same list while nothing changes.
    ///
    /// # Errors
    /// See [`Offered::resolve`].
    pub fn types(
        &self,
        class: &EC2NodeClass,
        group: Option<PlacementGroup>,
        now: Timestamp,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        Ok(self.resolve(class, group, now)?.types)
    }

    /// Asks EC2 which instance types there are, and where.
    ///
    /// # Errors
    /// EC2's; what was known before stays.
    pub async fn refresh_types(&self, now: Timestamp) -> Result<(), AwsError> {
        let (types, zones) = futures::join!(
            catalogue::instance_types(&self.aws),
            catalogue::zones(&self.aws)
        );
        let (types, zones) = (types?, zones?);
        let count = types.len();
        let mut state = self.lock();
        state.types_told = Some(now);
        let changed = state.resolver.update_types(types);
        if changed | state.resolver.update_offered_zones(zones) {
            tracing::debug!(
                logger = "providers.instancetype",
                count,
                "discovered instance types"
            );
        }
        Ok(())
    }

    /// Asks for on-demand prices, where there is somebody to ask.
    ///
    /// # Errors
    /// When there is no answer, or one without prices; what was known before stays.
    pub async fn refresh_on_demand_prices(&self) -> Result<(), CloudProviderError> {
        if !self.price_list {
            return Ok(());
        }
        let (shared, metal) = catalogue::on_demand_prices(&self.aws)
            .await
            .map_err(|error| CloudProviderError::Other(Box::new(error)))?;
        let list = |prices: catalogue::Prices| prices.into_iter().collect();
        self.lock()
            .pricing
            .update_on_demand(list(shared), list(metal))
            .map_err(|error| CloudProviderError::Other(Box::new(error)))?;
        Ok(())
    }

    /// Asks for spot prices.
    ///
    /// # Errors
    /// EC2's; what was known before stays.
    pub async fn refresh_spot_prices(&self, now: Timestamp) -> Result<(), AwsError> {
        let prices = catalogue::spot_prices(&self.aws, now).await?;
        self.lock().pricing.update_spot(prices);
        Ok(())
    }

    /// Keeps everything up to date until told to stop.
    pub async fn run(
        self: Arc<Self>,
        clock: Clock,
        spot_prices: Duration,
        stop: CancellationToken,
    ) {
        // They were asked for before anything else could start.
        let told = self.lock().types_told;
        let fresh = told.map_or(Duration::ZERO, |at| {
            CATALOGUE.saturating_sub(clock.since(at))
        });
        let types = async {
            clock.sleep(fresh).await;
            let ask = || async {
                let done = self.refresh_types(clock.now()).await;
                done.map_err(|e| e.to_string())
            };
            repeat(&clock, CATALOGUE, "providers.instancetype", ask).await;
        };
        let on_demand = repeat(&clock, CATALOGUE, "providers.pricing", || async {
            let done = self.refresh_on_demand_prices().await;
            done.map_err(|e| e.to_string())
        });
        let spot = repeat(&clock, spot_prices, "providers.pricing", || async {
            let done = self.refresh_spot_prices(clock.now()).await;
            done.map_err(|e| e.to_string())
        });
        let marks = repeat(&clock, MARKS, "providers.instancetype", || async {
            let mut unavailable = self
                .unavailable
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            unavailable.expire(clock.now());
            Ok(())
        });
        let all = futures::future::join4(types, on_demand, spot, marks);
        tokio::select! {
            _ = all => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Does something again and again; sooner after a failure.
async fn repeat<F>(clock: &Clock, every: Duration, logger: &'static str, mut act: impl FnMut() -> F)
where
    F: Future<Output = Result<(), String>>,
{
    loop {
        let pause = match act().await {
            Ok(()) => every,
            Err(error) => {
                tracing::error!(logger, error, "failed to refresh what AWS offers");
                AGAIN.min(every)
            }
        };
        clock.sleep(pause).await;
    }
}

/// What the kubelet of an instance type keeps by the user's wish.
#[must_use]
pub fn kept(resolved: &Resolved, name: &str) -> Reserved {
    resolved
        .get(name)
        .map_or_else(Reserved::default, |(_, kubelet)| Reserved {
            kube: kubelet.kube_reserved.clone(),
            system: kubelet.system_reserved.clone(),
        })
}
