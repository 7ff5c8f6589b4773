//! The conversion webhook: answers ConversionReviews of the API server for v1beta1.
//!
//! [`answer`] is pure. `serving` serves it over TLS.
//!
//! Its clients are not authenticated, so the cost of a review is in proportion to its length, whatever it contains: objects are
//! read one at a time from the text, and only those of kinds that are converted.
//!
//! UPSTREAM: knative.dev/pkg/webhook/resourcesemantics/conversion, as v1.0 used it

use std::borrow::Cow;
use std::fmt;
use std::io::Write;

use karpenter_listener::{Pieces, Refused, weight};
use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::conversion::{ConversionError, Kind, Lookup, V1, convert};

/// The most bytes of an object: the API server accepts no larger ones.
const MAX_BYTES: usize = 3 << 20;

/// The most values of an object, far more than any real one has. Four copies of it exist while it is converted, of up to 250 bytes
/// for each value.
const MAX_VALUES: usize = 50_000;

/// Why a review has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It is not a review.
    #[error("invalid ConversionReview: {0}")]
    Invalid(#[from] serde_json::Error),
    #[error("the review has no request")]
    NoRequest,
    /// It has NodeClaims, whose expiry is that of their NodePools.
    #[error("NodePools are not listed yet")]
    NotReady,
    /// There is no room for the response.
    #[error("cannot convert the review: {0}")]
    NoRoom(#[from] Refused),
}

#[derive(Deserialize)]
struct Review<'a> {
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow, rename = "desiredAPIVersion")]
    desired_api_version: Cow<'a, str>,
    #[serde(borrow)]
    objects: &'a RawValue,
}

/// What an object is, without the rest.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// Converts the objects of a review. An object that cannot be converted fails the whole review, and the response names it.
/// `grow` receives the bytes of each converted object, which may be a few times as long as the original.
///
/// # Errors
/// If there is no answer.
pub fn answer(
    review: &[u8],
    lookup: &dyn Lookup,
    grow: &dyn Fn(usize) -> Result<(), Refused>,
) -> Result<Pieces, Refusal> {
    let review: Review<'_> = serde_json::from_slice(review)?;
    let request = review.request.ok_or(Refusal::NoRequest)?;
    let mut converting = Converting {
        wanted: &request.desired_api_version,
        lookup,
        grow,
        converted: begin(&request.uid)?,
        any: false,
        ended: None,
    };
    let mut objects = serde_json::Deserializer::from_str(request.objects.get());
    let converted = objects.deserialize_seq(&mut converting);
    match (converting.ended, converted) {
        (Some(End::Refused(refusal)), _) => Err(refusal),
        (Some(End::Failed(message)), _) => {
            let failure = serde_json::json!({
                "status": "Failure", "message": message, "reason": "BadRequest", "code": 400,
            });
            end(begin(&request.uid)?, &failure)
        }
        (None, Err(error)) => Err(error.into()),
        (None, Ok(())) => {
            let success = serde_json::json!({ "status": "Success" });
            end(converting.converted, &success)
        }
    }
}

/// Begins the response of a review, up to its converted objects.
fn begin(uid: &str) -> Result<Pieces, serde_json::Error> {
    let mut response = Pieces::default();
    let before = concat!(
        r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","#,
        r#""response":{"uid":"#
    );
    write(&mut response, before)?;
    serde_json::to_writer(&mut response, uid)?;
    write(&mut response, r#","convertedObjects":["#)?;
    Ok(response)
}

fn end(mut response: Pieces, result: &Value) -> Result<Pieces, Refusal> {
    write(&mut response, r#"],"result":"#)?;
    serde_json::to_writer(&mut response, result)?;
    write(&mut response, "}}")?;
    Ok(response)
}

fn write(response: &mut Pieces, text: &str) -> Result<(), serde_json::Error> {
    let written = response.write_all(text.as_bytes());
    written.map_err(serde_json::Error::io)
}

/// The conversion of a list of objects.
struct Converting<'r> {
    wanted: &'r str,
    lookup: &'r dyn Lookup,
    grow: &'r dyn Fn(usize) -> Result<(), Refused>,
    converted: Pieces,
    any: bool,
    ended: Option<End>,
}

/// Why a conversion ends before its last object.
enum End {
    /// There is no answer.
    Refused(Refusal),
    /// The answer is that an object cannot be converted.
    Failed(String),
}

impl<'de> Visitor<'de> for &mut Converting<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut objects: A) -> Result<(), A::Error> {
        while let Some(object) = objects.next_element::<&RawValue>()? {
            if let Err(end) = self.add(object.get()) {
                self.ended = Some(end);
                return Err(A::Error::custom("the conversion has ended"));
            }
        }
        Ok(())
    }
}

impl Converting<'_> {
    fn add(&mut self, object: &str) -> Result<(), End> {
        let converted = self.convert(object)?;
        let before = self.converted.len();
        let refused = |error: serde_json::Error| End::Refused(error.into());
        if std::mem::replace(&mut self.any, true) {
            write(&mut self.converted, ",").map_err(refused)?;
        }
        serde_json::to_writer(&mut self.converted, &converted).map_err(refused)?;
        let grown = (self.grow)(self.converted.len() - before);
        grown.map_err(|error| End::Refused(error.into()))
    }

    fn convert(&self, object: &str) -> Result<Value, End> {
        if object.len() > MAX_BYTES {
            return Err(End::Failed("an object is longer than 3 MiB".to_owned()));
        }
        let head: Head<'_> = serde_json::from_str(object).unwrap_or_default();
        let failed = |error: &dyn fmt::Display| {
            let metadata = head.metadata.map_or("{}", RawValue::get);
            let metadata: Metadata<'_> = serde_json::from_str(metadata).unwrap_or_default();
            End::Failed(format!("`{}`: {error}", metadata.name))
        };
        let Some((kind, _)) = Kind::named(&head.api_version, &head.kind) else {
            return Err(failed(&ConversionError::Unknown {
                api_version: head.api_version.into_owned(),
                kind: head.kind.into_owned(),
            }));
        };
        if weight(object.as_bytes()) > MAX_VALUES {
            return Err(failed(&format_args!(
                "the object has more than {MAX_VALUES} values"
            )));
        }
        let is_up = || self.wanted == format!("{}/{V1}", kind.group());
        if kind == Kind::NodeClaim && is_up() && !self.lookup.is_ready() {
            return Err(End::Refused(Refusal::NotReady));
        }
        let object: Value =
            serde_json::from_str(object).map_err(|error| End::Refused(error.into()))?;
        convert(&object, self.wanted, self.lookup).map_err(|error| failed(&error))
    }
}
