//! The maximum cost of evaluating an expression.
//!
//! UPSTREAM: cel-go checker/cost.go. Only the upper end of its cost ranges is kept, because only it is compared.

use std::rc::Rc;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators,
};

use super::declaration::{Declaration, Type};
use super::library;
use super::node::{Entries, Node, Path};
use super::size::{ACCESS, CALL, LIST, MAP, STRUCT, Size};

/// Modules of functions, which look like variables: `sets.contains(…)`.
const MODULES: &[&str] = &[
    "format",
    "ip",
    "jsonpatch",
    "lists",
    "math",
    "optional",
    "sets",
    "strings",
];

const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "type",
    "uint",
];

/// The evaluated arguments of a call.
pub struct Call<'a> {
    /// The function, with its module.
    pub function: &'a str,
    /// The receiver of a method.
    pub target: Option<Node>,
    /// The other arguments.
    pub arguments: Vec<Node>,
}

/// The cost of an overload of a function.
#[derive(Debug, Default)]
pub struct Estimate {
    /// The call itself, without its arguments.
    pub cost: u64,
    /// The size of the result.
    pub size: Option<Size>,
    /// The size of the entries of the result.
    pub entries: Option<Entries>,
}

impl Estimate {
    /// Returns a cost without a size.
    #[must_use]
    pub fn cost(cost: u64) -> Self {
        Self {
            cost,
            ..Self::default()
        }
    }

    /// Returns a cost with the size of the result.
    #[must_use]
    pub fn sized(cost: u64, size: Size) -> Self {
        Self {
            cost,
            size: Some(size),
            entries: None,
        }
    }
}

struct Variable {
    name: String,
    kind: Type,
    path: Path,
    size: Option<Size>,
    entries: Option<Entries>,
}

/// Traverses an expression.
pub struct Estimator<'a> {
    root: &'a Rc<Declaration>,
    /// Whether `oldSelf` is optional.
    optional_old: bool,
    variables: Vec<Variable>,
}

/// Returns the maximum cost of evaluating `expression` on values of `root`.
#[must_use]
pub fn cost(expression: &IdedExpr, root: &Rc<Declaration>, optional_old: bool) -> u64 {
    let mut estimator = Estimator {
        root,
        optional_old,
        variables: Vec::new(),
    };
    estimator.node(expression).cost
}

impl Estimator<'_> {
    fn node(&mut self, expression: &IdedExpr) -> Node {
        match &expression.expr {
            Expr::Unspecified => Node::new(0, Type::Dyn),
            Expr::Literal(literal) => literal_node(literal),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::List(list) => self.list(&list.elements),
            Expr::Map(map) => self.map(map.entries.iter().map(|entry| &entry.expr)),
            Expr::Struct(literal) => {
                let mut node = Node::new(STRUCT, Type::Dyn);
                for entry in &literal.entries {
                    if let EntryExpr::StructField(field) = &entry.expr {
                        node.cost = node.cost.saturating_add(self.node(&field.value).cost);
                    }
                }
                node
            }
        }
    }

    fn variable(&self, name: &str) -> Node {
        if let Some(variable) = self.variables.iter().rev().find(|v| v.name == name) {
            return Node {
                path: variable.path.clone(),
                variable: variable.size,
                entries: variable.entries,
                ..Node::new(ACCESS, variable.kind.clone())
            };
        }
        let kind = match name {
            "oldSelf" if self.optional_old => {
                Type::Optional(Rc::new(Declaration::type_of(self.root)))
            }
            "self" | "oldSelf" => Declaration::type_of(self.root),
            name if TYPES.contains(&name) => Type::Meta,
            _ => Type::Dyn,
        };
        Node {
            path: Path::variable(name),
            ..Node::new(ACCESS, kind)
        }
    }

    fn select(&mut self, select: &SelectExpr) -> Node {
        let operand = self.node(&select.operand);
        if select.test {
            // `has()` is free.
            return Node::new(operand.cost, Type::Bool);
        }
        let (kind, access) = match &operand.kind {
            Type::Object(declaration) => (
                declaration
                    .fields
                    .get(&select.field)
                    .map_or(Type::Dyn, Declaration::type_of),
                ACCESS,
            ),
            Type::Map(_, value) => ((**value).clone(), ACCESS),
            Type::Free => (Type::Dyn, ACCESS),
            _ => (Type::Dyn, 0),
        };
        Node {
            path: operand.path.then(&select.field),
            ..Node::new(operand.cost.saturating_add(access), kind)
        }
    }

    fn list(&mut self, elements: &[IdedExpr]) -> Node {
        let mut node = Node::new(0, Type::Free);
        let mut value: Option<Size> = None;
        for element in elements {
            let mut element = self.node(element);
            let size = element.size_or_unknown(self.root);
            node.cost = node.cost.saturating_add(element.cost);
            value = Some(value.map_or(size, |value| value.or(size)));
            node.kind = node.kind.or(&element.kind);
        }
        node.cost = node.cost.saturating_add(LIST);
        node.kind = Type::list(node.kind);
        node.literal = Some(Size::of_length(elements.len()));
        node.entries = Some(Entries {
            map: false,
            key: Size::fixed(1),
            value: value.unwrap_or(Size::fixed(0)),
        });
        node
    }

    fn map<'b>(&mut self, entries: impl ExactSizeIterator<Item = &'b EntryExpr>) -> Node {
        let length = entries.len();
        let mut node = Node::new(0, Type::Free);
        let (mut keys, mut values) = (Type::Free, Type::Free);
        let mut sizes: Option<(Size, Size)> = None;
        for entry in entries {
            let EntryExpr::MapEntry(entry) = entry else {
                continue;
            };
            let (mut key, mut value) = (self.node(&entry.key), self.node(&entry.value));
            node.cost = node
                .cost
                .saturating_add(key.cost)
                .saturating_add(value.cost);
            let size = (
                key.size_or_unknown(self.root),
                value.size_or_unknown(self.root),
            );
            sizes = Some(sizes.map_or(size, |s| (s.0.or(size.0), s.1.or(size.1))));
            (keys, values) = (keys.or(&key.kind), values.or(&value.kind));
        }
        let (key, value) = sizes.unwrap_or((Size::fixed(0), Size::fixed(0)));
        node.cost = node.cost.saturating_add(MAP);
        node.kind = Type::Map(Rc::new(keys), Rc::new(values));
        node.literal = Some(Size::of_length(length));
        node.entries = Some(Entries {
            map: true,
            key,
            value,
        });
        node
    }

    fn comprehension(&mut self, it: &ComprehensionExpr) -> Node {
        let mut range = self.node(&it.iter_range);
        let mut start = self.node(&it.accu_init);
        let before = range.cost.saturating_add(start.cost);
        let start_size = start.size(self.root);
        self.variables.push(Variable {
            name: it.accu_var.clone(),
            kind: start.kind.clone(),
            path: start.path.clone(),
            size: start_size,
            entries: start.entries,
        });
        self.variables.push(iterated(&it.iter_var, &range));
        let condition = self.node(&it.loop_cond);
        let step = self.node(&it.loop_step);
        self.variables.pop();
        if let Some(accumulated) = self.variables.last_mut() {
            accumulated.kind = accumulated.kind.or(&step.kind);
        }
        let result = self.node(&it.result);
        self.variables.pop();

        // Only now: the body may have changed the origin of the range, see `Path`.
        let count = range.size_or_unknown(self.root);
        let each = step.cost.saturating_add(condition.cost);
        let mut node = Node::new(before, result.kind);
        node.cost = node
            .cost
            .saturating_add(result.cost)
            .saturating_add(count.max.saturating_mul(each));
        match it.accu_init.expr {
            Expr::Literal(_) => node.computed = start_size,
            Expr::List(_) | Expr::Map(_) => {
                node.computed = Some(count);
                node.entries = step.entries;
            }
            _ => {}
        }
        node
    }

    fn call(&mut self, call: &CallExpr) -> Node {
        let mut function = call.func_name.clone();
        let mut target = call.target.as_deref();
        if let Some(IdedExpr {
            expr: Expr::Ident(module),
            ..
        }) = target
            && MODULES.contains(&module.as_str())
            && !self.variables.iter().any(|v| v.name == *module)
        {
            function = format!("{module}.{function}");
            target = None;
        }
        let mut arguments = Vec::new();
        for argument in &call.args {
            let mut argument = self.node(argument);
            argument.size(self.root);
            arguments.push(argument);
        }
        let target = target.map(|target| {
            let mut target = self.node(target);
            target.size(self.root);
            target
        });
        if function == "dyn"
            && let [argument] = &mut arguments[..]
        {
            return Node {
                computed: argument.size(self.root),
                entries: argument.entries,
                ..Node::new(argument.cost.saturating_add(CALL), Type::Dyn)
            };
        }
        let mut call = Call {
            function: &function,
            target,
            arguments,
        };
        self.called(&mut call)
    }

    fn called(&self, call: &mut Call<'_>) -> Node {
        let operands = match (call.function, &call.arguments[..]) {
            // Either one or the other.
            (operators::CONDITIONAL, [condition, yes, no]) => {
                condition.cost.saturating_add(yes.cost.max(no.cost))
            }
            (_, arguments) => arguments
                .iter()
                .chain(&call.target)
                .fold(0, |sum: u64, node| sum.saturating_add(node.cost)),
        };
        let mut node = Node::new(operands, library::result(call));
        let estimates = library::estimates(call, self.root);
        let dearest = estimates.iter().map(|estimate| estimate.cost).max();
        node.cost = node.cost.saturating_add(dearest.unwrap_or(CALL));
        let sizes = estimates.iter().filter_map(|estimate| estimate.size);
        let mut size = sizes.reduce(Size::or);
        node.entries = estimates.iter().find_map(|estimate| estimate.entries);
        if call.function == operators::INDEX
            && let Some(indexed) = call.arguments.first()
        {
            size = indexed.entries.map(|entries| entries.value);
            if indexed.kind.is_open() || matches!(indexed.kind, Type::List(_)) {
                node.path = indexed.path.then("@items");
            }
            if indexed.kind.is_open() || matches!(indexed.kind, Type::Map(..)) {
                node.path = indexed.path.then("@values");
            }
        }
        node.computed = size;
        node.computed = node.size(self.root);
        node
    }
}

/// Returns the variable for the elements of a list or the keys of a map.
fn iterated(name: &str, range: &Node) -> Variable {
    let list = match range.entries {
        Some(entries) => !entries.map,
        None => matches!(range.kind, Type::List(_)),
    };
    let kind = match &range.kind {
        Type::List(element) => (**element).clone(),
        Type::Map(key, _) => (**key).clone(),
        _ => Type::Dyn,
    };
    Variable {
        name: name.to_owned(),
        kind,
        path: range.path.then(if list { "@items" } else { "@keys" }),
        size: range
            .entries
            .map(|entries| if list { entries.value } else { entries.key }),
        entries: None,
    }
}

fn literal_node(literal: &LiteralValue) -> Node {
    let (kind, size) = match literal {
        LiteralValue::Boolean(_) => (Type::Bool, 1),
        LiteralValue::Bytes(bytes) => (Type::Bytes, bytes.len()),
        LiteralValue::Double(_) => (Type::Double, 1),
        LiteralValue::Int(_) => (Type::Int, 1),
        LiteralValue::Null => (Type::Null, 1),
        LiteralValue::String(text) => (Type::String, text.chars().count()),
        LiteralValue::UInt(_) => (Type::Uint, 1),
    };
    Node {
        literal: Some(Size::of_length(size)),
        number: match literal {
            LiteralValue::Int(number) => Some(**number),
            _ => None,
        },
        ..Node::new(0, kind)
    }
}
