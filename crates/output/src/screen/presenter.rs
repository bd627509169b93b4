//! The console: what the ranks write, as one text.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use rankrun_core::{GroupId, Rank, RankSet, Stream};

use crate::config::{Config, Mode, Names};
use crate::console::{CONTINUED_MARK, CUT_MARK, Console, Row, Rows, Source, write_after_tag};
use crate::entry::Entry;
use crate::fold::{Fold, Folded};
use crate::grouped::{GroupedRows, Groups};
use crate::left::Left;
use crate::lines::{End, Line, LineBuffer, LineSink};
use crate::region::Region;
use crate::tag::Tagger;
use crate::unfinished::Unfinished;

/// While this many bytes wait for a destination, unfinished lines are not shown: the destination is slow, not the rank.
const BEHIND: usize = 64 * 1024;

/// How long rows that may be redrawn are kept when all of them have ended: bars are redrawn several times a second.
const ENDED_AFTER: Duration = Duration::from_secs(2);

/// Turns the output of all ranks into the bytes of the front's stdout and stderr.
///
/// `now` is always the time since the job's start, and never goes back; `wall` is the time since the Unix epoch.
#[derive(Debug)]
pub struct Presenter {
    config: Config,
    tagger: Tagger,
    sources: HashMap<Source, SourceState>,
    consoles: [Console; 2],
    /// When to look whether an unfinished line has been quiet for long enough. At most one entry a source.
    quiet: BinaryHeap<Reverse<(Duration, Source)>>,
    /// By stream.
    folds: [Fold; 2],
    groups: Groups,
    region: Option<Region>,
    /// Sources with several rows that are all ended, and when these become lines.
    ended_rows: HashMap<Source, Duration>,
}

/// What is known of one stream of one rank.
#[derive(Debug, Default)]
struct SourceState {
    line: LineBuffer,
    /// The tag, as of `wall`.
    prefix: Vec<u8>,
    wall: Duration,
    /// When the unfinished line last grew.
    grew: Duration,
    /// It has an entry in `quiet`.
    is_watched: bool,
}

/// How many ranks are shown.
fn all(config: &Config) -> usize {
    match &config.only {
        RankSet::All => config.world_size as usize,
        only => (0..config.world_size).filter(|rank| only.contains(Rank(*rank))).count(),
    }
}

impl Presenter {
    /// `names` returns the names of a rank; it is called once for each stream of a rank, or for each write if the tag
    /// has the time.
    pub fn new(config: Config, names: impl Fn(Rank) -> Names + Send + 'static) -> Presenter {
        let all = all(&config);
        Presenter {
            tagger: Tagger::new(&config, Box::new(names)),
            sources: HashMap::new(),
            consoles: Default::default(),
            quiet: BinaryHeap::new(),
            folds: [Fold::new(all), Fold::new(all)],
            groups: Groups::new(config.temp_dir.clone()),
            region: config.status.map(Region::new),
            ended_rows: HashMap::new(),
            config,
        }
    }

    /// Takes what a transcript has, or is to have. What was kept for the end is not shown by this: that is
    /// [`finish`](Self::finish).
    pub fn take(&mut self, now: Duration, entry: &Entry<'_>) {
        match entry {
            Entry::Output { rank, stream, wall, bytes } => self.output(now, *wall, *rank, *stream, bytes),
            Entry::Closed { rank, stream } => self.closed(now, *rank, *stream),
            Entry::Text { stream, bytes } => self.text(*stream, bytes),
            Entry::Notice(text) => self.notice(now, text),
            Entry::Note { rank, text } => drop(self.note(now, *rank, text)),
            Entry::Ended(rank) => self.ended(now, *rank),
            Entry::Attempt => self.begin_attempt(),
            Entry::World(map) => self.begin_world(map.world_size(), Names::of(map.clone().into_owned())),
            Entry::Group(group, map) => self.begin_group(*group, Names::of(map.clone().into_owned())),
            Entry::Rank(rank) => self.begin_rank(*rank),
            Entry::Missing { bytes, of } => {
                of.iter().for_each(|((rank, stream), _)| self.break_line(now, *rank, *stream));
                self.notice(now, &format!("rankrun: {bytes} bytes of the ranks are missing here"));
            }
            Entry::Gap { .. } => {
                self.break_lines(now);
                self.notice(now, "rankrun: what the ranks wrote while nobody looked is not kept here");
            }
            Entry::Leave(left) => self.go_on_from(now, left),
            Entry::Segment { .. } | Entry::Rest => {}
        }
    }

    /// A rank wrote these bytes.
    pub fn output(&mut self, now: Duration, wall: Duration, rank: Rank, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() || !self.config.shows(rank, stream) {
            return;
        }
        match self.config.mode {
            Mode::None => return,
            Mode::Raw => {
                let console = &mut self.consoles[console_of(&self.config, stream)];
                console.pending.extend_from_slice(bytes);
                console.row = if bytes.ends_with(b"\n") { Row::Start } else { Row::Dangling };
                return;
            }
            Mode::Line | Mode::Grouped | Mode::Folded => {}
        }
        let source = (rank, stream);
        let tagger = &self.tagger;
        let state = self.sources.entry(source).or_insert_with(|| {
            let mut state = SourceState::default();
            tagger.rank(rank, stream, wall, &mut state.prefix);
            state
        });
        if tagger.has_time() && state.wall != wall {
            state.prefix.clear();
            tagger.rank(rank, stream, wall, &mut state.prefix);
        }
        state.wall = wall;
        self.pass(now, source, |line, sink| line.feed(bytes, sink));
        if self.config.mode != Mode::Grouped {
            self.follow(now, source, memchr::memchr(b'\n', bytes).is_some());
        }
    }

    /// A stream of a rank has ended: its unterminated last line is flushed.
    ///
    /// That line gets a newline if it has a tag or if anything follows it; an untagged last line is left as it was
    /// written.
    pub fn closed(&mut self, now: Duration, rank: Rank, stream: Stream) {
        let source = (rank, stream);
        if !self.sources.contains_key(&source) {
            return;
        }
        self.pass(now, source, |line, sink| line.close(sink));
        self.ended_rows.remove(&source);
        if let Some(region) = &mut self.region {
            region.hide(now, source);
        }
    }

    /// What a stream wrote next is missing: the line in which it was ends here, with a mark.
    fn break_line(&mut self, now: Duration, rank: Rank, stream: Stream) {
        if self.config.mode == Mode::Raw {
            return self.break_row(stream);
        }
        if self.sources.get(&(rank, stream)).is_some_and(|state| !state.line.is_empty()) {
            self.pass(now, (rank, stream), |line, sink| line.feed(format!("{CUT_MARK}\n").as_bytes(), sink));
        }
        self.closed(now, rank, stream);
        self.sources.remove(&(rank, stream));
    }

    /// The same where the output passes unchanged: what is shown is a row, of whatever stream.
    fn break_row(&mut self, stream: Stream) {
        let console = &mut self.consoles[console_of(&self.config, stream)];
        if console.row == Row::Dangling {
            console.pending.extend_from_slice(format!("{CUT_MARK}\n").as_bytes());
            console.row = Row::Start;
        }
    }

    /// What all streams wrote next is missing.
    pub fn break_lines(&mut self, now: Duration) {
        if self.config.mode == Mode::Raw {
            return Stream::ALL.into_iter().for_each(|stream| self.break_row(stream));
        }
        let mut sources: Vec<Source> = self.sources.keys().copied().collect();
        sources.sort_unstable_by_key(|(rank, stream)| (*rank, stream.index()));
        sources.into_iter().for_each(|(rank, stream)| self.break_line(now, rank, stream));
    }

    /// Goes on in the place of a console that has shown all up to here but for this.
    pub fn go_on_from(&mut self, now: Duration, left: &Left) {
        self.begin_again();
        for (stream, bytes) in Stream::ALL.into_iter().zip(&left.ready) {
            if !bytes.is_empty() {
                self.text(stream, bytes);
            }
        }
        left.unfinished.iter().for_each(|unfinished| self.take(now, &Entry::unfinished(unfinished)));
    }

    /// Text as another console would have shown it.
    fn text(&mut self, stream: Stream, bytes: &[u8]) {
        let console = &mut self.consoles[console_of(&self.config, stream)];
        console.start_row();
        console.out().extend_from_slice(bytes);
        if !bytes.ends_with(b"\n") {
            console.row = Row::Dangling;
        }
    }

    /// A line of rankrun's own, without its newline, for stderr. It stands in a row of its own, whatever the mode.
    pub fn notice(&mut self, now: Duration, text: &str) {
        let index = console_of(&self.config, Stream::Stderr);
        let console = &mut self.consoles[index];
        console.start_row();
        console.out().extend_from_slice(text.as_bytes());
        console.out().push(b'\n');
        self.schedule_redraw(now, index);
    }

    /// A rank sent a progress note. If there is a status region, it shows the last note of the rank until the rank
    /// ends. Returns whether there is one.
    pub fn note(&mut self, now: Duration, rank: Rank, text: &str) -> bool {
        let Some(region) = self.region.as_mut().filter(|_| self.config.mode != Mode::Raw) else { return false };
        region.note(now, rank, Some(text));
        true
    }

    /// A line of rankrun's own at the bottom of the status region, if there is one; `None` removes it.
    pub fn footer(&mut self, now: Duration, text: Option<&str>) {
        if let Some(region) = self.region.as_mut().filter(|_| self.config.mode != Mode::Raw) {
            region.foot(now, text);
        }
    }

    /// A rank has ended: its note is removed.
    pub fn ended(&mut self, now: Duration, rank: Rank) {
        if let Some(region) = &mut self.region {
            region.note(now, rank, None);
        }
    }

    /// Another program is about to write to the terminal, such as the shell of a stopped job: removes the status region
    /// until its next redraw. An unfinished line on the screen will be shown again.
    pub fn withdraw(&mut self, now: Duration) {
        if let Some(region) = &mut self.region {
            region.withdraw(now, &mut self.consoles[console_of(&self.config, self.config.status_on)]);
        }
        for console in &mut self.consoles {
            console.row = Row::Start;
        }
    }

    /// The terminal has a new size, in rows and columns.
    pub fn resize(&mut self, now: Duration, size: (u16, u16)) {
        if let Some(region) = &mut self.region {
            region.resize(now, size);
        }
    }

    /// Does what is due by now: shows unfinished lines that have been quiet for [`Config::partial_after`], folded lines
    /// that have waited, and the status region.
    ///
    /// To be called at [`next_deadline`](Self::next_deadline), or at any other time, but only when what was taken before
    /// has been written: while the destination is behind, the silence of a rank means nothing.
    pub fn tick(&mut self, now: Duration) {
        self.show_quiet_lines(now);
        self.end_rows(now);
        for stream in Stream::ALL {
            while let Some(folded) = self.folds[stream.index()].pop_due(now) {
                self.print_folded(stream, &folded);
            }
            self.schedule_redraw(now, console_of(&self.config, stream));
        }
        if self.region.as_ref().and_then(Region::due).is_some_and(|due| due <= now) {
            self.redraw(now);
        }
    }

    /// When [`tick`](Self::tick) is due, if it is.
    pub fn next_deadline(&self) -> Option<Duration> {
        let quiet = self.quiet.peek().map(|Reverse((due, _))| *due);
        let folds = self.folds.iter().filter_map(Fold::due).min();
        let region = self.region.as_ref().and_then(Region::due);
        let ended = self.ended_rows.values().min().copied();
        [quiet, folds, region, ended].into_iter().flatten().min()
    }

    /// The console ends here and goes on elsewhere: returns the unfinished lines that it has not shown. What was kept for the end is
    /// shown by [`finish`](Self::finish) before.
    pub fn take_unfinished(&mut self) -> Vec<Unfinished> {
        let unfinished = self.collect_unfinished(LineBuffer::take_unshown);
        self.begin_again();
        unfinished
    }

    /// The unfinished lines, for another console, which has shown nothing of them.
    pub fn unfinished(&mut self) -> Vec<Unfinished> {
        self.collect_unfinished(|line| line.unfinished())
    }

    fn collect_unfinished(&mut self, bytes_of: impl Fn(&mut LineBuffer) -> Vec<u8>) -> Vec<Unfinished> {
        let all = self.sources.iter_mut().map(|(&(rank, stream), state)| {
            let bytes = bytes_of(&mut state.line);
            Unfinished { rank, stream, wall: state.wall, bytes }
        });
        let mut unfinished: Vec<Unfinished> = all.filter(|one| !one.bytes.is_empty()).collect();
        unfinished.sort_unstable_by_key(|one| (one.rank, one.stream.index()));
        unfinished
    }

    /// The job is over and every stream closed: returns what was kept for the end.
    ///
    /// Returns whether there is more: then write what is pending and call `finish` again, so that large grouped output
    /// is never in memory as a whole.
    #[must_use = "there may be more to come"]
    pub fn finish(&mut self, now: Duration) -> bool {
        for stream in Stream::ALL {
            while let Some(folded) = self.folds[stream.index()].pop() {
                self.print_folded(stream, &folded);
            }
        }
        if let Some(region) = &mut self.region {
            region.hide_all();
        }
        self.redraw(now);
        let Some(piece) = self.groups.next_piece() else {
            return false;
        };
        let (rank, stream) = piece.source;
        let console = &mut self.consoles[console_of(&self.config, stream)];
        if piece.is_first {
            console.start_row();
        }
        console.pending.extend_from_slice(&piece.bytes);
        console.row = if piece.bytes.ends_with(b"\n") { Row::Start } else { Row::Dangling };
        if let Some((lost, error)) = piece.lost {
            let dir = self.config.temp_dir.display();
            self.notice(
                now,
                &format!("rankrun: lost {lost} bytes of rank {rank}'s {stream}, kept in \"{dir}\": {error}"),
            );
        }
        true
    }

    /// Another attempt of the job begins: its ranks have written nothing yet. All streams are closed, and
    /// [`finish`](Self::finish) has returned what was kept.
    pub fn begin_attempt(&mut self) {
        self.begin_again();
        self.tagger.begin_attempt();
    }

    /// Nothing is known of what the ranks have written.
    fn begin_again(&mut self) {
        self.sources.clear();
        self.quiet.clear();
        self.ended_rows.clear();
    }

    /// An attempt of another number of ranks begins, whose names are others.
    pub fn begin_world(&mut self, world_size: u32, names: impl Fn(Rank) -> Names + Send + 'static) {
        self.config.world_size = world_size;
        self.tagger = Tagger::new(&self.config, Box::new(names));
        self.folds = [Fold::new(all(&self.config)), Fold::new(all(&self.config))];
    }

    /// A further group of ranks begins.
    pub fn begin_group(&mut self, group: GroupId, names: impl Fn(Rank) -> Names + Send + 'static) {
        self.tagger.add(group, Box::new(names));
    }

    /// A rank whose streams are closed is started again: it has written nothing yet.
    pub fn begin_rank(&mut self, rank: Rank) {
        for stream in Stream::ALL {
            self.sources.remove(&(rank, stream));
            self.ended_rows.remove(&(rank, stream));
        }
    }

    /// The bytes that are ready for the front's own stdout or stderr. To write them, [`std::mem::swap`] them with an
    /// empty vector; its capacity is then used again.
    pub fn pending(&mut self, stream: Stream) -> &mut Vec<u8> {
        &mut self.consoles[stream.index()].pending
    }

    /// Passes the lines of a source on according to the mode.
    fn pass(&mut self, now: Duration, source: Source, give: impl FnOnce(&mut LineBuffer, &mut dyn LineSink)) {
        let Some(state) = self.sources.get_mut(&source) else {
            return;
        };
        let prefix = &state.prefix;
        let index = console_of(&self.config, source.1);
        let console = &mut self.consoles[index];
        match self.config.mode {
            Mode::Grouped => {
                let groups = &mut self.groups;
                give(&mut state.line, &mut GroupedRows { groups, source, prefix });
            }
            Mode::Folded => {
                let stream = source.1;
                let fold = &mut self.folds[stream.index()];
                let wall = state.wall;
                let mut rows = FoldedRows { console, fold, now, wall, source };
                give(&mut state.line, &mut rows);
                while let Some(folded) = self.folds[stream.index()].pop_due(now) {
                    self.print_folded(stream, &folded);
                }
            }
            Mode::Line | Mode::Raw | Mode::None => {
                give(&mut state.line, &mut Rows { console, source, prefix });
            }
        }
        self.schedule_redraw(now, index);
    }

    /// Looks after the unfinished line of a source that has just written; `has_ended` says whether a line has ended.
    fn follow(&mut self, now: Duration, source: Source, has_ended: bool) {
        let Some(state) = self.sources.get_mut(&source) else {
            return;
        };
        state.grew = now;
        let console = &mut self.consoles[console_of(&self.config, source.1)];
        let is_empty = state.line.is_empty();
        match state.line.has_ended_rows() {
            true => self.ended_rows.insert(source, now + ENDED_AFTER),
            false => self.ended_rows.remove(&source),
        };
        if let Some(region) = self.region.as_mut().filter(|_| has_region(&self.config, source.1)) {
            let is_kept = region.contains(source) && !has_ended;
            if !is_empty && (state.line.is_progress() || is_kept) {
                region.show(now, source);
                return;
            }
            region.hide(now, source);
        }
        if is_empty || state.line.is_progress() {
            return;
        }
        match state.line.shown() {
            Some(shown) if console.row == Row::Open(source) => {
                console.extend_row(&state.line.text()[shown..]);
                state.line.mark_shown();
            }
            _ => {
                if let Some(after) = self.config.partial_after[source.1.index()]
                    && !state.is_watched
                {
                    state.is_watched = true;
                    self.quiet.push(Reverse((now + after, source)));
                }
            }
        }
    }

    /// Turns rows that ended some time ago into lines.
    fn end_rows(&mut self, now: Duration) {
        let due: Vec<Source> =
            self.ended_rows.iter().filter(|(_, due)| **due <= now).map(|(source, _)| *source).collect();
        for source in due {
            self.ended_rows.remove(&source);
            self.pass(now, source, |line, sink| line.end_block(sink));
            if self.config.mode != Mode::Grouped {
                self.follow(now, source, true);
            }
        }
    }

    fn show_quiet_lines(&mut self, now: Duration) {
        while let Some(Reverse((due, source))) = self.quiet.peek().copied()
            && due <= now
        {
            self.quiet.pop();
            let index = console_of(&self.config, source.1);
            let (Some(state), Some(after)) =
                (self.sources.get_mut(&source), self.config.partial_after[source.1.index()])
            else {
                continue;
            };
            state.is_watched = false;
            let is_shown = state.line.shown().is_some() && self.consoles[index].row == Row::Open(source);
            if state.line.text().is_empty() || state.line.is_progress() || is_shown {
                continue;
            }
            let is_behind = self.consoles[index].pending.len() >= BEHIND;
            if state.grew + after > now || is_behind {
                state.is_watched = true;
                let since = if is_behind { now } else { state.grew };
                self.quiet.push(Reverse((since + after, source)));
                continue;
            }
            while let Some(folded) = self.folds[source.1.index()].pop_until(source.0) {
                self.print_folded(source.1, &folded);
            }
            let console = &mut self.consoles[index];
            let region = self.region.as_mut().filter(|_| has_region(&self.config, source.1));
            if let Some(region) = region.filter(|region| region.is_in_use() || console.is_held) {
                region.show(now, source);
            } else if let Some(state) = self.sources.get_mut(&source) {
                console.open_row(source, &state.prefix, state.line.is_continued(), state.line.text());
                state.line.mark_shown();
            }
        }
    }

    fn print_folded(&mut self, stream: Stream, folded: &Folded) {
        let console = &mut self.consoles[console_of(&self.config, stream)];
        console.start_row();
        self.tagger.ranks(&folded.ranks, stream, folded.wall, console.out());
        write_after_tag(console.out(), &folded.text);
        console.out().push(b'\n');
    }

    /// A console got bytes: schedules the redraw that prints them above the region.
    fn schedule_redraw(&mut self, now: Duration, index: usize) {
        if let Some(region) = &mut self.region {
            region.schedule_redraw(now, &mut self.consoles[index]);
        }
    }

    fn redraw(&mut self, now: Duration) {
        let Some(region) = &mut self.region else {
            return;
        };
        let console = &mut self.consoles[console_of(&self.config, self.config.status_on)];
        if console.pending.len() >= BEHIND && region.is_in_use() {
            region.postpone(now);
            return;
        }
        let sources = &self.sources;
        region.redraw(now, console, |source| {
            let Some(state) = sources.get(&source) else { return Vec::new() };
            state.line.rows().into_iter().map(|row| [&state.prefix, row].concat()).collect()
        });
    }
}

/// The lines of one source, on their way to be folded.
struct FoldedRows<'a> {
    console: &'a mut Console,
    fold: &'a mut Fold,
    now: Duration,
    wall: Duration,
    source: Source,
}

impl LineSink for FoldedRows<'_> {
    fn block(&mut self, lines: &[u8]) {
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', lines) {
            self.fold.push(self.now, self.wall, self.source.0, &lines[begin..end]);
            begin = end + 1;
        }
    }

    fn line(&mut self, line: Line<'_>) {
        // The open row shows the beginning of this line: the line ends there, and is not folded.
        if self.console.finish_row(self.source, true, line) {
            return;
        }
        let continued = if line.continued { CONTINUED_MARK } else { "" };
        let cut = if line.end == End::Cut { CUT_MARK } else { "" };
        if continued.is_empty() && cut.is_empty() {
            self.fold.push(self.now, self.wall, self.source.0, line.text);
        } else {
            let text = [continued.as_bytes(), line.text, cut.as_bytes()].concat();
            self.fold.push(self.now, self.wall, self.source.0, &text);
        }
    }
}

fn console_of(config: &Config, stream: Stream) -> usize {
    if config.same_destination { Stream::Stdout.index() } else { stream.index() }
}

/// Whether the destination of this stream is the terminal with the status region.
fn has_region(config: &Config, stream: Stream) -> bool {
    config.same_destination || config.status_on == stream
}
