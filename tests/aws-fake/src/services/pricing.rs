//! The Pricing API: GetProducts for EC2's on-demand prices.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::catalog::Catalog;
use crate::ec2::paging;
use crate::services::permissions::Auth;
use crate::settings::AwsFakeSettings;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// Regions with a Pricing endpoint.
const ENDPOINTS: [&str; 4] = ["us-east-1", "ap-south-1", "eu-central-1", "cn-northwest-1"];

/// A call to the Pricing API.
#[derive(Debug)]
pub(crate) struct PricingCall<'a> {
    pub(crate) action: String,
    pub(crate) now: Timestamp,
    /// The region of the request's signature.
    pub(crate) endpoint_region: Option<&'a str>,
    /// Catalogs of the regions of the stand-in.
    pub(crate) catalogs: Vec<(&'a str, &'a Catalog)>,
    pub(crate) settings: &'a AwsFakeSettings,
    pub(crate) auth: Auth<'a>,
}

impl PricingCall<'_> {
    pub(crate) fn run(&mut self, params: &Value) -> Result<Reply, AwsError> {
        let p = Params(params);
        if self.action != "GetProducts" {
            return Err(AwsError::new(
                "UnknownOperationException",
                format!("no operation {}", self.action),
            ));
        }
        self.auth.need_any("pricing:GetProducts")?;
        if self
            .endpoint_region
            .is_some_and(|r| !ENDPOINTS.contains(&r))
        {
            return Err(AwsError::new(
                "AccessDeniedException",
                "The price list is served in us-east-1, eu-central-1, ap-south-1 and cn-northwest-1 only.",
            ));
        }
        let Some(service) = p.text("ServiceCode") else {
            return Err(AwsError::new(
                "InvalidParameterException",
                "ServiceCode is required",
            ));
        };
        if service != "AmazonEC2" {
            return Err(AwsError::new(
                "InvalidParameterException",
                format!("Invalid ServiceCode: {service}"),
            ));
        }
        let mut filters: Vec<(&str, &str)> = Vec::new();
        for filter in p.list("Filters") {
            match (
                filter.text("Type"),
                filter.text("Field"),
                filter.text("Value"),
            ) {
                (Some("TERM_MATCH" | "EQUALS"), Some(field), Some(value)) => {
                    filters.push((field, value));
                }
                _ => {
                    return Err(AwsError::new(
                        "InvalidParameterException",
                        "Filters need Type TERM_MATCH, Field and Value",
                    ));
                }
            }
        }
        let after = match p.text("NextToken").filter(|t| !t.is_empty()) {
            None => String::new(),
            Some(token) => paging::open(token, &self.action).ok_or_else(|| {
                AwsError::new("InvalidNextTokenException", "NextToken is not valid")
            })?,
        };
        let most = p.int("MaxResults").unwrap_or(100).clamp(1, 100);
        let size = usize::try_from(most)
            .unwrap_or(100)
            .min(self.settings.page_size(&self.action));
        let matching = |product: &Value| {
            filters.iter().all(|(field, value)| {
                let have = product
                    .pointer("/product/attributes")
                    .and_then(|a| a.get(*field))
                    .or_else(|| product.get(*field))
                    .or_else(|| product.get("product").and_then(|p| p.get(*field)));
                have.and_then(Value::as_str)
                    .is_some_and(|have| have.eq_ignore_ascii_case(value))
            })
        };
        let mut rows = self
            .products(&after)
            .filter(|(_, product)| matching(product));
        let page: Vec<(String, Value)> = rows.by_ref().take(size).collect();
        let list: Vec<String> = page
            .iter()
            .map(|(_, product)| product.to_string())
            .collect();
        let mut reply = json!({"FormatVersion": "aws_v1", "PriceList": list});
        if let (Some((last, _)), Some(_)) = (page.last(), rows.next()) {
            reply["NextToken"] = json!(paging::seal(last, &self.action));
        }
        Ok(Reply::Tree(reply))
    }

    /// Iterates over the products whose key comes after `after`, by key.
    fn products(&self, after: &str) -> Box<dyn Iterator<Item = (String, Value)> + '_> {
        let after = after.to_owned();
        let mut all: BTreeMap<String, (&str, &str, f64)> = BTreeMap::new();
        for (region, catalog) in &self.catalogs {
            for (name, price) in catalog.prices() {
                let sku = format!("{region} {name}");
                if catalog.types.contains_key(name) && sku > after {
                    all.insert(sku, (region, name, price));
                }
            }
        }
        let effective = self.now.strftime("%Y-%m-01T00:00:00Z").to_string();
        Box::new(all.into_iter().map(move |(sku, (region, name, price))| {
            let product = product(&sku, region, name, price, &effective);
            (sku, product)
        }))
    }
}

/// Returns an entry of the price list.
fn product(sku: &str, region: &str, name: &str, price: f64, effective: &str) -> Value {
    let currency = if region.starts_with("cn-") {
        "CNY"
    } else {
        "USD"
    };
    let (family, tenancy) = if name.contains(".metal") {
        ("Compute Instance (bare metal)", "Dedicated")
    } else {
        ("Compute Instance", "Shared")
    };
    let amount = BTreeMap::from([(currency, format!("{price:.10}"))]);
    let term = format!("{sku}.JRTCKXETXF");
    let dimension = format!("{term}.6YS6EN2CT7");
    json!({
        "product": {
            "productFamily": family,
            "sku": sku,
            "attributes": {
                "instanceType": name,
                "regionCode": region,
                "servicecode": "AmazonEC2",
                "serviceCode": "AmazonEC2",
                "operatingSystem": "Linux",
                "preInstalledSw": "NA",
                "capacitystatus": "Used",
                "tenancy": tenancy,
                "marketoption": "OnDemand",
                "locationType": "AWS Region",
                "currentGeneration": "Yes",
            },
        },
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {term: {
            "sku": sku,
            "offerTermCode": "JRTCKXETXF",
            "effectiveDate": effective,
            "termAttributes": {},
            "priceDimensions": {dimension.clone(): {
                "unit": "Hrs",
                "endRange": "Inf",
                "beginRange": "0",
                "appliesTo": [],
                "rateCode": dimension,
                "description": format!("per On Demand Linux {name} Instance Hour"),
                "pricePerUnit": amount,
            }},
        }}},
        "version": "20260801000000",
        "publicationDate": effective,
    })
}
