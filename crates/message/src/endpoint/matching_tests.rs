//! The matching against a model that searches everything every time.

use proptest::prelude::*;

use super::Matching;

#[derive(Clone, Debug)]
enum Step {
    Post { from: Option<u32>, tag: u64, ignore: u64 },
    Message { from: u32, tag: u64 },
    Cancel { nth: usize },
    Claim { from: Option<u32>, tag: u64, ignore: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let from = prop_oneof![Just(None), (0..3u32).prop_map(Some)];
    let ignore = prop_oneof![Just(0u64), Just(1), Just(u64::MAX)];
    prop_oneof![
        4 => (from.clone(), 0..4u64, ignore.clone()).prop_map(|(from, tag, ignore)| Step::Post { from, tag, ignore }),
        4 => (0..3u32, 0..4u64).prop_map(|(from, tag)| Step::Message { from, tag }),
        1 => (0..8usize).prop_map(|nth| Step::Cancel { nth }),
        1 => (from, 0..4u64, ignore).prop_map(|(from, tag, ignore)| Step::Claim { from, tag, ignore }),
    ]
}

/// A posted receive or an unexpected message: its number, its peer, its tag, what to ignore.
type Entry = (usize, Option<u32>, u64, u64);

#[derive(Default)]
struct Model {
    receives: Vec<Entry>,
    messages: Vec<Entry>,
}

fn fits((_, from, tag, ignore): &Entry, (_, of, with, _): &Entry) -> bool {
    (from.is_none() || from == of) && (tag ^ with) & !ignore == 0
}

impl Model {
    /// The number of the receive it went into.
    fn message(&mut self, entry: Entry) -> Option<usize> {
        match self.receives.iter().position(|receive| fits(receive, &entry)) {
            Some(at) => Some(self.receives.remove(at).0),
            None => {
                self.messages.push(entry);
                None
            }
        }
    }

    fn find(&mut self, wanted: &Entry) -> Option<usize> {
        let at = self.messages.iter().position(|message| fits(wanted, message))?;
        Some(self.messages.remove(at).0)
    }
}

proptest! {
    #[test]
    fn does_what_the_model_does(steps in prop::collection::vec(step(), 1..200)) {
        let mut real = Matching::<usize, usize>::default();
        let mut model = Model::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Post { from, tag, ignore } => {
                    let found = real.waiting(from, tag, ignore);
                    let taken = found.and_then(|at| real.take_message(at, false)).map(|(_, _, number)| number);
                    let entry = (number, from, tag, ignore);
                    let expected = model.find(&entry);
                    prop_assert_eq!(taken, expected);
                    if taken.is_none() {
                        real.post(from, tag, ignore, number);
                        model.receives.push(entry);
                    }
                }
                Step::Message { from, tag } => {
                    let taken = real.wanted(from, tag).and_then(|at| real.take_receive(at));
                    prop_assert_eq!(taken, model.message((number, Some(from), tag, 0)));
                    if taken.is_none() {
                        real.keep(from, tag, number);
                    }
                }
                Step::Cancel { nth } => {
                    let number = (!model.receives.is_empty()).then(|| model.receives.remove(nth % model.receives.len()).0);
                    let Some(number) = number else { continue };
                    let at = real.posted(None, |value| *value == number);
                    prop_assert_eq!(at.and_then(|at| real.take_receive(at)), Some(number));
                }
                Step::Claim { from, tag, ignore } => {
                    let expected = model.find(&(0, from, tag, ignore));
                    let found = real.waiting(from, tag, ignore);
                    prop_assert_eq!(found.is_some(), expected.is_some());
                    let Some(at) = found else { continue };
                    prop_assert!(real.take_message(at, true).is_none());
                    prop_assert!(real.claim(at) && !real.claim(at));
                    prop_assert!(real.take_message(at, false).is_none());
                    prop_assert_eq!(real.take_message(at, true).map(|(_, _, number)| number), expected);
                }
            }
        }
    }
}
