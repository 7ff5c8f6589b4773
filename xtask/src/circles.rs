//! `cargo xtask circles`: files that import each other in a circle.
//!
//! A file imports another if it uses an item that is defined there: the path of the import is followed through re-exports. Calls
//! through a child module (`child::call()`) count, tests and re-exports do not. A circle is a set of files of which each imports
//! each other one, directly or through others: none of them can be read or changed alone. The parts of some folders are layers: no two
//! of them may be in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::files;

/// How many files a circle may have.
const MAX_FILES: usize = 3;

/// Circles with more files, from before all packages were checked: package, the first file, and how many files it may have. An entry
/// goes when its circle does; none is added.
const KNOWN: [(&str, &str, usize); 1] = [("tests/aws-fake", "ec2", 9)];

/// Folders whose parts, which are files and folders, are layers: package and folder.
const LAYERED: [(&str, &[&str]); 2] = [
    ("crates/karpenter-core", &["schedule"]),
    ("crates/karpenter-kube", &[]),
];

/// The path of a module from the crate's root.
type Module = Vec<String>;
/// Which files a file imports.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// Prints the circles of each package; fails if one has too many files.
pub(crate) fn run(root: &Path) -> anyhow::Result<String> {
    let mut found = Vec::new();
    for package in packages(root)? {
        let graph = graph(&sources(&root.join(&package).join("src"))?)?;
        let arrows: usize = graph.values().map(BTreeSet::len).sum();
        let package = package.display().to_string();
        for (_, folder) in LAYERED.iter().filter(|layered| layered.0 == package) {
            if let Some(circle) = circles(&parts(&graph, folder)).first() {
                let names: Vec<String> = circle.iter().map(|part| text(part)).collect();
                bail!(
                    "{package}: parts of src/{} import each other: {}",
                    folder.join("/"),
                    names.join(", ")
                );
            }
        }
        println!(
            "{package}: {} files, {arrows} imports, circles:",
            graph.len()
        );
        for circle in circles(&graph) {
            let names: Vec<String> = circle.iter().map(|module| text(module)).collect();
            println!("  {}: {}", names.len(), names.join(", "));
            found.push((package.clone(), names));
        }
    }
    check(&found, &KNOWN)
}

/// Returns which parts of a folder import which; the folder's own file is none of them.
fn parts(graph: &Graph, folder: &[&str]) -> Graph {
    let part = |module: &Module| {
        let inside = module.get(..folder.len())? == folder;
        let name = module.get(folder.len()).filter(|_| inside)?;
        Some(vec![name.clone()])
    };
    let mut found = Graph::new();
    for (module, imports) in graph {
        if let Some(from) = part(module) {
            let to = imports.iter().filter_map(part).filter(|to| *to != from);
            found.entry(from.clone()).or_default().extend(to);
        }
    }
    found
}

/// Fails unless the circles with too many files are those that are known, with their numbers of files.
fn check(found: &[(String, Vec<String>)], known: &[(&str, &str, usize)]) -> anyhow::Result<String> {
    let large = found.iter().filter(|(_, names)| names.len() > MAX_FILES);
    let large: Vec<_> = large
        .map(|(package, names)| (package.as_str(), names[0].as_str(), names.len()))
        .collect();
    if large != known {
        bail!(
            "circles of more than {MAX_FILES} files are {large:?}, known are {known:?}: break a new one, and correct the entry of one that has become smaller"
        );
    }
    let largest = found.iter().map(|(_, names)| names.len()).max();
    Ok(format!(
        "the largest has {} files, {} are known to have more than {MAX_FILES}",
        largest.unwrap_or(0),
        known.len()
    ))
}

/// Returns the folders of the packages that have sources, sorted, from the workspace's root.
fn packages(root: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::from([PathBuf::from("xtask")]);
    for group in ["bins", "crates", "examples", "tests"] {
        for entry in fs::read_dir(root.join(group))? {
            found.insert(Path::new(group).join(entry?.file_name()));
        }
    }
    found.retain(|package| root.join(package).join("src").is_dir());
    Ok(found)
}

fn text(module: &[String]) -> String {
    if module.is_empty() {
        "(root)".to_owned()
    } else {
        module.join("::")
    }
}

/// Returns the modules below a folder with their sources, without tests.
fn sources(folder: &Path) -> anyhow::Result<BTreeMap<Module, String>> {
    let mut found = BTreeMap::new();
    for path in files::below(folder, &["rs"])? {
        let inside = path.strip_prefix(folder)?.with_extension("");
        let mut module: Module = inside
            .iter()
            .map(|it| it.to_string_lossy().into())
            .collect();
        if module.iter().any(|name| name == "tests") {
            continue;
        }
        module.pop_if(|name| ["mod", "lib", "main"].contains(&name.as_str()));
        found.insert(module, files::read(&path)?);
    }
    Ok(found)
}

/// An import: its absolute path in the crate, the name by which it is known, and whether it is a re-export.
struct Import {
    path: Module,
    name: String,
    public: bool,
}

/// Returns which files import which.
fn graph(sources: &BTreeMap<Module, String>) -> anyhow::Result<Graph> {
    let mut imports: BTreeMap<Module, Vec<Import>> = BTreeMap::new();
    for (module, source) in sources {
        let of_module = imports_of(module, source, sources)
            .with_context(|| format!("cannot parse module {}", text(module)))?;
        imports.insert(module.clone(), of_module);
    }
    let arrows = imports.iter().map(|(module, of_module)| {
        let used = of_module.iter().filter(|import| !import.public);
        let mut defined: BTreeSet<Module> = used
            .filter_map(|import| origin(&import.path, sources, &imports, 0))
            .collect();
        defined.remove(module);
        (module.clone(), defined)
    });
    Ok(arrows.collect())
}

/// Returns the imports of a module, tests excluded.
fn imports_of(
    module: &Module,
    source: &str,
    sources: &BTreeMap<Module, String>,
) -> anyhow::Result<Vec<Import>> {
    let mut found = Vec::new();
    for item in syn::parse_file(source)?.items {
        match item {
            Item::Use(item) if !is_test(&item.attrs) => {
                let public = !matches!(item.vis, Visibility::Inherited);
                let mut leaves = Vec::new();
                flatten(&item.tree, Vec::new(), &mut leaves);
                for (path, name) in leaves {
                    if let Some(path) = absolute(module, &path, sources) {
                        found.push(Import { path, name, public });
                    }
                }
            }
            Item::Mod(item) if item.content.is_none() && !is_test(&item.attrs) => {
                let child = item.ident.to_string();
                for name in names_after(source, &format!("{child}::")) {
                    let path = [module.as_slice(), &[child.clone(), name.clone()]].concat();
                    found.push(Import {
                        path,
                        name,
                        public: false,
                    });
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|path| path.is_ident("test"))
    })
}

/// Adds the paths of an import and the names by which they are known.
fn flatten(tree: &UseTree, mut path: Module, leaves: &mut Vec<(Module, String)>) {
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            flatten(&tree.tree, path, leaves);
        }
        UseTree::Name(tree) => {
            let name = tree.ident.to_string();
            if name != "self" {
                path.push(name);
            }
            let name = path.last().cloned().unwrap_or_default();
            leaves.push((path, name));
        }
        UseTree::Rename(tree) => {
            path.push(tree.ident.to_string());
            leaves.push((path, tree.rename.to_string()));
        }
        UseTree::Glob(_) => leaves.push((path, "*".to_owned())),
        UseTree::Group(tree) => {
            for item in &tree.items {
                flatten(item, path.clone(), leaves);
            }
        }
    }
}

/// Returns the path from the crate's root; `None` if it leads into another crate.
fn absolute(
    module: &Module,
    path: &[String],
    sources: &BTreeMap<Module, String>,
) -> Option<Module> {
    let first = path.first()?;
    let is_child = sources.contains_key(&[module.as_slice(), std::slice::from_ref(first)].concat());
    let mut base = match first.as_str() {
        "crate" => Vec::new(),
        "self" | "super" => module.clone(),
        _ if is_child => return Some([module.as_slice(), path].concat()),
        _ => return None,
    };
    let mut rest = path;
    while let Some((first, others)) = rest.split_first() {
        match first.as_str() {
            "super" => base.truncate(base.len().saturating_sub(1)),
            "crate" | "self" => {}
            _ => break,
        }
        rest = others;
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// Returns the names that follow `prefix` in the source, where it begins a path.
fn names_after(source: &str, prefix: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let code = source.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with("//") && !line.contains("use ")
    });
    let mut names = BTreeSet::new();
    for line in code {
        for (at, _) in line.match_indices(prefix) {
            if line[..at].chars().next_back().is_none_or(|c| !is_part(c)) {
                let rest = &line[at + prefix.len()..];
                let end = rest.find(|c: char| !is_part(c) || c == ':');
                names.insert(rest[..end.unwrap_or(rest.len())].to_owned());
            }
        }
    }
    names
}

/// Returns the module that defines what a path names, followed through re-exports.
fn origin(
    path: &[String],
    sources: &BTreeMap<Module, String>,
    imports: &BTreeMap<Module, Vec<Import>>,
    depth: usize,
) -> Option<Module> {
    let module = (0..=path.len())
        .rev()
        .map(|length| &path[..length])
        .find(|prefix| sources.contains_key(*prefix))?;
    let Some(name) = path.get(module.len()) else {
        return Some(module.to_owned());
    };
    let exports = imports.get(module).map_or(&[][..], Vec::as_slice);
    let export = exports
        .iter()
        .find(|import| import.public && import.name == *name);
    match export {
        // A circle of re-exports does not compile; the bound is for sources that do not.
        Some(export) if depth < 10 => origin(&export.path, sources, imports, depth + 1),
        _ => Some(module.to_owned()),
    }
}

/// Returns the sets of more than one file that import each other, the largest first.
fn circles(graph: &Graph) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = graph
        .keys()
        .map(|start| (start, reachable(start, graph)))
        .collect();
    let circle = |start: &Module| -> BTreeSet<Module> {
        let back = |module: &&&Module| reached.get(*module).is_some_and(|it| it.contains(start));
        reached[start]
            .iter()
            .filter(back)
            .copied()
            .cloned()
            .collect()
    };
    let found: BTreeSet<_> = graph.keys().map(circle).collect();
    let mut found: Vec<_> = found.into_iter().filter(|it| it.len() > 1).collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn reachable<'a>(start: &'a Module, graph: &'a Graph) -> BTreeSet<&'a Module> {
    let mut seen = BTreeSet::new();
    let mut open = vec![start];
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources = files.iter().map(|(module, source)| {
            let path = module.split("::").filter(|part| !part.is_empty());
            (path.map(str::to_owned).collect(), (*source).to_owned())
        });
        let graph = graph(&sources.collect()).unwrap();
        let circles = circles(&graph).into_iter();
        circles
            .map(|circle| circle.iter().map(|module| text(module)).collect())
            .collect()
    }

    #[test]
    fn files_that_import_each_other_through_a_third_are_a_circle() {
        let circle = found(&[
            ("", "mod a; mod b; mod c; mod d;"),
            ("a", "use crate::b::B;"),
            ("b", "use crate::{c::C, d};"),
            ("c", "use super::a::{A, Other as Another};"),
            ("d", "use std::fmt;"),
        ]);
        assert_eq!(circle, [["a", "b", "c"]]);
    }

    #[test]
    fn an_import_through_a_re_export_counts_for_the_defining_file() {
        let circle = found(&[
            ("", "mod a; mod b;"),
            ("a", "mod inner;\npub use inner::Item;"),
            ("a::inner", "use crate::b::B;"),
            ("b", "use crate::a::Item;"),
        ]);
        assert_eq!(circle, [["a::inner", "b"]]);
    }

    #[test]
    fn layers_are_the_parts_of_a_folder_and_its_own_file_is_none() {
        let arrows = [
            ("a", "a::x::one"),
            ("a::x::one", "a::y"),
            ("a::y", "b"),
            ("b", "a::x::two"),
        ];
        let path = |text: &str| text.split("::").map(str::to_owned).collect::<Module>();
        let arrow = |(from, to): (&str, &str)| (path(from), BTreeSet::from([path(to)]));
        let mut graph: Graph = arrows.map(arrow).into();
        let layers = |graph: &Graph| circles(&parts(graph, &["a"])).len();
        assert_eq!((circles(&graph).len(), layers(&graph)), (0, 0));
        graph.insert(path("a::y"), BTreeSet::from([path("a::x::two")]));
        assert_eq!((circles(&graph).len(), layers(&graph)), (0, 1));
    }

    #[test]
    fn a_circle_of_more_than_three_files_fails_unless_known_with_that_size() {
        let circle = |files: &[&str]| {
            let names = files.iter().map(|file| (*file).to_owned()).collect();
            vec![("crates/a".to_owned(), names)]
        };
        let (three, four) = (circle(&["a", "b", "c"]), circle(&["a", "b", "c", "d"]));
        assert!(check(&three, &[]).is_ok() && check(&four, &[]).is_err());
        assert!(check(&four, &[("crates/a", "a", 4)]).is_ok());
        for (found, most) in [(&four, 3), (&four, 5), (&three, 4)] {
            assert!(check(found, &[("crates/a", "a", most)]).is_err(), "{most}");
        }
    }

    #[test]
    fn a_call_through_a_child_module_counts_and_tests_do_not() {
        let calls = [
            ("a", "mod b;\nfn f() { b::g() }"),
            ("a::b", "use super::f;"),
        ];
        assert_eq!(found(&calls), [["a", "a::b"]]);
        let tests = "use crate::a::f;\n#[cfg(test)]\nuse crate::c::C;";
        let one_way = [("a", ""), ("b", tests), ("c", "use crate::b::B;")];
        assert_eq!(found(&one_way), [[""; 0]; 0]);
    }
}
