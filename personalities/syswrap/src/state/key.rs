//! What our registrations have as data in the kernel: the key of a member.

/// High half: our secret, random, so that no program's data looks like one. Low half: the use of the socket's object, and the member's id.
const ID: u32 = 0xff_ffff;

/// The key of the member `id` of a socket whose object is in its use `generation`.
pub(crate) fn make(secret: u32, generation: u32, id: u32) -> u64 {
    u64::from(secret) << 32 | u64::from(generation & 0xff) << 24 | u64::from(id & ID)
}

/// The member's id, if `data` is a key.
pub(crate) fn id(secret: u32, data: u64) -> Option<u32> {
    (secret != 0 && (data >> 32) as u32 == secret).then_some(data as u32 & ID)
}

/// Whether a key names the socket whose object is in its use `generation`, or one of an earlier use.
pub(crate) fn is_of(data: u64, generation: u32) -> bool {
    generation & 0xff == data as u32 >> 24
}
