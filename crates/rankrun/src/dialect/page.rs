//! Writes the tables of a dialect's page, which a test compares with it.

use std::path::Path;

use super::Here;

const END: &str = "<!-- End of what is written. -->\n";

/// A text in a cell of a table.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace("'*'", "'\\*'")
}

/// What an option is here, in one word.
pub(crate) fn class<S>(here: &Here<S>) -> &'static str {
    match here {
        Here::Same(_) | Here::Already(_) | Here::Special(..) => "same",
        Here::Differs(..) | Here::Without(_) => "different",
        Here::Refused(_) => "refused",
    }
}

/// Asserts that a page of `docs` has these tables, or with `RANKRUN_UPDATE_DOCS` writes them into it. `test` is the name that
/// the comment in the page asks for.
pub(crate) fn shows(page: &str, test: &str, tables: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let have = std::fs::read_to_string(&file).expect("the page is there");
    let begin = format!("<!-- Written by `RANKRUN_UPDATE_DOCS=1 cargo test -p rankrun --bin rankrun {test}`. -->\n");
    let (before, rest) = have.split_once(&begin).expect("it says where the tables begin");
    let (_, after) = rest.split_once(END).expect("it says where the tables end");
    let page_now = format!("{before}{begin}{tables}{END}{after}");
    let is_written = std::env::var_os("RANKRUN_UPDATE_DOCS").is_some();
    if is_written {
        std::fs::write(&file, &page_now).expect("the page can be written");
    }
    assert!(have == page_now || is_written, "docs/{page} is not up to date: see the comment in it");
}
