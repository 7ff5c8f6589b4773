//! CEL device selectors: compiled once, evaluated at most once per device.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::Key;
use kube_cel::cel::{Context, Program, Value};

use super::model::{Attribute, Device};

/// Compiled expressions, and their cached results for devices.
///
/// Not `Send`: each planning thread owns one.
pub struct Selectors {
    root: Context<'static>,
    programs: HashMap<String, Option<Program>>,
    verdicts: HashMap<(String, u32), bool>,
    values: HashMap<u32, Value>,
}

impl Default for Selectors {
    fn default() -> Self {
        Self {
            root: Context::default().with_all(),
            programs: HashMap::new(),
            verdicts: HashMap::new(),
            values: HashMap::new(),
        }
    }
}

impl Selectors {
    /// Reports whether an expression can be compiled.
    pub fn compiles(&mut self, expression: &str) -> bool {
        self.program(expression).is_some()
    }

    fn program(&mut self, expression: &str) -> Option<&Program> {
        if !self.programs.contains_key(expression) {
            let program = Program::compile(expression).ok();
            self.programs.insert(expression.to_owned(), program);
        }
        self.programs.get(expression).and_then(Option::as_ref)
    }

    /// Reports whether all expressions hold for a device; `index` identifies it among all devices of the pass.
    ///
    /// An expression that fails at run time (it reads an attribute the device lacks) does not hold.
    pub fn matches(
        &mut self,
        expressions: &[String],
        index: u32,
        device: &Device,
        driver: &str,
    ) -> bool {
        expressions.iter().all(|expression| {
            let key = (expression.clone(), index);
            if let Some(verdict) = self.verdicts.get(&key) {
                return *verdict;
            }
            let verdict = self.evaluate(expression, index, device, driver);
            self.verdicts.insert(key, verdict);
            verdict
        })
    }

    fn evaluate(&mut self, expression: &str, index: u32, device: &Device, driver: &str) -> bool {
        if !self.values.contains_key(&index) {
            let value = self.value(device, driver);
            self.values.insert(index, value);
        }
        let Some(value) = self.values.get(&index).cloned() else {
            return false;
        };
        if self.program(expression).is_none() {
            return false;
        }
        let Some(Some(program)) = self.programs.get(expression) else {
            return false;
        };
        let mut scope = self.root.new_inner_scope();
        scope.add_variable_from_value("device", value);
        matches!(program.execute(&scope), Ok(Value::Bool(true)))
    }

    /// Builds the `device` variable of an expression.
    fn value(&self, device: &Device, driver: &str) -> Value {
        let attributes = by_domain(device.attributes.iter().map(|(name, attribute)| {
            let value = match attribute {
                Attribute::Int(value) => Value::Int(*value),
                Attribute::Bool(value) => Value::Bool(*value),
                Attribute::String(value) => Value::String(Arc::new(value.clone())),
                Attribute::Version(value) => self.call("semver", value),
            };
            (name, value)
        }));
        let capacity =
            by_domain(device.capacity.iter().map(|(name, capacity)| {
                (name, self.call("quantity", &capacity.value.to_string()))
            }));
        map([
            (
                "driver".to_owned(),
                Value::String(Arc::new(driver.to_owned())),
            ),
            ("attributes".to_owned(), attributes),
            ("capacity".to_owned(), capacity),
            (
                "allowMultipleAllocations".to_owned(),
                Value::Bool(device.shareable),
            ),
        ])
    }

    /// Converts a text with a function of CEL's Kubernetes libraries.
    fn call(&self, function: &str, text: &str) -> Value {
        let mut scope = self.root.new_inner_scope();
        scope.add_variable_from_value("text", Value::String(Arc::new(text.to_owned())));
        Program::compile(&format!("{function}(text)"))
            .ok()
            .and_then(|program| program.execute(&scope).ok())
            .unwrap_or(Value::Null)
    }
}

fn map(entries: impl IntoIterator<Item = (String, Value)>) -> Value {
    let entries: HashMap<Key, Value> = entries
        .into_iter()
        .map(|(name, value)| (Key::String(Arc::new(name)), value))
        .collect();
    Value::Map(entries.into())
}

/// Groups qualified names by domain: a map of domains to maps of names.
fn by_domain<'a>(entries: impl Iterator<Item = (&'a String, Value)>) -> Value {
    let mut domains: BTreeMap<&str, Vec<(String, Value)>> = BTreeMap::new();
    for (qualified, value) in entries {
        let (domain, name) = qualified.split_once('/').unwrap_or(("", qualified));
        domains
            .entry(domain)
            .or_default()
            .push((name.to_owned(), value));
    }
    map(domains
        .into_iter()
        .map(|(domain, entries)| (domain.to_owned(), map(entries))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::model::{Access, Capacity, Counters};

    fn holds(expression: &str) -> bool {
        let attributes = [
            (
                "gpu.example.com/model",
                Attribute::String("a100".to_owned()),
            ),
            ("gpu.example.com/cores", Attribute::Int(108)),
            ("gpu.example.com/mig", Attribute::Bool(true)),
            (
                "gpu.example.com/driver",
                Attribute::Version("550.1.2".to_owned()),
            ),
        ];
        let memory = Capacity {
            value: "40Gi".parse().unwrap(),
            policy: None,
        };
        let device = Device {
            name: "gpu-0".to_owned(),
            attributes: attributes
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            capacity: BTreeMap::from([("gpu.example.com/memory".to_owned(), memory)]),
            consumes: Counters::new(),
            shareable: false,
            access: Access::AllNodes,
        };
        Selectors::default().matches(&[expression.to_owned()], 0, &device, "gpu.example.com")
    }

    #[test]
    fn expressions_read_driver_attributes_and_capacity() {
        for expression in [
            "device.driver == 'gpu.example.com'",
            "device.attributes['gpu.example.com'].model == 'a100'",
            "device.attributes['gpu.example.com'].cores >= 100",
            "device.attributes['gpu.example.com'].mig",
            "device.attributes['gpu.example.com'].driver.isGreaterThan(semver('550.0.0'))",
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('20Gi')) >= 0",
            "!device.allowMultipleAllocations",
            "'gpu.example.com' in device.attributes && has(device.attributes['gpu.example.com'].model)",
        ] {
            assert!(holds(expression), "{expression}");
        }
        for expression in [
            "device.attributes['gpu.example.com'].model == 'h100'",
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('80Gi')) >= 0",
        ] {
            assert!(!holds(expression), "{expression}");
        }
    }

    #[test]
    fn an_expression_that_fails_or_does_not_compile_holds_for_no_device() {
        for expression in [
            "device.attributes['other.example.com'].model == 'a100'",
            "device.attributes['gpu.example.com'].absent",
            "device.driver",
            "device.driver ==",
            "((((",
        ] {
            assert!(!holds(expression), "{expression}");
        }
        assert!(!Selectors::default().compiles("device.driver =="));
    }
}
