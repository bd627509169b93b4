//! What the terminals of the user can show.

use crate::choices::When;
use crate::plan::Surroundings;

impl Surroundings {
    /// Whether colours are shown on a destination that is, or is not, a terminal (no-color.org, bixense.com/clicolors).
    pub(crate) fn colors(&self, when: When, terminal: bool) -> bool {
        let set = |name| self.variable(name).filter(|value| !value.is_empty());
        match when {
            When::Always => true,
            When::Never => false,
            When::Auto if set("NO_COLOR").is_some() => false,
            When::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            When::Auto => terminal && set("CLICOLOR").is_none_or(|value| value != "0") && !self.is_dumb(),
        }
    }

    /// Whether the terminal understands no escape sequences, as that of an editor.
    fn is_dumb(&self) -> bool {
        self.variable("TERM").is_some_and(|term| term == "dumb")
    }

    /// The window in which rows are redrawn, if stdout or stderr is a terminal that can.
    pub(crate) fn status_window(&self) -> Option<(u16, u16)> {
        let [_, stdout, stderr] = self.terminals;
        self.window.filter(|_| (stdout || stderr) && !self.is_dumb())
    }
}
