//! The man page, from the definitions of the options and the texts at the end of the help.

use std::fmt::Write as _;

use clap_mangen::Man;

use crate::{args, texts};

/// The page in roff.
pub(crate) fn page() -> Vec<u8> {
    let man = Man::new(crate::texts::described(args::whole));
    let mut page = Vec::new();
    // Writing into memory does not fail.
    let _ = man.render_title(&mut page);
    let _ = man.render_name_section(&mut page);
    let _ = man.render_synopsis_section(&mut page);
    // As above.
    let _ = man.render_description_section(&mut page);
    let _ = man.render_options_section(&mut page);
    let mut text = String::new();
    section(
        &mut text,
        "COMMANDS",
        "As the first word; a program of that name is run as ./check or after --.",
        texts::COMMANDS,
    );
    section(&mut text, "SETTINGS", texts::SETTINGS, "");
    section(&mut text, "EXIT STATUS", texts::EXIT_CODES, texts::EXIT_CODE_TABLE);
    section(&mut text, "NOTES", texts::NOTES, "");
    section(&mut text, "EXAMPLES", "", texts::EXAMPLES);
    page.extend_from_slice(text.as_bytes());
    page
}

/// A section with a paragraph, and lines that stay as they are.
fn section(text: &mut String, title: &str, paragraph: &str, lines: &str) {
    // Writing into a string does not fail.
    let _ = writeln!(text, ".SH \"{title}\"");
    if !paragraph.is_empty() {
        let _ = writeln!(text, "{}", escape(paragraph));
    }
    if !lines.is_empty() {
        let _ = writeln!(text, ".PP\n.nf");
        lines.lines().for_each(|line| {
            let _ = writeln!(text, "{}", escape(line.trim_start()));
        });
        let _ = writeln!(text, ".fi");
    }
}

/// Escapes text that roff would interpret (groff_char(7)): a hyphen that is typed, a quote, a line that begins with a dot.
fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    match escaped.starts_with('.') {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roff_reads_text_as_text() {
        assert_eq!(escape(".x -n '3:gdb'"), "\\&.x \\-n \\(aq3:gdb\\(aq");
        assert_eq!(escape("a\\b"), "a\\eb");
    }

    #[test]
    fn the_page_has_the_sections_of_a_man_page() {
        let page = String::from_utf8(page()).expect("the texts are UTF-8");
        for title in ["NAME", "SYNOPSIS", "DESCRIPTION", "RANKS", "EXIT STATUS", "EXAMPLES"] {
            assert!(
                page.contains(&format!(".SH {title}\n")) || page.contains(&format!(".SH \"{title}\"\n")),
                "{title}"
            );
        }
    }
}
