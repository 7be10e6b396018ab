//! The codes of errors, and a sentence for each.

use core::ffi::{CStr, c_int};

/// It went well.
pub const MDG_OK: c_int = 0;
/// No such handle: it was closed before, or never was.
pub const MDG_EHANDLE: c_int = -1;
/// The handle is of another kind than the function takes.
pub const MDG_ETYPE: c_int = -2;
/// This process was forked from one that uses Madrigal: only exec(2) and _exit(2) are left to it.
pub const MDG_EFORKED: c_int = -3;
/// A fault of Madrigal's own.
pub const MDG_EINTERNAL: c_int = -4;
/// An argument that cannot be: a null pointer, a text that is not UTF-8, a flag that is not known.
pub const MDG_EINVAL: c_int = -5;
/// The text is no address, or the driver takes another form of address.
pub const MDG_EADDRESS: c_int = -6;
/// There is no driver of that name.
pub const MDG_ENODRIVER: c_int = -7;
/// Nobody listens there.
pub const MDG_EREFUSED: c_int = -8;
/// Too much waits already, or another thread is using the thing; later it may do.
pub const MDG_EBUSY: c_int = -9;
/// The time given for it passed.
pub const MDG_ETIMEDOUT: c_int = -10;
/// It belongs to another user.
pub const MDG_EPERM: c_int = -11;
/// No path leads there; the text names each that was considered, with its reason.
pub const MDG_ENOPATH: c_int = -12;
/// Our own side closed it.
pub const MDG_ECLOSED: c_int = -13;
/// Somebody listens there already.
pub const MDG_EINUSE: c_int = -14;
/// The driver cannot work here.
pub const MDG_EUNUSABLE: c_int = -15;
/// The peer reset the connection, or died.
pub const MDG_ERESET: c_int = -16;
/// The peer is gone: nothing can be written to it any more.
pub const MDG_EGONE: c_int = -17;
/// The peer broke the protocol.
pub const MDG_ECORRUPT: c_int = -18;
/// Longer than can be carried at once.
pub const MDG_ETOOLONG: c_int = -19;
/// The kernel refused; mdg_error_number() is its errno.
pub const MDG_ESYSTEM: c_int = -20;
/// Too many handles are open.
pub const MDG_EFULL: c_int = -21;
/// There is no node of that rank in the group, or this one is not in it.
pub const MDG_ERANK: c_int = -22;
/// A node of the group cannot be reached, or is gone.
pub const MDG_ELOST: c_int = -23;
/// Sender and receiver of a message do not name the same pieces.
pub const MDG_EMISMATCH: c_int = -24;

/// What a code means, in one sentence.
pub(crate) fn meaning(code: c_int) -> &'static CStr {
    match code {
        0.. => c"no error",
        MDG_EHANDLE => c"no such handle: it was closed, or never was",
        MDG_ETYPE => c"the handle is of another kind",
        MDG_EFORKED => c"this process was forked from one that uses Madrigal",
        MDG_EINTERNAL => c"a fault of Madrigal's own",
        MDG_EINVAL => c"an argument that cannot be",
        MDG_EADDRESS => c"not an address that can be used so",
        MDG_ENODRIVER => c"no such driver",
        MDG_EREFUSED => c"nobody listens there",
        MDG_EBUSY => c"busy",
        MDG_ETIMEDOUT => c"the time given for it passed",
        MDG_EPERM => c"it belongs to another user",
        MDG_ENOPATH => c"no path leads there",
        MDG_ECLOSED => c"our own side closed it",
        MDG_EINUSE => c"somebody listens there already",
        MDG_EUNUSABLE => c"the driver cannot work here",
        MDG_ERESET => c"the peer reset the connection, or died",
        MDG_EGONE => c"the peer is gone",
        MDG_ECORRUPT => c"the peer broke the protocol",
        MDG_ETOOLONG => c"longer than can be carried at once",
        MDG_ESYSTEM => c"the system refused",
        MDG_EFULL => c"too many handles are open",
        MDG_ERANK => c"there is no such node in the group",
        MDG_ELOST => c"a node of the group is lost",
        MDG_EMISMATCH => c"sender and receiver do not name the same pieces",
        _ => c"not a code of Madrigal's",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_sentence_of_its_own() {
        let all: Vec<_> = (MDG_EMISMATCH..=MDG_OK).map(meaning).collect();
        for (at, text) in all.iter().enumerate() {
            assert!(!all[..at].contains(text), "{text:?}");
        }
        assert!(!all.contains(&meaning(MDG_EMISMATCH - 1)) && meaning(7) == meaning(MDG_OK));
    }
}
