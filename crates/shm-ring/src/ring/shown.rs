//! How much of a direction a reader may see while its writer holds bytes back.

use madrigal_base::sync::Ordering;
use madrigal_sys::time;

use crate::layout::{Direction, HELD, POSITION, SEALED};

/// TCP holds a part of a segment back for this long at the most (tcp(7), `TCP_CORK`).
pub const HOLD_NS: u64 = 200_000_000;
/// How often the word may change under a reader that takes the bit off.
const RACES: u32 = 1000;

/// What a reader may see of a direction while its writer holds bytes back.
#[cold]
pub(super) fn shown(dir: &Direction, mut word: u64) -> u64 {
    for _ in 0..RACES {
        if word & HELD == 0 || word & SEALED != 0 {
            break;
        }
        if left(dir) > 0 {
            // Positions only grow: what was read stays so, whatever the peer writes there.
            let head = dir.r.head.load(Ordering::Relaxed) & POSITION;
            let from = dir.wake.held_from.load(Ordering::SeqCst);
            // SYNC: SeqCst, behind the mark: it is that of this word only while the word stays. The writer may have shown all, and hold
            // more.
            let now = dir.w.tail.load(Ordering::SeqCst);
            if now == word {
                return from.max(head).min(word & POSITION);
            }
            word = now;
            continue;
        }
        // SYNC: SeqCst: of writer and reader only one changes this very word.
        match dir.w.tail.compare_exchange(word, word & !HELD, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => break,
            Err(seen) => word = seen,
        }
    }
    word & !HELD
}

/// For how long what is held stays so.
pub(super) fn left(dir: &Direction) -> u64 {
    // SYNC: Acquire: before the clock, so that a writer that holds anew meanwhile is no time to come. Such a one a peer made up.
    let since = dir.wake.held_since.load(Ordering::Acquire);
    HOLD_NS.saturating_sub(now().wrapping_sub(since))
}

/// The clock, which stands still in models: a coarse one, for a spinning reader reads it each time.
pub(super) fn now() -> u64 {
    if cfg!(feature = "shuttle") { 0 } else { time::tick_ns() }
}
