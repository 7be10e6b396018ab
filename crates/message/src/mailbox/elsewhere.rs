//! A third process keeps data: of those that offer memory, the one with the least of it in use (LANDA-HSN, section 3.2.1).

use std::collections::BTreeMap;
use std::sync::Arc;

use madrigal_base::node::NodeAddress;
use madrigal_sys::time;

use super::buffer::Buffer;
use super::error::MailError;
use super::hub::Hub;
use super::state::{Answer, Offering, Request, State};
use super::wire::{ALL, Call, Kept};
use crate::endpoint::PeerId;
use crate::ports::PortAddress;

/// How long those that had no room are left alone.
const PAUSE_NS: u64 = 20_000_000;
/// How long one may take to fetch the data, or to say no, before the next one is asked.
const ASK_NS: u64 = 1_000_000_000;

impl Hub {
    /// From now on that process is asked to keep data.
    pub(super) fn add_store(&self, address: &PortAddress) {
        let peer = self.filing.endpoint().peer(&address.node);
        let mut state = self.lock();
        if state.stores.iter().all(|store| store.peer != peer) {
            state.stores.push(Offering { address: Arc::new(address.clone()), peer, load: Default::default() });
        }
    }

    /// Asks one after the other until one has the data; none of the parties. Where all are full they are asked again until the deadline.
    pub(super) fn ask_stores(
        &self,
        deadline: Option<u64>,
        parties: &[PeerId],
        holders: &[NodeAddress],
        buffer: &Buffer,
    ) -> Result<(Arc<PortAddress>, PeerId, Kept), MailError> {
        let size = buffer.len() as u64;
        // What each said last.
        let mut said: BTreeMap<PeerId, String> = BTreeMap::new();
        loop {
            let mut tried = parties.to_vec();
            while let Some((address, peer)) = self.choose(&tried) {
                let why = match self.ask_one(deadline, peer, holders, buffer)? {
                    Some(Ok(kept)) => return Ok((address, peer, kept)),
                    Some(Err(why)) => Some(why),
                    None => (!said.contains_key(&peer)).then(|| "it has not answered in the time given".to_owned()),
                };
                said.extend(why.map(|why| (peer, format!("node {}: {why}", address.node.id))));
                tried.push(peer);
            }
            // Those that were lost are known no more.
            if self.choose(parties).is_none() {
                return Err(MailError::NoStore(size));
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                let tried = said.into_values().collect::<Vec<_>>().join("; ");
                return Err(MailError::NoStorage { size, tried });
            }
            let pause = time::now_ns() + PAUSE_NS;
            let pause = deadline.map_or(pause, |deadline| deadline.min(pause));
            self.until(Some(pause), |_| Ok(None::<()>))?;
        }
    }

    /// The one with the least load, of those whose processes are not among these.
    fn choose(&self, not: &[PeerId]) -> Option<(Arc<PortAddress>, PeerId)> {
        let endpoint = self.filing.endpoint();
        let not: Vec<_> = not.iter().filter_map(|peer| endpoint.who(*peer)).map(|who| who.id).collect();
        let state = self.lock();
        let others = state.stores.iter().filter(|store| !not.contains(&store.address.node.id));
        let least = others.min_by_key(|store| store.load.held.saturating_add(store.load.asked))?;
        Some((Arc::clone(&least.address), least.peer))
    }

    /// Asks one: what it keeps, or why it does not. `None`: it has not answered in the time given, or has not begun to in a second.
    fn ask_one(
        &self,
        deadline: Option<u64>,
        peer: PeerId,
        holders: &[NodeAddress],
        buffer: &Buffer,
    ) -> Result<Option<Answer>, MailError> {
        let (request, size) = (self.filing.token(), buffer.len() as u64);
        let mut state = self.lock();
        // It is the only one who holds them here, for as long as it takes them. They are bounded by its answer.
        let key = state.store.keep(buffer.clone(), vec![peer]);
        let data = Kept { key, shared: buffer.found() };
        state.requests.insert(request, Request { asked: peer, key, has_begun: false, answer: None });
        self.tell(&mut state, peer, &Call::Store { request, size, data, holders: holders.to_vec() });
        drop(state);
        let look = |state: &mut State| {
            let why = self.why(state, peer);
            let answer = state.requests.get_mut(&request).and_then(|request| request.answer.take());
            answer.or(why.map(Err))
        };
        let soon = time::now_ns().saturating_add(ASK_NS);
        let first = self.until(Some(deadline.map_or(soon, |deadline| deadline.min(soon))), |state| {
            let has_begun = state.requests.get(&request).is_some_and(|request| request.has_begun);
            Ok(look(state).map(Some).or(has_begun.then_some(None)))
        });
        let answer = match first {
            // Data may take long.
            Ok(Some(None)) => self.until(deadline, |state| Ok(look(state))),
            first => first.map(Option::flatten),
        };
        let mut state = self.lock();
        let late = state.requests.remove(&request).and_then(|asked| asked.answer);
        if !matches!(answer, Ok(Some(Ok(_)))) {
            state.store.release(peer, key);
        }
        if let Some(Ok(Kept { key, .. })) = late {
            // Another thread has filed it after the last look: no header will name it.
            self.tell(&mut state, peer, &Call::Sent { key, missed: ALL.to_vec() });
        }
        answer
    }
}

impl State {
    /// What is known of the processes that offer memory.
    pub(super) fn loads(&self) -> Vec<(PortAddress, super::header::Load)> {
        self.stores.iter().map(|store| ((*store.address).clone(), store.load)).collect()
    }
}
