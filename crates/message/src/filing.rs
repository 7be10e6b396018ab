//! Operations of an endpoint that several threads wait for. A waiting thread makes progress for all, and files completions for the
//! others. No lock is held while a thread waits.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use madrigal_sys::piece::Piece;

use crate::Endpoint;
use crate::endpoint::{Completion, Kind, PeerId, PostError, Posted};
use crate::memory::lend;

/// Bytes of copies that may still be on their way when another one is sent.
const MOST_COPIED: usize = 64 << 20;

/// An endpoint, and what was posted to it.
pub(crate) struct Filing {
    endpoint: Endpoint,
    tokens: AtomicU64,
    filed: Mutex<Filed>,
}

/// Completions that no caller has taken yet.
#[derive(Default)]
struct Filed {
    fresh: VecDeque<Completion>,
    done: Vec<Completion>,
    /// Copies that are still being sent, by token.
    outbox: Vec<(u64, Vec<u8>)>,
    copied: usize,
    /// Operations that nobody waits for.
    forgotten: HashSet<u64>,
}

impl Filing {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, tokens: AtomicU64::new(1), filed: Mutex::default() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A token of its own for an operation.
    pub(crate) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes progress, and files completions; if there are none, lets others run.
    pub(crate) fn turn(&self) {
        if !lock(&self.filed).file(&self.endpoint) {
            self.endpoint.worker().idle();
        }
    }

    /// Makes progress if nothing is complete, and files completions.
    pub(crate) fn collect(&self) {
        lock(&self.filed).file(&self.endpoint);
    }

    /// Waits for an operation. It is complete when this returns.
    pub(crate) fn wait(&self, kind: Kind, token: u64) -> Completion {
        loop {
            if let Some(done) = self.take(kind, token) {
                return done;
            }
            self.turn();
        }
    }

    /// The end of an operation, if it is over.
    pub(crate) fn take(&self, kind: Kind, token: u64) -> Option<Completion> {
        lock(&self.filed).take(kind, token)
    }

    /// Nobody waits for an operation, which has no memory but what stays.
    pub(crate) fn forget(&self, token: u64) {
        let mut filed = lock(&self.filed);
        filed.forgotten.insert(token);
        filed.drop_forgotten();
    }

    /// Waits until a message to that peer would be taken, or is known to fail.
    pub(crate) fn wait_for_room(&self, peer: PeerId) {
        while !self.endpoint.has_room(peer) {
            self.turn();
        }
    }

    /// Posts until there is room.
    pub(crate) fn post_when_room(
        &self,
        peer: PeerId,
        post: impl Fn() -> Result<Posted, PostError>,
    ) -> Result<Posted, PostError> {
        loop {
            match post() {
                Err(PostError::Again) => self.wait_for_room(peer),
                posted => return posted,
            }
        }
    }

    /// Sends bytes of our own by `post`, which are kept until they were sent.
    pub(crate) fn keep(
        &self,
        bytes: Vec<u8>,
        post: impl FnOnce(Piece, u64) -> Result<Posted, PostError>,
    ) -> Result<Posted, PostError> {
        while lock(&self.filed).copied > MOST_COPIED {
            self.turn();
        }
        let (piece, token) = (lend(&bytes), self.token());
        // In the outbox before any thread can file its end.
        let mut filed = lock(&self.filed);
        filed.copied += bytes.len();
        filed.outbox.push((token, bytes));
        drop(filed);
        let posted = post(piece, token);
        if posted != Ok(Posted::Pending) {
            lock(&self.filed).sent(token);
        }
        posted.map(|_| Posted::Done)
    }
}

impl Filed {
    /// Files completions; copies that were sent are dropped. False: there were none.
    fn file(&mut self, endpoint: &Endpoint) -> bool {
        let count = endpoint.drain(&mut self.fresh, true);
        while let Some(completion) = self.fresh.pop_front() {
            if completion.kind != Kind::Sent || !self.sent(completion.token) {
                self.done.push(completion);
            }
        }
        self.drop_forgotten();
        count > 0
    }

    fn drop_forgotten(&mut self) {
        let forgotten = &mut self.forgotten;
        if !forgotten.is_empty() {
            self.done.retain(|done| !forgotten.remove(&done.token));
        }
    }

    /// A copy was sent. False: it was none.
    fn sent(&mut self, token: u64) -> bool {
        let Some(at) = self.outbox.iter().position(|(kept, _)| *kept == token) else { return false };
        let (_, bytes) = self.outbox.swap_remove(at);
        self.copied -= bytes.len();
        true
    }

    fn take(&mut self, kind: Kind, token: u64) -> Option<Completion> {
        let at = self.done.iter().position(|done| (done.kind, done.token) == (kind, token))?;
        Some(self.done.swap_remove(at))
    }
}

impl Drop for Filing {
    fn drop(&mut self) {
        // Copies are ours until they were sent: the endpoint does not close before, or gives them up.
        while !lock(&self.filed).outbox.is_empty() {
            self.turn();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
