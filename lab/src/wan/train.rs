//! What a TUN device hands over: one packet, or a train of packets of one TCP connection that share their headers (generic segmentation
//! offload), so that a fast link costs one system call for many packets. A train may be divided anywhere between two of its packets.
//!
//! Each buffer begins with the kernel's `struct virtio_net_hdr`, of ten bytes.

use super::direction::Load;

/// The length of the kernel's header in front.
pub const HEADER: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// One packet or a train of them, as a TUN device gives and takes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Train {
    bytes: Box<[u8]>,
    shape: Option<Shape>,
}

/// Where things are in a train, after the kernel's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    /// IP and TCP headers together; all packets have them.
    headers: usize,
    /// Where the TCP header begins.
    tcp: usize,
    /// Bytes each packet carries behind its headers; the last one less.
    segment: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

impl Train {
    /// What was read from a device; `None` if it is too short to be anything.
    pub fn new(read: &[u8]) -> Option<Self> {
        (read.len() > HEADER).then(|| Self { bytes: read.into(), shape: shape(read) })
    }

    /// What is to be written to a device.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn packet(&self) -> &[u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }

    /// The packets `from..to` of the train, which has `shape` and more packets than that.
    fn part(&self, shape: Shape, from: usize, to: usize) -> Self {
        let (packet, last) = (self.packet(), Load::segments(self) as usize == to);
        let payload = packet.get(shape.headers..).unwrap_or_default();
        let range = from * shape.segment..payload.len().min(to * shape.segment);
        let head = self.bytes.get(..HEADER + shape.headers).unwrap_or_default();
        let mut bytes = [head, payload.get(range.clone()).unwrap_or_default()].concat();
        if to - from == 1 {
            // No train any more: neither its kind nor its length of packets.
            put(&mut bytes, 1, &[0]);
            put(&mut bytes, 4, &[0, 0]);
        }
        shape.fit(bytes.get_mut(HEADER..).unwrap_or_default(), from, range.start, last);
        let shape = (to - from > 1).then_some(shape);
        Self { bytes: bytes.into(), shape }
    }
}

impl Shape {
    /// Makes the headers fit the packets from number `skipped` on, whose bytes begin at `start` of the train's payload.
    fn fit(self, packet: &mut [u8], skipped: usize, start: usize, last: bool) {
        let flags = self.tcp + 13;
        let old = packet.get(flags).copied().unwrap_or(0);
        let ends = if last { old } else { old & !FIN_PSH };
        put(packet, flags, &[if skipped > 0 { ends & !CWR } else { ends }]);
        let sequence = packet.get(self.tcp + 4..self.tcp + 8).and_then(|bytes| bytes.try_into().ok());
        let sequence = u32::from_be_bytes(sequence.unwrap_or_default()).wrapping_add(start as u32);
        put(packet, self.tcp + 4, &sequence.to_be_bytes());
        let len = packet.len();
        let addresses = if packet.first().is_some_and(|first| first >> 4 == 4) {
            put(packet, 2, &(len as u16).to_be_bytes());
            let id = word(packet, 4).unwrap_or(0).wrapping_add(skipped as u16);
            put(packet, 4, &id.to_be_bytes());
            put(packet, 10, &[0, 0]);
            let header = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
            let sum = !sum(packet.get(..header).unwrap_or_default(), 0);
            put(packet, 10, &sum.to_be_bytes());
            12..20
        } else {
            put(packet, 4, &((len - 40) as u16).to_be_bytes());
            8..40
        };
        // The kernel wants the sum over the pseudo header; the device that sends the packet adds the rest.
        let segment = (len - self.tcp) as u32;
        let pseudo = sum(packet.get(addresses).unwrap_or_default(), 6 + segment);
        put(packet, self.tcp + 16, &pseudo.to_be_bytes());
    }
}

/// The Internet checksum's sum of `bytes` and `more`, folded, not inverted.
fn sum(bytes: &[u8], more: u32) -> u16 {
    let words = bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |&low| u32::from(low)));
    let mut all: u32 = words.sum::<u32>() + (more >> 16) + (more & 0xFFFF);
    while all > 0xFFFF {
        all = (all >> 16) + (all & 0xFFFF);
    }
    all as u16
}

/// The shape of a train; `None` for a single packet, and for packets that contradict their headers.
fn shape(read: &[u8]) -> Option<Shape> {
    let (header, packet) = read.split_at_checked(HEADER)?;
    let native = |at: usize| Some(usize::from(u16::from_ne_bytes(header.get(at..at + 2)?.try_into().ok()?)));
    let (segment, tcp, field) = (native(4)?, native(6)?, native(8)?);
    let (version, least) = match header[1] {
        TCP4 => (4, 20),
        TCP6 => (6, 40),
        _ => return None,
    };
    let real =
        header[0] & NEEDS_CHECKSUM != 0 && segment > 0 && field == 16 && tcp >= least && packet[0] >> 4 == version;
    let headers = tcp + usize::from(packet.get(tcp + 12)? >> 4) * 4;
    (real && headers >= tcp + 20 && packet.len() > headers + segment && packet.len() <= 0xFFFF).then_some(Shape {
        headers,
        tcp,
        segment,
    })
}

impl Load for Train {
    fn bytes(&self) -> u64 {
        let len = self.packet().len();
        let more = self.shape.map_or(0, |shape| (self.segments() as usize - 1) * shape.headers);
        (len + more) as u64
    }

    fn segments(&self) -> u32 {
        self.shape.map_or(1, |shape| (self.packet().len() - shape.headers).div_ceil(shape.segment) as u32)
    }

    fn longest(&self) -> u32 {
        self.shape.map_or(self.packet().len(), |shape| shape.headers + shape.segment) as u32
    }

    fn split(self, at: u32) -> (Self, Option<Self>) {
        let count = self.segments();
        match self.shape {
            Some(shape) if (1..count).contains(&at) => {
                (self.part(shape, 0, at as usize), Some(self.part(shape, at as usize, count as usize)))
            }
            _ => (self, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A train over IPv4 or IPv6; its payload bytes encode their place.
    fn train(six: bool, segment: u16, payload: usize) -> Train {
        let (ip, kind) = if six { (40, TCP6) } else { (20, TCP4) };
        let mut header = vec![NEEDS_CHECKSUM, kind];
        for value in [ip + 32, segment, ip, 16] {
            header.extend(value.to_ne_bytes());
        }
        let mut packet = vec![0; usize::from(ip) + 32];
        packet[0] = if six { 0x60 } else { 0x45 };
        if !six {
            packet[9] = 6;
        }
        let tcp = usize::from(ip);
        packet[tcp - 8..tcp].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[tcp + 4..tcp + 8].copy_from_slice(&0xFFFF_FF00u32.to_be_bytes());
        packet[tcp + 12..tcp + 14].copy_from_slice(&[0x80, FIN_PSH | CWR | 0x10]);
        packet.extend((0..payload).map(|n| (n % 251) as u8));
        let len = packet.len();
        let (at, len) = if six { (4, len - 40) } else { (2, len) };
        packet[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
        Train::new(&[header, packet].concat()).unwrap()
    }

    #[test]
    fn a_train_divides_into_the_packets_it_stands_for() {
        for six in [false, true] {
            let whole = train(six, 1000, 4500);
            let tcp = if six { 40 } else { 20 };
            assert_eq!((whole.segments(), whole.longest()), (5, tcp as u32 + 32 + 1000));
            let total = whole.bytes.len() - HEADER + 4 * (tcp + 32);
            assert_eq!(Load::bytes(&whole), total as u64);
            let (mut rest, mut n, mut payload, mut wire) = (Some(whole), 0, Vec::new(), 0);
            while let Some(train) = rest {
                let (one, more) = train.split(1);
                wire += Load::bytes(&one);
                let packet = one.packet();
                assert_eq!(
                    (one.segments(), one.bytes[1], packet.len() - tcp - 32),
                    (1, 0, if n < 4 { 1000 } else { 500 })
                );
                let sequence = u32::from_be_bytes(packet[tcp + 4..tcp + 8].try_into().unwrap());
                assert_eq!(sequence, 0xFFFF_FF00u32.wrapping_add(n * 1000));
                let flags = [0x10 | CWR, 0x10, 0x10, 0x10, 0x10 | FIN_PSH][n as usize];
                assert_eq!(packet[tcp + 13], flags);
                if !six {
                    assert_eq!(sum(&packet[..20], 0), 0xFFFF, "a header's sum with its checksum is all ones");
                    assert_eq!((word(packet, 2), word(packet, 4)), (Some(packet.len() as u16), Some(n as u16)));
                }
                payload.extend_from_slice(&packet[tcp + 32..]);
                (rest, n) = (more, n + 1);
            }
            assert_eq!((n, wire), (5, total as u64));
            assert_eq!(payload, (0..4500).map(|n| (n % 251) as u8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_train_divided_anywhere_divides_further_into_the_same() {
        let whole = train(false, 700, 6000);
        let singles = |train: Train| {
            let (mut out, mut rest) = (Vec::new(), Some(train));
            while let Some(train) = rest {
                let (one, more) = train.split(1);
                out.push(one);
                rest = more;
            }
            out
        };
        for at in 1..whole.segments() {
            let (left, right) = whole.clone().split(at);
            let parts: Vec<_> = singles(left).into_iter().chain(right.into_iter().flat_map(singles)).collect();
            assert_eq!(parts, singles(whole.clone()), "{at}");
        }
    }

    #[test]
    fn nonsense_is_one_packet() {
        let good = train(false, 1000, 4500).bytes;
        assert!(Train::new(&good[..HEADER]).is_none());
        for len in HEADER + 1..HEADER + 60 {
            assert_eq!(Train::new(&good[..len]).unwrap().segments(), 1);
        }
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..3 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bytes[(seed >> 16) as usize % (HEADER + 60)] = (seed >> 8) as u8;
            }
            let train = Train::new(&bytes).unwrap();
            let (left, right) = train.clone().split(2);
            let count = left.segments() + right.as_ref().map_or(0, Load::segments);
            assert_eq!(count, train.segments());
        }
    }
}
