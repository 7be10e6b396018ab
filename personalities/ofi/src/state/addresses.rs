//! An address vector in the state of its domain.

use crate::abi::Addr;
use crate::lookup::{self, Answer, Question};
use crate::names::Name;

/// The addresses.
#[derive(Default)]
pub(crate) struct AvState {
    pub(crate) names: Vec<Option<Name>>,
    /// Numbers that were removed, to be given again.
    free: Vec<usize>,
    /// Changes with every insertion and removal.
    pub(crate) version: u64,
    /// Endpoints bound to it.
    pub(crate) users: usize,
    /// The queries for the nodes at places, by number.
    questions: Vec<(usize, Question)>,
}

impl AvState {
    pub(crate) fn insert(&mut self, name: Name) -> Addr {
        self.version += 1;
        let at = self.free.pop().unwrap_or(self.names.len());
        if let Name::Place(bytes) = &name
            && let Some(to) = lookup::place(bytes, false)
        {
            self.questions.push((at, Question::ask(to)));
        }
        match self.names.get_mut(at) {
            Some(place) => *place = Some(name),
            None => self.names.push(Some(name)),
        }
        at as Addr
    }

    pub(crate) fn remove(&mut self, at: Addr) -> bool {
        let Some(place) = self.names.get_mut(at as usize) else { return false };
        let was = place.take().is_some();
        if was {
            self.version += 1;
            self.free.push(at as usize);
            self.questions.retain(|(asked, _)| *asked != at as usize);
        }
        was
    }

    pub(crate) fn get(&self, at: Addr) -> Option<&Name> {
        self.names.get(at as usize)?.as_ref()
    }

    /// Whether a query for the node there is under way.
    pub(crate) fn asks(&self, at: usize) -> bool {
        self.questions.iter().any(|(asked, _)| *asked == at)
    }

    /// Polls for answers; whether some are still to come.
    pub(crate) fn handle(&mut self) -> bool {
        let Self { names, questions, version, .. } = self;
        questions.retain_mut(|(at, question)| {
            let answer = question.poll();
            if let (Answer::Node(node), Some(place)) = (&answer, names.get_mut(*at)) {
                *place = Some(Name::Node(node.clone()));
            }
            *version += u64::from(answer != Answer::NotYet);
            answer == Answer::NotYet
        });
        !questions.is_empty()
    }
}
