//! The Pricing API: GetProducts for EC2's on-demand prices.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::REGION;
use crate::catalog::Catalog;
use crate::ec2::paging;
use crate::services::permissions::Auth;
use crate::settings::AwsFakeSettings;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// Regions with a Pricing endpoint.
const ENDPOINTS: [&str; 4] = ["us-east-1", "ap-south-1", "eu-central-1", "cn-northwest-1"];

#[derive(Debug)]
pub(crate) struct PricingCall<'a> {
    pub(crate) action: String,
    pub(crate) now: Timestamp,
    /// The region of the request's signature.
    pub(crate) endpoint_region: Option<&'a str>,
    pub(crate) catalog: &'a Catalog,
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
        let invalid = |what: String| AwsError::new("InvalidParameterException", what);
        let service = p.text("ServiceCode").unwrap_or_default();
        if service != "AmazonEC2" {
            return Err(invalid(format!("Invalid ServiceCode: {service}")));
        }
        let filters = p.list("Filters");
        let filters = filters.map(|f| Some((f.text("Type")?, f.text("Field")?, f.text("Value")?)));
        let filters: Vec<(&str, &str, &str)> = filters
            .collect::<Option<_>>()
            .filter(|all: &Vec<_>| all.iter().all(|(kind, ..)| *kind == "TERM_MATCH"))
            .ok_or_else(|| invalid("Filters need Type TERM_MATCH, Field and Value".to_owned()))?;
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
            filters.iter().all(|(_, field, value)| {
                let product = &product["product"];
                let have = product.get(*field).or(product["attributes"].get(*field));
                have.is_some_and(|have| have == value)
            })
        };
        let effective = self.now.strftime("%Y-%m-01T00:00:00Z").to_string();
        let prices: BTreeMap<&String, f64> = self.catalog.prices().collect();
        let mut rows = prices
            .into_iter()
            .filter(|(name, _)| self.catalog.types.contains_key(*name) && **name > after)
            .map(|(name, price)| (name, product(name, price, &effective)))
            .filter(|(_, product)| matching(product));
        let page: Vec<(&String, Value)> = rows.by_ref().take(size).collect();
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
}

/// Returns an entry of the price list.
fn product(name: &str, price: f64, effective: &str) -> Value {
    let (family, tenancy) = if name.contains(".metal") {
        ("Compute Instance (bare metal)", "Dedicated")
    } else {
        ("Compute Instance", "Shared")
    };
    let term = format!("{name}.JRTCKXETXF");
    let dimension = format!("{term}.6YS6EN2CT7");
    json!({
        "product": {
            "productFamily": family,
            "sku": name,
            "attributes": {
                "instanceType": name,
                "regionCode": REGION,
                "serviceCode": "AmazonEC2",
                "operatingSystem": "Linux",
                "preInstalledSw": "NA",
                "capacitystatus": "Used",
                "tenancy": tenancy,
                "marketoption": "OnDemand",
            },
        },
        "terms": {"OnDemand": {term: {
            "effectiveDate": effective,
            "priceDimensions": {dimension: {
                "unit": "Hrs",
                "pricePerUnit": {"USD": format!("{price:.10}")},
            }},
        }}},
        "publicationDate": effective,
    })
}
