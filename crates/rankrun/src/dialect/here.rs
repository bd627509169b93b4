//! What an option of another launcher is here.

/// What an option is here. `S` says what a translator does with the value of an option that it reads itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Here<S> {
    /// These words of ours; `{}` stands for its value.
    Same(&'static [&'static str]),
    /// These words of ours, which differ on purpose in the way that the text says.
    Differs(&'static [&'static str], &'static str),
    /// It asks for what happens anyway, for the given reason.
    Already(&'static str),
    /// It is not done, which changes no result; a warning says what is not done.
    Without(&'static str),
    /// Refused, with the nearest thing.
    Refused(&'static str),
    /// The translator knows what to do with its value; the text says it.
    Special(S, &'static str),
}

impl<S> Here<S> {
    /// The same in words. `value` is the name of the option's value.
    pub(crate) fn text(&self, value: &str) -> String {
        let words_of = |words: &[&str]| words.join(" ").replace("{}", value);
        match self {
            Here::Same(words) => words_of(words),
            Here::Differs(words, how) => format!("{}: {how}", words_of(words)),
            Here::Already(why) => format!("nothing to do: {why}"),
            Here::Without(what) => format!("not done, with a warning: {what}"),
            Here::Refused(advice) => format!("refused: {advice}"),
            Here::Special(_, text) => (*text).to_owned(),
        }
    }
}
