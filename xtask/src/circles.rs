//! Circles between source files: files of a crate that use each other, directly or by way of others, can only be read together.
//!
//! Read from `use` lines outside of tests. What a file re-exports counts as its own; a name that is spelt out in code does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The crates that are without circles.
const CRATES: [&str; 3] = ["core", "front", "agent"];

/// Finds the circles.
pub(crate) fn check(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    for name in CRATES {
        for circle in circles(&uses(&root.join("crates").join(name).join("src"))?) {
            let files: Vec<&str> = circle.iter().map(String::as_str).collect();
            faults.push(format!("crates/{name}/src: these files use each other: {}", files.join(", ")));
        }
    }
    Ok(())
}

/// Which files each file uses, by their paths below the sources.
fn uses(sources: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut modules = BTreeMap::new();
    for file in super::lint::rust_files(sources) {
        let below = file.strip_prefix(sources).unwrap_or(&file).to_owned();
        if !below.to_string_lossy().ends_with("tests.rs") {
            modules.insert(module_of(&below), (below.to_string_lossy().into_owned(), file));
        }
    }
    // Modules that the crate re-exports at its top: `crate::ids` is `crate::spec::ids`.
    let top = modules.get(&Vec::new()).map(|(_, file)| fs::read_to_string(file)).transpose()?.unwrap_or_default();
    let exported = paths_in(&top).into_iter().filter(|path| modules.contains_key(path));
    let exported: BTreeMap<String, Vec<String>> =
        exported.filter_map(|path| Some((path.last()?.clone(), path))).collect();
    let mut uses = BTreeMap::new();
    for (module, (name, file)) in &modules {
        if module.is_empty() {
            continue;
        }
        let text = fs::read_to_string(file)?;
        let paths = paths_in(&text).into_iter().map(|mut path| {
            let is_at_top = path.first().is_some_and(|word| word == "crate");
            if let Some(real) = path.get(1).and_then(|word| exported.get(word)).filter(|_| is_at_top) {
                path.splice(1..2, real.iter().cloned());
            }
            path
        });
        let used = paths.filter_map(|path| resolve(module, &path, &modules));
        let used: BTreeSet<String> = used.filter(|other| other != name).collect();
        uses.insert(name.clone(), used);
    }
    Ok(uses)
}

/// The path of a module: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module_of(below: &Path) -> Vec<String> {
    let mut words: Vec<String> =
        below.with_extension("").iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if words.last().is_some_and(|word| ["mod", "lib", "main"].contains(&word.as_str())) {
        words.pop();
    }
    words
}

/// All that the `use` lines of a file name, outside of its tests, which come last.
fn paths_in(text: &str) -> Vec<Vec<String>> {
    let tests =
        text.find("#[cfg(test)]\nmod ").filter(|at| !text[*at..].lines().nth(1).unwrap_or_default().ends_with(';'));
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let code: Vec<&str> = text[..tests.unwrap_or(text.len())].lines().filter(is_code).collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let Some(at) = statement.rfind("use ") else { continue };
        let before = statement[..at].trim_end();
        // A word of a string is no statement.
        if before.is_empty() || before.ends_with(['}', ')', ']']) || before.ends_with("pub") {
            expand(&statement[at + 4..], &[], &mut paths);
        }
    }
    paths
}

/// `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(text: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let text = text.trim();
    let Some(open) = text.find('{') else {
        let words = text.split(" as ").next().unwrap_or_default().split("::").map(|word| word.trim().to_owned());
        paths.push(before.iter().cloned().chain(words).collect());
        return;
    };
    let head = text[..open].split("::").map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
    let head: Vec<String> = before.iter().cloned().chain(head).collect();
    let (mut depth, mut from) = (0, open + 1);
    for (at, letter) in text.char_indices().skip_while(|(at, _)| *at <= open) {
        match letter {
            '{' => depth += 1,
            ',' if depth == 0 => {
                expand(&text[from..at], &head, paths);
                from = at + 1;
            }
            '}' if depth == 0 => {
                if !text[from..at].trim().is_empty() {
                    expand(&text[from..at], &head, paths);
                }
                return;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The file that a path leads to: that of the longest module in it.
fn resolve(module: &[String], path: &[String], modules: &BTreeMap<Vec<String>, (String, PathBuf)>) -> Option<String> {
    let mut from = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        // A child, or another crate.
        first if modules.contains_key(&[module, &[first.to_owned()]].concat()) => {
            [module, &[first.to_owned()]].concat()
        }
        _ => return None,
    };
    for word in &path[1..] {
        match word.as_str() {
            "super" => drop(from.pop()),
            word if modules.contains_key(&[&from[..], &[word.to_owned()]].concat()) => from.push(word.to_owned()),
            _ => break,
        }
    }
    modules.get(&from).filter(|_| !from.is_empty()).map(|(name, _)| name.clone())
}

/// The sets of files of which each can be reached from the others.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(file) = open.pop() {
            for next in uses.get(&file).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = uses.keys().map(|file| (file, reach(file))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (file, seen) in reached.iter().filter(|(file, seen)| seen.contains(**file)) {
        let circle: BTreeSet<String> = seen.iter().filter(|other| reached[*other].contains(*file)).cloned().collect();
        if !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn use_lines_are_read_with_their_braces() {
        let text = "//! They use a::b.\nuse c::d;\n// they use a::b;\n#[cfg(test)]\nuse t::t;\npub(crate) use crate::x::{y, z::{self, T}};\nuse super::q as r;\nfn f() {}\n";
        let paths: Vec<String> = paths_in(text).iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["c::d", "t::t", "crate::x::y", "crate::x::z::self", "crate::x::z::T", "super::q"]);
    }

    #[test]
    fn a_circle_is_found_and_a_chain_is_none() {
        let of = |pairs: &[(&str, &[&str])]| {
            let pairs = pairs.iter().map(|(file, used)| {
                (file.to_string(), used.iter().map(|used| used.to_string()).collect::<BTreeSet<_>>())
            });
            circles(&pairs.collect())
        };
        assert!(of(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]).is_empty());
        let circle = of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]);
        assert_eq!(circle, [BTreeSet::from(["b".to_owned(), "c".to_owned()])]);
    }
}
