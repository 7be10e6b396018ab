//! Offers: posting, taking, answering and freeing a place, one step after the other, and as a scheduler interleaves them
//! (`cargo test -p madrigal-offers --features shuttle`).
#![allow(unsafe_code)]

use std::sync::Arc;

use super::*;

fn table() -> Arc<Table> {
    // SAFETY: zeroed memory is a table.
    unsafe { Arc::<Table>::new_zeroed().assume_init() }
}

fn tuple(port: u16) -> Tuple {
    let tuple = Tuple::default();
    tuple.set_for_test(port);
    tuple
}

#[cfg(not(feature = "shuttle"))]
mod steps {
    use super::*;

    #[test]
    fn an_offer_is_found_once_and_by_its_tuple_only() {
        let (table, wanted) = (table(), tuple(1));
        let place = table.post(&wanted, |offer| offer.slot.store(5, Relaxed)).unwrap();
        assert_eq!((table.standing(place), table.posts()), (Standing::Waiting, 1));
        assert!(table.find(&tuple(2)).is_none());
        let (found, offer) = table.find(&wanted).unwrap();
        assert_eq!((found, offer.slot.load(Relaxed)), (place, 5));
        assert!(table.find(&wanted).is_none());
        table.answer(found, Answer::Accepted);
        assert_eq!(table.standing(place), Standing::Answered(Answer::Accepted));
        table.free(place);
        assert_eq!(table.standing(place), Standing::Answered(Answer::No));
        assert!(!table.is_marked(8080));
        table.mark(8080);
        assert!(table.is_marked(8080) && !table.is_marked(8081));
    }

    #[test]
    fn an_answer_that_comes_late_changes_nobody_elses_offer() {
        let (table, wanted) = (table(), tuple(1));
        let old = table.post(&wanted, |_| {}).unwrap();
        let (taken, _) = table.find(&wanted).unwrap();
        table.free(old);
        let new = table.post(&wanted, |_| {}).unwrap();
        assert_eq!(new.index, old.index);
        table.answer(taken, Answer::Refused);
        assert_eq!(table.standing(new), Standing::Waiting);
        table.free(old);
        assert!(table.find(&wanted).is_some_and(|(place, _)| place == new));
    }

    #[test]
    fn a_full_neighbourhood_is_no_place() {
        let (table, wanted) = (table(), tuple(1));
        assert_eq!((0..=PROBES).filter_map(|_| table.post(&wanted, |_| {})).count(), PROBES);
    }
}

/// Two connections that share a place, one accepting process, and answers that come late: each answer reaches the offer it is for.
#[cfg(feature = "shuttle")]
#[test]
fn answers_reach_the_offer_they_are_for() {
    use madrigal_base::sync::explored::mortal::Process;
    use shuttle::rand::Rng;

    let run = || {
        let table = table();
        let dies = |one: bool| {
            let at = if one { shuttle::rand::thread_rng().gen_range(1..40) } else { 0 };
            Process::killed_after(at)
        };
        let (offering, answering) = (dies(shuttle::rand::thread_rng().gen_bool(0.3)), dies(false));
        let offers = [1u64, 2].map(|number| {
            let (table, process) = (Arc::clone(&table), offering.clone());
            shuttle::thread::spawn(move || {
                process.run(|| {
                    for round in 0..3 {
                        let session = number << 8 | round;
                        let fill = |offer: &Offer| offer.session.store(session, Relaxed);
                        let Some(place) = table.post(&tuple(7), fill) else { continue };
                        for _ in 0..4 {
                            if table.standing(place) == Standing::Answered(Answer::OtherArena) {
                                assert_eq!(table.answerer(place), session, "another offer's answer");
                            }
                            shuttle::thread::yield_now();
                        }
                        table.free(place);
                    }
                });
            })
        });
        let table = Arc::clone(&table);
        let answers = shuttle::thread::spawn(move || {
            answering.run(|| {
                for _ in 0..5 {
                    let Some((place, offer)) = table.find(&tuple(7)) else {
                        shuttle::thread::yield_now();
                        continue;
                    };
                    let session = offer.session.load(Relaxed);
                    if table.standing(place) == Standing::Waiting {
                        offer.answer.store(session, Relaxed);
                    }
                    table.answer(place, Answer::OtherArena);
                }
            });
        });
        offers.into_iter().for_each(|thread| thread.join().unwrap());
        answers.join().unwrap();
    };
    shuttle::check_random(run, 2_000);
    shuttle::check_pct(run, 1_000, 4);
}
