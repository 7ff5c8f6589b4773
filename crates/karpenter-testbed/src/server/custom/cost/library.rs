//! Costs and result types of functions: CEL's own and those of Kubernetes.
//!
//! UPSTREAM: cel-go checker/cost.go (functionCost), ext/sets.go, ext/lists.go; k8s.io/apiserver pkg/cel/library/cost.go

use std::rc::Rc;

use kube_cel::cel::common::ast::operators;

use super::declaration::{Declaration, Type};
use super::expression::{Call, Estimate};
use super::node::{Entries, Node, size_at};
use super::size::{CALL, LIST, REGEX, Size, TRAVERSAL, scaled};

/// Maximum length of the expression of a named format.
const FORMAT_REGEX: f64 = 128.0;
/// Maximum length of the name of a format.
const FORMAT_NAME: u64 = 64;

/// Returns the costs of a call, one for each overload that the types of its arguments allow, without the cost of the arguments.
pub fn estimates(call: &mut Call<'_>, root: &Declaration) -> Vec<Estimate> {
    if let Some(estimate) = extension(call, root).or_else(|| kubernetes(call, root)) {
        return vec![estimate];
    }
    let function = call.function;
    let target = call.target.as_mut().map(|t| t.size_or_unknown(root));
    let of_string = target.unwrap_or(Size::UNKNOWN);
    match (function, &mut call.arguments[..]) {
        (operators::LOGICAL_AND | operators::LOGICAL_OR, _) => vec![Estimate::cost(0)],
        (operators::CONDITIONAL, [_, yes, no]) => vec![Estimate {
            cost: 0,
            size: Some(yes.size_or_unknown(root).or(no.size_or_unknown(root))),
            entries: Entries::or(yes.entries, no.entries),
        }],
        (operators::EQUALS | operators::NOT_EQUALS, [a, b]) => {
            vec![Estimate::cost(compared(a, b, root))]
        }
        (
            operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS,
            [a, b],
        ) => {
            let mut estimates = Vec::new();
            if may_both(a, b, is_string) || may_both(a, b, is_bytes) {
                estimates.push(Estimate::cost(compared(a, b, root)));
            }
            if may_both(a, b, is_number) {
                estimates.push(Estimate::cost(CALL));
            }
            estimates
        }
        (operators::ADD, [a, b]) => added(a, b, root),
        (operators::IN, [_, within]) => {
            let mut estimates = Vec::new();
            if may(within, is_list) {
                estimates.push(Estimate::cost(within.size_or_unknown(root).max));
            }
            if may(within, is_map) {
                estimates.push(Estimate::cost(CALL));
            }
            estimates
        }
        ("startsWith" | "endsWith", [part]) => {
            vec![Estimate::cost(part.size_or_unknown(root).cost(TRAVERSAL))]
        }
        ("contains", [part]) if target.is_some() => {
            let part = part.size_or_unknown(root).cost(TRAVERSAL);
            vec![Estimate::cost(
                of_string.cost(TRAVERSAL).saturating_mul(part),
            )]
        }
        ("matches", [pattern]) if target.is_some() => {
            vec![Estimate::cost(matched(
                of_string,
                pattern.size_or_unknown(root),
            ))]
        }
        ("format", [_]) if target.is_some() => vec![Estimate::cost(of_string.cost(TRAVERSAL))],
        ("strings.quote", [text]) => {
            let size = text.size_or_unknown(root);
            let twice = size.plus(size).plus(Size::fixed(2));
            let quoted = Size {
                min: size.min.saturating_add(2),
                max: twice.max,
            };
            vec![Estimate::sized(size.cost(TRAVERSAL), quoted)]
        }
        ("bytes", [text]) if may(text, is_string) => {
            let size = text.size_or_unknown(root);
            let bytes = Size {
                min: size.min,
                max: size.max.saturating_mul(4),
            };
            vec![Estimate::sized(size.cost(TRAVERSAL), bytes)]
        }
        ("string", [value]) => {
            let size = value.size_or_unknown(root);
            let mut estimates = Vec::new();
            if may(value, is_bytes) {
                let text = Size {
                    min: size.min / 4,
                    max: size.max,
                };
                estimates.push(Estimate::sized(size.cost(TRAVERSAL), text));
            }
            if !is_bytes(&value.kind) {
                estimates.push(Estimate::cost(CALL));
            }
            estimates
        }
        _ => vec![Estimate::cost(CALL)],
    }
}

/// Comparison of two values ends with the shorter one.
fn compared(a: &mut Node, b: &mut Node, root: &Declaration) -> u64 {
    let shorter = a.size_or_unknown(root).max.min(b.size_or_unknown(root).max);
    scaled(shorter, TRAVERSAL)
}

/// A regular expression is matched at each position of a string, also of an empty one.
fn matched(text: Size, pattern: Size) -> u64 {
    let places = text.plus(Size::fixed(1)).cost(TRAVERSAL);
    places.saturating_mul(pattern.cost(REGEX))
}

fn added(a: &mut Node, b: &mut Node, root: &Declaration) -> Vec<Estimate> {
    let size = a.size_or_unknown(root).plus(b.size_or_unknown(root));
    let entries = Entries::or(a.entries, b.entries);
    let mut estimates = Vec::new();
    if may_both(a, b, is_string) || may_both(a, b, is_bytes) {
        estimates.push(Estimate {
            cost: size.cost(TRAVERSAL),
            size: Some(size),
            entries,
        });
    }
    if may_both(a, b, is_list) {
        estimates.push(Estimate {
            cost: CALL,
            size: Some(size),
            entries,
        });
    }
    if may_both(a, b, is_number) {
        estimates.push(Estimate::cost(CALL));
    }
    estimates
}

/// Extensions of CEL with their own cost estimates.
fn extension(call: &mut Call<'_>, root: &Declaration) -> Option<Estimate> {
    let allocated = |factor: f64, size: Size| {
        let cost = size.cost(factor).saturating_add(CALL).saturating_add(LIST);
        Some(Estimate::sized(cost, size))
    };
    match (call.function, &mut call.target, &mut call.arguments[..]) {
        ("sets.contains" | "sets.intersects", None, [a, b]) => {
            let pairs = a.size_or_unknown(root).times(b.size_or_unknown(root));
            Some(Estimate::cost(pairs.max.saturating_add(CALL)))
        }
        ("sets.equivalent", None, [a, b]) => {
            let pairs = a.size_or_unknown(root).times(b.size_or_unknown(root));
            Some(Estimate::cost(pairs.cost(2.0).saturating_add(CALL)))
        }
        ("slice", Some(list), [start, end]) => {
            let size = list.size_or_unknown(root);
            let number = |node: &Node| node.number.and_then(|n| u64::try_from(n).ok());
            let end = number(end).unwrap_or(size.max);
            let length = end.saturating_sub(number(start).unwrap_or(0));
            allocated(1.0, Size::fixed(length))
        }
        ("flatten", Some(list), []) | ("reverse", Some(list), []) => {
            allocated(1.0, list.size_or_unknown(root))
        }
        ("distinct", Some(list), []) => {
            let size = list.size_or_unknown(root);
            allocated(2.0, size.times(size))
        }
        ("sort", Some(list), []) => {
            let size = list.size_or_unknown(root);
            let strings = match &list.kind {
                Type::List(element) => is_string(element) || is_bytes(element),
                _ => false,
            };
            allocated(
                if strings { 2.0 + TRAVERSAL } else { 2.0 },
                size.times(size),
            )
        }
        _ => None,
    }
}

/// The functions of Kubernetes, of which some are CEL's with other costs.
fn kubernetes(call: &mut Call<'_>, root: &Declaration) -> Option<Estimate> {
    let Call {
        function,
        target,
        arguments,
    } = call;
    let one = Some(Estimate::cost(CALL));
    match (*function, target, &mut arguments[..]) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => {
            let size = target.size_or_unknown(root);
            let Some(element) = element_of(&target.kind) else {
                return Some(Estimate::cost(size.cost(TRAVERSAL)));
            };
            let mut each = CALL;
            if is_string(&element) || is_bytes(&element) {
                let element = element_size(target, root);
                each = each.saturating_add(element.cost(TRAVERSAL));
            }
            Some(Estimate::cost(size.max.saturating_mul(each)))
        }
        ("url" | "jsonpatch.escapeKey", None, [text]) => {
            let size = text.size_or_unknown(root);
            Some(Estimate::sized(size.cost(TRAVERSAL), size))
        }
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => {
            let size = text.size_or_unknown(root);
            Some(Estimate::sized(size.cost(TRAVERSAL), size))
        }
        ("replace", Some(text), [old, new, ..]) => {
            let text = text.size_or_unknown(root);
            let size = replaced(text, old.size_or_unknown(root), new.size_or_unknown(root));
            Some(Estimate::sized(text.cost(2.0 * TRAVERSAL), size))
        }
        ("split", Some(text), rest) => {
            let size = text.size_or_unknown(root);
            let pieces = rest.get(1).and_then(|limit| limit.number);
            // A negative limit means no limit, which the API server treats as a very large one.
            let max = pieces.map_or(size.max, |pieces| u64::try_from(pieces).unwrap_or(u64::MAX));
            Some(Estimate::sized(
                size.cost(2.0 * TRAVERSAL),
                Size { min: 0, max },
            ))
        }
        ("join", Some(list), rest) => {
            let count = list.size_or_unknown(root);
            let mut size = match element_of(&list.kind) {
                Some(_) => count.times(element_size(list, root)),
                None => Size::fixed(0),
            };
            if let Some(separator) = rest.first_mut() {
                let separators = Size {
                    min: count.min.saturating_sub(1),
                    max: count.max.saturating_sub(1),
                };
                size = size.plus(separator.size_or_unknown(root).times(separators));
            }
            Some(Estimate::sized(size.cost(TRAVERSAL), size))
        }
        ("find" | "findAll", Some(text), [pattern, ..]) => {
            let size = text.size_or_unknown(root);
            let cost = matched(size, pattern.size_or_unknown(root));
            Some(Estimate::sized(
                cost,
                Size {
                    min: 0,
                    max: size.max,
                },
            ))
        }
        ("ip", Some(_), []) => one,
        (
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver",
            _,
            [text, ..],
        ) => Some(Estimate::cost(text.size_or_unknown(root).cost(TRAVERSAL))),
        ("ip.isCanonical", _, [text, ..]) => Some(Estimate::cost(
            text.size_or_unknown(root).cost(2.0 * TRAVERSAL),
        )),
        ("containsIP" | "containsCIDR", _, [other, ..]) => {
            // Addresses have 16 bytes at most, and two are compared.
            let mut cost = Size::fixed(32).cost(TRAVERSAL);
            if *function == "containsCIDR" {
                cost += Size::fixed(16).cost(TRAVERSAL) + CALL;
            }
            if is_string(&other.kind) {
                cost = cost.saturating_add(other.size_or_unknown(root).cost(TRAVERSAL));
            }
            Some(Estimate::cost(cost))
        }
        ("validate", _, [text, ..]) => {
            let cost = text.size_or_unknown(root).cost(TRAVERSAL);
            Some(Estimate::cost(scaled(cost, FORMAT_REGEX * REGEX)))
        }
        (operators::EQUALS, None, [a, b]) => match (&a.kind, &b.kind) {
            (Type::Library(a), Type::Library(b)) if a == b => Some(Estimate::cost(match *a {
                "Format" => scaled(FORMAT_NAME, TRAVERSAL),
                _ => CALL,
            })),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the length of a string after a part of it is replaced.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let (mut count, mut kept) = (Size::fixed(0), Size::fixed(0));
    // Maximum.
    if old.min == 0 {
        // An empty pattern matches around every character.
        count.max = text.max.saturating_add(1);
        kept.max = text.max;
    } else if new.max <= old.min {
        kept.max = text.max;
    } else {
        count.max = text.max.div_ceil(old.min);
    }
    // Minimum.
    if old.max == 0 {
        count.min = text.min.saturating_add(1);
        kept.min = text.min;
    } else if old.max <= new.min {
        kept.min = text.min;
    } else {
        count.min = text.min.div_ceil(old.max);
    }
    count.times(new).plus(kept)
}

fn element_of(kind: &Type) -> Option<Type> {
    match kind {
        Type::List(element) => Some((**element).clone()),
        _ => None,
    }
}

/// Returns the maximum length of a list's elements, which only a schema defines.
fn element_size(list: &Node, root: &Declaration) -> Size {
    if list.path.is_empty() {
        return Size::UNKNOWN;
    }
    // A copy, so that the list's path does not change.
    let mut path = super::node::Path::default();
    for name in list.path.names() {
        path = path.then(&name);
    }
    size_at(&path.then("@items"), root).unwrap_or(Size::UNKNOWN)
}

fn is_string(kind: &Type) -> bool {
    matches!(kind, Type::String)
}

fn is_bytes(kind: &Type) -> bool {
    matches!(kind, Type::Bytes)
}

fn is_list(kind: &Type) -> bool {
    matches!(kind, Type::List(_))
}

fn is_map(kind: &Type) -> bool {
    matches!(kind, Type::Map(..))
}

/// Types that are compared and added in one step.
fn is_number(kind: &Type) -> bool {
    kind.is_scalar()
}

fn may(node: &Node, kind: impl Fn(&Type) -> bool) -> bool {
    node.kind.is_open() || kind(&node.kind)
}

fn may_both(a: &Node, b: &Node, kind: impl Fn(&Type) -> bool) -> bool {
    may(a, &kind) && may(b, &kind)
}

/// Returns the result type of a call.
#[must_use]
pub fn result(call: &Call<'_>) -> Type {
    let first = || call.arguments.first().map_or(Type::Dyn, |a| a.kind.clone());
    let target = || call.target.as_ref().map_or_else(first, |t| t.kind.clone());
    match (call.function, &call.arguments[..]) {
        (operators::CONDITIONAL, [_, yes, no]) => yes.kind.or(&no.kind),
        (operators::ADD, [a, b]) => match (&a.kind, &b.kind) {
            (Type::Timestamp, Type::Duration) | (Type::Duration, Type::Timestamp) => {
                Type::Timestamp
            }
            (a, b) => a.or(b),
        },
        (operators::SUBSTRACT, [a, b]) => match (&a.kind, &b.kind) {
            (Type::Timestamp, Type::Timestamp) => Type::Duration,
            (a, _) => a.clone(),
        },
        (operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => a.kind.or(&b.kind),
        (operators::NEGATE, _) => first(),
        (operators::INDEX, [of, _]) => match &of.kind {
            Type::List(element) => (**element).clone(),
            Type::Map(_, value) => (**value).clone(),
            _ => Type::Dyn,
        },
        (
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::NOT_STRICTLY_FALSE
            | operators::EQUALS
            | operators::NOT_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::IN,
            _,
        ) => Type::Bool,
        (function, _) => match function {
            "contains"
            | "startsWith"
            | "endsWith"
            | "matches"
            | "bool"
            | "isSorted"
            | "isIP"
            | "isCIDR"
            | "isURL"
            | "isQuantity"
            | "isSemver"
            | "ip.isCanonical"
            | "containsIP"
            | "containsCIDR"
            | "isGreaterThan"
            | "isLessThan"
            | "isInteger"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "hasValue"
            | "sets.contains"
            | "sets.intersects"
            | "sets.equivalent" => Type::Bool,
            "size" | "indexOf" | "lastIndexOf" | "int" | "compareTo" | "asInteger" | "sign"
            | "prefixLength" | "family" | "major" | "minor" | "patch" => Type::Int,
            get if get.starts_with("get") && call.arguments.len() <= 1 => match &target() {
                Type::Library("URL") if get == "getQuery" => {
                    Type::Map(Rc::new(Type::String), Rc::new(Type::list(Type::String)))
                }
                Type::Library("URL") => Type::String,
                _ => Type::Int,
            },
            "uint" => Type::Uint,
            "double" | "asApproximateFloat" => Type::Double,
            "string"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "replace"
            | "join"
            | "find"
            | "charAt"
            | "format"
            | "strings.quote"
            | "jsonpatch.escapeKey" => Type::String,
            "bytes" => Type::Bytes,
            "duration" => Type::Duration,
            "timestamp" => Type::Timestamp,
            "type" => Type::Meta,
            "split" | "findAll" => Type::list(Type::String),
            "sum" | "min" | "max" => element_of(&target()).unwrap_or(Type::Dyn),
            "quantity" | "add" | "sub" => Type::Library("Quantity"),
            "semver" => Type::Library("Semver"),
            "url" => Type::Library("URL"),
            "ip" => Type::Library("IP"),
            "cidr" | "masked" => Type::Library("CIDR"),
            "validate" => Type::Optional(Rc::new(Type::list(Type::String))),
            "value" | "orValue" => match target() {
                Type::Optional(inner) => match Rc::try_unwrap(inner) {
                    Ok(inner) => inner,
                    Err(shared) => (*shared).clone(),
                },
                _ => Type::Dyn,
            },
            "slice" | "reverse" | "distinct" | "sort" => target(),
            named if named.starts_with("format.") => {
                Type::Optional(Rc::new(Type::Library("Format")))
            }
            _ => Type::Dyn,
        },
    }
}
