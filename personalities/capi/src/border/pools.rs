//! Pools: processes that find each other by a name, and are told in one order who joins, leaves, dies and is elected.

use core::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd as _;

use madrigal::pools::{Member, Membership, Wish};

use super::arguments::{Place, give_text, memory, opened, text, time};
use super::guard::{count, status};
use super::links::runtime_of;
use super::types::{mdg_pool, mdg_runtime};
use crate::codes::{MDG_EBUSY, MDG_EGONE, MDG_EINVAL, MDG_ERANK, MDG_EUNUSABLE, MDG_OK};
use crate::failure::Failure;
use crate::launched;
use crate::object::{Object, with};
use crate::pool::Pool;
use crate::runtime::deadline;
use crate::table::Lane;

/// The size of a pool that anybody joins at any time.
pub const MDG_POOL_OPEN: c_int = 0;
/// The size of a pool that has as many members as the launcher has started processes, each with its rank there.
pub const MDG_POOL_LAUNCHED: c_int = -1;
/// Instead of a member: the pool.
pub const MDG_POOL_ITSELF: i64 = -1;

/// The winner is followed by another one when it has left or died: who asks next.
pub const MDG_POOL_FOLLOWED: c_int = 0;
/// The winner stays the winner as long as the pool has a member.
pub const MDG_POOL_FOR_LIFE: c_int = 1;

/// An event: `member` joined; `text` is its location.
pub const MDG_POOL_JOINED: c_int = 1;
/// A closed pool has all its members.
pub const MDG_POOL_CLOSED: c_int = 2;
/// `member` left.
pub const MDG_POOL_LEFT: c_int = 3;
/// `member` died, or its host, or the way to it.
pub const MDG_POOL_DIED: c_int = 4;
/// `member` won the election `text`.
pub const MDG_POOL_ELECTED: c_int = 5;
/// The winner of the election `text` has left or died.
pub const MDG_POOL_VACANT: c_int = 6;
/// The attribute `text` of `member`, or of the pool (MDG_POOL_ITSELF), was set or taken away.
pub const MDG_POOL_SET: c_int = 7;
/// `member` sends `text`.
pub const MDG_POOL_SIGNAL: c_int = 8;
/// `member` has terminated the pool.
pub const MDG_POOL_TERMINATED: c_int = 9;
/// `count` events are missing here, for they were not taken in time. mdg_pool_members() and mdg_pool_get() have what they led to.
pub const MDG_POOL_MISSED: c_int = 10;

/// Bytes of an event's text, with its nul.
pub const MDG_POOL_TEXT: usize = 4104;

/// Something that changed in a pool.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct mdg_pool_event {
    /// Its place in the order of all events of the pool, which is the same for all members. Signals to others are left out.
    pub number: u64,
    /// The member that it is about; -1 if it is about none.
    pub member: i64,
    /// How many are missing (MDG_POOL_MISSED).
    pub count: u64,
    /// One of MDG_POOL_JOINED to MDG_POOL_MISSED.
    pub kind: c_int,
    /// A text that ends with a nul.
    pub text: [c_char; MDG_POOL_TEXT],
}

/// Joins the pool `name` (1 to 64 letters, digits and . _ - : @) by this user's daemon of this host, which `madrigal up` starts, and puts the
/// handle into *pool. The pool is the same on all hosts of the daemon's grid. `size` is MDG_POOL_OPEN, or how many members the pool is to
/// have, or MDG_POOL_LAUNCHED; all members must say the same. `blob`, of `len` bytes (4,096 at most), is what others find with
/// mdg_pool_blob(), such as the address of a port.
///
/// Waits at most `timeout_ns` nanoseconds (MDG_FOREVER: without end) until the process is a member, and of a pool with a size until all have
/// joined; then no more are let in. With 0 it does not wait for that: mdg_pool_joined() does. A process that ends without mdg_pool_leave() or
/// mdg_close() has died, and the others are told so.
///
/// Returns 0, or MDG_EUNUSABLE (no daemon is up, it refuses, or there is no launcher), MDG_EREFUSED (the pool is closed, or was terminated),
/// MDG_EMISMATCH (others gave another size), MDG_ERANK (the rank cannot be had), MDG_EBUSY (it is full), MDG_ETIMEDOUT, MDG_ELOST (where pools
/// are kept cannot be reached), MDG_ESYSTEM, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_join(
    runtime: mdg_runtime,
    name: *const c_char,
    size: c_int,
    blob: *const c_void,
    len: usize,
    timeout_ns: i64,
    pool: *mut mdg_pool,
) -> c_int {
    let make = || {
        // SAFETY: the program vouches for its text, and for its buffer until this returns.
        let (name, blob) = unsafe { (text(name, "`name`")?, memory(blob, len)?) };
        let (rank, size) = rank_and_size(size)?;
        let wish = Wish { pool: name.to_owned(), size, rank, blob: blob.bytes().to_vec() };
        Ok(Object::Pool(Box::new(Pool::join(&runtime_of(runtime)?, wish, time(timeout_ns)?)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Pool>(pool, "`pool`", make) }.map(|_| MDG_OK))
}

fn rank_and_size(size: c_int) -> Result<(Option<u32>, Option<u32>), Failure> {
    match size {
        MDG_POOL_OPEN => Ok((None, None)),
        MDG_POOL_LAUNCHED => {
            let place = launched::place()?;
            let none = "no launcher has started this process: neither PMI_RANK nor SLURM_PROCID is set";
            let (rank, size) = place.ok_or_else(|| Failure::new(MDG_EUNUSABLE, none))?;
            Ok((Some(rank), Some(size)))
        }
        1.. => Ok((None, Some(size.unsigned_abs()))),
        _ => Err(Failure::new(MDG_EINVAL, format!("{size} is no size of a pool"))),
    }
}

/// Waits at most `timeout_ns` nanoseconds for what mdg_pool_join() waits for, if that did not wait.
///
/// Returns 0, or as mdg_pool_join(), or MDG_ECLOSED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_joined(pool: mdg_pool, timeout_ns: i64) -> c_int {
    asked(pool, timeout_ns, |api, deadline| api.wait_joined(deadline))
}

/// Leaves the pool, and waits at most `timeout_ns` nanoseconds until that has its place in the order. The handle stays, for mdg_close().
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_leave(pool: mdg_pool, timeout_ns: i64) -> c_int {
    asked(pool, timeout_ns, |api, deadline| api.leave(deadline))
}

/// This process's id in the pool: how many joined before it. No two members of a pool have the same. Does not block.
///
/// Returns the id, or MDG_EBUSY (it is no member yet), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_id(pool: mdg_pool) -> i64 {
    count(|| {
        let id = with(pool, Lane::Main, |its: &Pool| Ok(its.api.id()))?;
        id.map(number).ok_or_else(|| Failure::new(MDG_EBUSY, "this process is no member yet"))
    })
}

/// The ids of all living members, in the order in which they joined, as far as there is room for `room`. They are those of now: of events
/// that mdg_pool_next() has not taken, too. Does not block.
///
/// Returns how many members there are, or MDG_EINVAL (`ids` is NULL and `room` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_members(pool: mdg_pool, ids: *mut i64, room: usize) -> i64 {
    count(|| {
        let all = with(pool, Lane::Main, |its: &Pool| {
            Ok(its.api.view(|view| view.members.keys().map(|id| number(*id)).collect::<Vec<_>>()))
        })?;
        let bytes: Vec<u8> = all.iter().take(room).flat_map(|id| id.to_ne_bytes()).collect();
        if room > 0 {
            // SAFETY: the program vouches for its buffer of `room` numbers, and no more are written.
            unsafe { memory(ids.cast(), bytes.len()) }?.fill(&bytes);
        }
        Ok(all.len() as i64)
    })
}

/// The rank of a member of a pool with a size: the one of its launcher, or, once all have joined, that in the order of joins. Does not block.
///
/// Returns the rank, or MDG_ERANK (it has none), MDG_EGONE (there is no such member), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_rank(pool: mdg_pool, member: i64) -> c_int {
    status(|| {
        let rank = of_member(pool, member, |member| member.rank)?;
        let rank = rank.and_then(|rank| c_int::try_from(rank).ok());
        rank.ok_or_else(|| Failure::new(MDG_ERANK, format!("member {member} has no rank")))
    })
}

/// Copies where a member is, `host@site`, to `buf`, with a nul, cut to `len` bytes. Does not block.
///
/// Returns the text's length, or MDG_EGONE (there is no such member), MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_location(pool: mdg_pool, member: i64, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let location = of_member(pool, member, |member| member.location.clone())?;
        // SAFETY: the program vouches for its buffer.
        unsafe { give_text(buf, len, &location) }
    })
}

/// Copies what a member brought along to `buf`, cut to `len` bytes. Does not block.
///
/// Returns the blob's length, or MDG_EGONE (there is no such member), MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_blob(pool: mdg_pool, member: i64, buf: *mut c_void, len: usize) -> i64 {
    count(|| {
        let blob = of_member(pool, member, |member| member.blob.clone())?;
        // SAFETY: the program vouches for its buffer.
        unsafe { give_bytes(buf, len, &blob) }
    })
}

/// Wants to win the election `name`, and waits at most `timeout_ns` nanoseconds until somebody has won it. All candidates must say the same
/// of what comes after the winner: MDG_POOL_FOLLOWED or MDG_POOL_FOR_LIFE. Never two are winners at once, in the order of the pool's events.
/// Where `number` is not NULL, the number of the election goes there: a later winner has a higher one.
/// Behind MDG_ETIMEDOUT this process is a candidate still, and may have won: the next call with this name goes on with that.
///
/// Returns the winner's id, which may be one's own, or MDG_EMISMATCH (others said something else of what comes after the winner),
/// MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED (this process has left), MDG_EBUSY (1,024 elections), MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE,
/// MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_elect(
    pool: mdg_pool,
    name: *const c_char,
    after: c_int,
    timeout_ns: i64,
    number: *mut u64,
) -> i64 {
    count(|| {
        if after != MDG_POOL_FOLLOWED && after != MDG_POOL_FOR_LIFE {
            return Err(Failure::new(MDG_EINVAL, format!("{after} does not say what comes after a winner")));
        }
        // SAFETY: the program vouches for its text.
        let (name, timeout_ns) = (unsafe { text(name, "`name`") }?, time(timeout_ns)?);
        let for_life = after == MDG_POOL_FOR_LIFE;
        let (winner, election) =
            with(pool, Lane::Main, |its: &Pool| its.call(|api| api.elect(name, for_life, deadline(timeout_ns))))?;
        if let Ok(place) = Place::new(number, "`number`") {
            // SAFETY: the program vouches for its pointers.
            unsafe { place.put(election) };
        }
        Ok(self::number(winner))
    })
}

/// Waits at most `timeout_ns` nanoseconds (0: only looks) until the election `name` has a winner, and is no candidate.
///
/// Returns the winner's id, or MDG_ETIMEDOUT, MDG_ELOST, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_winner(pool: mdg_pool, name: *const c_char, timeout_ns: i64) -> i64 {
    count(|| {
        // SAFETY: the program vouches for its text.
        let (name, timeout_ns) = (unsafe { text(name, "`name`") }?, time(timeout_ns)?);
        let winner = with(pool, Lane::Main, |its: &Pool| its.call(|api| api.winner(name, deadline(timeout_ns))))?;
        Ok(number(winner.0))
    })
}

/// Sends `value`, a text of at most 4,096 bytes, to the `many` members at `to`, or to all if `many` is 0, and waits at most `timeout_ns`
/// nanoseconds until it has its place in the order. They find it by mdg_pool_next().
///
/// Returns 0, or MDG_EGONE (one of them is no member), MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE,
/// MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_signal(
    pool: mdg_pool,
    to: *const i64,
    many: usize,
    value: *const c_char,
    timeout_ns: i64,
) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its text.
        let (value, timeout_ns) = (unsafe { text(value, "`value`") }?, time(timeout_ns)?);
        let bytes = many.checked_mul(8).ok_or_else(|| Failure::new(MDG_EINVAL, "more members than memory"))?;
        // SAFETY: the program vouches for its buffer until this returns.
        let ids = unsafe { memory(to.cast(), bytes) }?;
        let ids = ids.bytes().chunks_exact(8).map(|id| i64::from_ne_bytes(id.try_into().unwrap_or_default()));
        let to = ids.map(member_of).collect::<Result<Vec<u64>, Failure>>()?;
        with(pool, Lane::Main, |its: &Pool| its.call(|api| api.signal(&to, value, deadline(timeout_ns))))?;
        Ok(MDG_OK)
    })
}

/// Sets the attribute `key` of the pool, or with `own` of this member, to the `len` bytes (4,096 at most) at `value`, or takes it away if
/// `value` is NULL, and waits at most `timeout_ns` nanoseconds until that has its place in the order.
///
/// Returns 0, or MDG_EBUSY (the pool is full), MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_set(
    pool: mdg_pool,
    own: c_int,
    key: *const c_char,
    value: *const c_void,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its text, and for its buffer until this returns.
        let (key, bytes) = unsafe { (text(key, "`key`")?, memory(value, len)?) };
        let value = (!value.is_null()).then(|| bytes.bytes());
        let timeout_ns = time(timeout_ns)?;
        with(pool, Lane::Main, |its: &Pool| its.call(|api| api.set(own != 0, key, value, deadline(timeout_ns))))?;
        Ok(MDG_OK)
    })
}

/// Copies the attribute `key` of a member, or of the pool (MDG_POOL_ITSELF), to `buf`, cut to `len` bytes. Does not block.
///
/// Returns the value's length, or MDG_EGONE (there is no such attribute, or member), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_get(
    pool: mdg_pool,
    member: i64,
    key: *const c_char,
    buf: *mut c_void,
    len: usize,
) -> i64 {
    count(|| {
        // SAFETY: the program vouches for its text.
        let key = unsafe { text(key, "`key`") }?;
        let value = if member == MDG_POOL_ITSELF {
            with(pool, Lane::Main, |its: &Pool| Ok(its.api.view(|view| view.attributes.get(key).cloned())))?
        } else {
            of_member(pool, member, |member| member.attributes.get(key).cloned())?
        };
        let value = value.ok_or_else(|| Failure::new(MDG_EGONE, format!("there is no attribute {key}")))?;
        // SAFETY: the program vouches for its buffer.
        unsafe { give_bytes(buf, len, &value) }
    })
}

/// Has a member checked that may be dead. If it is, or its host does not answer within 1.5 s, all are told that it died. Does not wait for
/// that, but at most `timeout_ns` nanoseconds until the question has its place in the order.
///
/// Returns 0, or MDG_EGONE (it is no member), MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_suspect(pool: mdg_pool, member: i64, timeout_ns: i64) -> c_int {
    asked(pool, timeout_ns, |api, deadline| match member_of(member) {
        Ok(member) => api.suspect(member, deadline),
        Err(_) => Err(madrigal::pools::Refusal::NoMember(u64::MAX).into()),
    })
}

/// Terminates the pool: nobody joins any more, and mdg_pool_wait_terminated() of all members returns. Waits at most `timeout_ns`
/// nanoseconds until that has its place in the order.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ELOST, MDG_EREFUSED, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_terminate(pool: mdg_pool, timeout_ns: i64) -> c_int {
    asked(pool, timeout_ns, |api, deadline| api.terminate(deadline))
}

/// Waits at most `timeout_ns` nanoseconds until a member has terminated the pool.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ELOST, MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_wait_terminated(pool: mdg_pool, timeout_ns: i64) -> c_int {
    asked(pool, timeout_ns, |api, deadline| api.wait_terminated(deadline))
}

/// Takes the next event into *event, and waits for it at most `timeout_ns` nanoseconds (0: only looks). The first ones tell of the members,
/// attributes and elections that there were when this process joined. Up to 16,384 events wait to be taken; of more the oldest are dropped
/// and counted (MDG_POOL_MISSED).
///
/// Returns the event's kind, or MDG_ETIMEDOUT, MDG_ELOST (no member any more: the text says why), MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE,
/// MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pool_next(pool: mdg_pool, timeout_ns: i64, event: *mut mdg_pool_event) -> c_int {
    status(|| {
        let (place, timeout_ns) = (Place::new(event, "`event`")?, time(timeout_ns)?);
        let took = with(pool, Lane::Main, |its: &Pool| its.next(timeout_ns))?;
        let mut filled = mdg_pool_event {
            number: took.number,
            member: took.member,
            count: took.count,
            kind: took.kind,
            text: [0; MDG_POOL_TEXT],
        };
        // SAFETY: the array has that room.
        unsafe { give_text(filled.text.as_mut_ptr(), MDG_POOL_TEXT, &took.text) }?;
        // SAFETY: the program vouches for its pointers.
        unsafe { place.put(filled) };
        Ok(took.kind)
    })
}

/// A descriptor that poll(2) shows as readable while mdg_pool_next() with the time 0 has an event, and sometimes when it has none. It is the
/// pool's: the program does not read, write or close it. Does not block.
///
/// Returns the descriptor, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_pool_fd(pool: mdg_pool) -> c_int {
    status(|| with(pool, Lane::Main, |its: &Pool| Ok(its.api.fd().as_raw_fd())))
}

/// A call that waits for its answer, and returns nothing else.
fn asked(
    pool: mdg_pool,
    timeout_ns: i64,
    call: impl FnOnce(&Membership, Option<u64>) -> Result<(), madrigal::pools::PoolError>,
) -> c_int {
    status(|| {
        let timeout_ns = time(timeout_ns)?;
        with(pool, Lane::Main, |its: &Pool| its.call(|api| call(api, deadline(timeout_ns))))?;
        Ok(MDG_OK)
    })
}

fn of_member<R>(pool: mdg_pool, id: i64, read: impl FnOnce(&Member) -> R) -> Result<R, Failure> {
    let member = member_of(id)?;
    with(pool, Lane::Main, |its: &Pool| {
        its.api.view(|view| view.members.get(&member).map(read)).ok_or_else(|| gone(id))
    })
}

fn member_of(id: i64) -> Result<u64, Failure> {
    u64::try_from(id).map_err(|_| gone(id))
}

fn gone(id: i64) -> Failure {
    Failure::new(MDG_EGONE, format!("the pool has no member {id}"))
}

fn number(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

/// Copies bytes to `len` bytes at `at`, as many as fit; how many there are.
///
/// # Safety
/// So many bytes may be written there, unless it is null.
unsafe fn give_bytes(at: *mut c_void, len: usize, bytes: &[u8]) -> Result<i64, Failure> {
    let fits = bytes.get(..len.min(bytes.len())).unwrap_or_default();
    if at.is_null() && len > 0 {
        return Err(Failure::new(MDG_EINVAL, "the buffer is NULL"));
    }
    // SAFETY: no more than `len`, and the caller's contract.
    unsafe { memory(at, fits.len()) }?.fill(fits);
    Ok(bytes.len() as i64)
}
