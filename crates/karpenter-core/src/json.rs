//! The JSON of quantities, amounts and prices, as bundles and catalogues have it: exact, and checked when it is read.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::offering::{Offering, Offerings};
use crate::quantity::Quantity;
use crate::resources::Resources;

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl Serialize for Resources {
    /// Writes the amounts in the engine's units: cpu in thousandths, all others in whole units.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, amount) in self.iter() {
            map.serialize_entry(name, &amount)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Resources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amounts;
        impl<'de> Visitor<'de> for Amounts {
            type Value = Resources;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("amounts by resource, in whole numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Resources, A::Error> {
                let mut amounts: BTreeMap<String, i64> = BTreeMap::new();
                while let Some((name, amount)) = map.next_entry()? {
                    amounts.insert(name, amount);
                }
                Ok(amounts
                    .iter()
                    .map(|(name, amount)| (name.as_str(), *amount))
                    .collect())
            }
        }
        deserializer.deserialize_map(Amounts)
    }
}

impl Serialize for Offerings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for Offerings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Offering>::deserialize(deserializer).map(Self::from)
    }
}

/// A price as the shortest decimal text that reads back as the same number: JSON parsers round numbers. An unknown price (NaN) is
/// null. A number is read as well.
pub(crate) mod price {
    use super::{Deserialize, Deserializer, Error, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(f64),
        Unknown(()),
    }

    pub(crate) fn serialize<S: Serializer>(price: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        let known = Some(price).filter(|price| !price.is_nan());
        known.map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let invalid = || D::Error::custom("invalid price: must be dollars per hour, or null");
        match Written::deserialize(deserializer).map_err(|_| invalid())? {
            Written::Text(text) => text.parse().map_err(|_| invalid()),
            Written::Number(price) => Ok(price),
            Written::Unknown(()) => Ok(f64::NAN),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::requirements::Requirements;

    #[test]
    fn a_price_is_read_back_bit_for_bit() {
        for price in [0.1 + 0.2, 1.0 / 3.0, f64::MIN_POSITIVE, f64::INFINITY, -0.0] {
            let written =
                serde_json::to_string(&Offering::new(Requirements::new(), price)).unwrap();
            let read: Offering = serde_json::from_str(&written).unwrap();
            assert_eq!(read.price.to_bits(), price.to_bits(), "{written}");
        }
        let unknown = serde_json::to_value(Offering::new(Requirements::new(), f64::NAN)).unwrap();
        assert_eq!(unknown["price"], json!(null));
        let read: Offering = serde_json::from_value(unknown).unwrap();
        assert!(read.price.is_nan());
    }

    #[test]
    fn a_price_that_is_not_one_is_refused() {
        for price in [json!("cheap"), json!(true), json!([1]), json!("")] {
            let offering = json!({ "requirements": [], "price": price, "available": true });
            let error = serde_json::from_value::<Offering>(offering).unwrap_err();
            assert!(error.to_string().contains("invalid price"), "{error}");
        }
    }

    #[test]
    fn an_explicit_zero_is_kept() {
        let amounts = Resources::new().with("cpu", 500).with("nodes", 0);
        let written = serde_json::to_value(&amounts).unwrap();
        assert_eq!(written, json!({ "cpu": 500, "nodes": 0 }));
        let read: Resources = serde_json::from_value(written).unwrap();
        assert_eq!(read, amounts);
    }
}
