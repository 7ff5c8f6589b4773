//! A strict client: every response is parsed by the published models, and anything outside of them fails the test.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::LazyLock;

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

/// An account in virtual time.
pub struct Aws {
    pub fake: AwsFake,
}

const SUBNET: &str = "subnet-00000000000000001";
const NODE_GROUP: &str = "sg-00000000000000001";

impl Aws {
    pub fn new() -> Self {
        let clock = Clock::new("2026-09-01T00:00:00Z".parse().unwrap(), 1.0);
        let builder = AwsFake::builder().clock(clock).interruption_queue("test");
        Self {
            fake: builder.unlimited().page_size(3).build(),
        }
    }

    async fn send(&self, request: Request<bytes::Bytes>) -> (u16, String) {
        let response = self.fake.handle(request).await.unwrap();
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        (response.status().as_u16(), body)
    }

    /// Makes a call with the Query protocol that must succeed.
    pub async fn query(&self, service: &str, action: &str, params: &[(&str, &str)]) -> Value {
        let version = if service == "iam" {
            "2010-05-08"
        } else {
            "2016-11-15"
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
        assert_eq!(status, 200, "{body}");
        let (name, root) = parse(&body);
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
        typed(&Node::Children(result), shape, action)
    }

    pub async fn ec2(&self, action: &str, params: &[(&str, &str)]) -> Value {
        self.query("ec2", action, params).await
    }

    /// Makes a call with the JSON protocol that must succeed.
    pub async fn json(&self, target: &str, shape: &str, body: Value) -> Value {
        let request = Request::post("/")
            .header("x-amz-target", target)
            .body(body.to_string().into())
            .unwrap();
        self.checked(shape, request).await
    }

    /// Makes a REST call that must succeed.
    pub async fn get(&self, shape: &str, path: &str) -> Value {
        let request = Request::get(path).body(bytes::Bytes::new()).unwrap();
        self.checked(shape, request).await
    }

    async fn checked(&self, shape: &str, request: Request<bytes::Bytes>) -> Value {
        let (status, body) = self.send(request).await;
        assert_eq!(status, 200, "{body}");
        let value = serde_json::from_str(&body).unwrap();
        check_json(&value, &SHAPES[shape], shape);
        value
    }

    /// Creates the launch template `tpl` with `more` launch data.
    pub async fn template(&self, more: &[(&str, &str)]) {
        let image = "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/standard/recommended/image_id";
        let image = self.fake.parameter(image).unwrap();
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
        self.ec2("CreateLaunchTemplate", &params).await;
    }

    /// Launches one instance with an instant fleet.
    pub async fn launch(&self, capacity: &str) {
        let config = "LaunchTemplateConfigs.1";
        let names = [
            format!("{config}.LaunchTemplateSpecification.LaunchTemplateName"),
            format!("{config}.LaunchTemplateSpecification.Version"),
            format!("{config}.Overrides.1.InstanceType"),
            format!("{config}.Overrides.1.SubnetId"),
        ];
        let values = ["tpl", "$Latest", "m5.large", SUBNET];
        let mut params = vec![
            ("Type", "instant"),
            ("TargetCapacitySpecification.TotalTargetCapacity", "1"),
            (
                "TargetCapacitySpecification.DefaultTargetCapacityType",
                capacity,
            ),
        ];
        params.extend(names.iter().map(String::as_str).zip(values));
        let answer = self.ec2("CreateFleet", &params).await;
        assert_eq!(answer["fleetInstanceSet"].as_array().map(Vec::len), Some(1));
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
                // One list of the models has other element names; SDKs accept no other name.
                let expected = match path {
                    "DescribeInstanceTypes.instanceTypeSet.inferenceAcceleratorInfo.accelerators" => &["member"][..],
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
