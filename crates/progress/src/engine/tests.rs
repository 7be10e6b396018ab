//! Tests of the engine with sources made of counters and eventfds.
//!
//! Features (docs/features.md): A1, A2, A5, A6, A9, A12.

use core::sync::atomic::{AtomicBool, AtomicU64};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{OnceLock, Weak};

use super::*;

/// A descriptor to be reported by.
struct Event(Fd);

impl Event {
    fn new() -> Arc<Self> {
        Arc::new(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap().into()))
    }

    fn ring(&self) {
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).unwrap();
    }
}

impl Signal for Event {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn woken(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// A source that calls back.
struct Call<F>(F, Next);

impl<F: Fn(u32) -> u32 + Send + Sync> Source for Call<F> {
    fn work(&self, budget: u32) -> Work {
        Work { count: (self.0)(budget), next: self.1 }
    }

    fn arm(&self) -> bool {
        self.1 == Next::Again
    }
}

fn call(next: Next, f: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Arc<dyn Source> {
    Arc::new(Call(f, next))
}

#[test]
fn a_thousand_callbacks_run_once_per_readiness() {
    let engine = Engine::new().unwrap();
    let counts: Arc<Vec<AtomicU64>> = Arc::new((0..1000).map(|_| AtomicU64::new(0)).collect());
    let class = engine.class("event");
    let all: Vec<_> = (0..1000)
        .map(|i| {
            let (event, counts) = (Event::new(), Arc::clone(&counts));
            let source = call(Next::Park, move |_| {
                counts[i].fetch_add(1, Ordering::Relaxed);
                1
            });
            (engine.register(class, Some(event.clone()), source).unwrap(), event)
        })
        .collect();
    for round in 1..=3 {
        for (_, event) in &all {
            event.ring();
        }
        while engine.do_work() > 0 {}
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == round));
    }
    assert_eq!(engine.do_work(), 0);
}

#[test]
fn shares_follow_the_weights_at_run_time() {
    let engine = Engine::new().unwrap();
    let (a, b) = (engine.class("a"), engine.class("b"));
    let flood = |class| {
        let r = engine.register(class, None, call(Next::Again, |budget| budget)).unwrap();
        r.wake();
        r
    };
    let _keep = [flood(a), flood(a), flood(b)];
    for (wa, wb) in [(10, 30), (40, 10), (7, 7)] {
        engine.set_weight(a, wa);
        engine.set_weight(b, wb);
        let before = (engine.work_done(a), engine.work_done(b));
        for _ in 0..100 {
            engine.do_work();
        }
        let done = (engine.work_done(a) - before.0, engine.work_done(b) - before.1);
        assert_eq!(done, (u64::from(wa) * 100, u64::from(wb) * 100));
    }
}

#[test]
fn one_source_of_a_class_does_not_starve_another() {
    let engine = Engine::new().unwrap();
    let class = engine.class("a");
    let served = Arc::new(AtomicU64::new(0));
    let greedy = engine.register(class, None, call(Next::Again, |budget| budget)).unwrap();
    let modest = {
        let served = Arc::clone(&served);
        let source = call(Next::Again, move |_| {
            served.fetch_add(1, Ordering::Relaxed);
            1
        });
        engine.register(class, None, source).unwrap()
    };
    greedy.wake();
    modest.wake();
    for _ in 0..100 {
        engine.do_work();
    }
    assert!(served.load(Ordering::Relaxed) >= 45);
}

#[test]
fn watched_sources_are_parked_after_a_while_and_come_back() {
    let engine = Engine::new().unwrap();
    let class = engine.class("a");
    let visits = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&visits);
    let source = call(Next::Watch, move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        0
    });
    let event = Event::new();
    let _r = engine.register(class, Some(event.clone()), source).unwrap();
    event.ring();
    for _ in 0..5_000 {
        engine.do_work();
    }
    let after = visits.load(Ordering::Relaxed);
    assert!((1_000..4_000).contains(&after), "{after}");
    engine.do_work();
    assert_eq!(visits.load(Ordering::Relaxed), after);
    event.ring();
    engine.do_work();
    assert_eq!(visits.load(Ordering::Relaxed), after + 1);
}

#[test]
fn callbacks_may_turn_the_engine_register_and_remove() {
    let engine = Engine::new().unwrap();
    let class = engine.class("a");
    let inner_ran = Arc::new(AtomicBool::new(false));
    let own: Arc<OnceLock<Registration>> = Arc::default();
    let (weak, ran): (Weak<Engine>, _) = (Arc::downgrade(&engine), Arc::clone(&inner_ran));
    let outer = call(Next::Park, move |_| {
        let engine = weak.upgrade().unwrap();
        let ran_inner = Arc::clone(&ran);
        let inner = call(Next::Park, move |_| {
            ran_inner.store(true, Ordering::Relaxed);
            1
        });
        let inner = engine.register(class, None, inner).unwrap();
        inner.wake();
        let done = engine.wait_until(&Waiter::default(), None, || ran.load(Ordering::Relaxed));
        drop(inner);
        u32::from(done)
    });
    let _ = own.set(engine.register(class, None, outer).unwrap());
    own.get().unwrap().wake();
    assert!(engine.wait_until(&Waiter::default(), None, || inner_ran.load(Ordering::Relaxed)));
    drop(own);
    assert_eq!(engine.do_work(), 0);
}

#[test]
fn deadlines_and_timers_end_a_sleep() {
    let engine = Engine::new().unwrap();
    let begun = time::now_ns();
    assert!(!engine.wait_until(&Waiter::default(), Some(begun + 3_000_000), || false));
    assert!(time::now_ns() >= begun + 3_000_000);
    let fired = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&fired);
    let source = call(Next::Park, move |_| {
        set.store(true, Ordering::Relaxed);
        1
    });
    let r = engine.register(engine.class("a"), None, source).unwrap();
    let at = time::now_ns() + 3_000_000;
    r.wake_at(at);
    assert!(engine.wait_until(&Waiter::default(), None, || fired.load(Ordering::Relaxed)));
    assert!(time::now_ns() >= at);
}

/// Tokens go round: a thread that sleeps for its own token is woken whichever thread runs the engine, thousands of times.
#[test]
fn sleepers_on_many_threads_are_never_forgotten() {
    const THREADS: usize = 6;
    const ROUNDS: usize = 20_000;
    let engine = Engine::new().unwrap();
    engine.policy().set_max_spin_ns(0);
    let class = engine.class("token");
    // Sent to a thread, and delivered to it by its source.
    let tokens: Arc<Vec<Mutex<(usize, usize)>>> = Arc::new((0..THREADS).map(|_| Mutex::default()).collect());
    let made: Vec<_> = (0..THREADS)
        .map(|i| {
            let (event, tokens, weak) = (Event::new(), Arc::clone(&tokens), Arc::downgrade(&engine));
            let source = call(Next::Park, move |_| {
                let (sent, delivered) = &mut *queue::lock(&tokens[i]);
                *delivered += core::mem::take(sent);
                weak.upgrade().unwrap().call_all();
                1
            });
            (engine.register(class, Some(event.clone()), source).unwrap(), event)
        })
        .collect();
    let (engine, tokens, made) = (&engine, &tokens, &made);
    let thread = move |i: usize| {
        for _ in 0..ROUNDS {
            // Half of the threads are woken by the kernel, half by a registration.
            let next = (i + 1) % THREADS;
            queue::lock(&tokens[next]).0 += 1;
            if next.is_multiple_of(2) {
                made[next].1.ring()
            } else {
                made[next].0.wake()
            }
            let mut sleep = engine.sleeper();
            let mut taken = || {
                let delivered = &mut queue::lock(&tokens[i]).1;
                *delivered > 0
            };
            while !taken() {
                if engine.do_work() == 0 {
                    sleep.sleep(None, &mut taken);
                }
            }
            queue::lock(&tokens[i]).1 -= 1;
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|i| drop(scope.spawn(move || thread(i)))));
}

#[test]
fn a_source_that_was_woken_and_removed_lets_its_engine_go() {
    let engine = Engine::new().unwrap();
    let (its, gone) = (Arc::clone(&engine), Arc::downgrade(&engine));
    let source = call(Next::Park, move |_| its.policy().max_spin_ns() as u32);
    let registration = engine.register(engine.class("woken"), None, source).unwrap();
    registration.wake();
    drop((registration, engine));
    assert!(gone.upgrade().is_none());
}

#[test]
fn who_sleeps_by_other_means_is_woken_by_the_descriptor() {
    let engine = Engine::new().unwrap();
    let (event, count) = (Event::new(), Arc::new(AtomicU64::new(0)));
    let its = Arc::clone(&count);
    let source = call(Next::Park, move |_| its.fetch_add(1, Ordering::Relaxed) as u32 + 1);
    let registration = engine.register(engine.class("event"), Some(event.clone()), source).unwrap();
    let sleeps = |engine: &Engine, seconds: i64| {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(engine.descriptor(), rustix::event::PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: seconds, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&limit)).unwrap() == 0
    };
    assert!(!engine.begin_sleep());
    assert!(sleeps(&engine, 0));
    // Rung by its descriptor, and woken by another thread.
    for wake in [&|| event.ring(), &|| registration.wake()] as [&dyn Fn(); 2] {
        assert!(!engine.begin_sleep());
        wake();
        assert!(!sleeps(&engine, 10), "it is readable");
        engine.end_sleep();
        assert!(sleeps(&engine, 0), "and was taken out");
        assert!(engine.begin_sleep(), "there is something to do");
        while engine.do_work() > 0 {}
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
    registration.wake_at(77);
    assert_eq!(engine.first_timer(), Some(77));
}

/// A source that panics is left alone, not forgotten: it is visited again when it is reported.
#[test]
fn a_source_that_panics_is_visited_again() {
    let engine = Engine::new().unwrap();
    let (event, visits) = (Event::new(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&visits);
    let source = call(Next::Park, move |_| {
        assert!(count.fetch_add(1, Ordering::Relaxed) > 0, "as it is wanted");
        1
    });
    let signal = Arc::clone(&event) as Arc<dyn Signal>;
    let registration = engine.register(engine.class("event"), Some(signal), source).unwrap();
    registration.wake();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.do_work()));
    assert!(panicked.is_err());
    assert_eq!((engine.do_work(), visits.load(Ordering::Relaxed)), (0, 1));
    event.ring();
    engine
        .wait_until(&Waiter::default(), Some(time::now_ns() + 100_000_000_000), || visits.load(Ordering::Relaxed) > 1);
    assert_eq!(visits.load(Ordering::Relaxed), 2);
}
