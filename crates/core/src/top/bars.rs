//! The progress bar in a line of output: those of tqdm, rich and Keras.
//!
//! Sources of the formats: tqdm 4.67 `format_meter`; rich 14 `Progress` with its default, download and `M of N` columns; Lightning's
//! `RichProgressBar`; Keras 3 `Progbar`.

/// A progress bar, as far as its line says it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Bar {
    /// From 0 to 1.
    pub fraction: Option<f64>,
    /// How many are done, and of how many.
    pub done: Option<f64>,
    pub total: Option<f64>,
    /// How many a second.
    pub rate: Option<f64>,
    /// Seconds until the end, by the program's own estimate.
    pub left: Option<f64>,
}

/// Characters that only bars consist of: those of tqdm (with `ascii=True` only `#`), rich, and rich on a terminal without Unicode.
const BLOCKS: [char; 13] = ['█', '▉', '▊', '▋', '▌', '▍', '▎', '▏', '━', '╸', '╺', '╌', '#'];

/// Reads the progress bar in a line, if there is one.
pub fn parse_bar(line: &str) -> Option<Bar> {
    let line = without_escapes(line);
    of_tqdm(&line).or_else(|| of_rich(&line)).filter(|bar| *bar != Bar::default())
}

/// Without the escape sequences of a terminal, such as colours.
fn without_escapes(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '\u{1b}' {
            text.push(char);
        } else if chars.next_if_eq(&'[').is_some() {
            // Up to the final byte of a control sequence (ECMA-48).
            while chars.next().is_some_and(|char| !('@'..='~').contains(&char)) {}
        }
    }
    text
}

/// `desc:  45%|████▌     | 45/100 [00:10<00:12,  4.43it/s, loss=0.3]`, or without a total `45it [00:10,  4.43it/s]`.
fn of_tqdm(line: &str) -> Option<Bar> {
    let open = line.rfind(" [")?;
    let (before, after) = (&line[..open], &line[open + 2..]);
    // A line may have been cut.
    let inside = after.split(']').next().unwrap_or(after);
    let mut fields = inside.split(',');
    let times = fields.next()?;
    let pace = fields.next();
    let (elapsed, left) = match times.split_once('<') {
        Some((elapsed, left)) => (elapsed, clock(left)),
        // Without the time left there is a rate, or it is a time in brackets.
        None if pace.is_some_and(|pace| pace.contains('/')) => (times, None),
        None => return None,
    };
    clock(elapsed)?;
    let rate = pace.and_then(rate);
    // What stands right before the bracket: `45/100`, `45it`, or `45 examples`.
    let mut words = before.rsplit(['|', ' ']).filter(|word| !word.is_empty());
    let last = words.next()?;
    let counts = if last.chars().all(char::is_alphabetic) { words.next()? } else { last };
    if let Some((done, total)) = counts.split_once('/') {
        let (done, total) = (scaled(done)?, scaled(total)?);
        let fraction = percent_before(before).or_else(|| (total > 0.0).then(|| (done / total).clamp(0.0, 1.0)));
        return Some(Bar { fraction, done: Some(done), total: Some(total), rate, left });
    }
    let digits = counts.trim_end_matches(|char: char| char.is_alphabetic() && !"kMGTPEZ".contains(char));
    let done = scaled(digits)?;
    Some(Bar { done: Some(done), rate, left, ..Bar::default() })
}

/// The percentage right before the bar of tqdm.
fn percent_before(text: &str) -> Option<f64> {
    let end = text.find("%|")?;
    let digits = text[..end].rsplit(|char: char| !char.is_ascii_digit() && char != '.').next()?;
    digits.parse::<f64>().ok().map(|percent| (percent / 100.0).clamp(0.0, 1.0))
}

/// A line with a bar that is recognised by its characters: the numbers stand around it in any order.
///
/// rich: `Training ━━━━━━━╸━━━━━━━━  45% 0:00:12`; Lightning: `Epoch 0/9 ━━━━ 45/100 0:00:10 • 0:00:12 4.43it/s`;
/// Keras: `45/100 ━━━━━━━ 12s 270ms/step - loss: 0.3`.
fn of_rich(line: &str) -> Option<Bar> {
    let begin = line.find(run_of_blocks)?;
    let length: usize = line[begin..].chars().take_while(|char| is_of_bar(*char)).map(char::len_utf8).sum();
    if line[begin..begin + length].chars().filter(|char| BLOCKS.contains(char)).count() < 3 {
        return None;
    }
    let (before, after) = (&line[..begin], &line[begin + length..]);
    let mut bar = Bar::default();
    let mut clocks = Vec::new();
    let words: Vec<&str> = after.split_whitespace().take(16).collect();
    for (at, word) in words.iter().enumerate() {
        let unit = words.get(at + 1).copied().unwrap_or_default();
        if let Some(percent) = word.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok()) {
            bar.fraction.get_or_insert((percent / 100.0).clamp(0.0, 1.0));
        } else if let Some(counts) = counts(word, unit) {
            (bar.done, bar.total) = (bar.done.or(Some(counts.0)), bar.total.or(Some(counts.1)));
        } else if let Some(time) = clock(word) {
            clocks.push(time);
        } else if let Some(found) = rate(word).or_else(|| rate(&format!("{word}{unit}"))) {
            bar.rate.get_or_insert(found);
        } else if *word == "-" {
            // The metrics of Keras.
            break;
        }
    }
    // The last of two times is the time left: Lightning shows the time since the start before it.
    bar.left = clocks.last().copied();
    if bar.total.is_none()
        && bar.fraction.is_none()
        && let Some(counts) = before.split_whitespace().next_back().and_then(|word| counts(word, ""))
    {
        (bar.done, bar.total) = (Some(counts.0), Some(counts.1));
        // The time left of Keras: whole seconds.
        let seconds = words.first().and_then(|word| word.strip_suffix('s')).and_then(|digits| digits.parse().ok());
        bar.left = bar.left.or(seconds);
    }
    if bar.fraction.is_none()
        && let (Some(done), Some(total)) = (bar.done, bar.total)
        && total > 0.0
    {
        bar.fraction = Some((done / total).clamp(0.0, 1.0));
    }
    (bar.fraction.is_some() || bar.total.is_some()).then_some(bar)
}

fn run_of_blocks(char: char) -> bool {
    BLOCKS.contains(&char) && char != '#'
}

fn is_of_bar(char: char) -> bool {
    BLOCKS.contains(&char) || char == ' '
}

/// `45/100`; of a download `12.3/45.6` with its unit after it.
fn counts(word: &str, unit: &str) -> Option<(f64, f64)> {
    let (done, total) = word.split_once('/')?;
    let factor = match unit {
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => 1.0,
    };
    Some((scaled(done)? * factor, scaled(total)? * factor))
}

/// A number, perhaps with thousands separated and an SI prefix: `1.2k`, `3,000`.
fn scaled(text: &str) -> Option<f64> {
    let text = text.trim().trim_end_matches('B');
    let (digits, factor) = match text.chars().last()? {
        'k' => (&text[..text.len() - 1], 1e3),
        'M' => (&text[..text.len() - 1], 1e6),
        'G' => (&text[..text.len() - 1], 1e9),
        'T' => (&text[..text.len() - 1], 1e12),
        _ => (text, 1.0),
    };
    number(digits).map(|number| number * factor)
}

fn number(digits: &str) -> Option<f64> {
    let is_number = digits.starts_with(|char: char| char.is_ascii_digit())
        && digits.chars().all(|char| char.is_ascii_digit() || char == '.' || char == ',');
    if is_number { digits.replace(',', "").parse().ok() } else { None }
}

/// `4.43it/s`, `2.35s/it`, `12.3MB/s`, `270ms/step`: how many a second.
fn rate(text: &str) -> Option<f64> {
    let (left, right) = text.trim().split_once('/')?;
    if right == "s" {
        let digits = left.trim_end_matches(|char: char| char.is_alphabetic() && !"kMGT".contains(char));
        return scaled(digits);
    }
    // The time for one: of a unit that is a word.
    if right.is_empty() || !right.chars().all(char::is_alphabetic) {
        return None;
    }
    let seconds = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)].into_iter().find_map(|(unit, factor)| {
        let digits = left.strip_suffix(unit)?;
        number(digits).map(|number| number * factor)
    })?;
    (seconds > 0.0).then(|| 1.0 / seconds)
}

/// `01:23`, `1:02:03`, `1 day, 0:00:12` without the day: seconds.
fn clock(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.trim().split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    parts.iter().try_fold(0.0, |sum, part| {
        let is_number = (1..=5).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { Some(sum * 60.0 + part.parse::<f64>().ok()?) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(fraction: Option<f64>, done: Option<f64>, total: Option<f64>, rate: Option<f64>, left: Option<f64>) -> Bar {
        Bar { fraction, done, total, rate, left }
    }

    /// Written by tqdm 4.67.
    #[test]
    fn the_bars_of_tqdm_are_read() {
        let some = Some::<f64>;
        for (line, expected) in [
            (
                " 45%|\u{2588}\u{2588}\u{2588}\u{2588}\u{258c}     | 45/100 [00:10<00:12,  4.43it/s]",
                bar(some(0.45), some(45.0), some(100.0), some(4.43), some(12.0)),
            ),
            (
                "epoch 3:  45%|######7        | 45/100 [00:10<00:00, 26963382.86it/s, loss=0.312]",
                bar(some(0.45), some(45.0), some(100.0), some(26963382.86), some(0.0)),
            ),
            (
                "slow:   3%|9                  | 3/100 [01:40<1:00:00, 33.00s/it]",
                bar(some(0.03), some(3.0), some(100.0), some(1.0 / 33.0), some(3600.0)),
            ),
            ("45it [00:10, 31457280.00it/s]", bar(None, some(45.0), None, some(31457280.0), None)),
            ("45.0B [00:10, 37.7MB/s]", bar(None, some(45.0), None, some(37.7e6), None)),
            ("45 examples [00:10,  4.50 examples/s]", bar(None, some(45.0), None, some(4.5), None)),
            (
                "model.safetensors:  27%|#####1        | 11.7M/43.5M [00:10<00:30, 8.60MB/s]",
                bar(some(0.27), some(11.7e6), some(43.5e6), some(8.6e6), some(30.0)),
            ),
            (
                " 40%|###############2       | 1.20k/3.00k [00:10<00:00, 839Mit/s]",
                bar(some(0.4), some(1200.0), some(3000.0), some(839e6), some(0.0)),
            ),
            ("  0%|              | 0/100 [00:10<?, ?it/s]", bar(some(0.0), some(0.0), some(100.0), None, None)),
            (
                "100%|##########| 100/100 [00:10<00:00, 69905066.67it/s]",
                bar(some(1.0), some(100.0), some(100.0), some(69905066.67), some(0.0)),
            ),
            // Cut by ncols.
            (" 45%|4| 45/100 [00:10<00:00, 3", bar(some(0.45), some(45.0), some(100.0), None, some(0.0))),
            (
                "Map (num_proc=4):  45%|9 | 45000/100000 [00:10<00:20, 37748.00 examples/s]",
                bar(some(0.45), some(45e3), some(1e5), some(37748.0), some(20.0)),
            ),
            // Cut in the middle, as the status does with long lines.
            (
                "epoch:  45%|#### [... 300 bytes ...] ####   | 45/100 [00:10<00:12,  4.43it/s]",
                bar(some(0.45), some(45.0), some(100.0), some(4.43), some(12.0)),
            ),
        ] {
            assert_eq!(parse_bar(line), Some(expected), "{line}");
        }
    }

    /// Written by rich 14, Lightning 2.6 and Keras 3.
    #[test]
    fn the_bars_of_rich_and_keras_are_read() {
        let some = Some::<f64>;
        let done = "\u{2501}".repeat(18);
        let rest = "\u{2501}".repeat(21);
        for (line, expected) in [
            (
                format!(
                    "\x1b[2KTraining \x1b[91m{done}\x1b[0m\x1b[90m\u{257a}\x1b[0m\x1b[90m{rest}\x1b[0m \x1b[35m 45%\x1b[0m \x1b[36m0:00:13\x1b[0m"
                ),
                bar(some(0.45), None, None, None, some(13.0)),
            ),
            (
                format!("Training {done}                      45% 0:00:13"),
                bar(some(0.45), None, None, None, some(13.0)),
            ),
            (format!("Training {done}\u{257a}{rest}  45% -:--:--"), bar(some(0.45), None, None, None, None)),
            (
                format!(
                    "\x1b[2KTraining {done}\u{257a}{rest} \x1b[32m 45/100\x1b[0m \x1b[33m0:00:10\x1b[0m \x1b[36m0:00:13\x1b[0m"
                ),
                bar(some(0.45), some(45.0), some(100.0), None, some(13.0)),
            ),
            (
                format!("Training {done}\u{257a}{rest} \x1b[32m12.3/45.6 MB\x1b[0m \x1b[31m1.2 MB/s\x1b[0m 0:00:28"),
                bar(some(12.3 / 45.6), some(12.3e6), some(45.6e6), some(1.2e6), some(28.0)),
            ),
            (
                format!("Epoch 0/9 {done}\u{257a}{rest} 45/100 0:00:10 \u{2022} 0:00:12 4.43it/s v_num: 0"),
                bar(some(0.45), some(45.0), some(100.0), some(4.43), some(12.0)),
            ),
            (
                format!("45/100 {done}{rest} 12s 250ms/step - accuracy: 0.9 - loss: 0.3"),
                bar(some(0.45), some(45.0), some(100.0), some(4.0), some(12.0)),
            ),
        ] {
            assert_eq!(parse_bar(&line), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_is_no_progress_bar_is_not_read_as_one() {
        for line in [
            "",
            "step 45",
            "loss 0.3 [12:30:45]",
            "took 5s [00:10]",
            "2026-01-02 10:11:12 [INFO] epoch 3/10",
            "GET /a/b [200]",
            "\u{2501}\u{2501}\u{2501}\u{2501}\u{2501} test session starts \u{2501}\u{2501}\u{2501}\u{2501}",
            "### Results ###",
            "\x1b[2K\x1b[",
            " [",
            "| [:<:, /]",
        ] {
            assert_eq!(parse_bar(line), None, "{line:?}");
        }
    }
}
