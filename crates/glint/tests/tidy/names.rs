//! Rules of names: what a type may be called, and where ARCHITECTURE.md says that a thing stands.

use crate::{files, root};
use std::collections::BTreeMap;
use std::fs;

/// Names that say nothing of a type: whose state, what runs, shared by whom. A node is a host.
const EMPTY_NAMES: [&str; 5] = ["State", "Running", "Shared", "Node", "Core"];

/// The least number of names that ARCHITECTURE.md places: with fewer, the test below reads it
/// wrongly.
const PLACED_MIN: usize = 55;

/// The type that a line defines.
fn type_defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    if word.starts_with("pub") {
        word = words.next()?;
    }
    let is_type = ["struct", "enum", "trait", "type"].contains(&word);
    let name = words.next()?.split(|c: char| !c.is_alphanumeric()).next()?;
    is_type.then_some(name)
}

#[test]
fn names_of_types_say_what_they_are() {
    for (path, text) in files("rs") {
        let mut defined = text.lines().filter_map(type_defined);
        let empty = defined.find(|name| EMPTY_NAMES.contains(name));
        assert_eq!(empty, None, "{path}");
    }
}

/// Compared are types that other crates may see, in the whole workspace, and, of each crate, types
/// that are seen outside their module with all of that crate: whoever reads a name looks it up
/// there. Two crates may have a type of one name each for what is the same on both sides, such as
/// `Sessions`; two private ones stand beside what they are about. Only the arguments of a command
/// are called `Args` in each, after clap.
#[test]
fn a_name_of_a_type_that_others_see_is_its_own() {
    let mut public = BTreeMap::<String, Vec<String>>::new();
    let mut of_crates = BTreeMap::<(String, String), (bool, Vec<String>)>::new();
    for (path, text) in files("rs").into_iter().filter(|(path, _)| path.contains("/src/")) {
        let the_crate = path.split_inclusive('/').take(2).collect::<String>();
        for line in text.lines() {
            let Some(name) = type_defined(line).filter(|name| *name != "Args") else { continue };
            if line.starts_with("pub ") {
                public.entry(name.to_owned()).or_default().push(path.clone());
            }
            if !line.starts_with(' ') {
                let (is_seen, paths) =
                    of_crates.entry((the_crate.clone(), name.to_owned())).or_default();
                *is_seen |= line.starts_with("pub");
                paths.push(path.clone());
            }
        }
    }
    for (name, paths) in public {
        assert!(paths.len() == 1, "{name}: {paths:?}");
    }
    for ((_, name), (is_seen, paths)) in of_crates {
        assert!(!is_seen || paths.len() == 1, "{name}: {paths:?}");
    }
}

/// A name that a document places: `function`, `Type` or `Type::method`, and the file.
struct Placed {
    name: String,
    file: String,
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "_:".contains(c))
}

fn is_source(text: &str) -> bool {
    text.ends_with(".rs") && !text.contains(|c: char| c.is_whitespace() || c == '*')
}

/// Names of sentences and tables: `` `a` and `b` in `file.rs` ``.
fn placed_in_text(text: &str) -> Vec<Placed> {
    // The odd parts are code.
    let parts: Vec<&str> = text.split('`').collect();
    let mut placed = Vec::new();
    for at in (3..parts.len()).step_by(2).filter(|at| is_source(parts[*at])) {
        let mut joint = "in";
        let mut name = at;
        while name >= 3 {
            let said = parts[name - 1].split_whitespace().collect::<Vec<_>>().join(" ");
            if said != joint || !is_name(parts[name - 2]) {
                break;
            }
            name -= 2;
            placed.push(Placed { name: parts[name].to_owned(), file: parts[at].to_owned() });
            joint = "and";
        }
    }
    placed
}

/// Names of walks, which are blocks of code: `file.rs  name: what it does`.
fn placed_in_walk(line: &str) -> Option<Placed> {
    let (file, said) = line.trim_start().split_once(' ')?;
    let said = said.trim_start();
    let name = said.split_once(": ").map_or(said, |(name, _)| name);
    (is_source(file) && is_name(name))
        .then(|| Placed { name: name.to_owned(), file: file.to_owned() })
}

/// Whether a source defines a name: a function, or a type or constant if it begins in upper case.
/// The type of a method must stand there, too.
fn defines(source: &str, name: &str) -> bool {
    let words: Vec<&str> = source
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let (of, name) = name.rsplit_once("::").unwrap_or(("", name));
    let kinds: &[&str] = if name.starts_with(char::is_uppercase) {
        &["struct", "enum", "trait", "type", "const"]
    } else {
        &["fn"]
    };
    let is_defined = words.windows(2).any(|pair| kinds.contains(&pair[0]) && pair[1] == name);
    is_defined && (of.is_empty() || words.contains(&of))
}

#[test]
fn what_the_architecture_names_stands_where_it_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut placed = Vec::new();
    for (number, block) in text.split("```").enumerate() {
        if number % 2 == 0 {
            placed.extend(placed_in_text(block));
        } else {
            placed.extend(block.lines().filter_map(placed_in_walk));
        }
    }
    let sources = files("rs");
    for Placed { name, file } in &placed {
        let end = format!("/{file}");
        let found: Vec<_> =
            sources.iter().filter(|(p, _)| format!("/{p}").ends_with(&end)).collect();
        let [(_, source)] = found[..] else {
            panic!("ARCHITECTURE.md: {name} in {file}: {} files have this name", found.len());
        };
        assert!(defines(source, name), "ARCHITECTURE.md: there is no {name} in {file}");
    }
    assert!(placed.len() >= PLACED_MIN, "ARCHITECTURE.md places {} names only", placed.len());
}
