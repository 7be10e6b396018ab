//! The flows of a near end: a number for each address of a program.

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::units::SECOND;

/// A flow without a datagram for so long is forgotten (RFC 4787, requirement 5: five minutes).
pub(crate) const IDLE: u64 = 300 * SECOND;
/// The most flows of a tunnel; one more replaces the flow that is idle for longest.
pub(crate) const MOST: usize = 1024;

/// The flows.
#[derive(Default)]
pub(crate) struct Flows {
    numbers: HashMap<SocketAddr, u32>,
    addresses: HashMap<u32, (SocketAddr, u64)>,
    last: u32,
}

impl Flows {
    /// The number of an address that sent something.
    pub(crate) fn number(&mut self, now: u64, from: SocketAddr) -> u32 {
        if let Some(number) = self.numbers.get(&from) {
            self.addresses.insert(*number, (from, now));
            return *number;
        }
        self.forget_idle(now);
        if self.addresses.len() >= MOST
            && let Some(oldest) = self.addresses.iter().min_by_key(|(_, (_, used))| *used).map(|(number, _)| *number)
        {
            self.forget(oldest);
        }
        // Not 0, which is for notes, and no number in use.
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            if !self.addresses.contains_key(&self.last) {
                break;
            }
        }
        self.numbers.insert(from, self.last);
        self.addresses.insert(self.last, (from, now));
        self.last
    }

    /// The address of a number, to which something goes.
    pub(crate) fn address(&mut self, now: u64, number: u32) -> Option<SocketAddr> {
        let (address, used) = self.addresses.get_mut(&number)?;
        *used = now;
        Some(*address)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    fn forget_idle(&mut self, now: u64) {
        let idle = |used: u64| used + IDLE <= now;
        let gone: Vec<u32> = self.addresses.iter().filter(|(_, (_, used))| idle(*used)).map(|(n, _)| *n).collect();
        gone.into_iter().for_each(|number| self.forget(number));
    }

    fn forget(&mut self, number: u32) {
        if let Some((address, _)) = self.addresses.remove(&number) {
            self.numbers.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_keeps_its_number_while_it_is_used() {
        let (mut flows, at) = (Flows::default(), |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        let [one, two] = [flows.number(0, at(1)), flows.number(0, at(2))];
        assert!(one != two && one != 0 && two != 0);
        assert_eq!((flows.number(IDLE - 1, at(1)), flows.address(0, two)), (one, Some(at(2))));
        // The second one was idle for so long.
        let three = flows.number(IDLE, at(3));
        assert_eq!((flows.address(IDLE, two), flows.address(IDLE, three)), (None, Some(at(3))));
        assert_eq!(flows.number(IDLE, at(1)), one);
    }

    #[test]
    fn the_oldest_goes_where_there_are_too_many() {
        let (mut flows, at) = (Flows::default(), |port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        let numbers: Vec<u32> = (0..MOST as u16).map(|port| flows.number(u64::from(port), at(port))).collect();
        flows.number(MOST as u64, at(9999));
        assert_eq!((flows.len(), flows.address(0, numbers[0])), (MOST, None));
        assert_eq!(flows.address(0, numbers[1]), Some(at(1)));
    }
}
