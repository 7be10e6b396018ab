//! How a link goes on over another connection, where the present one may be lost or improved: one by the daemon.
//!
//! Every byte sent is kept until the peer has acknowledged it. On the next connection each side first sends how many bytes it has, and
//! whether it knows that the daemon carries this one too. Then the stream goes on from there, even in the middle of a frame. So no byte is
//! lost or comes twice. If the new connection is a direct one, nothing is kept any more once everything has gone out on it.
//!
//! ```text
//!   the side that dialled by the daemon:  About address of ours     both, in the stream:  Have n     Bye
//!   both, first on a further connection:  MAGIC, bytes received, 1 where the daemon carries it
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;

use madrigal_base::node::NodeAddress;
use madrigal_proto::frame;

/// Bytes that may be kept before no more frames are taken.
const MOST: usize = 16 << 20;
/// Received bytes are acknowledged in such steps.
const STEP: u64 = 1 << 20;
/// After so many connections in a row without a word from the peer no other is tried.
const MEETS: u32 = 8;
/// Bytes of a word.
pub(super) const WORD: usize = 24;
/// No frame begins so.
const MAGIC: u64 = u64::from_le_bytes(*b"madrigW\x01");

/// What goes between frames for the sake of the link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// The sender dialled by the daemon, and can be dialled there.
    About(NodeAddress),
    /// So many bytes have come.
    Have(u64),
    /// No more comes, on any connection.
    Bye,
}

const ABOUT: u8 = 1;
const HAVE: u8 = 2;
const BYE: u8 = 3;

impl Note {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let body = match self {
            Self::About(address) => [&[ABOUT][..], &address.encode(NodeAddress::LONG)].concat(),
            Self::Have(bytes) => [&[HAVE][..], &bytes.to_le_bytes()].concat(),
            Self::Bye => vec![BYE],
        };
        frame::note(&body).unwrap_or_default()
    }

    /// `None`: there is no such note.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        match body.split_first()? {
            (&ABOUT, address) => NodeAddress::decode(address).ok().map(Self::About),
            (&HAVE, bytes) => Some(Self::Have(u64::from_le_bytes(*bytes.first_chunk()?))),
            (&BYE, []) => Some(Self::Bye),
            _ => None,
        }
    }
}

/// Where the stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// On a connection.
    Together,
    /// On none.
    Away,
    /// On a connection where the peer has not sent yet how much it has.
    Asked,
}

/// The sending half of such a link, and what both halves have agreed on.
#[derive(Debug)]
pub(super) struct Resumption {
    kept: VecDeque<u8>,
    /// Which byte of the stream the first of those is, ...
    base: u64,
    /// ... and how many of them went out on this connection.
    out: usize,
    /// How many received bytes were acknowledged.
    reported: u64,
    pub(super) stage: Stage,
    /// We know that the daemon carries the connection.
    by_daemon: bool,
    /// Both sides know that no daemon does.
    direct: bool,
    pub(super) bye: bool,
    /// It is not known yet whether the peer keeps anything.
    unsure: bool,
    word: Vec<u8>,
    /// Connections in a row on which the peer sent nothing.
    meets: u32,
}

impl Resumption {
    /// From byte `base` of what is sent on.
    pub(super) fn new(base: u64) -> Self {
        Self {
            kept: VecDeque::new(),
            base,
            out: 0,
            reported: 0,
            stage: Stage::Together,
            by_daemon: true,
            direct: false,
            bye: false,
            unsure: false,
            word: Vec::new(),
            meets: 0,
        }
    }

    /// The peer may have dialled by the daemon: if so, its first note shows it.
    pub(super) fn suspect(&mut self) {
        self.unsure = true;
    }

    /// Whether that is still unknown.
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure
    }

    /// It is known whether the peer dialled by the daemon; if not, nothing is kept once all of it is out. A later report that it did
    /// counts, too.
    pub(super) fn settle(&mut self, by_daemon: bool) {
        if core::mem::take(&mut self.unsure) || by_daemon {
            self.direct = !by_daemon;
        }
    }

    /// Whether a frame more may be kept.
    pub(super) fn has_room(&self) -> bool {
        self.kept.len() < MOST
    }

    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// Keeps what lies behind the first `skip` bytes of some pieces.
    pub(super) fn keep_pieces(&mut self, pieces: &[IoSlice<'_>], mut skip: usize) {
        for piece in pieces {
            self.keep(piece.get(skip..).unwrap_or_default());
            skip = skip.saturating_sub(piece.len());
        }
    }

    /// What can be sent next.
    pub(super) fn next(&self) -> &[u8] {
        if self.stage != Stage::Together {
            return &[];
        }
        let (first, second) = self.kept.as_slices();
        let rest = first.get(self.out..).filter(|rest| !rest.is_empty());
        rest.or_else(|| second.get(self.out.saturating_sub(first.len())..)).unwrap_or_default()
    }

    /// So many bytes of that went out.
    pub(super) fn went(&mut self, count: usize) {
        self.out += count;
    }

    /// Whether the link can go on over another connection. A peer that closes them one after the other wants none.
    pub(super) fn can_go_on(&self) -> bool {
        !self.bye && !self.unsure && self.meets < MEETS
    }

    /// Whether the daemon carries the connection.
    pub(super) fn is_makeshift(&self) -> bool {
        self.stage == Stage::Together && !self.direct && !self.unsure
    }

    /// Whether nothing need be kept any more.
    pub(super) fn is_over(&self) -> bool {
        self.direct && self.stage == Stage::Together && self.out >= self.kept.len()
    }

    /// The peer has so many bytes. `false`: nonsense.
    pub(super) fn handle_have(&mut self, bytes: u64) -> bool {
        let Some(count) = bytes.checked_sub(self.base) else { return true };
        let Some(count) = usize::try_from(count).ok().filter(|count| *count <= self.out) else { return false };
        self.kept.drain(..count);
        (self.base, self.out) = (bytes, self.out - count);
        true
    }

    /// The acknowledgement of `received` bytes, if it is due.
    pub(super) fn have(&mut self, received: u64) -> Option<Note> {
        let due = received.saturating_sub(self.reported) >= STEP && self.stage == Stage::Together;
        due.then(|| {
            self.reported = received;
            Note::Have(received)
        })
    }

    /// The connection is lost.
    pub(super) fn part(&mut self) {
        self.stage = Stage::Away;
    }

    /// There is another connection: returns the word that begins it.
    pub(super) fn meet(&mut self, received: u64, by_daemon: bool) -> [u8; WORD] {
        (self.direct, self.stage, self.by_daemon, self.reported) = (false, Stage::Asked, by_daemon, received);
        self.meets += 1;
        self.word.clear();
        let mut word = [0; WORD];
        for (place, part) in word.chunks_exact_mut(8).zip([MAGIC, received, u64::from(by_daemon)]) {
            place.copy_from_slice(&part.to_le_bytes());
        }
        word
    }

    /// How many bytes of the peer's word are still to come.
    pub(super) fn wants(&self) -> usize {
        if self.stage == Stage::Asked { WORD.saturating_sub(self.word.len()) } else { 0 }
    }

    /// Takes some of them. `Err`: the stream cannot go on.
    pub(super) fn handle_word(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.word.extend(bytes);
        let part = |at: usize| self.word.get(at..).and_then(<[u8]>::first_chunk).map(|part| u64::from_le_bytes(*part));
        let (Some(magic), Some(has), Some(by)) = (part(0), part(8), part(16)) else { return Ok(()) };
        if magic != MAGIC {
            return Err("it knows nothing of what was sent before".to_owned());
        }
        let count = has.checked_sub(self.base).and_then(|count| usize::try_from(count).ok());
        let Some(count) = count.filter(|count| *count <= self.kept.len()) else {
            let (from, to) = (self.base, self.base + self.kept.len() as u64);
            return Err(format!("it has {has} bytes of those sent before, and only {from} to {to} are kept"));
        };
        self.kept.drain(..count);
        (self.base, self.out, self.stage, self.meets) = (has, 0, Stage::Together, 0);
        self.direct = !self.by_daemon && by == 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(resumption: &mut Resumption, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < most && !resumption.next().is_empty() {
            let count = resumption.next().len().min(most - all.len());
            all.extend(&resumption.next()[..count]);
            resumption.went(count);
        }
        all
    }

    #[test]
    fn what_the_peer_lacks_goes_out_again_and_nothing_else() {
        let mut resumption = Resumption::new(100);
        resumption.keep(b"abcdefgh");
        assert_eq!(sent(&mut resumption, 6), b"abcdef");
        assert!(resumption.handle_have(102), "a and b");
        resumption.part();
        resumption.keep(b"ij");
        assert_eq!(sent(&mut resumption, 9), b"", "there is no connection");
        let word = resumption.meet(7, true);
        let mut peer = Resumption::new(0);
        peer.keep(b"1234567890");
        assert_eq!(sent(&mut peer, 10), b"1234567890");
        let theirs = peer.meet(104, false);
        for byte in word {
            peer.handle_word(&[byte]).unwrap();
        }
        resumption.handle_word(&theirs[..20]).unwrap();
        assert_eq!((resumption.wants(), sent(&mut resumption, 9)), (4, vec![]));
        resumption.handle_word(&theirs[20..]).unwrap();
        assert_eq!((sent(&mut resumption, 99), sent(&mut peer, 99)), (b"efghij".to_vec(), b"890".to_vec()));
        assert!(!resumption.is_over() && !peer.is_over(), "the daemon carries this one too");
    }

    #[test]
    fn a_direct_connection_ends_it_once_all_is_out() {
        let mut resumption = Resumption::new(0);
        resumption.keep(b"abc");
        let word = Resumption::new(0).meet(1, false);
        resumption.meet(0, false);
        resumption.handle_word(&word).unwrap();
        assert!(!resumption.is_over());
        assert_eq!(sent(&mut resumption, 99), b"bc");
        assert!(resumption.is_over());
    }

    #[test]
    fn who_has_what_was_never_sent_or_is_kept_no_more_is_found_out() {
        let mut resumption = Resumption::new(10);
        resumption.keep(b"abc");
        sent(&mut resumption, 2);
        assert!(!resumption.handle_have(13) && resumption.handle_have(9) && resumption.handle_have(11));
        for has in [10, 14, u64::MAX] {
            resumption.meet(0, true);
            assert!(resumption.handle_word(&Resumption::new(0).meet(has, true)).is_err(), "{has}");
        }
        resumption.meet(0, true);
        assert!(resumption.handle_word(&[0xA7; WORD]).is_err());
    }

    #[test]
    fn who_was_only_suspected_is_let_go() {
        let mut resumption = Resumption::new(0);
        resumption.suspect();
        resumption.keep(b"abc");
        sent(&mut resumption, 99);
        assert!(!resumption.is_over() && !resumption.is_makeshift());
        resumption.settle(false);
        assert!(resumption.is_over());
        let mut resumption = Resumption::new(0);
        resumption.suspect();
        resumption.settle(true);
        resumption.settle(false);
        assert!(!resumption.is_over() && resumption.is_makeshift());
        let mut resumption = Resumption::new(0);
        resumption.suspect();
        resumption.keep(b"abc");
        resumption.settle(false);
        resumption.settle(true);
        sent(&mut resumption, 99);
        assert!(!resumption.is_over(), "it only took its time to say so");
    }

    #[test]
    fn notes_read_back() {
        let address = NodeAddress { port: 9, ..NodeAddress::bare(madrigal_base::node::NodeId::new(5).unwrap()) };
        for note in [Note::About(address), Note::Have(77), Note::Bye] {
            let bytes = note.bytes();
            let (taken, body) = frame::noted(&bytes).unwrap().unwrap();
            assert_eq!((taken, Note::read(body)), (bytes.len(), Some(note)));
        }
        assert_eq!((Note::read(&[]), Note::read(&[9]), Note::read(&[HAVE, 1])), (None, None, None));
    }

    #[test]
    fn what_came_is_told_in_steps() {
        let mut resumption = Resumption::new(0);
        assert_eq!(resumption.have(STEP - 1), None);
        assert_eq!(resumption.have(STEP + 5), Some(Note::Have(STEP + 5)));
        assert_eq!(resumption.have(STEP + 6), None);
    }
}
