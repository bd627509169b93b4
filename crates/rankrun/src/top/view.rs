//! What is looked at, and what keys do to that. Pure: the screen is drawn from it, and the loop does what it asks for.

use std::collections::BTreeSet;

use rankrun_core::Rank;
use rankrun_core::top::{Model, Row, Sort};

use super::keys::Key;

/// More ranks than this are shown as a grid, unless the user wants a list.
pub(crate) const MOST_LISTED: usize = 64;
/// Characters of a filter.
const LONGEST_FILTER: usize = 60;

/// How the ranks are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// A line for each.
    List,
    /// A character for each.
    Grid,
}

/// What covers the ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Panel {
    Help,
    /// All that is known of a rank.
    Rank(Rank),
    /// Where a rank is: the lines, once they are there.
    Stack(Rank, Option<Vec<String>>),
}

/// What the user is asked for in the last line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prompt {
    Filter,
    Restart,
    Stop,
}

/// What the loop is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Quit,
    /// As ^C does.
    Interrupt,
    /// As ^Z does.
    Suspend,
    Redraw,
    /// Ask where a rank is.
    Stack(Rank),
    Restart,
    Stop,
}

/// What the user looks at.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// What the user has chosen; otherwise it depends on the number of ranks.
    layout: Option<Layout>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    selected: Option<Rank>,
    /// The first line that is shown, of the ranks and of a panel.
    pub(super) top: usize,
    pub(super) panel_top: usize,
    pub(super) panel: Option<Panel>,
    pub(super) prompt: Option<Prompt>,
    /// The answer to what the user has asked for.
    pub(super) message: Option<String>,
    /// Where each rank was drawn last, in order, and how many lines there was room for.
    pub(super) places: Vec<Place>,
    pub(super) page: usize,
}

/// Where a rank is drawn: its line, counted from the first one, and its column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) rank: Rank,
    pub(super) line: usize,
    pub(super) x: u16,
}

impl View {
    pub(crate) fn layout(&self, ranks: usize) -> Layout {
        self.layout.unwrap_or(if ranks > MOST_LISTED { Layout::Grid } else { Layout::List })
    }

    /// The selected rank: the first one, if the user has not chosen another that is shown.
    pub(super) fn selected(&self) -> Option<Rank> {
        self.selected_place().and_then(|at| self.places.get(at)).map(|place| place.rank)
    }

    fn selected_place(&self) -> Option<usize> {
        let chosen = self.selected.and_then(|rank| self.places.iter().position(|place| place.rank == rank));
        chosen.or((!self.places.is_empty()).then_some(0))
    }

    /// Where ranks are drawn now. Scrolls so that the selected one is among the lines that there is room for.
    pub(super) fn place(&mut self, places: Vec<Place>, page: usize) {
        (self.places, self.page) = (places, page);
        let last = self.places.last().map_or(0, |place| place.line);
        let line = self.selected_place().map_or(0, |at| self.places[at].line);
        self.top = self.top.min((last + 1).saturating_sub(page)).min(line);
        self.top = self.top.max((line + 1).saturating_sub(page.max(1)));
    }

    /// Says something in the last line, until the next key.
    pub(crate) fn say(&mut self, text: String) {
        self.message = Some(text);
    }

    /// Where a rank is has been found.
    pub(crate) fn show_stack(&mut self, rank: Rank, lines: Vec<String>) {
        if let Some(Panel::Stack(shown, found)) = &mut self.panel
            && *shown == rank
        {
            *found = Some(lines);
        }
    }

    /// A key was pressed.
    pub(crate) fn press(&mut self, key: Key, model: &Model) -> Option<Action> {
        self.message = None;
        match key {
            Key::Control('c') => return Some(Action::Interrupt),
            Key::Control('z') => return Some(Action::Suspend),
            Key::Control('l') => return Some(Action::Redraw),
            _ => {}
        }
        match self.prompt {
            Some(Prompt::Filter) => self.edit_filter(key),
            Some(prompt @ (Prompt::Restart | Prompt::Stop)) => {
                self.prompt = None;
                let is_sure = matches!(key, Key::Char('y' | 'Y'));
                return is_sure.then_some(if prompt == Prompt::Stop { Action::Stop } else { Action::Restart });
            }
            None if self.panel.is_some() => return self.press_in_panel(key),
            None => return self.press_in_ranks(key, model),
        }
        None
    }

    fn edit_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.prompt = None,
            Key::Escape => {
                self.prompt = None;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Control('u') => self.filter.clear(),
            Key::Char(char) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(char),
            _ => {}
        }
        self.top = 0;
    }

    fn press_in_panel(&mut self, key: Key) -> Option<Action> {
        let page = self.page.max(1);
        match key {
            Key::Char('q') | Key::Escape | Key::Left | Key::Backspace | Key::Char('h') => self.panel = None,
            Key::Char('?') if self.panel == Some(Panel::Help) => self.panel = None,
            Key::Up | Key::Char('k') => self.panel_top = self.panel_top.saturating_sub(1),
            Key::Down | Key::Char('j') => self.panel_top += 1,
            Key::PageUp => self.panel_top = self.panel_top.saturating_sub(page),
            Key::PageDown | Key::Char(' ') => self.panel_top += page,
            Key::Home | Key::Char('g') => self.panel_top = 0,
            Key::Char('s') => return self.look_into(),
            Key::Char('r') => self.prompt = Some(Prompt::Restart),
            Key::Char('S' | 'x') => self.prompt = Some(Prompt::Stop),
            Key::Enter if matches!(self.panel, Some(Panel::Help | Panel::Rank(_))) => self.panel = None,
            _ => {}
        }
        None
    }

    /// Asks where the selected rank is.
    fn look_into(&mut self) -> Option<Action> {
        let rank = self.selected()?;
        self.open(Panel::Stack(rank, None));
        Some(Action::Stack(rank))
    }

    fn open(&mut self, panel: Panel) {
        self.panel = Some(panel);
        self.panel_top = 0;
    }

    fn press_in_ranks(&mut self, key: Key, model: &Model) -> Option<Action> {
        let last = self.places.len().saturating_sub(1);
        let at = self.selected_place().unwrap_or(0);
        let page = self.page.max(1) as isize;
        let to = match key {
            Key::Up | Key::Char('k') => self.beside(at, -1),
            Key::Down | Key::Char('j') => self.beside(at, 1),
            Key::Left | Key::Char('h') => at.saturating_sub(1),
            Key::Right | Key::Char('l') => (at + 1).min(last),
            Key::PageUp | Key::Control('b') => self.beside(at, -page),
            Key::PageDown | Key::Char(' ') | Key::Control('f') => self.beside(at, page),
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => last,
            Key::Char('n') => self.next_odd(model, at, true),
            Key::Char('N') => self.next_odd(model, at, false),
            _ => return self.command(key, model),
        };
        self.selected = self.places.get(to).map(|place| place.rank);
        None
    }

    /// A key that does not move.
    fn command(&mut self, key: Key, model: &Model) -> Option<Action> {
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Char('s') => return self.look_into(),
            Key::Enter => {
                if let Some(rank) = self.selected() {
                    self.open(Panel::Rank(rank));
                }
            }
            Key::Char('?') => self.open(Panel::Help),
            Key::Char('/') => self.prompt = Some(Prompt::Filter),
            Key::Char('r') => self.prompt = Some(Prompt::Restart),
            Key::Char('S' | 'x') => self.prompt = Some(Prompt::Stop),
            Key::Escape => self.filter.clear(),
            Key::Char('o') => self.order(self.sort.next()),
            Key::Char('!') => self.order(if self.sort == Sort::Odd { Sort::Rank } else { Sort::Odd }),
            Key::Tab | Key::Char('v') => {
                let is_grid = self.layout(model.rows().len()) == Layout::Grid;
                self.layout = Some(if is_grid { Layout::List } else { Layout::Grid });
                self.top = 0;
            }
            _ => {}
        }
        None
    }

    /// Another order: its first rank is what is looked for.
    fn order(&mut self, sort: Sort) {
        (self.sort, self.selected, self.top) = (sort, None, 0);
    }

    /// The rank that is so many lines below: the nearest one of the last line, if there are fewer.
    fn beside(&self, at: usize, lines: isize) -> usize {
        let Some(place) = self.places.get(at) else { return 0 };
        let last = self.places.last().map_or(0, |place| place.line);
        let line = place.line.saturating_add_signed(lines).min(last);
        let there = self.places.iter().enumerate().filter(|(_, other)| other.line == line);
        there.min_by_key(|(_, other)| other.x.abs_diff(place.x)).map_or(at, |(at, _)| at)
    }

    /// The next odd rank that is shown, in this direction; after the last comes the first.
    fn next_odd(&self, model: &Model, at: usize, is_forward: bool) -> usize {
        let odd: BTreeSet<Rank> = model.rows().iter().filter(|row| row.mark.is_some()).map(Row::rank).collect();
        let count = self.places.len();
        let step = if is_forward { 1 } else { count.saturating_sub(1) };
        let mut places = (1..=count).map(|number| (at + number * step) % count);
        places.find(|place| odd.contains(&self.places[*place].rank)).unwrap_or(at)
    }
}
