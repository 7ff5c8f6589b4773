//! What a request asks: path and query, parsed strictly.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::reason::Reason;
use karpenter_decisions::change::{Change, InvalidChange, MAX_CHANGES};
use karpenter_decisions::record::{DecisionRecord, Pass, RecordId};
use percent_encoding::percent_decode_str;

pub(super) use karpenter_decisions::answer::Subject;

use super::status::Failure;

/// Prefix of all paths.
const PREFIX: &str = "/apis/decisions.karpenter.sh/v1alpha1/";
/// The default number of records of a list.
const LIMIT: usize = 500;
/// The most records of a list.
const MAX_LIMIT: usize = 5000;
/// The longest name of an object.
const MAX_NAME: usize = 253;
/// The longest name of a namespace.
const MAX_NAMESPACE: usize = 63;
/// The longest search for what blocks a pod or a node.
const MAX_TIMEOUT: Duration = Duration::from_secs(5);
/// How far back a recording reaches.
const RECORDED: Duration = Duration::from_secs(30 * 60);
/// The longest time that a rehearsal may take.
const MAX_PLAN: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    /// Records, as a list or as a stream.
    Decisions(Select),
    /// The state of the cluster in numbers, or as a stream.
    Overview {
        /// Whether it is asked for as a stream.
        watch: bool,
    },
    /// Counts of pods by reason.
    PodsByReason,
    /// Counts of nodes by reason.
    NodesByReason,
    /// What blocks nodes, in a namespace or everywhere.
    Blockers { namespace: Option<String> },
    /// The comparison of a shadow with the other Karpenter.
    Shadow {
        /// Since when decisions are compared.
        since: Option<Timestamp>,
    },
    /// A rehearsal of the changes in the body of the request.
    Plan {
        /// How long it may take.
        timeout: Option<Duration>,
    },
    /// The state of the cluster with all that its decisions depend on.
    Bundle {
        /// How far back the passes before it are part of it.
        last: Option<Duration>,
    },
    /// An explanation of an object.
    Explain {
        subject: Subject,
        uid: Option<String>,
        /// How long what blocks it is searched for.
        timeout: Option<Duration>,
        /// Changes to the question.
        changes: Vec<Change>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Select {
    pub(super) since: Option<Timestamp>,
    pub(super) kind: Option<Pass>,
    pub(super) subject: Option<String>,
    pub(super) reason: Option<&'static str>,
    pub(super) limit: usize,
    pub(super) after: Option<RecordId>,
    pub(super) watch: bool,
}

impl Select {
    /// Returns whether a record is selected.
    pub(super) fn matches(&self, record: &DecisionRecord) -> bool {
        let items = || record.items.iter();
        self.since.is_none_or(|since| record.until >= since)
            && self.kind.is_none_or(|kind| record.pass == kind)
            && self
                .subject
                .as_deref()
                .is_none_or(|subject| items().any(|item| item.names(subject)))
            && self
                .reason
                .is_none_or(|reason| items().any(|item| item.reason() == Some(reason)))
    }
}

pub(super) fn parse(path: &str, query: Option<&str>) -> Result<Ask, Failure> {
    let rest = path
        .strip_prefix(PREFIX)
        .ok_or_else(Failure::unknown_path)?;
    let segments: Vec<&str> = rest.split('/').collect();
    let mut parameters = Parameters::parse(query.unwrap_or_default())?;
    let ask = match segments.as_slice() {
        ["decisions"] => Ask::Decisions(select(&mut parameters)?),
        ["overview"] => Ask::Overview {
            watch: watch(&mut parameters)?,
        },
        ["plans"] => Ask::Plan {
            timeout: at_most(&mut parameters, "timeout", MAX_PLAN, "5m")?,
        },
        ["bundle"] => bundle(&mut parameters)?,
        ["explanations"] => explanations(&mut parameters)?,
        ["shadow"] => Ask::Shadow {
            since: since(&mut parameters)?,
        },
        ["blockers"] => {
            let known = |text: &str| name(text, MAX_NAMESPACE).ok();
            let namespace = parameters.read("namespace", "the name of a namespace", known)?;
            Ask::Blockers { namespace }
        }
        ["namespaces", namespace, "pods", pod, "explanation"] => {
            let namespace = name(namespace, MAX_NAMESPACE)?;
            let name = name(pod, MAX_NAME)?;
            explain(Subject::Pod { namespace, name }, &mut parameters)?
        }
        ["nodes", node, "explanation"] => {
            explain(Subject::Node(name(node, MAX_NAME)?), &mut parameters)?
        }
        ["nodeclaims", claim, "explanation"] => {
            explain(Subject::NodeClaim(name(claim, MAX_NAME)?), &mut parameters)?
        }
        ["nodepools", pool, "explanation"] => {
            explain(Subject::NodePool(name(pool, MAX_NAME)?), &mut parameters)?
        }
        _ => return Err(Failure::unknown_path()),
    };
    parameters.end()?;
    Ok(ask)
}

/// Reads the parameters of a bundle. Names are replaced by the client, which keeps the mapping.
fn bundle(parameters: &mut Parameters) -> Result<Ask, Failure> {
    let last = at_most(parameters, "last", RECORDED, "30m");
    match parameters.take("redact").as_deref() {
        None | Some("none") => Ok(Ask::Bundle { last: last? }),
        Some("names" | "all") => Err(Failure::bad_request(
            "invalid redact: names are replaced by `kubectl karpenter capture --redact`",
        )),
        Some(_) => Err(Failure::bad_request("invalid redact: must be none")),
    }
}

fn explain(subject: Subject, parameters: &mut Parameters) -> Result<Ask, Failure> {
    let uid = parameters.take("uid");
    let timeout = at_most(parameters, "timeout", MAX_TIMEOUT, "5s")?;
    let changes = parameters.take_all("if");
    let changes: Vec<Change> = changes
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, InvalidChange>>()
        .map_err(|error| Failure::bad_request(error.to_string()))?;
    if changes.len() > MAX_CHANGES {
        return Err(Failure::bad_request(InvalidChange::TooMany.to_string()));
    }
    if !changes.is_empty() && !matches!(subject, Subject::Pod { .. } | Subject::Node(_)) {
        return Err(Failure::bad_request(
            "invalid if: it applies to pods and nodes only",
        ));
    }
    Ok(Ask::Explain {
        subject,
        uid,
        timeout,
        changes,
    })
}

/// Returns a duration of at most `longest`.
fn at_most(
    parameters: &mut Parameters,
    key: &str,
    longest: Duration,
    shown: &str,
) -> Result<Option<Duration>, Failure> {
    let wanted = format!("a duration of at most {shown}");
    parameters.read(key, &wanted, |text| {
        let parsed = karpenter_api::duration::parse(text).ok()?;
        let parsed = Duration::try_from(parsed).ok();
        parsed.filter(|parsed| *parsed <= longest)
    })
}

fn explanations(parameters: &mut Parameters) -> Result<Ask, Failure> {
    let by = parameters.take("by");
    if by.is_some_and(|by| by != "reason") {
        return Err(Failure::bad_request("invalid by: must be reason"));
    }
    match parameters.take("of").as_deref() {
        Some("pods") => Ok(Ask::PodsByReason),
        Some("nodes") => Ok(Ask::NodesByReason),
        _ => Err(Failure::bad_request("invalid of: must be pods or nodes")),
    }
}

fn since(parameters: &mut Parameters) -> Result<Option<Timestamp>, Failure> {
    parameters.read("since", "a time by RFC 3339", |text| text.parse().ok())
}

fn select(parameters: &mut Parameters) -> Result<Select, Failure> {
    let since = since(parameters)?;
    let kinds = format!("one of {}", Pass::ALL.map(Pass::as_str).join(", "));
    let kind = parameters.read("kind", &kinds, |text| {
        Pass::ALL.into_iter().find(|pass| pass.as_str() == text)
    });
    let reason = parameters.read("reason", "the id of a reason", |text| {
        Reason::IDS.iter().find(|id| **id == text).copied()
    });
    let limit = parameters.read("limit", "from 1 to 5000", |text| {
        let limit = text.parse().ok();
        limit.filter(|limit| (1..=MAX_LIMIT).contains(limit))
    });
    let after = parameters.take("continue").map(|text| {
        let id = text.parse();
        id.map_err(|_| Failure::bad_request("invalid continue: must come from a list"))
    });
    let watch = watch(parameters)?;
    Ok(Select {
        since,
        kind: kind?,
        subject: parameters.take("subject"),
        reason: reason?,
        limit: limit?.unwrap_or(LIMIT),
        after: after.transpose()?,
        watch,
    })
}

/// Returns whether a stream is asked for.
fn watch(parameters: &mut Parameters) -> Result<bool, Failure> {
    match parameters.take("watch").as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(Failure::bad_request("invalid watch: must be true or false")),
    }
}

/// Returns the name in a segment of the path, if an object can have it.
fn name(segment: &str, longest: usize) -> Result<String, Failure> {
    let decoded = percent_decode_str(segment).decode_utf8();
    let name = decoded.map_err(|_| Failure::unknown_path())?;
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let valid = name.len() <= longest
        && name
            .bytes()
            .all(|byte| inner(byte) || byte == b'-' || byte == b'.')
        && name.bytes().next().is_some_and(inner)
        && name.bytes().next_back().is_some_and(inner);
    if valid {
        Ok(name.into_owned())
    } else {
        Err(Failure::unknown_path())
    }
}

/// The parameters of a query that are not taken yet.
struct Parameters(BTreeMap<String, Vec<String>>);

/// The parameter that may be repeated.
const REPEATED: &str = "if";

impl Parameters {
    fn parse(query: &str) -> Result<Self, Failure> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode = |text: &str| {
                let spaced = text.replace('+', " ");
                let decoded = percent_decode_str(&spaced).decode_utf8();
                decoded.map(|text| text.into_owned())
            };
            let (Ok(key), Ok(value)) = (decode(key), decode(value)) else {
                return Err(Failure::bad_request("the query is not valid UTF-8"));
            };
            let repeats = key == REPEATED;
            let values = all.entry(key).or_default();
            if !values.is_empty() && !repeats {
                return Err(Failure::bad_request("a parameter is given twice"));
            }
            values.push(value);
        }
        Ok(Self(all))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)?.pop()
    }

    /// Reads a parameter, if it is given; it must be `wanted`.
    fn read<T>(
        &mut self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let Some(text) = self.take(key) else {
            return Ok(None);
        };
        let invalid = || Failure::bad_request(format!("invalid {key}: must be {wanted}"));
        read(&text).map(Some).ok_or_else(invalid)
    }

    fn take_all(&mut self, key: &str) -> Vec<String> {
        self.0.remove(key).unwrap_or_default()
    }

    /// Fails if there are unknown parameters, so that a misspelt one is noticed.
    fn end(self) -> Result<(), Failure> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => {
                let shown: String = key.escape_default().take(64).collect();
                Err(Failure::bad_request(format!("unknown parameter `{shown}`")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str) -> Result<Ask, Failure> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        parse(&format!("{PREFIX}{path}"), Some(query))
    }

    /// Conformance: DEC-007
    #[test]
    fn a_segment_that_is_no_name_of_an_object_is_an_unknown_path() {
        let long = "a".repeat(254);
        for segment in [
            "",
            "%",
            "%ff",
            "%3Cscript%3E",
            "a%2Fb",
            "..",
            "%1b%5b31m",
            "A",
            "-a",
            "a_b",
            "a%00",
            "ä",
            &long,
        ] {
            let path = format!("nodes/{segment}/explanation");
            assert_eq!(ask(&path), Err(Failure::unknown_path()), "{segment}");
        }
        for path in [
            "",
            "nodes",
            "nodes/a",
            "nodes/a/explanation/",
            "plans/",
            "decisions/",
        ] {
            assert_eq!(ask(path), Err(Failure::unknown_path()), "{path}");
        }
        let expected = Ask::Explain {
            subject: Subject::Node("a-1.b".into()),
            uid: None,
            timeout: None,
            changes: Vec::new(),
        };
        assert_eq!(ask("nodes/%61-1.b/explanation"), Ok(expected));
        assert_eq!(
            ask(&format!("nodes/{}/explanation", &long[1..])).map(drop),
            Ok(())
        );
    }

    #[test]
    fn changes_are_repeated_and_read_by_their_type() {
        let asked =
            ask("nodes/a/explanation?if=budget.default%3D20%25&if=without-pdb%3Dshop%2Fweb");
        let Ok(Ask::Explain { changes, .. }) = asked else {
            panic!("{asked:?}");
        };
        let texts: Vec<String> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["budget.default=20%", "without-pdb=shop/web"]);
        let many = vec!["if=spot-to-spot%3Dtrue"; 33].join("&");
        assert!(ask(&format!("nodes/a/explanation?{many}")).is_err());
    }

    #[test]
    fn parameters_that_are_unknown_or_invalid_are_rejected() {
        for query in [
            "decisions?reasons=Pdb",
            "decisions?reason=pdb",
            "decisions?kind=provisioning",
            "decisions?since=yesterday",
            "decisions?limit=0",
            "decisions?limit=5001",
            "decisions?limit=1&limit=2",
            "decisions?continue=x",
            "decisions?watch=1",
            "overview?watch=1",
            "overview?since=2026-01-01T00:00:00Z",
            "decisions?subject=%ff",
            "explanations",
            "explanations?of=claims",
            "explanations?of=pods&by=pool",
            "nodes/a/explanation?if=x",
            "nodes/a/explanation?if=budget.default%3Dlots",
            "nodepools/a/explanation?if=budget.default%3D1",
            "nodes/a/explanation?uid=a&uid=b",
            "bundle?redact=some",
            "bundle?redact=names",
            "bundle?last=31m",
            "bundle?last=-1m",
            "bundle?last=soon",
            "blockers?namespace=A",
            "blockers?namespace=",
            "blockers?namespaces=a",
        ] {
            let failure = ask(query).unwrap_err().response();
            assert_eq!(failure.status(), 400, "{query}");
        }
        let select = Select {
            since: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            kind: Some(Pass::Disruption),
            subject: Some("shop/web 1".into()),
            reason: Some("Pdb"),
            limit: 5000,
            after: Some("1a-2".parse().unwrap()),
            watch: true,
        };
        let query = "decisions?since=2026-01-01T00:00:00Z&kind=Disruption&subject=shop%2Fweb+1&reason=Pdb&limit=5000&continue=1a-2&watch=true";
        assert_eq!(ask(query), Ok(Ask::Decisions(select)));
    }
}
