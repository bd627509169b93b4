//! The links between the pages, as a reader of the repository follows them. (mkdocs checks those of the site.)

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace;

/// Where the repository is shown: links to it are checked against the files here.
const REPOSITORY: [&str; 2] =
    ["https://github.com/rankrun/rankrun/blob/main/", "https://raw.githubusercontent.com/rankrun/rankrun/main/"];

/// Pages that are part of the packages, where the pages beside them are missing.
const SHIPPED: [&str; 2] = ["README.md", "CHANGELOG.md"];

/// Directories whose pages are not ours, or not written by hand.
const SKIPPED: [&str; 3] = ["target", ".git", ".venv"];

/// Adds the relative links that lead to no file, or to no heading of it.
pub(crate) fn check(faults: &mut Vec<String>) -> Result<()> {
    let mut pages = Vec::new();
    collect(&workspace::root(), &mut pages)?;
    let site = fs::read_to_string(workspace::root().join("mkdocs.yml")).context("cannot read mkdocs.yml")?;
    for page in pages {
        if let Ok(of_site) = page.strip_prefix(workspace::root().join("docs"))
            && !site.contains(&format!(": {}\n", of_site.display()))
        {
            faults.push(format!("docs/{}: the site does not list it (mkdocs.yml, nav)", of_site.display()));
        }
        let text = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        let name = page.strip_prefix(workspace::root()).unwrap_or(&page).display().to_string();
        for (number, target) in links(&text) {
            if let Some(fault) = fault(&page, &text, &target) {
                faults.push(format!("{name}:{number}: {fault}"));
            }
        }
    }
    Ok(())
}

fn collect(directory: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            let skipped = path.file_name().is_some_and(|name| SKIPPED.iter().any(|other| name == *other));
            if !skipped {
                collect(&path, pages)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(())
}

/// What is wrong with a link in a page.
fn fault(page: &Path, text: &str, target: &str) -> Option<String> {
    let own = REPOSITORY.iter().find_map(|place| target.strip_prefix(place));
    if own.is_none() && (target.contains("://") || target.starts_with("mailto:")) {
        return None;
    }
    let (file, anchor) = own.unwrap_or(target).split_once('#').unwrap_or((own.unwrap_or(target), ""));
    let is_shipped = SHIPPED.iter().any(|shipped| page == workspace::root().join(shipped));
    if is_shipped && own.is_none() && !file.is_empty() {
        return Some(format!("the packages have no {file}: write {}{file}", REPOSITORY[0]));
    }
    let path = match (own, file) {
        (Some(_), _) => workspace::root().join(file),
        (None, "") => page.to_owned(),
        (None, _) => page.parent()?.join(file),
    };
    if !path.exists() {
        return Some(format!("there is no {file}"));
    }
    if anchor.is_empty() || path.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let other = if file.is_empty() { text.to_owned() } else { fs::read_to_string(&path).unwrap_or_default() };
    let known = anchors(&other).iter().any(|known| known == anchor);
    (!known).then(|| format!("{} has no heading #{anchor}", if file.is_empty() { "the page" } else { file }))
}

/// The lines of a page that are text: not in a fenced block, and numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// The targets of links and pictures, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text).filter(|(_, line)| !line.starts_with("    ")) {
        // Code in backquotes is no link.
        let words: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for part in words.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The anchors of a page's headings, as the host of the repository makes them: small letters, hyphens for blanks, nothing
/// else; of the same ones the second gets `-1`.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = Vec::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        let depth = line.len() - title.len();
        if !(1..=6).contains(&depth) || !title.starts_with(' ') {
            continue;
        }
        let mut anchor = String::new();
        for character in title.trim().chars() {
            match character {
                ' ' | '-' => anchor.push('-'),
                '_' => anchor.push('_'),
                _ if character.is_alphanumeric() => anchor.extend(character.to_lowercase()),
                _ => {}
            }
        }
        let count = seen.entry(anchor.clone()).or_default();
        anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

#[cfg(test)]
mod unit {
    use super::*;

    const PAGE: &str =
        "# Some `code`, and *more*\n\n## Twice\n[a](#twice-1) `[no](x)`\n```sh\n# no heading ](no)\n```\n## Twice\n";

    #[test]
    fn anchors_are_those_of_the_host() {
        assert_eq!(anchors(PAGE), ["some-code-and-more", "twice", "twice-1"]);
    }

    #[test]
    fn links_in_code_are_none() {
        assert_eq!(links(PAGE), [(4, "#twice-1".to_owned())]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let here = workspace::root().join("README.md");
        assert_eq!(fault(&here, PAGE, "#twice"), None);
        assert_eq!(fault(&here, PAGE, "#thrice").as_deref(), Some("the page has no heading #thrice"));
        let place = REPOSITORY[0];
        let none = format!("{place}docs/none.md");
        assert_eq!(fault(&here, PAGE, &none).as_deref(), Some("there is no docs/none.md"));
        let heading = format!("{place}docs/mpi.md#no-such-heading");
        assert_eq!(fault(&here, PAGE, &heading).as_deref(), Some("docs/mpi.md has no heading #no-such-heading"));
        let beside = format!("the packages have no docs/mpi.md: write {place}docs/mpi.md");
        assert_eq!(fault(&here, PAGE, "docs/mpi.md"), Some(beside));
        assert_eq!(fault(&here, PAGE, "https://example.org/x"), None);
    }
}
