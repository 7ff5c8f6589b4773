//! The instance types and offerings of node classes, and the refresh of their inputs.
//!
//! UPSTREAM: pkg/providers/instancetype/instancetype.go, pkg/controllers/providers

pub mod catalogue;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{CloudProviderError, ErrorCode};
use karpenter_kube::clock::Clock;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::api::EC2NodeClass;
use crate::providers::capacity_reservation::ReservationCounts;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::providers::instance_type::unavailable::Unavailable;
use crate::providers::instance_type::{
    DiscoveredMemory, OfferingState, PlacementGroup, Resolved, Resolver, ResolverSettings, Shape,
};
use crate::providers::pricing::{Pricing, has_price_list};
use crate::sdk::{Aws, AwsError};

/// How often instance types, zones and on-demand prices are requested.
const CATALOGUE_INTERVAL: Duration = Duration::from_secs(12 * 3600);
/// How often spot prices are requested by default.
// DIFFERS: upstream requests them every 12 hours, while prices change by the minute.
pub const SPOT_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// How often expired unavailability marks are removed.
const EXPIRY: Duration = Duration::from_secs(10);
/// Delay of a retry after a failed request.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

struct State {
    resolver: Resolver,
    pricing: Pricing,
    discovered: DiscoveredMemory,
    /// When EC2 last returned its instance types.
    types_updated: Option<Timestamp>,
}

/// The instance types and offerings of node classes.
pub struct Offered {
    aws: Aws,
    state: Mutex<State>,
    unavailable: Arc<Mutex<Unavailable>>,
    shifted: ShiftedZones,
    counts: ReservationCounts,
    /// Whether the price list can be reached.
    price_list: bool,
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offered").finish_non_exhaustive()
    }
}

impl Offered {
    /// Creates a provider without instance types, with the built-in prices.
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
            types_updated: None,
        };
        Self {
            price_list: has_price_list(aws.region(), isolated_vpc),
            aws,
            state: Mutex::new(state),
            unavailable,
            shifted,
            counts,
        }
    }

    /// Returns the unavailable pools, capacity types and subnets.
    #[must_use]
    pub fn unavailable(&self) -> &Arc<Mutex<Unavailable>> {
        &self.unavailable
    }

    /// Returns the zones with an active zonal shift.
    #[must_use]
    pub fn shifted(&self) -> &ShiftedZones {
        &self.shifted
    }

    /// Returns the number of instances left in capacity reservations.
    #[must_use]
    pub fn counts(&self) -> &ReservationCounts {
        &self.counts
    }

    /// Reads or changes the discovered memory capacity.
    pub fn with_discovered<T>(&self, change: impl FnOnce(&mut DiscoveredMemory) -> T) -> T {
        change(&mut self.state.lock().discovered)
    }

    /// Reads or changes the prices.
    pub fn with_pricing<T>(&self, change: impl FnOnce(&mut Pricing) -> T) -> T {
        change(&mut self.state.lock().pricing)
    }

    pub fn with_resolver<T>(&self, change: impl FnOnce(&mut Resolver) -> T) -> T {
        change(&mut self.state.lock().resolver)
    }

    /// Returns the instance types of a node class with their kubelet settings; the same list while nothing changes.
    ///
    /// # Errors
    /// If instance types are not known yet, or the class's kubelet settings are invalid.
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
        let mut unavailable = self.unavailable.lock();
        unavailable.expire(now);
        let mut state = self.state.lock();
        let State {
            resolver,
            pricing,
            discovered,
            ..
        } = &mut *state;
        let offering_state = OfferingState {
            pricing,
            unavailable: &unavailable,
            shifted_zones: &shifted,
            reservation_counts: &|id| self.counts.left(id),
        };
        resolver
            .resolve(uid, &shape, discovered, &offering_state)
            .map_err(CloudProviderError::other)
    }

    /// Returns the instance types of a node class; the same list while nothing changes.
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

    /// Updates instance types and the zones they are offered in.
    ///
    /// # Errors
    /// The error of EC2; the previous values are kept.
    pub async fn refresh_types(&self, now: Timestamp) -> Result<(), AwsError> {
        let (types, zones) = futures::join!(
            catalogue::instance_types(&self.aws),
            catalogue::zones(&self.aws)
        );
        let (types, zones) = (types?, zones?);
        let count = types.len();
        let mut state = self.state.lock();
        state.types_updated = Some(now);
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

    /// Updates on-demand prices, if the price list can be reached.
    ///
    /// # Errors
    /// If the call fails, or the answer has no prices; the previous prices are kept.
    pub async fn refresh_on_demand_prices(&self) -> Result<(), CloudProviderError> {
        if !self.price_list {
            return Ok(());
        }
        let (shared, metal) = catalogue::on_demand_prices(&self.aws)
            .await
            .map_err(CloudProviderError::other)?;
        let list = |prices: catalogue::Prices| prices.into_iter().collect();
        self.state
            .lock()
            .pricing
            .update_on_demand(list(shared), list(metal))
            .map_err(CloudProviderError::other)?;
        Ok(())
    }

    /// Updates spot prices.
    ///
    /// # Errors
    /// The error of EC2; the previous prices are kept.
    pub async fn refresh_spot_prices(&self, now: Timestamp) -> Result<(), AwsError> {
        let prices = catalogue::spot_prices(&self.aws, now).await?;
        self.state.lock().pricing.update_spot(prices);
        Ok(())
    }

    /// Keeps everything up to date until `stop` is cancelled.
    pub async fn run(
        self: Arc<Self>,
        clock: Clock,
        spot_prices: Duration,
        stop: CancellationToken,
    ) {
        // Instance types were requested at the start, before anything else.
        let updated = self.state.lock().types_updated;
        let fresh = updated.map_or(Duration::ZERO, |at| {
            CATALOGUE_INTERVAL.saturating_sub(clock.since(at))
        });
        let types = async {
            clock.sleep(fresh).await;
            let ask = || self.refresh_types(clock.now());
            repeat(&clock, CATALOGUE_INTERVAL, "providers.instancetype", ask).await;
        };
        let on_demand = repeat(&clock, CATALOGUE_INTERVAL, "providers.pricing", || {
            self.refresh_on_demand_prices()
        });
        let spot = repeat(&clock, spot_prices, "providers.pricing", || {
            self.refresh_spot_prices(clock.now())
        });
        let marks = repeat(&clock, EXPIRY, "providers.instancetype", || async {
            let mut unavailable = self.unavailable.lock();
            unavailable.expire(clock.now());
            Ok::<_, std::convert::Infallible>(())
        });
        let all = futures::future::join4(types, on_demand, spot, marks);
        tokio::select! {
            _ = all => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Repeats an action; sooner after a failure.
async fn repeat<F, E>(
    clock: &Clock,
    every: Duration,
    logger: &'static str,
    mut act: impl FnMut() -> F,
) where
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    loop {
        let pause = match act().await {
            Ok(()) => every,
            Err(error) => {
                tracing::error!(
                    logger,
                    error = %error,
                    "aws-error-code" = ErrorCode::of(&error).map(|code| &**code),
                    "failed to refresh instance types or prices"
                );
                RETRY_INTERVAL.min(every)
            }
        };
        clock.sleep(pause).await;
    }
}
