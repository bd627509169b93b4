//! The lines of a program around the cause of its failure, few enough to be shown.

use crate::finding::{Origin, Window};
use crate::testimony::Exception;
use crate::traceback::{exception_line, frame, is_group_header, is_header, is_library, within_margin};

/// Lines of a window, at most.
pub const MOST: usize = 10;

/// The window on what an exception or a message was told with: of a traceback the program's own frames before those of
/// libraries, and of anything else its beginning, where the message stands. The line that names the cause is always in it.
pub(crate) fn window(origin: Origin, exception: &Exception) -> Option<Window> {
    let lines: Vec<&str> = exception.traceback.lines().filter(|line| !line.trim().is_empty()).collect();
    let at = lines.iter().rposition(|line| names(line, exception));
    let shown = match lines.iter().any(|line| is_header(line) || is_group_header(line)) {
        true => of_traceback(lines.clone()),
        false => {
            let mut lines = lines.clone();
            if lines.len() > MOST {
                // What gfortran knows of frames without debugging information.
                lines.retain(|line| !line.ends_with(" in ???"));
            }
            lines.into_iter().take(MOST).map(str::to_owned).collect()
        }
    };
    let lines = match at {
        // A message that holds the traceback of another process is known by that one's.
        Some(at) if !has_traceback(&exception.message) && !shown.iter().any(|line| names(line, exception)) => {
            lines[(at + 1).saturating_sub(MOST)..=at].iter().map(|line| (*line).to_owned()).collect()
        }
        Some(_) | None => shown,
    };
    (!lines.is_empty()).then_some(Window { origin, lines })
}

fn has_traceback(message: &str) -> bool {
    message.lines().any(is_header)
}

/// Whether a line has the message of an exception, or its type as it is printed before one.
fn names(line: &str, exception: &Exception) -> bool {
    let Exception { kind, message, .. } = exception;
    let message = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let has_kind = || !kind.is_empty() && (line.contains(&format!("{kind}: ")) || line.ends_with(kind));
    // The source that rich shows is no such line.
    !line.starts_with('│') && (!message.is_empty() && line.contains(message) || has_kind())
}

/// A part of a traceback: a frame with its source, or any other line.
struct Part<'a> {
    lines: Vec<&'a str>,
    is_frame: bool,
    is_library: bool,
}

fn of_traceback(lines: Vec<&str>) -> Vec<String> {
    let mut lines = lines;
    if lines.len() > MOST {
        // The marks below the source.
        let is_mark = |line: &str| within_margin(line).trim().chars().all(|c| matches!(c, '^' | '~' | ' '));
        lines.retain(|line| within_margin(line).trim().is_empty() || !is_mark(line));
    }
    let is_group = lines.iter().any(|line| is_group_header(line));
    if is_group {
        // Of the exceptions of a group, the first.
        let second = lines.iter().position(|line| line.contains("---------------- 2 -"));
        lines.truncate(second.unwrap_or(lines.len()));
    }
    if lines.len() > MOST && !is_group {
        // Of an exception and its causes the last is what reached the top; of a message that holds the traceback of another
        // process, the first line tells of it, and that traceback is the cause.
        let last = lines.iter().rposition(|line| is_header(line)).unwrap_or(0);
        lines.drain(..last);
    }
    let mut parts: Vec<Part<'_>> = Vec::new();
    for line in lines {
        let of_frame = frame(line).map(|(file, ..)| is_library(&file));
        match (of_frame, parts.last_mut()) {
            (None, Some(part)) if part.is_frame && within_margin(line).starts_with([' ', '\t']) => {
                part.lines.push(line)
            }
            (is_library, _) => parts.push(Part {
                lines: vec![line],
                is_frame: is_library.is_some(),
                is_library: is_library.unwrap_or(false),
            }),
        }
    }
    let count = |parts: &[Part<'_>]| parts.iter().map(|part| part.lines.len()).sum::<usize>();
    let has_own = parts.iter().any(|part| part.is_frame && !part.is_library);
    let mut dropped = 0;
    // Library frames go first, outermost first; then the program's own outer ones. A line says how many are missing.
    for library in [true, false] {
        while count(&parts) + usize::from(dropped > 0) > MOST
            && let Some(at) =
                parts.iter().position(|part| part.is_frame && (part.is_library || !library) && (has_own || !library))
        {
            if parts.iter().filter(|part| part.is_frame).count() == 1 {
                break;
            }
            parts.remove(at);
            dropped += 1;
        }
    }
    let mut shown: Vec<String> =
        parts.iter().flat_map(|part| part.lines.iter().map(|line| (*line).to_owned())).collect();
    if dropped > 0 {
        let frames = if dropped == 1 { "frame" } else { "frames" };
        let header = shown.iter().position(|line| is_header(line) || is_group_header(line)).map_or(0, |at| at + 1);
        shown.insert(header, format!("  [{dropped} {frames} left out]"));
    }
    if shown.len() > MOST {
        // A message of many lines: its beginning.
        let end =
            shown.iter().position(|line| !is_header(line) && !line.starts_with(' ') && exception_line(line).is_some());
        let from = end.map_or(0, |end| end.saturating_sub(MOST / 2));
        shown = shown.into_iter().skip(from).take(MOST).collect();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        let exception = Exception { traceback: text.to_owned(), ..Exception::default() };
        window(Origin::Stderr, &exception).map(|window| window.lines).unwrap_or_default()
    }

    fn frames(library: usize, own: usize) -> String {
        let mut text = "Traceback (most recent call last):\n".to_owned();
        for at in 0..own {
            text += &format!("  File \"/x/train.py\", line {at}, in own{at}\n    call()\n    ^^^^^^\n");
        }
        for at in 0..library {
            text +=
                &format!("  File \"/v/lib/python3.11/site-packages/torch/a.py\", line {at}, in deep{at}\n    deep()\n");
        }
        text + "ValueError: boom\n"
    }

    #[test]
    fn a_short_traceback_is_shown_as_it_is() {
        let text = frames(1, 1);
        assert_eq!(lines(&text), text.lines().collect::<Vec<_>>());
    }

    #[test]
    fn frames_of_libraries_go_before_the_programs_own() {
        let shown = lines(&frames(20, 2));
        assert!(shown.len() <= MOST, "{shown:?}");
        let own = |line: &&String| line.contains("/x/train.py");
        assert_eq!(shown.iter().filter(own).count(), 2, "{shown:?}");
        assert!(shown.last().is_some_and(|line| line == "ValueError: boom"), "{shown:?}");
        assert!(shown[1].ends_with("frames left out]"), "{shown:?}");
    }

    #[test]
    fn of_many_own_frames_the_innermost_stay() {
        let shown = lines(&frames(3, 40));
        assert!(shown.len() <= MOST, "{shown:?}");
        assert!(shown.iter().any(|line| line.contains("own39")), "{shown:?}");
        let only_libraries = lines(&frames(40, 0));
        assert!(only_libraries.iter().any(|line| line.contains("deep39")), "{only_libraries:?}");
        assert!(only_libraries.len() <= MOST, "{only_libraries:?}");
    }

    #[test]
    fn anything_else_is_shown_from_its_top() {
        let text: String = (0..40).map(|at| format!("line {at}\n\n")).collect();
        assert_eq!(lines(&text).first().map(String::as_str), Some("line 0"));
        assert_eq!(lines(&text).len(), MOST);
        assert!(lines("\n \n").is_empty());
    }

    #[test]
    fn a_message_of_many_lines_keeps_its_beginning() {
        let text = frames(0, 1) + &"detail\n".repeat(30);
        let shown = lines(&text);
        assert!(shown.len() <= MOST && shown.contains(&"ValueError: boom".to_owned()), "{shown:?}");
    }
}
