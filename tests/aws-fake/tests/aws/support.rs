//! A strict client: every response is parsed by the published models, and anything outside of them fails the test.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::LazyLock;
use std::time::Duration;

use http::Request;
use karpenter_aws_fake::{AwsFake, Clock};
use serde_json::{Map, Value, json};

static SHAPES: LazyLock<HashMap<String, Value>> = LazyLock::new(|| {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&include_bytes!("../../data/responses.json.gz")[..])
        .read_to_string(&mut text)
        .unwrap();
    serde_json::from_str(&text).unwrap()
});

/// An account with a manual clock.
pub struct Aws {
    pub fake: AwsFake,
}

/// Error code and message.
pub type Refused = (String, String);

pub const SUBNET_A: &str = "subnet-00000000000000001";
pub const SUBNET_B: &str = "subnet-00000000000000002";
pub const NODE_GROUP: &str = "sg-00000000000000001";

impl Aws {
    pub fn new() -> Self {
        Self::with(|b| b.unlimited())
    }

    pub fn with(
        change: impl FnOnce(karpenter_aws_fake::Builder) -> karpenter_aws_fake::Builder,
    ) -> Self {
        let clock = Clock::manual("2026-09-01T00:00:00Z".parse().unwrap());
        let builder = AwsFake::builder().clock(clock).interruption_queue("test");
        Self {
            fake: change(builder).build(),
        }
    }

    pub fn advance(&self, seconds: u64) {
        self.fake.clock().advance(Duration::from_secs(seconds));
    }

    pub async fn send(&self, request: Request<bytes::Bytes>) -> (u16, String) {
        let response = self.fake.handle(request).await.unwrap();
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        (response.status().as_u16(), body)
    }

    /// Makes a call with the Query protocol.
    pub async fn query(
        &self,
        service: &str,
        action: &str,
        params: &[(&str, &str)],
    ) -> Result<Value, Refused> {
        let version = match service {
            "iam" => "2010-05-08",
            "sts" => "2011-06-15",
            _ => "2016-11-15",
        };
        let mut form = format!("Action={action}&Version={version}");
        for (key, value) in params {
            let value = value.bytes().map(|b| match b {
                b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
                b => format!("%{b:02X}"),
            });
            form += &format!("&{key}={}", value.collect::<String>());
        }
        let (status, body) = self
            .send(Request::post("/").body(form.into()).unwrap())
            .await;
        let (name, root) = parse(&body);
        if status != 200 {
            let text = |tag: &str| find(&root, tag).map(text_of).unwrap_or_default();
            assert!(!text("Code").is_empty(), "{body}");
            assert!(body.contains("<RequestI"), "{body}");
            return Err((text("Code"), text("Message")));
        }
        assert_eq!(name, format!("{action}Response"));
        let result = if service == "ec2" {
            root.into_iter() // On the wire, but not in the model, which has calls without result answer nothing.
                .filter(|(n, _)| n != "requestId" && n != "return")
                .collect()
        } else {
            match find(&root, &format!("{action}Result")) {
                Some(Node::Children(children)) => children.clone(),
                _ => vec![],
            }
        };
        let shape = &SHAPES[&format!("{service}:{action}")];
        Ok(typed(&Node::Children(result), shape, action))
    }

    pub async fn ec2(&self, action: &str, params: &[(&str, &str)]) -> Result<Value, Refused> {
        self.query("ec2", action, params).await
    }

    /// Makes a call with the JSON protocol.
    pub async fn json(&self, service: &str, action: &str, body: Value) -> Result<Value, Refused> {
        let target = match service {
            "sqs" => "AmazonSQS",
            "ssm" => "AmazonSSM",
            _ => "AWSPriceListService",
        };
        let request = Request::post("/")
            .header("x-amz-target", format!("{target}.{action}"))
            .body(body.to_string().into())
            .unwrap();
        let (status, body) = self.send(request).await;
        let value: Value = serde_json::from_str(&body).unwrap();
        if status != 200 {
            let text = |m: &str| value[m].as_str().unwrap_or_default().to_owned();
            return Err((text("__type"), text("message")));
        }
        check_json(&value, &SHAPES[&format!("{service}:{action}")], action);
        Ok(value)
    }

    /// Makes a REST call that must succeed.
    pub async fn get(&self, call: &str, path: &str) -> Value {
        let (status, body) = self
            .send(Request::get(path).body(bytes::Bytes::new()).unwrap())
            .await;
        assert_eq!(status, 200, "{body}");
        let value = serde_json::from_str(&body).unwrap();
        check_json(&value, &SHAPES[call], call);
        value
    }

    /// Returns the AL2023 image for an architecture.
    pub fn image(&self, architecture: &str) -> String {
        let path = format!(
            "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/{architecture}/standard/recommended/image_id"
        );
        self.fake.parameter(&path).unwrap()
    }

    /// Creates a launch template called `t` with `more` launch data.
    pub async fn template(&self, more: &[(&str, &str)]) {
        let image = self.image("x86_64");
        let mut params = vec![
            ("LaunchTemplateName", "tpl"),
            ("LaunchTemplateData.ImageId", &image),
            ("LaunchTemplateData.NetworkInterface.1.DeviceIndex", "0"),
            (
                "LaunchTemplateData.NetworkInterface.1.SecurityGroupId.1",
                NODE_GROUP,
            ),
        ];
        params.extend_from_slice(more);
        self.ec2("CreateLaunchTemplate", &params).await.unwrap();
    }

    /// Creates an instant fleet over `pools` of instance type and subnet.
    pub async fn fleet(
        &self,
        capacity: &str,
        pools: &[(&str, &str)],
        more: &[(&str, &str)],
    ) -> Result<Value, Refused> {
        let config = "LaunchTemplateConfigs.1";
        let mut params: Vec<(String, String)> = [
            ("Type", "instant"),
            (
                "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName",
                "tpl",
            ),
            (
                "LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version",
                "$Latest",
            ),
            (
                "TargetCapacitySpecification.DefaultTargetCapacityType",
                capacity,
            ),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        if !more.iter().any(|(k, _)| k.ends_with("TotalTargetCapacity")) {
            params.push((
                "TargetCapacitySpecification.TotalTargetCapacity".into(),
                "1".into(),
            ));
        }
        for ((kind, subnet), n) in pools.iter().zip(1..) {
            params.push((
                format!("{config}.Overrides.{n}.InstanceType"),
                (*kind).to_owned(),
            ));
            params.push((
                format!("{config}.Overrides.{n}.SubnetId"),
                (*subnet).to_owned(),
            ));
        }
        let mut all: Vec<(&str, &str)> = params
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        all.extend_from_slice(more);
        self.ec2("CreateFleet", &all).await
    }

    /// Launches one instance; returns its ID.
    pub async fn launch(&self, capacity: &str) -> String {
        let answer = self
            .fleet(capacity, &[("m5.large", SUBNET_A)], &[])
            .await
            .unwrap();
        let id = &answer["fleetInstanceSet"][0]["instanceIds"][0];
        id.as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

#[derive(Clone)]
enum Node {
    Text(String),
    Children(Vec<(String, Node)>),
}

/// Parses elements, text and entities, which is all that responses consist of.
fn parse(xml: &str) -> (String, Vec<(String, Node)>) {
    let mut rest = xml.trim_start();
    if rest.starts_with("<?") {
        rest = rest.split_once("?>").unwrap().1.trim_start();
    }
    let (name, node) = element(&mut rest);
    assert_eq!(rest, "", "text after the document");
    match node {
        Node::Children(children) => (name, children),
        Node::Text(_) => (name, vec![]),
    }
}

fn element(rest: &mut &str) -> (String, Node) {
    let (tag, after) = rest.strip_prefix('<').unwrap().split_once('>').unwrap();
    let name = tag.split(' ').next().unwrap().to_owned();
    *rest = after;
    let close = format!("</{name}>");
    let mut children = Vec::new();
    let mut text = String::new();
    loop {
        if let Some(after) = rest.strip_prefix(close.as_str()) {
            *rest = after;
            break;
        }
        if rest.starts_with('<') {
            children.push(element(rest));
        } else {
            let end = rest.find('<').unwrap();
            text += &rest[..end];
            *rest = &rest[end..];
        }
    }
    if children.is_empty() {
        let text = text
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#13;", "\r")
            .replace("&amp;", "&");
        (name, Node::Text(text))
    } else {
        (name, Node::Children(children))
    }
}

fn find<'a>(children: &'a [(String, Node)], name: &str) -> Option<&'a Node> {
    children.iter().find_map(|(n, node)| match node {
        _ if n == name => Some(node),
        Node::Children(inner) => find(inner, name),
        Node::Text(_) => None,
    })
}

fn text_of(node: &Node) -> String {
    match node {
        Node::Text(text) => text.clone(),
        Node::Children(_) => String::new(),
    }
}

fn typed(node: &Node, shape: &Value, path: &str) -> Value {
    let children = match node {
        Node::Children(children) => children.as_slice(),
        Node::Text(_) => &[],
    };
    if let Some(members) = shape.get("s") {
        let mut out = Map::new();
        for (name, child) in children {
            let inner = format!("{path}.{name}");
            let shape = members
                .get(name)
                .unwrap_or_else(|| panic!("no element {inner}"));
            let old = out.insert(name.clone(), typed(child, shape, &inner));
            assert!(old.is_none(), "{inner} twice");
        }
        return Value::Object(out);
    }
    if let Some(element) = shape.get("l") {
        return children
            .iter()
            .map(|(name, child)| {
                // Two lists of the models have other element names; SDKs accept no other name.
                let expected = match path {
                    "DescribeInstanceTypes.instanceTypeSet.inferenceAcceleratorInfo.accelerators" => &["member"][..],
                    "DescribeLaunchTemplateVersions.launchTemplateVersionSet.launchTemplateData.networkInterfaceSet.groupSet" => &["groupId"],
                    _ if path.starts_with("Describe") => &["item"],
                    _ => &["item", "member"],
                };
                assert!(expected.contains(&name.as_str()), "{path}.{name}");
                typed(child, element, path)
            })
            .collect();
    }
    let Node::Text(text) = node else {
        panic!("{path} is not a structure");
    };
    if let Some(values) = shape.get("e") {
        assert!(
            values.as_array().unwrap().contains(&json!(text)),
            "{path}: {text}"
        );
    }
    match shape.as_str() {
        Some("i") => json!(
            text.parse::<i64>()
                .unwrap_or_else(|_| panic!("{path}: {text}"))
        ),
        Some("d") => json!(
            text.parse::<f64>()
                .unwrap_or_else(|_| panic!("{path}: {text}"))
        ),
        Some("b") => json!(
            text.parse::<bool>()
                .unwrap_or_else(|_| panic!("{path}: {text}"))
        ),
        Some("t") => {
            assert!(text.parse::<jiff::Timestamp>().is_ok(), "{path}: {text}");
            json!(text)
        }
        _ => json!(text),
    }
}

fn check_json(value: &Value, shape: &Value, path: &str) {
    if let Some(members) = shape.get("s") {
        for (name, member) in value.as_object().unwrap_or_else(|| panic!("{path}")) {
            let inner = format!("{path}.{name}");
            let shape = members
                .get(name)
                .unwrap_or_else(|| panic!("no member {inner}"));
            check_json(member, shape, &inner);
        }
    } else if let Some(element) = shape.get("l") {
        for member in value.as_array().unwrap_or_else(|| panic!("{path}")) {
            check_json(member, element, path);
        }
    } else if let Some(element) = shape.get("m") {
        for member in value
            .as_object()
            .unwrap_or_else(|| panic!("{path}"))
            .values()
        {
            check_json(member, element, path);
        }
    } else if let Some(values) = shape.get("e") {
        assert!(
            values.as_array().unwrap().contains(value),
            "{path}: {value}"
        );
    } else {
        let ok = match shape.as_str() {
            Some("i") => value.is_i64() || value.is_u64(),
            Some("d" | "t") => value.is_number(),
            Some("b") => value.is_boolean(),
            _ => value.is_string(),
        };
        assert!(ok, "{path}: {value}");
    }
}
