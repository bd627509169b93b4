//! `cargo xtask lint`: formatting, clippy, the manifests, links between pages, and the rules of the tree that no other tool knows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::dist::manifests;
use crate::docs::links;
use crate::{circles, process, workspace};

/// The longest a source file may be, without its tests.
const MAX_LINES: usize = 600;

/// The longest a function may be, but for tables: a `match` over all of something, or a list of options.
const MAX_FUNCTION: usize = 120;
const TABLES: [(&str, &str); 4] = [
    ("core/src/machines/worker.rs", "next"),
    ("rankrun/src/cli/restarting.rs", "args"),
    ("rankrun/src/cli/args.rs", "output_args"),
    ("front/src/job/effects.rs", "perform"),
];

/// Phrases that make a reader look back for the noun, and what to write instead. Pages, messages and comments have none of them.
const PHRASES: [(&str, &str); 16] = [
    ("comes no further", "makes no progress"),
    ("come no further", "made no progress"),
    ("rank came further", "the job stalled"),
    ("and which one is odd", "and the outlier"),
    ("looks into nobody", "disables automatic inspection"),
    ("for want of", "the missing thing and its verb: \"ran out of memory\", \"made no progress\""),
    ("of which a part is done", "a partial ..."),
    ("begins anew", "resets, or starts again"),
    ("gives back nothing", "does not refill"),
    ("its Python has ended", "interpreter exited"),
    ("shortened as far as", "unambiguous abbreviations work"),
    ("nobody is there", "the missing thing's own name"),
    ("a restart was asked for", "restart requested"),
    ("exist in no file", "have no source file"),
    ("is none of a rank's", "the noun"),
    ("makes none where", "creates no ... if"),
];

/// Files that may quote such phrases.
const QUOTES: [&str; 1] = ["xtask/src/lint.rs"];

/// What the core may never come to depend on: it has no I/O.
const NOT_IN_CORE: [&str; 3] = ["tokio", "rustix", "libc"];

/// Compiles the fuzz targets, which are no members of the workspace.
fn check_fuzz_targets() -> Result<()> {
    const PLACE: [&str; 2] = ["--manifest-path", "fuzz/Cargo.toml"];
    process::run(cargo().arg("fmt").args(PLACE).arg("--check"))?;
    // Nothing is linked, so that no fuzzer needs to be built, which takes a C++ compiler.
    let mut check = cargo();
    check.args(["check", "--quiet"]).args(PLACE).arg("--target-dir").arg(workspace::target());
    process::run(check.env("CUSTOM_LIBFUZZER_PATH", "/not-linked/libfuzzer.a"))
}

pub(crate) fn lint() -> Result<()> {
    process::run(cargo().args(["fmt", "--all", "--check"]))?;
    process::run(cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"]))?;
    check_fuzz_targets()?;
    let mut faults = Vec::new();
    for directory in ["crates", "tests", "xtask"] {
        for file in rust_files(&workspace::root().join(directory)) {
            check_file(&file, &mut faults)?;
        }
    }
    for file in rust_files(&workspace::root().join("crates")) {
        check_dropped(&file, &mut faults)?;
    }
    for file in files_with(&workspace::root(), &["rs", "py", "md", "c", "h"]) {
        check_words(&file, &mut faults)?;
    }
    circles::check(&workspace::root(), &mut faults)?;
    check_core(&mut faults)?;
    manifests::check(&mut faults)?;
    links::check(&mut faults)?;
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults", faults.len());
    }
    println!("lint: no faults");
    Ok(())
}

fn cargo() -> Command {
    let mut command = workspace::cargo();
    command.current_dir(workspace::root());
    command
}

pub(crate) fn rust_files(directory: &Path) -> Vec<PathBuf> {
    files_with(directory, &["rs"])
}

/// The files with one of these endings, in order. What is built or hidden is not among them.
fn files_with(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else {
        return files;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() {
            let is_ours = name != "target" && !name.to_string_lossy().starts_with('.');
            files.extend(if is_ours { files_with(&path, endings) } else { Vec::new() });
        } else if path.extension().and_then(|it| it.to_str()).is_some_and(|ending| endings.contains(&ending)) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// A phrase may be broken over two lines.
fn check_words(file: &Path, faults: &mut Vec<String>) -> Result<()> {
    let name = file.strip_prefix(workspace::root()).unwrap_or(file);
    if QUOTES.iter().any(|quoting| name == Path::new(quoting)) {
        return Ok(());
    }
    let text = fs::read_to_string(file)?;
    for (number, phrase, instead) in phrases(&text) {
        faults.push(format!("{}:{number}: \"{phrase}\": write \"{instead}\"", name.display()));
    }
    Ok(())
}

fn phrases(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let lines: Vec<&str> =
        text.lines().map(|line| line.trim_start_matches(['/', '!', '#', '*', ' ']).trim_end()).collect();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(&lines) {
        let both = format!("{line} {}", lines.get(number).unwrap_or(&""));
        for (phrase, instead) in PHRASES {
            // One that stands in the next line alone is found there.
            if both.find(phrase).is_some_and(|at| at < line.len()) {
                found.push((number, phrase, instead));
            }
        }
    }
    found
}

fn check_file(file: &Path, faults: &mut Vec<String>) -> Result<()> {
    let text = fs::read_to_string(file)?;
    let name = file.strip_prefix(workspace::root()).unwrap_or(file);
    let lines = lines_without_tests(&text);
    if lines > MAX_LINES {
        faults.push(format!("{}: {lines} lines without tests; at most {MAX_LINES}", name.display()));
    }
    let is_table = |function: &str| TABLES.iter().any(|(path, table)| name.ends_with(path) && *table == function);
    let is_test = name.to_string_lossy().ends_with("tests.rs") || name.starts_with("tests");
    let long = long_functions(&text).into_iter().filter(|(function, _)| !is_test && !is_table(function));
    for (function, lines) in long {
        faults.push(format!("{}: {function} has {lines} lines; at most {MAX_FUNCTION}", name.display()));
    }
    // Nobody but the front's own room has a hand in it.
    let has_front = name.starts_with("crates/front") && text.lines().any(|line| line.starts_with("impl Front {"));
    if has_front && !name.starts_with("crates/front/src/job") {
        faults.push(format!("{}: `impl Front` belongs into crates/front/src/job", name.display()));
    }
    let uses_sys =
        ["sys", "stacks", "agent", "front", "rankrun"].iter().any(|it| name.starts_with(format!("crates/{it}/src")));
    let code = lines_without_tests(&text);
    for (number, line) in (1..).zip(text.lines().take(if uses_sys { code } else { 0 })) {
        if (line.contains("fs::read(") || line.contains("fs::read_to_string(")) && line.contains("\"/proc/") {
            let fault = "read files of the kernel with rankrun_sys::kernel, in as few calls as possible";
            faults.push(format!("{}:{number}: {fault}", name.display()));
        }
    }
    if !name.starts_with("crates/sys") {
        for (number, line) in (1..).zip(text.lines()) {
            if uses_unsafe(line) {
                faults.push(format!("{}:{number}: unsafe code belongs into crates/sys", name.display()));
            }
        }
    }
    Ok(())
}

/// Functions that are too long, with their lines. Tests are none.
fn long_functions(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, usize, String)> = None;
    for (number, line) in text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).enumerate() {
        let indent = line.len() - line.trim_start().len();
        let name = function_name(line.trim_start());
        match (&open, name) {
            (None, Some(name)) => open = Some((number, indent, name.to_owned())),
            (Some((first, at, name)), _) if *at == indent && line.trim_start() == "}" => {
                let lines = number + 1 - first;
                found.extend((lines > MAX_FUNCTION).then(|| (name.clone(), lines)));
                open = None;
            }
            _ => {}
        }
    }
    found
}

/// The name of the function that begins in a line.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_word =
        |word: &str| ["const", "unsafe", "async", "extern", "\"C\""].contains(&word) || word.starts_with("pub");
    let begins = before.split_whitespace().all(|word| is_word(word) || word.ends_with(')')) && !line.starts_with("//");
    let end = after.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    (begins && end > 0 && !line.ends_with(';') && !line.ends_with('}')).then(|| &after[..end])
}

/// An error that is dropped says in a comment why it may be: above it, on its line, or on the next.
fn check_dropped(file: &Path, faults: &mut Vec<String>) -> Result<()> {
    /// How far above the comment may stand: one may speak for a short block.
    const ABOVE: usize = 4;
    let name = file.strip_prefix(workspace::root()).unwrap_or(file);
    if name.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "examples"))) {
        return Ok(());
    }
    let text = fs::read_to_string(file)?;
    let lines: Vec<&str> = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).collect();
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim_start();
        // Formatting into a string cannot fail.
        let drops = (line.starts_with("let _ = ") || line.starts_with("_ = "))
            && !line.contains("write!(")
            && !line.contains("writeln!(");
        let around = &lines[index.saturating_sub(ABOVE)..(index + 2).min(lines.len())];
        if drops && !around.iter().any(|line| line.contains("//")) {
            faults.push(format!("{}:{}: say why this error may be dropped", name.display(), index + 1));
        }
    }
    Ok(())
}

/// The lines up to the module of unit tests, which stands last in a file.
fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines
        .windows(2)
        .position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{'));
    tests.unwrap_or(lines.len())
}

/// Whether a line of code opens something unsafe. The compiler's own lint can be switched off in a file; this cannot.
fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe fn ", "unsafe impl ", "unsafe extern ", "unsafe trait ", "unsafe("]
        .iter()
        .any(|word| code.trim_start().starts_with(word) || code.contains(&format!(" {word}")))
        && !code.contains('"')
}

fn check_core(faults: &mut Vec<String>) -> Result<()> {
    let tree = process::read(cargo().args([
        "tree",
        "--package",
        "rankrun-core",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))?;
    for line in tree.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if NOT_IN_CORE.contains(&name) {
            faults.push(format!("rankrun-core depends on {name}, but it may have no I/O"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn only_lines_before_the_tests_count() {
        assert_eq!(lines_without_tests("a\nb\n#[cfg(test)]\nmod tests {\n}\n"), 2);
        assert_eq!(lines_without_tests("a\nb\n"), 2);
    }

    #[test]
    fn a_long_function_is_found_and_its_tests_do_not_count() {
        let body = "    x();\n".repeat(MAX_FUNCTION);
        let text = format!(
            "pub(crate) fn long(\n    x: u8,\n) {{\n{body}}}\nfn short() {{\n}}\n#[cfg(test)]\nfn t() {{\n{body}}}\n"
        );
        assert_eq!(long_functions(&text), [("long".to_owned(), MAX_FUNCTION + 4)]);
        assert_eq!(function_name("// Then fn is a word.").or(function_name("let x = fn_of(y);")), None);
    }

    #[test]
    fn a_phrase_is_found_also_where_a_line_ends_in_it() {
        let found = |text| phrases(text).into_iter().map(|(number, phrase, _)| (number, phrase)).collect::<Vec<_>>();
        assert_eq!(found("/// A job that\n/// comes no\n/// further is ended.\n"), [(2, "comes no further")]);
        assert_eq!(found("a\nIt comes no further.\n"), [(2, "comes no further")]);
        assert_eq!(found("It makes no progress.\n"), []);
    }

    #[test]
    fn unsafe_code_is_told_from_words_about_it() {
        assert!(uses_unsafe("    let x = unsafe { *p };"));
        assert!(uses_unsafe("unsafe impl Send for T {}"));
        assert!(!uses_unsafe("// unsafe { nothing }"));
        assert!(!uses_unsafe("unsafe_code = deny"));
    }
}
