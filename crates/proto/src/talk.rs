//! Two processes that meet on a connection authenticate each other, and agree whether to keep it.
//!
//! ```text
//!   caller                                   callee
//!     Hello   nonce, caller, proof  ---->               a caller without our node id gets no answer
//!             <----  Answer   nonce, welcome or taken, proof
//!   and, of the two, the one with the larger node id leads:
//!     caller leads:   Go      ---->                    both keep this connection
//!     callee leads:   Ready   ---->,   <----   Go       the same
//! ```
//! A proof is a keyed hash. The key is the callee's node id, from the answer on together with the caller's. So an address that leads to
//! another process (another host's bridge of the same number, another process that got the port) gives neither side away. What was read on
//! one connection proves nothing on the next: both nonces are part of every later proof. It is no encryption: an observer of all bytes that
//! tries all 2^48 keys learns the node ids.
//!
//! The leader sends Go on one connection only, however many there are between two processes, and whichever side called.

use madrigal_base::node::NodeId;

use crate::siphash;

/// Bytes of a Hello and of an Answer.
pub const LONG: usize = 32;
/// Bytes of a Ready and of a Go.
pub const STEP: usize = 16;

const HELLO: u64 = u64::from_le_bytes(*b"madrigH\x01");
const ANSWER: u64 = u64::from_le_bytes(*b"madrigA\x01");
const READY: u64 = u64::from_le_bytes(*b"madrigR\x01");
const GO: u64 = u64::from_le_bytes(*b"madrigG\x01");
const NAME: u64 = u64::from_le_bytes(*b"madrigN\x01");
const WELCOME: u64 = 0;
const TAKEN: u64 = 1;
/// Makes the word that hides the caller's node id unlike the proof.
const MASK: u64 = u64::from_le_bytes(*b"madrigM\x01");

/// The other side is not the node it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("other bytes than the node would send")]
pub struct Unauthenticated;

/// What the bytes taken so far come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing yet.
    Wait,
    /// A callee has the caller's id: [`Talk::welcome`] it or not.
    Caller(NodeId),
    /// A caller was answered by the right node, and waits for its Go.
    Answered,
    /// A caller was answered by the right node, which has a connection with us already.
    Taken,
    /// We lead: [`Talk::go`], or drop the connection.
    Choose,
    /// The leader sent Go: the connection is kept.
    Chosen,
}

/// One connection's conversation.
#[derive(Debug)]
pub struct Talk {
    me: NodeId,
    nonce: u64,
    bond: Option<Bond>,
    stage: Stage,
    got: [u8; LONG],
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Hello,
    Answer,
    Ready,
    Go,
    Over,
}

/// The caller and the callee, and the nonces of both.
#[derive(Clone, Copy, Debug)]
struct Bond {
    caller: NodeId,
    callee: NodeId,
    asked: u64,
    answered: u64,
}

impl Bond {
    fn proof(&self, what: u64, word: u64) -> u64 {
        siphash::tag([self.callee.number(), self.caller.number()], &[what, self.asked, self.answered, word])
    }

    fn step(&self, what: u64) -> [u8; STEP] {
        words([what, self.proof(what, 0)])
    }
}

/// A number that stands for a node where every process may read it. The id yields the number; the number hardly yields the id.
pub fn pseudonym(node: NodeId) -> u64 {
    siphash::tag([node.number(), NAME], &[])
}

fn mask(callee: NodeId, nonce: u64) -> u64 {
    siphash::tag([callee.number(), MASK], &[nonce])
}

fn hello_proof(callee: NodeId, nonce: u64, caller: u64) -> u64 {
    siphash::tag([callee.number(), HELLO], &[nonce, caller])
}

fn words<const W: usize, const B: usize>(words: [u64; W]) -> [u8; B] {
    let mut bytes = [0; B];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Whether two proofs are the same; takes the same time whatever they are.
fn same(a: u64, b: u64) -> bool {
    core::hint::black_box(a ^ b) == 0
}

impl Talk {
    /// The caller's side, with its first message. The nonce is random.
    pub fn call(me: NodeId, callee: NodeId, nonce: u64) -> (Self, [u8; LONG]) {
        let bond = Bond { caller: me, callee, asked: nonce, answered: 0 };
        let id = me.number();
        let hello = words([HELLO, nonce, id ^ mask(callee, nonce), hello_proof(callee, nonce, id)]);
        (Self { me, nonce, bond: Some(bond), stage: Stage::Answer, got: [0; LONG], len: 0 }, hello)
    }

    /// The callee's side. The nonce is random.
    pub fn listen(me: NodeId, nonce: u64) -> Self {
        Self { me, nonce, bond: None, stage: Stage::Hello, got: [0; LONG], len: 0 }
    }

    /// How many bytes it takes now; what comes behind them may be something else. 0: none until the caller decides.
    pub fn wants(&self) -> usize {
        let whole = match self.stage {
            Stage::Hello | Stage::Answer => LONG,
            Stage::Ready | Stage::Go => STEP,
            Stage::Over => 0,
        };
        whole.saturating_sub(self.len)
    }

    /// Whether the other side has proved its node id.
    pub fn is_known(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Go)
    }

    /// Takes bytes, at most [`Talk::wants`]; appends what must be sent to `out`.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Next, Unauthenticated> {
        let end = self.len + bytes.len();
        let fits = bytes.len() <= self.wants();
        self.got.get_mut(self.len..end).filter(|_| fits).ok_or(Unauthenticated)?.copy_from_slice(bytes);
        self.len = end;
        if self.wants() > 0 {
            return Ok(Next::Wait);
        }
        self.len = 0;
        let word = |i: usize| self.got.get(i * 8..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b));
        let words = [word(0), word(1), word(2), word(3)];
        match self.stage {
            Stage::Hello => self.handle_hello(words),
            Stage::Answer => self.handle_answer(words, out),
            Stage::Ready => self.handle_step(words, READY).map(|()| Next::Choose),
            Stage::Go => self.handle_step(words, GO).map(|()| Next::Chosen),
            Stage::Over => Err(Unauthenticated),
        }
    }

    fn handle_hello(&mut self, [what, nonce, hidden, proof]: [u64; 4]) -> Result<Next, Unauthenticated> {
        let id = hidden ^ mask(self.me, nonce);
        let right = same(proof, hello_proof(self.me, nonce, id)) && what == HELLO;
        let caller =
            NodeId::new(id).filter(|node| right && node.number() == id && *node != self.me).ok_or(Unauthenticated)?;
        self.bond = Some(Bond { caller, callee: self.me, asked: nonce, answered: self.nonce });
        self.stage = Stage::Over;
        Ok(Next::Caller(caller))
    }

    /// The callee's answer to the caller: welcome, or `taken` because there is a connection already. Then the caller closes.
    pub fn welcome(&mut self, taken: bool, out: &mut Vec<u8>) {
        let Some(bond) = self.bond else { return };
        let verdict = if taken { TAKEN } else { WELCOME };
        let hidden = verdict ^ mask(bond.callee, bond.answered);
        out.extend(words::<4, LONG>([ANSWER, bond.answered, hidden, bond.proof(ANSWER, verdict)]));
        self.stage = match taken {
            true => Stage::Over,
            false if self.me > bond.caller => Stage::Ready,
            false => Stage::Go,
        };
    }

    fn handle_answer(
        &mut self,
        [what, nonce, hidden, proof]: [u64; 4],
        out: &mut Vec<u8>,
    ) -> Result<Next, Unauthenticated> {
        let Some(bond) = self.bond.as_mut() else { return Err(Unauthenticated) };
        bond.answered = nonce;
        let verdict = hidden ^ mask(bond.callee, nonce);
        if !same(proof, bond.proof(ANSWER, verdict)) || what != ANSWER {
            return Err(Unauthenticated);
        }
        let leads = self.me > bond.callee;
        match (verdict, leads) {
            (WELCOME, true) => {
                self.stage = Stage::Over;
                Ok(Next::Choose)
            }
            (WELCOME, false) => {
                out.extend(bond.step(READY));
                self.stage = Stage::Go;
                Ok(Next::Answered)
            }
            (TAKEN, _) => {
                self.stage = Stage::Over;
                Ok(Next::Taken)
            }
            _ => Err(Unauthenticated),
        }
    }

    fn handle_step(&mut self, [what, proof, ..]: [u64; 4], wanted: u64) -> Result<(), Unauthenticated> {
        let bond = self.bond.ok_or(Unauthenticated)?;
        let right = same(proof, bond.proof(wanted, 0)) && what == wanted;
        self.stage = Stage::Over;
        if right { Ok(()) } else { Err(Unauthenticated) }
    }

    /// The leader keeps this connection: the Go it sends.
    pub fn go(&self, out: &mut Vec<u8>) {
        if let Some(bond) = self.bond {
            out.extend(bond.step(GO));
        }
    }
}
