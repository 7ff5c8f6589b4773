//! Instance types, offerings and spot prices.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::{Filters, Tags};
use crate::clock::rfc3339;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
use crate::wire::{Reply, xml};

/// Products that have spot prices, with the price relative to Linux.
const PRODUCTS: [(&str, f64); 3] = [
    ("Linux/UNIX", 1.0),
    ("Linux/UNIX (Amazon VPC)", 1.0),
    ("Windows", 1.9),
];

impl Ec2Call<'_> {
    pub(crate) fn describe_instance_types(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        const ARCHITECTURE: &str = "processor-info.supported-architecture";
        p.only(&["Filter", "MaxResults", "NextToken"])?;
        let filters = Filters::read(p, &[ARCHITECTURE, "supported-virtualization-type"])?;
        let page = self.page(p, (5, 100))?;
        let types = self.ec2.catalog.types.values();
        let rows = types
            .filter(|t| {
                filters.matches(&Tags::new(), |name| match name {
                    ARCHITECTURE => t.architectures.iter().map(String::as_str).collect(),
                    _ => t.virtualization_types.iter().map(String::as_str).collect(),
                })
            })
            .map(|t| (t.name.clone(), t));
        let (rows, token) = page.cut(rows);
        let mut out = String::from("<instanceTypeSet>");
        for row in rows {
            out.push_str("<item>");
            xml::write_members(&row.wire, "item", &mut out);
            out.push_str("</item>");
        }
        out.push_str("</instanceTypeSet>");
        xml::write_members(&json!({"nextToken": token}), "item", &mut out);
        Ok(Reply::Xml(out))
    }

    pub(crate) fn describe_instance_type_offerings(
        &mut self,
        p: Params<'_>,
    ) -> Result<Reply, AwsError> {
        p.only(&["LocationType", "MaxResults", "NextToken"])?;
        let page = self.page(p, (5, 1000))?;
        let catalog = &self.ec2.catalog;
        let kind = p.text("LocationType").unwrap_or("region");
        if kind != "availability-zone" {
            return Err(AwsError::unsupported(kind));
        }
        let pools = catalog.offered.keys();
        let pools = pools.flat_map(|name| catalog.zones.iter().map(move |(zone, _)| (name, zone)));
        let rows: BTreeMap<String, Value> = pools
            .filter(|(name, zone)| catalog.offers(name, zone))
            .map(|(name, zone)| {
                let wire = json!({"instanceType": name, "location": zone, "locationType": kind});
                (format!("{name} {zone}"), wire)
            })
            .collect();
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(
            json!({"instanceTypeOfferingSet": rows, "nextToken": token}),
        ))
    }

    pub(crate) fn describe_spot_price_history(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        p.only(&["ProductDescription", "StartTime", "MaxResults", "NextToken"])?;
        let page = self.page(p, (1, 1000))?;
        let products = p.texts("ProductDescription");
        let (ec2, catalog) = (&*self.ec2, &self.ec2.catalog);
        let spot = catalog
            .types
            .values()
            .filter(|t| t.usage_classes.iter().any(|class| class == "spot"));
        let pools = spot.flat_map(|t| catalog.zones.iter().map(move |zone| (&t.name, zone)));
        let mut rows: Vec<(String, Value)> = Vec::new();
        for (name, (zone, zone_id)) in pools {
            let Some((price, since)) = ec2.spot_price_since(name, zone) else {
                continue;
            };
            for (product, factor) in PRODUCTS {
                if !products.is_empty() && !products.contains(&product) {
                    continue;
                }
                let wire = json!({
                    "instanceType": name,
                    "productDescription": product,
                    "spotPrice": format!("{:.6}", price * factor),
                    "timestamp": rfc3339(since),
                    "availabilityZone": zone,
                    "availabilityZoneId": zone_id,
                });
                rows.push((format!("{name} {zone} {product}"), wire));
            }
        }
        let (rows, token) = page.cut(rows);
        // EC2 ends this list with an empty token, not without one.
        let token = token.unwrap_or_default();
        Ok(Reply::Tree(
            json!({"spotPriceHistorySet": rows, "nextToken": token}),
        ))
    }
}
