//! Parsing of an HTTP request into a call with service, action and typed parameters, and rendering of its response.

pub(crate) mod error;
pub(crate) mod params;
pub(crate) mod shape;
pub(crate) mod xml;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use serde_json::Value;

use error::{AwsError, Protocol};

const IAM_NAMESPACE: &str = "https://iam.amazonaws.com/doc/2010-05-08/";
const STS_NAMESPACE: &str = "https://sts.amazonaws.com/doc/2011-06-15/";
const EC2_NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) protocol: Protocol,
    /// Service: `ec2`, `iam`, `sts`, `ssm`, `sqs`, `eks`, `pricing`, `arc-zonal-shift`.
    pub(crate) service: &'static str,
    pub(crate) action: String,
    pub(crate) region: Option<String>,
    pub(crate) user_agent: String,
    /// The decoded request, for faults that search it.
    pub(crate) text: String,
    /// The typed parameters, or the error that refuses them.
    pub(crate) params: Result<Value, AwsError>,
}

/// A response, independent of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    /// Members of the result.
    Tree(Value),
    /// Members of the result, rendered as XML.
    Xml(String),
}

impl Incoming {
    /// Parses `request`; `None` if it is for none of the services.
    pub(crate) fn read(request: &Request<Bytes>) -> Option<Self> {
        let path = request.uri().path();
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default()
        };
        let scope = Scope::of(header("authorization"));
        let call = |protocol, service, action: &str, text: String, params| {
            Some(Self {
                protocol,
                service,
                action: action.to_owned(),
                region: scope.region.map(str::to_owned),
                user_agent: header("user-agent").to_owned(),
                text,
                params,
            })
        };

        if let Some((prefix, action)) = header("x-amz-target").rsplit_once('.') {
            let (service, kind) = match prefix {
                "AmazonSQS" => ("sqs", "application/x-amz-json-1.0"),
                "AmazonSSM" => ("ssm", "application/x-amz-json-1.1"),
                "AWSPriceListService" => ("pricing", "application/x-amz-json-1.1"),
                _ => return None,
            };
            let text = String::from_utf8_lossy(request.body()).into_owned();
            let params = match serde_json::from_slice::<Value>(request.body()) {
                Ok(value) if value.is_object() => Ok(value),
                _ => Err(AwsError::new(
                    "SerializationException",
                    "the request body is not a JSON object",
                )),
            };
            return call(Protocol::Json(kind), service, action, text, params);
        }
        if let Some(arn) = path.strip_prefix("/managedresources/") {
            let arn = decode(arn);
            let params = serde_json::json!({"resourceIdentifier": arn});
            return call(
                Protocol::RestJson,
                "arc-zonal-shift",
                "GetManagedResource",
                arn,
                Ok(params),
            );
        }
        if let Some(name) = path.strip_prefix("/clusters/") {
            let name = decode(name);
            let params = serde_json::json!({"name": name});
            return call(
                Protocol::RestJson,
                "eks",
                "DescribeCluster",
                name,
                Ok(params),
            );
        }

        let body = String::from_utf8_lossy(request.body());
        let query = request.uri().query().unwrap_or_default();
        let pairs: Vec<(String, String)> = form(query).chain(form(&body)).collect();
        let find = |name: &str| {
            pairs
                .iter()
                .find(|(k, _)| k == name)
                .map_or("", |(_, v)| v.as_str())
        };
        let action = find("Action");
        if action.is_empty() {
            return None;
        }
        let (service, protocol) = match (find("Version"), scope.service) {
            ("2010-05-08", _) | ("", Some("iam")) => ("iam", Protocol::Query(IAM_NAMESPACE)),
            ("2011-06-15", _) | ("", Some("sts")) => ("sts", Protocol::Query(STS_NAMESPACE)),
            _ => ("ec2", Protocol::Ec2),
        };
        let params = match shape::request_shape(service, action) {
            Some(shape) => shape::typed(shape, &pairs),
            None => Err(AwsError::new(
                "InvalidAction",
                format!("The action {action} is not valid for this web service."),
            )),
        };
        let text = pairs
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect::<Vec<_>>()
            .join("\n");
        let params = params.map_err(|e| match (protocol, e.code.as_str()) {
            // IAM and STS have one code for all of these.
            (
                Protocol::Query(_),
                "InvalidParameterValue" | "MissingParameter" | "UnknownParameter",
            ) => AwsError::new("ValidationError", e.message),
            _ => e,
        });
        call(protocol, service, action, text, params)
    }

    /// Renders the HTTP response for `outcome`.
    pub(crate) fn respond(
        &self,
        outcome: &Result<Reply, AwsError>,
        request_id: &str,
    ) -> Response<Bytes> {
        let mut response = match outcome {
            Ok(reply) => Response::new(Bytes::from(self.body(reply, request_id))),
            Err(error) => {
                let mut response =
                    Response::new(Bytes::from(self.protocol.error_body(error, request_id)));
                *response.status_mut() = StatusCode::from_u16(error.status)
                    .ok()
                    .filter(|s| s.is_client_error() || s.is_server_error())
                    .unwrap_or(StatusCode::BAD_REQUEST);
                if matches!(self.protocol, Protocol::RestJson | Protocol::Json(_)) {
                    let kind = error.code.rsplit('#').next().unwrap_or_default();
                    set(&mut response, "x-amzn-errortype", kind);
                }
                if self.service == "sqs" {
                    let value = format!("{};Sender", crate::services::sqs::query_code(&error.code));
                    set(&mut response, "x-amzn-query-error", &value);
                }
                response
            }
        };
        set(
            &mut response,
            header::CONTENT_TYPE.as_str(),
            self.protocol.content_type(),
        );
        set(&mut response, "x-amzn-requestid", request_id);
        response
    }

    fn body(&self, reply: &Reply, request_id: &str) -> String {
        let action = &self.action;
        let (namespace, item) = match self.protocol {
            Protocol::Json(_) | Protocol::RestJson => {
                return match reply {
                    Reply::Tree(value) => value.to_string(),
                    Reply::Xml(text) => text.clone(),
                };
            }
            Protocol::Ec2 => (EC2_NAMESPACE, "item"),
            Protocol::Query(namespace) => (namespace, "member"),
        };
        let mut written = String::new();
        let members: &str = match reply {
            Reply::Xml(xml) => xml,
            Reply::Tree(tree) => {
                xml::write_members(tree, item, &mut written);
                &written
            }
        };
        if self.protocol == Protocol::Ec2 {
            format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{action}Response xmlns=\"{namespace}\"><requestId>{request_id}</requestId>{members}</{action}Response>"
            )
        } else {
            format!(
                "<{action}Response xmlns=\"{namespace}\"><{action}Result>{members}</{action}Result><ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
            )
        }
    }
}

/// Sets a header, unless the value is invalid.
pub(crate) fn set(response: &mut Response<Bytes>, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (
        header::HeaderName::try_from(name),
        header::HeaderValue::try_from(value),
    ) {
        response.headers_mut().insert(name, value);
    }
}

/// Region and service of a request's signature.
struct Scope<'a> {
    region: Option<&'a str>,
    service: Option<&'a str>,
}

impl<'a> Scope<'a> {
    fn of(authorization: &'a str) -> Self {
        let mut parts = authorization
            .split_once("Credential=")
            .map_or("", |(_, rest)| rest)
            .split([',', ' '])
            .next()
            .unwrap_or_default()
            .split('/')
            .skip(2);
        Self {
            region: parts.next().filter(|r| !r.is_empty()),
            service: parts.next(),
        }
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

fn form(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.split('&').filter(|p| !p.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (
            decode(&key.replace('+', " ")),
            decode(&value.replace('+', " ")),
        )
    })
}
