//! Kubelet settings that depend on the instance type, written in CEL.
//!
//! The CEL interpreter has no type checker, so a small part of one is here: a misspelled variable, or a string where a
//! number is expected, is reported when the class is written and not when a node is launched.
//!
//! UPSTREAM: pkg/cel

use kube_cel::cel::common::ast::{
    ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};
use kube_cel::cel::{Context, ExecutionError, Program, Value};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// `vcpus`: number of vCPUs of the instance type.
    pub vcpus: i64,
    /// `memory_mib`: memory of the instance type in MiB.
    pub memory_mib: i64,
    /// `default_enis`: number of network interfaces of the default network card.
    pub default_enis: i64,
    /// `ips_per_eni`: number of IPv4 addresses per network interface.
    pub ips_per_eni: i64,
    /// `max_pods`: in `maxPods` the default, elsewhere the resolved value.
    pub max_pods: i64,
    /// `instance_type`: name of the instance type.
    pub instance_type: String,
}

const INTEGERS: [&str; 5] = [
    "vcpus",
    "memory_mib",
    "default_enis",
    "ips_per_eni",
    "max_pods",
];
const INSTANCE_TYPE: &str = "instance_type";

/// An expression without a usable value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpressionError {
    /// The expression cannot be parsed, refers to an unknown variable or function, or does not yield a number.
    #[error("invalid expression `{expression}`: {reason}")]
    Invalid { expression: String, reason: String },
    /// The expression fails for an instance type, or yields an unusable value.
    #[error("expression `{expression}` failed for {instance_type}: {reason}")]
    Failed {
        expression: String,
        instance_type: String,
        reason: String,
    },
}

/// A compiled expression that yields a number.
pub struct Expression {
    text: String,
    program: Program,
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If the text is not CEL, refers to an unknown variable or function, or does not yield an `int` or `double`.
    pub fn compile(text: &str) -> Result<Self, ExpressionError> {
        let invalid = |reason: String| ExpressionError::Invalid {
            expression: text.to_owned(),
            reason,
        };
        if text.trim().is_empty() {
            return Err(invalid("it is empty".to_owned()));
        }
        let program =
            Program::compile(text).map_err(|errors| invalid(one_line(&errors.to_string())))?;
        match kind(program.expression(), &[]).map_err(invalid)? {
            Kind::Int | Kind::Double => Ok(Self {
                text: text.to_owned(),
                program,
            }),
            other => Err(invalid(format!(
                "it yields {}, not int or double",
                other.name()
            ))),
        }
    }

    /// Evaluates the expression for an instance type, and truncates the result to an integer.
    pub(super) fn evaluate(
        &self,
        root: &Context<'_>,
        variables: &Variables,
    ) -> Result<i64, ExpressionError> {
        let failed = |reason: String| ExpressionError::Failed {
            expression: self.text.clone(),
            instance_type: variables.instance_type.clone(),
            reason,
        };
        let mut scope = root.new_inner_scope();
        let values = [
            variables.vcpus,
            variables.memory_mib,
            variables.default_enis,
            variables.ips_per_eni,
            variables.max_pods,
        ];
        for (name, value) in INTEGERS.into_iter().zip(values) {
            scope.add_variable_from_value(name, value);
        }
        scope.add_variable_from_value(INSTANCE_TYPE, variables.instance_type.as_str());
        let value = self
            .program
            .execute(&scope)
            .map_err(|error| failed(error.to_string()))?;
        match value {
            Value::Int(value) => Ok(value),
            Value::Float(value) if value.is_finite() => Ok(value.trunc() as i64),
            Value::Float(value) => Err(failed(format!("it yields {value}"))),
            other => Err(failed(format!("it yields {:?}", other.type_of()))),
        }
    }
}

impl Expression {
    /// Returns the error for a value that cannot be used, and why.
    pub(super) fn unusable(&self, value: i64, why: &str, variables: &Variables) -> ExpressionError {
        ExpressionError::Failed {
            expression: self.text.clone(),
            instance_type: variables.instance_type.clone(),
            reason: format!("it yields {value}, which is {why}"),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the context with the functions that expressions may call besides the standard ones.
pub(super) fn context() -> Context<'static> {
    let mut context = Context::default();
    context.add_function("max", |a: Value, b: Value| pick(a, b, f64::gt));
    context.add_function("min", |a: Value, b: Value| pick(a, b, f64::lt));
    context
}

/// Returns the number that `wins`; the two may be of different numeric types.
fn pick(a: Value, b: Value, wins: impl Fn(&f64, &f64) -> bool) -> Result<Value, ExecutionError> {
    if let (Value::Int(a), Value::Int(b)) = (&a, &b) {
        let first = if wins(&1.0, &0.0) { a.max(b) } else { a.min(b) };
        return Ok(Value::Int(*first));
    }
    let number = |value: &Value| match value {
        Value::Int(value) => Ok(*value as f64),
        Value::Float(value) => Ok(*value),
        _ => Err(ExecutionError::NoSuchOverload),
    };
    let (first, second) = (number(&a)?, number(&b)?);
    Ok(Value::Float(if wins(&second, &first) {
        second
    } else {
        first
    }))
}

/// A CEL type, as far as the checker distinguishes types.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Uint,
    Double,
    Bool,
    Text,
    /// A list, with the type of its elements.
    List(Box<Kind>),
    /// A map, with the type of its values.
    Map(Box<Kind>),
    /// Any other type, or one that is known only at evaluation.
    Dynamic,
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Bool => "bool",
            Self::Text => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Dynamic => "a value of unknown type",
        }
    }

    fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Returns the type of the elements of a list, or of the values of a map.
    fn element(&self) -> Self {
        match self {
            Self::List(element) | Self::Map(element) => (**element).clone(),
            _ => Self::Dynamic,
        }
    }

    /// Returns the type of a value that is of one of two types; `None` if the two differ. An empty list is of every list's type.
    fn either(self, other: Self) -> Option<Self> {
        let element = |a: Self, b: Self| match (a, b) {
            (Self::Dynamic, known) | (known, Self::Dynamic) => Some(Box::new(known)),
            (a, b) => a.either(b).map(Box::new),
        };
        match (self, other) {
            (Self::List(a), Self::List(b)) => element(*a, *b).map(Self::List),
            (Self::Map(a), Self::Map(b)) => element(*a, *b).map(Self::Map),
            (Self::Dynamic, _) | (_, Self::Dynamic) => Some(Self::Dynamic),
            (a, b) => (a == b).then_some(a),
        }
    }
}

/// A variable of an enclosing comprehension, with its type.
type Bound<'a> = (&'a str, Kind);

/// Returns the type of an expression. `bound` are the variables of the enclosing comprehensions.
fn kind(expression: &IdedExpr, bound: &[Bound<'_>]) -> Result<Kind, String> {
    match &expression.expr {
        Expr::Literal(literal) => Ok(match literal {
            LiteralValue::Boolean(_) => Kind::Bool,
            LiteralValue::Int(_) => Kind::Int,
            LiteralValue::UInt(_) => Kind::Uint,
            LiteralValue::Double(_) => Kind::Double,
            LiteralValue::String(_) => Kind::Text,
            LiteralValue::Bytes(_) | LiteralValue::Null => Kind::Dynamic,
        }),
        Expr::Ident(name) => match bound.iter().rfind(|(bound, _)| bound == name) {
            Some((_, kind)) => Ok(kind.clone()),
            None if name == INSTANCE_TYPE => Ok(Kind::Text),
            None if INTEGERS.contains(&name.as_str()) => Ok(Kind::Int),
            None => Err(format!("undeclared reference to `{name}`")),
        },
        Expr::List(list) => Ok(Kind::List(element_kind(list.elements.iter(), bound)?)),
        Expr::Map(map) => {
            let entries = map.entries.iter().map(|entry| &entry.expr);
            let entries = entries.filter_map(|entry| match entry {
                EntryExpr::MapEntry(entry) => Some(entry),
                EntryExpr::StructField(_) => None,
            });
            element_kind(entries.clone().map(|entry| &entry.key), bound)?;
            let values = element_kind(entries.map(|entry| &entry.value), bound)?;
            Ok(Kind::Map(values))
        }
        Expr::Select(select) => {
            let operand = kind(&select.operand, bound)?;
            Ok(if select.test {
                Kind::Bool
            } else {
                operand.element()
            })
        }
        Expr::Comprehension(comprehension) => comprehension_kind(comprehension, bound),
        Expr::Call(call) => {
            let arguments = call
                .target
                .iter()
                .map(|target| &**target)
                .chain(&call.args)
                .map(|argument| kind(argument, bound))
                .collect::<Result<Vec<_>, _>>()?;
            call_kind(&call.func_name, &arguments)
        }
        Expr::Struct(_) | Expr::Unspecified => Ok(Kind::Dynamic),
    }
}

/// Returns the type that all elements have; [`Kind::Dynamic`] if they differ, or there are none.
fn element_kind<'a>(
    elements: impl Iterator<Item = &'a IdedExpr>,
    bound: &[Bound<'_>],
) -> Result<Box<Kind>, String> {
    let kinds: Vec<Kind> = elements
        .map(|element| kind(element, bound))
        .collect::<Result<_, _>>()?;
    let common = kinds.into_iter().map(Some).reduce(|a, b| a?.either(b?));
    Ok(Box::new(common.flatten().unwrap_or(Kind::Dynamic)))
}

/// Returns the type of a comprehension: `exists`, `all`, `map`, `filter` and such.
fn comprehension_kind(
    comprehension: &ComprehensionExpr,
    bound: &[Bound<'_>],
) -> Result<Kind, String> {
    let range = kind(&comprehension.iter_range, bound)?;
    let (first, second) = match (&range, comprehension.iter_var2.as_deref()) {
        (Kind::List(_), None) => (range.element(), None),
        (Kind::List(_), Some(name)) => (Kind::Int, Some((name, range.element()))),
        (_, second) => (Kind::Dynamic, second.map(|name| (name, range.element()))),
    };
    let mut inner = bound.to_vec();
    inner.push((comprehension.iter_var.as_str(), first));
    inner.extend(second);
    let accumulated = kind(&comprehension.accu_init, bound)?;
    inner.push((comprehension.accu_var.as_str(), accumulated));
    let accumulated = kind(&comprehension.loop_step, &inner)?;
    inner.push((comprehension.accu_var.as_str(), accumulated));
    kind(&comprehension.result, &inner)
}

fn call_kind(function: &str, arguments: &[Kind]) -> Result<Kind, String> {
    let no_overload = || {
        let names: Vec<&str> = arguments.iter().map(Kind::name).collect();
        Err(format!(
            "no matching overload for `{function}` applied to ({})",
            names.join(", ")
        ))
    };
    let both = |a: &Kind, b: &Kind| a.clone().either(b.clone());
    match (function, arguments) {
        (operators::CONDITIONAL, [Kind::Bool | Kind::Dynamic, then, otherwise]) => {
            both(then, otherwise).map_or_else(no_overload, Ok)
        }
        (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) => {
            if [a, b]
                .iter()
                .all(|kind| matches!(kind, Kind::Bool | Kind::Dynamic))
            {
                Ok(Kind::Bool)
            } else {
                no_overload()
            }
        }
        (operators::LOGICAL_NOT, [Kind::Bool | Kind::Dynamic]) => Ok(Kind::Bool),
        (operators::NEGATE, [kind @ (Kind::Int | Kind::Double | Kind::Dynamic)]) => {
            Ok(kind.clone())
        }
        (
            operators::ADD,
            [
                a @ (Kind::Text | Kind::List(_)),
                b @ (Kind::Text | Kind::List(_)),
            ],
        ) => both(a, b).map_or_else(no_overload, Ok),
        (
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO,
            [a, b],
        ) => match (a, b) {
            (Kind::Double, Kind::Double) if function == operators::MODULO => no_overload(),
            (a, b) if a == b && a.is_number() => Ok(a.clone()),
            (Kind::Dynamic, other) | (other, Kind::Dynamic) => Ok(other.clone()),
            _ => no_overload(),
        },
        // As in cel-go, numbers of two types are not compared.
        (
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS,
            [a, b],
        ) => both(a, b).map_or_else(no_overload, |_| Ok(Kind::Bool)),
        (operators::IN, [_, Kind::List(_) | Kind::Map(_) | Kind::Dynamic]) => Ok(Kind::Bool),
        (operators::INDEX, [collection, _]) => Ok(collection.element()),
        ("max" | "min", [Kind::Int, Kind::Int]) => Ok(Kind::Int),
        ("max" | "min", [a, b]) => {
            if [a, b]
                .iter()
                .all(|kind| matches!(kind, Kind::Int | Kind::Double | Kind::Dynamic))
            {
                Ok(Kind::Double)
            } else {
                no_overload()
            }
        }
        ("size" | "int", [_]) => Ok(Kind::Int),
        ("uint", [_]) => Ok(Kind::Uint),
        ("double", [_]) => Ok(Kind::Double),
        ("string", [_]) => Ok(Kind::Text),
        ("contains" | "startsWith" | "endsWith" | "matches", [Kind::Text | Kind::Dynamic, _]) => {
            Ok(Kind::Bool)
        }
        (operators::NOT_STRICTLY_FALSE, [_]) => Ok(Kind::Bool),
        ("duration" | "timestamp" | "bytes" | "dyn", [_]) => Ok(Kind::Dynamic),
        _ => no_overload(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn m5_large() -> Variables {
        Variables {
            vcpus: 2,
            memory_mib: 8192,
            default_enis: 3,
            ips_per_eni: 10,
            max_pods: 29,
            instance_type: "m5.large".into(),
        }
    }

    fn value(text: &str) -> Result<i64, ExpressionError> {
        Expression::compile(text)?.evaluate(&context(), &m5_large())
    }

    /// Conformance: AWS-cel-01, AWS-cel-11
    #[test]
    fn expressions_yield_numbers_without_fraction() {
        for (text, expected) in [
            ("((default_enis - 1) * (ips_per_eni - 1)) + 2", 20),
            ("default_enis * (ips_per_eni - 1) + 2", 29),
            ("max_pods / 2", 14),
            ("vcpus * 8 + memory_mib / 1024", 24),
            ("2.9", 2),
            ("-2.9", -2),
            ("double(vcpus) * 1.5", 3),
            ("max(vcpus, 10)", 10),
            ("min(vcpus, 10)", 2),
            ("min(max_pods, 110.5)", 29),
            ("max(1.5, vcpus)", 2),
            ("instance_type.startsWith('m5') ? 17 : 4", 17),
            ("instance_type == 'm5.large' && vcpus > 1 ? 5 : 4", 5),
            ("vcpus in [2, 4] ? 1 : 0", 1),
            ("[1, 2].exists(x, x == vcpus) ? 1 : 0", 1),
            ("size(instance_type)", 8),
            ("{'m5.large': 29, 'm5.xlarge': 58}[instance_type]", 29),
            (
                "instance_type in {'m5.large': 29} ? {'m5.large': 29}[instance_type] : 110",
                29,
            ),
            ("{'pods': {'m5.large': 29}}.pods['m5.large']", 29),
            ("[8, 16][vcpus - 1] * 1", 16),
            ("[vcpus, 4].filter(n, n > 2).map(n, n * 10)[0]", 40),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    /// Conformance: AWS-cel-05
    #[test]
    fn a_value_that_is_not_a_number_is_an_error() {
        for text in [
            "0.0 / 0.0",
            "1.0 / 0.0",
            "vcpus / 0",
            "vcpus % 0",
            "9223372036854775807 + vcpus",
        ] {
            let error = value(text).unwrap_err();
            assert!(
                matches!(error, ExpressionError::Failed { .. }),
                "{text}: {error}"
            );
        }
    }

    /// Conformance: AWS-cel-06, AWS-validation-05
    #[test]
    fn an_expression_that_cannot_yield_a_number_does_not_compile() {
        for text in [
            "",
            "  ",
            "vcpus +",
            "cpus * 2",
            "vcpus > 1",
            "true",
            "instance_type",
            "'a' + 'b'",
            "[1]",
            "5u",
            "vcpus * 1.5",
            "vcpus + instance_type",
            "!vcpus",
            "frobnicate(vcpus)",
            "max(vcpus, 'a')",
            "vcpus > 1 ? 'a' : 'b'",
            "vcpus > 1 ? 1 : 2.5",
            "vcpus > 2.5 ? 1 : 2",
            "{'m5.large': '29'}[instance_type]",
            "{'m5.large': 29, 'm5.xlarge': 'many'}[instance_type]",
            "{instance: 29}[instance_type]",
            "{'m5.large': pods}[instance_type]",
            "[1, 2].map(n, n + n * 1.5)[0]",
        ] {
            let error = Expression::compile(text).err();
            assert!(
                matches!(error, Some(ExpressionError::Invalid { .. })),
                "{text}"
            );
        }
    }
}
