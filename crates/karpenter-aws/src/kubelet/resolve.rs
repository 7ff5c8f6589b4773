//! The settings for one instance type, with expressions evaluated.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use karpenter_core::quantity::Quantity;
use kube_cel::cel::Context;

use super::expression::context;
use super::{Expression, ExpressionError, Kubelet, MaxPods, Variables};

/// Reserved resources as quantities, by resource name.
pub type Reserved = BTreeMap<String, String>;

enum Entry {
    Quantity(String),
    Expression(Expression),
}

enum Pods {
    Default,
    Number(i64),
    Expression(Expression),
}

/// Kubelet settings with compiled expressions. Scheduling and launch templates use the same evaluator, so that a node
/// matches its plan.
pub struct Evaluator {
    max_pods: Pods,
    kube_reserved: BTreeMap<String, Entry>,
    system_reserved: BTreeMap<String, Entry>,
    context: OnceCell<Context<'static>>,
}

impl Evaluator {
    /// Compiles the expressions of these settings. Without the feature gate NodeClassCEL expressions are ignored.
    ///
    /// # Errors
    /// One error for each expression that does not compile.
    pub fn new(kubelet: &Kubelet, expressions: bool) -> Result<Self, Vec<ExpressionError>> {
        let mut errors = Vec::new();
        let mut compile = |text: &str| match Expression::compile(text) {
            Ok(expression) => Some(expression),
            Err(error) => {
                errors.push(error);
                None
            }
        };
        let max_pods = match &kubelet.max_pods {
            Some(MaxPods::Number(number)) => Pods::Number(*number),
            Some(MaxPods::Expression(text)) if expressions => {
                compile(text).map_or(Pods::Default, Pods::Expression)
            }
            Some(MaxPods::Expression(_)) | None => Pods::Default,
        };
        let mut reserved = |values: &Reserved| -> BTreeMap<String, Entry> {
            let entry = |(key, value): (&String, &String)| {
                let entry = if is_quantity(value) {
                    Entry::Quantity(value.clone())
                } else if expressions {
                    Entry::Expression(compile(value)?)
                } else {
                    return None;
                };
                Some((key.clone(), entry))
            };
            values.iter().filter_map(entry).collect()
        };
        let kube_reserved = reserved(&kubelet.kube_reserved);
        let system_reserved = reserved(&kubelet.system_reserved);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            max_pods,
            kube_reserved,
            system_reserved,
            context: OnceCell::new(),
        })
    }

    /// Returns the configured maximum number of pods, if there is one. `variables` is called only if an expression is
    /// to be evaluated; its `max_pods` is the default.
    ///
    /// # Errors
    /// If the expression fails, or yields a number that is negative or too large for the kubelet.
    pub fn max_pods(
        &self,
        variables: impl FnOnce() -> Variables,
    ) -> Result<Option<i64>, ExpressionError> {
        match &self.max_pods {
            Pods::Default => Ok(None),
            Pods::Number(number) => Ok(Some(*number)),
            Pods::Expression(expression) => {
                let variables = variables();
                let value = self.evaluate(expression, &variables)?;
                // The kubelet cannot read a larger number, and does not start.
                if value > i64::from(i32::MAX) {
                    return Err(expression.unusable(value, "more than 2147483647", &variables));
                }
                Ok(Some(value))
            }
        }
    }

    /// Returns kube-reserved and system-reserved as quantities; entries that fail are left out and reported.
    /// `variables` is called at most once, and only if an expression is to be evaluated; its `max_pods` is the result
    /// of [`Self::max_pods`].
    pub fn reserved(
        &self,
        variables: impl FnOnce() -> Variables,
    ) -> (Reserved, Reserved, Vec<ExpressionError>) {
        let built = OnceCell::new();
        let variables = std::cell::Cell::new(Some(variables));
        let mut errors = Vec::new();
        let mut resolve = |entries: &BTreeMap<String, Entry>| -> Reserved {
            let mut resolved = Reserved::new();
            for (resource, entry) in entries {
                match entry {
                    Entry::Quantity(quantity) => {
                        resolved.insert(resource.clone(), quantity.clone());
                    }
                    Entry::Expression(expression) => {
                        let variables = built.get_or_init(|| {
                            variables.take().map(|build| build()).unwrap_or_default()
                        });
                        match self.evaluate(expression, variables) {
                            Ok(value) => {
                                resolved.insert(resource.clone(), quantity(resource, value));
                            }
                            Err(error) => errors.push(error),
                        }
                    }
                }
            }
            resolved
        };
        let kube = resolve(&self.kube_reserved);
        let system = resolve(&self.system_reserved);
        (kube, system, errors)
    }

    /// Returns whether some setting depends on the instance type.
    pub fn has_expressions(&self) -> bool {
        let entries = self
            .kube_reserved
            .values()
            .chain(self.system_reserved.values());
        matches!(self.max_pods, Pods::Expression(_))
            || entries
                .into_iter()
                .any(|entry| matches!(entry, Entry::Expression(_)))
    }

    fn evaluate(
        &self,
        expression: &Expression,
        variables: &Variables,
    ) -> Result<i64, ExpressionError> {
        let context = self.context.get_or_init(context);
        let value = expression.evaluate(context, variables)?;
        if value < 0 {
            return Err(expression.unusable(value, "negative", variables));
        }
        Ok(value)
    }
}

impl Kubelet {
    /// Returns whether some setting is an expression.
    pub fn has_expressions(&self) -> bool {
        let reserved = self
            .kube_reserved
            .values()
            .chain(self.system_reserved.values());
        matches!(self.max_pods, Some(MaxPods::Expression(_)))
            || reserved.into_iter().any(|value| !is_quantity(value))
    }
}

fn is_quantity(text: &str) -> bool {
    text.parse::<Quantity>().is_ok()
}

/// Returns the value of an expression as a quantity in the unit of its resource, rounded up.
fn quantity(resource: &str, value: i64) -> String {
    let round = |step: i64| match value.checked_add(step - 1) {
        Some(raised) => raised / step * step,
        None => value,
    };
    match resource {
        _ if value == 0 => "0".to_owned(),
        "cpu" => format!("{}m", round(10)),
        "memory" => format!("{}Mi", round(16)),
        "ephemeral-storage" => format!("{value}Gi"),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    fn variables() -> Variables {
        Variables {
            vcpus: 4,
            memory_mib: 16384,
            default_enis: 4,
            ips_per_eni: 15,
            max_pods: 58,
            instance_type: "m5.xlarge".into(),
        }
    }

    fn evaluator(kubelet: serde_json::Value) -> Evaluator {
        Evaluator::new(&Kubelet::parse(kubelet.as_object()).unwrap(), true)
            .ok()
            .unwrap()
    }

    fn reserved(values: serde_json::Value) -> (Reserved, usize) {
        let (kube, _, errors) = evaluator(json!({ "kubeReserved": values })).reserved(variables);
        (kube, errors.len())
    }

    fn map(entries: &[(&str, &str)]) -> Reserved {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// Conformance: AWS-cel-02
    #[test]
    fn values_are_rounded_up_in_the_resource_s_unit() {
        let (kube, _) = reserved(
            json!({ "cpu": "480 + 1", "memory": "630 + 1", "ephemeral-storage": "1 + 2", "pid": "1000 + 1" }),
        );
        assert_eq!(
            kube,
            map(&[
                ("cpu", "490m"),
                ("memory", "640Mi"),
                ("ephemeral-storage", "3Gi"),
                ("pid", "1001")
            ])
        );
        let (near_max, _) = reserved(json!({ "cpu": "9223372036854775806 + 0" }));
        assert_eq!(near_max["cpu"], "9223372036854775806m");
    }

    /// Conformance: AWS-cel-03
    #[test]
    fn zero_stays_zero() {
        assert_eq!(
            reserved(json!({ "cpu": "vcpus - 4", "memory": "vcpus * 0" })).0,
            map(&[("cpu", "0"), ("memory", "0")])
        );
    }

    /// Conformance: AWS-cel-04
    #[test]
    fn entries_that_fail_leave_the_others() {
        let (kube, errors) = reserved(
            json!({ "cpu": "vcpus - 10", "memory": "memory_mib / (vcpus - 4)", "pid": "500", "ephemeral-storage": "vcpus * 1" }),
        );
        assert_eq!(kube, map(&[("ephemeral-storage", "4Gi"), ("pid", "500")]));
        assert_eq!(errors, 2);
    }

    /// Conformance: AWS-cel-07
    #[test]
    fn variables_are_built_only_when_needed_and_once() {
        let built = Cell::new(0);
        let count = || {
            built.set(built.get() + 1);
            variables()
        };
        evaluator(json!({ "maxPods": 5, "kubeReserved": { "cpu": "100m", "memory": "1Gi" } }))
            .reserved(count);
        assert_eq!(built.get(), 0);
        let (kube, system, _) = evaluator(
            json!({ "kubeReserved": { "cpu": "vcpus * 10", "memory": "memory_mib / 16" }, "systemReserved": { "cpu": "vcpus * 1" } }),
        )
        .reserved(count);
        assert_eq!(built.get(), 1);
        assert_eq!(kube, map(&[("cpu", "40m"), ("memory", "1024Mi")]));
        assert_eq!(system, map(&[("cpu", "10m")]));
    }

    #[test]
    fn max_pods_is_a_number_that_the_kubelet_can_read() {
        let pods = |text: &str| evaluator(json!({ "maxPods": text })).max_pods(variables);
        assert_eq!(pods("max_pods / 2"), Ok(Some(29)));
        assert_eq!(pods("max_pods * 0 + 2147483647"), Ok(Some(2_147_483_647)));
        for (text, expected) in [
            ("vcpus - 10", "it yields -6, which is negative"),
            (
                "max_pods * 0 + 2147483648",
                "it yields 2147483648, which is more than 2147483647",
            ),
        ] {
            let error = pods(text).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        }
    }

    /// Conformance: AWS-validation-06
    #[test]
    fn an_expression_can_fail_for_some_types_only() {
        let kubelet = evaluator(json!({ "maxPods": "100 / (vcpus - 4)" }));
        let error = kubelet.max_pods(variables).unwrap_err();
        assert!(error.to_string().contains("m5.xlarge"), "{error}");
        let other = Variables {
            vcpus: 8,
            ..variables()
        };
        assert_eq!(kubelet.max_pods(|| other), Ok(Some(25)));
        let negative = evaluator(json!({ "maxPods": "6 - vcpus * 2" }));
        assert!(negative.max_pods(variables).is_err());
    }

    /// Conformance: AWS-cel-10
    #[test]
    fn without_the_gate_expressions_are_ignored() {
        let object =
            json!({ "maxPods": "vcpus", "kubeReserved": { "cpu": "vcpus *", "memory": "1Gi" } });
        let kubelet = Kubelet::parse(object.as_object()).unwrap();
        assert!(kubelet.has_expressions());
        let off = Evaluator::new(&kubelet, false).ok().unwrap();
        assert!(!off.has_expressions());
        assert_eq!(off.max_pods(variables), Ok(None));
        assert_eq!(off.reserved(variables).0, map(&[("memory", "1Gi")]));
        assert!(Evaluator::new(&kubelet, true).is_err());
    }
}
