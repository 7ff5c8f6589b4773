//! The choice for a NodeClaim in an answer, with what the cloud made of it.

use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::resources::Resources;
use serde::Serialize;

use super::{Choice, Launch, Offered, Rejected, choose};
use crate::explain::CurrentReason;

/// What the cloud chose for a NodeClaim.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chosen {
    pub instance_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// `spot`, `on-demand` or `reserved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<String>,
    /// The place of the instance type among those offered by price, from 1; absent if it is not among the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<usize>,
    /// Price in dollars per hour; 0 if it is not known.
    pub price_per_hour: f64,
    /// What it costs more than the cheapest offered instance type, in dollars per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub premium: Option<f64>,
}

impl Chosen {
    /// Returns what the cloud chose for a NodeClaim; `None` before it is launched. `price` is that of its node.
    pub fn of(claim: &NodeClaim, price: f64, choice: Option<&Choice>) -> Option<Self> {
        let own = claim.metadata.labels.as_ref()?;
        let instance_type = own.get(labels::INSTANCE_TYPE)?;
        claim.status.provider_id.as_ref()?;
        let rank = choice.and_then(|choice| {
            let mut options = choice.options.iter();
            options.position(|it| it.instance_type == *instance_type)
        });
        let cheapest = choice.and_then(|choice| choice.options.first());
        let premium = cheapest.filter(|_| price > 0.0);
        Some(Self {
            instance_type: instance_type.clone(),
            zone: own.get(labels::ZONE).cloned(),
            capacity_type: own.get(labels::CAPACITY_TYPE).cloned(),
            rank: rank.map(|rank| rank + 1),
            price_per_hour: price,
            premium: premium.map(|cheapest| price - cheapest.price_per_hour),
        })
    }
}

/// Why a NodeClaim has its instance type, in an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChoiceExplanation {
    /// The instance types that were offered to the cloud, cheapest first.
    pub options: Vec<Offered>,
    /// The number of further offered instance types.
    #[serde(skip_serializing_if = "crate::record::is_zero")]
    pub more_options: usize,
    /// What the cloud chose; absent before the launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
    /// The cheapest instance types that were not offered, as far as they are cheaper than the chosen one.
    pub rejected: Vec<RejectedExplanation>,
    /// The record was dropped: the choice was computed again, on the current cluster and prices.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub recomputed: bool,
}

/// An instance type that was not offered, in an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedExplanation {
    pub instance_type: String,
    /// Price in dollars per hour.
    pub price_per_hour: f64,
    /// The first test that it fails.
    #[serde(flatten)]
    pub reason: CurrentReason,
}

impl ChoiceExplanation {
    /// Explains the choice for a NodeClaim; without a recorded one it is computed on the snapshot. `price` is that of the node.
    pub fn of(
        snapshot: &Snapshot,
        claim: &NodeClaim,
        price: f64,
        recorded: Option<&Choice>,
    ) -> Option<Self> {
        let recomputed = recorded.is_none();
        let choice = match recorded {
            Some(recorded) => recorded.clone(),
            None => {
                let earlier = Resources::new();
                let launch = Launch {
                    claim,
                    pods: &[],
                    earlier: &earlier,
                };
                choose(snapshot, launch)?
            }
        };
        let chosen = Chosen::of(claim, price, Some(&choice));
        let below = chosen.as_ref().map(|chosen| chosen.price_per_hour);
        let below = below.filter(|price| *price > 0.0);
        let cheaper = |it: &&Rejected| below.is_none_or(|price| it.price_per_hour < price);
        let rejected = choice.rejected.iter().filter(cheaper);
        let rejected = rejected.map(|it| RejectedExplanation {
            instance_type: it.instance_type.clone(),
            price_per_hour: it.price_per_hour,
            reason: CurrentReason::of(&it.reason),
        });
        Some(Self {
            rejected: rejected.collect(),
            options: choice.options.to_vec(),
            more_options: choice.more_options,
            chosen,
            recomputed,
        })
    }
}
