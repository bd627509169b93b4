//! The names of all values, in pages. An answer that lists them shares the pages with the store, as they are at that time, and
//! a page that changes meanwhile is copied.

use std::rc::Rc;

pub(super) type Name = Rc<[u8]>;

/// Names in a page: a copy takes microseconds, and a list of a million names is shared by two thousand references.
const PAGE: usize = 512;

/// A list in no order. All pages but the last are full.
#[derive(Clone, Default, Debug)]
pub(super) struct Names {
    pages: Vec<Rc<Vec<Name>>>,
    len: usize,
}

impl Names {
    /// Returns the place of the name.
    pub(super) fn push(&mut self, name: Name) -> usize {
        if self.len.is_multiple_of(PAGE) {
            self.pages.push(Rc::default());
        }
        if let Some(last) = self.pages.last_mut() {
            Rc::make_mut(last).push(name);
        }
        self.len += 1;
        self.len - 1
    }

    /// Removes the name at a place. The last one takes the place, and is returned.
    pub(super) fn swap_remove(&mut self, place: usize) -> Option<Name> {
        let last = self.pages.last_mut()?;
        let name = Rc::make_mut(last).pop()?;
        if last.is_empty() {
            self.pages.pop();
        }
        self.len -= 1;
        if place == self.len {
            return None;
        }
        let room = Rc::make_mut(self.pages.get_mut(place / PAGE)?).get_mut(place % PAGE)?;
        *room = Rc::clone(&name);
        Some(name)
    }

    pub(super) fn get(&self, place: usize) -> Option<&Name> {
        self.pages.get(place / PAGE)?.get(place % PAGE)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}
