//! Texts that differ from rank to rank: `--wrap 'perf record -o perf.{rank}'`, `-x CUDA_VISIBLE_DEVICES={local_rank}`.
//!
//! A field is `{`, one of the names of [`Field`], `}`. `{{rank}}` stands for the text `{rank}`. All other braces are
//! literal text: commands and values are full of them (`{}`, `${HOME}`, `%q{RANK}`, JSON).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

/// What a field stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Field {
    Rank,
    LocalRank,
    Job,
    Attempt,
    Node,
}

impl Field {
    pub const ALL: [Field; 5] = [Field::Rank, Field::LocalRank, Field::Job, Field::Attempt, Field::Node];

    /// Its name between the braces.
    pub fn name(self) -> &'static str {
        match self {
            Field::Rank => "rank",
            Field::LocalRank => "local_rank",
            Field::Job => "job",
            Field::Attempt => "attempt",
            Field::Node => "node",
        }
    }

    fn of(name: &[u8]) -> Option<Field> {
        Field::ALL.into_iter().find(|field| field.name().as_bytes() == name)
    }
}

/// An unknown name between braces, in a text where it is most likely a mistyped field.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown field \"{{{name}}}\"; the fields are {{rank}}, {{local_rank}}, {{job}}, {{attempt}} and {{node}}")]
pub struct UnknownField {
    pub name: String,
}

/// Literal text with fields.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Template {
    /// No two literals follow each other.
    pieces: Vec<Piece>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Piece {
    Literal(OsString),
    Field(Field),
}

impl Template {
    /// A text that is the same for every rank, whatever braces it has.
    pub fn literal(text: impl Into<OsString>) -> Template {
        Template { pieces: vec![Piece::Literal(text.into())] }
    }

    /// Parses a text in which unknown names between braces are literal text: the value of a variable may be anything.
    pub fn lenient(text: &OsStr) -> Template {
        parse(text, &mut |_| Ok(())).unwrap_or_else(|_| Template::literal(text))
    }

    /// Parses a text in which such a name in lower-case letters is an error. The literal is written `{{name}}`.
    pub fn strict(text: &OsStr) -> Result<Template, UnknownField> {
        parse(text, &mut |name| match name.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_') {
            true => Err(UnknownField { name: String::from_utf8_lossy(name).into_owned() }),
            false => Ok(()),
        })
    }

    /// The fields in it, in order.
    pub fn fields(&self) -> impl Iterator<Item = Field> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Literal(_) => None,
            Piece::Field(field) => Some(*field),
        })
    }

    /// The text, if it has no fields.
    pub fn fixed(&self) -> Option<&OsStr> {
        match &self.pieces[..] {
            [] => Some(OsStr::new("")),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Puts a literal text in front.
    pub fn prefixed(mut self, text: impl Into<OsString>) -> Template {
        let mut text = text.into();
        match self.pieces.first_mut() {
            Some(Piece::Literal(first)) => {
                text.push(&first);
                *first = text;
            }
            _ => self.pieces.insert(0, Piece::Literal(text)),
        }
        self
    }

    /// The text for people: `<rank>` in place of the rank.
    pub fn shown(&self) -> OsString {
        self.fill(|field| format!("<{}>", field.name().replace('_', " ")))
    }

    /// The text with these values of its fields.
    pub(crate) fn fill(&self, value: impl Fn(Field) -> String) -> OsString {
        self.pieces.iter().fold(OsString::new(), |mut text, piece| {
            match piece {
                Piece::Literal(literal) => text.push(literal),
                Piece::Field(field) => text.push(value(*field)),
            }
            text
        })
    }
}

/// Parses a text; `refuse` decides about unknown names between braces.
fn parse(text: &OsStr, refuse: &mut dyn FnMut(&[u8]) -> Result<(), UnknownField>) -> Result<Template, UnknownField> {
    let mut pieces = Vec::new();
    let mut literal: Vec<u8> = Vec::new();
    let mut rest = text.as_bytes();
    while let Some(byte) = rest.first() {
        let is_shell = literal.last().is_some_and(|last| [b'$', b'{'].contains(last));
        match name(rest) {
            // "{{rank}}" is the text "{rank}"; so is every doubled name that would be refused otherwise.
            _ if rest.starts_with(b"{{")
                && name(&rest[1..]).is_some_and(|name| {
                    rest[name.len() + 3..].starts_with(b"}") && (Field::of(name).is_some() || refuse(name).is_err())
                }) =>
            {
                let length = name(&rest[1..]).map_or(0, <[u8]>::len);
                literal.extend_from_slice(&rest[1..length + 3]);
                rest = &rest[length + 4..];
                continue;
            }
            Some(name) if !is_shell => match Field::of(name) {
                Some(field) => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Literal(OsString::from_vec(std::mem::take(&mut literal))));
                    }
                    pieces.push(Piece::Field(field));
                    rest = &rest[name.len() + 2..];
                    continue;
                }
                None => refuse(name)?,
            },
            Some(_) | None => {}
        }
        literal.push(*byte);
        rest = &rest[1..];
    }
    if !literal.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Literal(OsString::from_vec(literal)));
    }
    Ok(Template { pieces })
}

/// The name between braces that a text begins with.
fn name(text: &[u8]) -> Option<&[u8]> {
    let inside = text.strip_prefix(b"{")?;
    let end = inside.iter().position(|byte| *byte == b'}')?;
    let name = &inside[..end];
    let is_name = !name.is_empty() && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strict(text: &str) -> Result<String, String> {
        let template = Template::strict(OsStr::new(text)).map_err(|error| error.to_string())?;
        Ok(template.shown().into_string().expect("the tests use UTF-8"))
    }

    fn lenient(text: &str) -> String {
        Template::lenient(OsStr::new(text)).shown().into_string().expect("the tests use UTF-8")
    }

    #[test]
    fn fields_are_found_and_other_braces_are_text() {
        for (text, shown) in [
            ("perf.{rank}.{local_rank}", "perf.<rank>.<local rank>"),
            ("{job}-{attempt}@{node}", "<job>-<attempt>@<node>"),
            ("{}", "{}"),
            ("%q{RANK}", "%q{RANK}"),
            ("{rank", "{rank"),
            ("rank}", "rank}"),
            ("{ rank }", "{ rank }"),
            ("${rank}", "${rank}"),
            ("", ""),
            ("{{rank}}", "{rank}"),
            ("{{{rank}}}", "{{rank}}"),
        ] {
            assert_eq!((strict(text).as_deref(), lenient(text).as_str()), (Ok(shown), shown), "{text}");
        }
    }

    #[test]
    fn a_name_that_is_no_field_is_a_mistake_in_commands_and_text_in_values() {
        assert_eq!(
            strict("out.{rnk}"),
            Err("unknown field \"{rnk}\"; the fields are {rank}, {local_rank}, {job}, {attempt} and {node}".to_owned())
        );
        assert_eq!(strict("awk {{print}}").as_deref(), Ok("awk {print}"));
        assert_eq!(lenient("out.{rnk}"), "out.{rnk}");
        assert_eq!(lenient("{{ user }} {{user}}"), "{{ user }} {{user}}", "another program's template");
        let json = r#"{"a": {"b": [1, {}]}, "rank": "{rank}"}"#;
        assert_eq!(lenient(json), json.replace("{rank}", "<rank>"));
    }

    #[test]
    fn a_text_without_fields_is_fixed() {
        assert_eq!(Template::lenient(OsStr::new("a{b}")).fixed(), Some(OsStr::new("a{b}")));
        assert_eq!(Template::lenient(OsStr::new("")).fixed(), Some(OsStr::new("")));
        assert_eq!(Template::lenient(OsStr::new("{rank}")).fixed(), None);
        let prefixed = Template::lenient(OsStr::new("{rank}")).prefixed("/{rank}/");
        assert_eq!(prefixed.shown(), "/{rank}/<rank>", "what is put in front is text");
    }

    proptest! {
        #[test]
        fn any_text_without_a_field_stays_as_it_is(text in "[a-z{}$\" ]{0,12}") {
            let has_field = Field::ALL.iter().any(|field| text.contains(&format!("{{{}}}", field.name())));
            if !has_field {
                prop_assert_eq!(lenient(&text), text);
            }
        }
    }
}
