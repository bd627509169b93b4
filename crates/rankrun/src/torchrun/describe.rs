//! The options as text, for `rankrun torchrun --help`.

use std::fmt::Write as _;

use super::table::{Here, Row, TABLE, Topic};

/// The names and the value of an option, as they are typed.
pub(super) fn typed(row: &Row) -> String {
    let short = row.short.map(|short| format!("{short}, ")).unwrap_or_default();
    let space = if row.value.is_empty() || row.value.starts_with('[') { "" } else { " " };
    format!("{short}{}{space}{}", row.name, row.value)
}

/// The variables that are read beside `PET_*`.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("PET_NAME", "the option of that name, as PET_NPROC_PER_NODE=2; the command line overrides it; a flag is 0 or 1"),
    ("PYTHON_EXEC", "the Python of the workers; else that beside a link called torchrun, else python on the PATH"),
    ("OMP_NUM_THREADS", "reaches the workers; where it is unset and there are several workers, it is 1"),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "--shutdown-timeout"),
    ("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "--log-line-prefix-template"),
    ("TORCHELASTIC_ERROR_FILE", "the file into which the cause of a failure is written, in torch's form"),
];

/// The names of all options, for completions.
pub(crate) fn names() -> Vec<String> {
    let taken = TABLE.iter().filter(|row| !matches!(row.here, Here::Refused(..)));
    taken.flat_map(|row| row.short.into_iter().chain([row.name])).map(str::to_owned).collect()
}

/// The list of options for the help.
pub(crate) fn options() -> String {
    let mut text = String::new();
    for topic in Topic::ALL {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{}:", topic.heading());
        for row in TABLE.iter().filter(|row| row.topic == topic) {
            // As above.
            let _ = writeln!(text, "  {}\n          {}", typed(row), row.here.text(row.value));
        }
        text.push('\n');
    }
    text.push_str("Variables:\n");
    for (name, here) in VARIABLES {
        // As above.
        let _ = writeln!(text, "  {name}\n          {here}");
    }
    text.push_str(
        "\nExamples:\n  rankrun torchrun --nproc-per-node 4 train.py --lr 0.1\n  rankrun torchrun --standalone --nproc-per-node gpu \
         --log-dir logs --tee 3 train.py\n  rankrun torchrun --nproc-per-node 2 --dry-run train.py      what it stands for\n",
    );
    text
}
