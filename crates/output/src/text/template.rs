//! The text in front of a line: literal text with fields.

use std::str::FromStr;
use std::time::Duration;

use rankrun_core::{Rank, Stream};
use serde::{Deserialize, Serialize};

use crate::config::Names;

use crate::time::write_utc;

/// A parsed tag: literal text with the fields `{rank}`, `{local_rank}`, `{node}`, `{app}`, `{stream}` and `{time}`.
/// `{{` and `}}` stand for the braces themselves.
///
/// The default is `[{rank}] ` with the rank aligned to the right, to the width of the greatest rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Part {
    Literal(String),
    Rank { aligned: bool },
    LocalRank,
    Node,
    App,
    Stream,
    Time,
}

/// Why a text is no template. Positions count characters from 1.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TemplateError {
    #[error(
        "unknown field \"{{{name}}}\" at position {position}; \
         the fields are {{rank}}, {{local_rank}}, {{node}}, {{app}}, {{stream}} and {{time}}"
    )]
    UnknownField { name: String, position: usize },
    #[error("the \"{{\" at position {position} is not closed; write \"{{{{\" for a brace")]
    Unclosed { position: usize },
    #[error("the \"}}\" at position {position} closes nothing; write \"}}}}\" for a brace")]
    Unopened { position: usize },
    #[error("a tag is one line, and there is a line break at position {position}")]
    LineBreak { position: usize },
}

/// What the fields of a tag stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    pub(crate) rank: &'a str,
    /// The least width of an aligned rank.
    pub(crate) rank_width: usize,
    pub(crate) local_rank: &'a str,
    pub(crate) node: &'a str,
    pub(crate) app: &'a str,
    pub(crate) stream: Stream,
    /// Since the Unix epoch.
    pub(crate) wall: Duration,
}

impl Default for Template {
    fn default() -> Self {
        let literal = |text: &str| Part::Literal(text.to_owned());
        Template { parts: vec![literal("["), Part::Rank { aligned: true }, literal("] ")] }
    }
}

impl Template {
    /// Whether the tag of a rank changes with time.
    pub(crate) fn has_time(&self) -> bool {
        self.parts.contains(&Part::Time)
    }

    /// Whether this is no text at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The tag of a rank, without a time.
    pub fn of_rank(&self, rank: Rank, names: &Names, stream: Stream) -> Vec<u8> {
        let mut tag = Vec::new();
        let fields = Fields {
            rank: &rank.to_string(),
            rank_width: 0,
            local_rank: &names.local_rank.to_string(),
            node: &names.node,
            app: &names.app.to_string(),
            stream,
            wall: Duration::ZERO,
        };
        self.render(&fields, &mut tag);
        tag
    }

    pub(crate) fn render(&self, fields: &Fields<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            let text = match part {
                Part::Literal(text) => text,
                Part::Rank { aligned } => {
                    let width = if *aligned { fields.rank_width } else { 0 };
                    out.extend(std::iter::repeat_n(b' ', width.saturating_sub(fields.rank.len())));
                    fields.rank
                }
                Part::LocalRank => fields.local_rank,
                Part::Node => fields.node,
                Part::App => fields.app,
                Part::Stream => match fields.stream {
                    Stream::Stdout => "stdout",
                    Stream::Stderr => "stderr",
                },
                Part::Time => {
                    write_utc(fields.wall, out);
                    ""
                }
            };
            out.extend_from_slice(text.as_bytes());
        }
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut characters = text.chars().zip(1usize..).peekable();
        while let Some((character, position)) = characters.next() {
            match character {
                '\n' | '\r' => return Err(TemplateError::LineBreak { position }),
                '{' | '}' if characters.next_if(|(next, _)| *next == character).is_some() => literal.push(character),
                '}' => return Err(TemplateError::Unopened { position }),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match characters.next() {
                            Some(('}', _)) => break,
                            Some(('{', _)) | None => return Err(TemplateError::Unclosed { position }),
                            Some((letter, _)) => name.push(letter),
                        }
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    parts.push(match name.as_str() {
                        "rank" => Part::Rank { aligned: false },
                        "local_rank" => Part::LocalRank,
                        "node" => Part::Node,
                        "app" => Part::App,
                        "stream" => Part::Stream,
                        "time" => Part::Time,
                        _ => return Err(TemplateError::UnknownField { name, position }),
                    });
                }
                _ => literal.push(character),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Template { parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &Template) -> String {
        let fields = Fields {
            rank: "7",
            rank_width: 3,
            local_rank: "3",
            node: "node02",
            app: "1",
            stream: Stream::Stderr,
            wall: Duration::ZERO,
        };
        let mut out = Vec::new();
        template.render(&fields, &mut out);
        String::from_utf8(out).expect("text")
    }

    fn parse(text: &str) -> Template {
        text.parse().expect("a template")
    }

    #[test]
    fn fields_are_filled_in_and_doubled_braces_are_braces() {
        assert_eq!(render(&parse("{node}/{local_rank} {app} {stream}: ")), "node02/3 1 stderr: ");
        assert_eq!(render(&parse("{{{rank}}} é")), "{7} é");
        assert_eq!(render(&parse("{time} ")), "1970-01-01T00:00:00.000Z ");
        assert_eq!(render(&parse("")), "");
    }

    #[test]
    fn only_the_default_aligns_the_rank() {
        assert_eq!(render(&Template::default()), "[  7] ");
        assert_eq!(render(&parse("[{rank}] ")), "[7] ");
    }

    #[test]
    fn errors_name_the_position() {
        let mut messages = String::new();
        for text in ["é {host}: ", "[{rank", "a{b{rank}", "rank} ", "{}", "a\nb"] {
            let error = text.parse::<Template>().expect_err("no template");
            messages.push_str(&format!("{text:?}: {error}\n"));
        }
        insta::assert_snapshot!(messages, @r#"
        "é {host}: ": unknown field "{host}" at position 3; the fields are {rank}, {local_rank}, {node}, {app}, {stream} and {time}
        "[{rank": the "{" at position 2 is not closed; write "{{" for a brace
        "a{b{rank}": the "{" at position 2 is not closed; write "{{" for a brace
        "rank} ": the "}" at position 5 closes nothing; write "}}" for a brace
        "{}": unknown field "{}" at position 1; the fields are {rank}, {local_rank}, {node}, {app}, {stream} and {time}
        "a\nb": a tag is one line, and there is a line break at position 2
        "#);
    }
}
