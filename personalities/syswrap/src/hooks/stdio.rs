//! stdio on sockets, and functions with variable arguments.
//!
//! A FILE reads and writes inside the C library, where no hook sees it: its socket is a plain one from then on. Functions with
//! variable arguments cannot be written in Rust; their hooks are a few instructions that keep every argument where it is, run what
//! has to happen before, and go on in the C library.

use core::ffi::{c_char, c_int, c_void};

use madrigal_report::Reason;
use madrigal_sys::critical;

use super::{await_gate, data, forgetting, get, guarded_or, is_known, kernel_only, leaves_rest, sends_by_kernel};
use crate::io::recv;
use crate::lifecycle::fork;
use crate::outcome::{errno, restore_errno};
use crate::real;
use crate::state::slab::zeroed_pages;
use crate::state::sock::{self, mode};

unsafe extern "C" {
    fn ungetc(byte: c_int, file: *mut c_void) -> c_int;
}

/// fdopen(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
    // SAFETY: the program's arguments, passed on unchanged; so below.
    let real = || unsafe { real::fdopen()(fd, mode) };
    // SAFETY: the program vouches for the string, if it is mapped.
    let mode = unsafe { directions(mode) };
    if !mode.reads {
        before_printf(fd);
        return real();
    }
    if !leaves_rest(fd, Reason::Stdio) {
        if mode.writes {
            await_gate(fd);
        }
        return real();
    }
    if mode.writes || ends_otherwise(fd) {
        // glibc crashes where bytes were pushed back in front of an empty buffer, and then some are written; and an error it asks the
        // kernel for.
        kernel_only(fd, Reason::Stdio);
        await_gate(fd);
        return real();
    }
    let file = real();
    if !file.is_null() {
        // SAFETY: a FILE just opened.
        unsafe { push_rest(fd, file) };
    }
    file
}

/// What a FILE is for.
#[derive(Default)]
struct Directions {
    reads: bool,
    writes: bool,
}

/// What a FILE of this mode is for.
///
/// # Safety
/// What is mapped at `mode` is a string.
unsafe fn directions(mode: *const c_char) -> Directions {
    let mut known = Directions::default();
    for i in 0..8 {
        // SAFETY: the caller's contract: up to its end.
        match unsafe { get(mode.wrapping_add(i)) }.map_or(0, |byte| byte as u8) {
            0 | b',' => break,
            b'+' => return Directions { reads: true, writes: true },
            b'r' => known.reads = true,
            b'w' | b'a' => known.writes = true,
            _ => {}
        }
    }
    known
}

/// What is left in the ring of a peer that is gone goes in front of what the FILE reads, the last byte first (glibc takes back as many
/// as there are).
///
/// # Safety
/// `file` is open, and no other code knows it yet.
unsafe fn push_rest(fd: c_int, file: *mut c_void) {
    let size = guarded_or(None, || recv::readable(&*sock::enter(fd)?, fd)).unwrap_or(0);
    if let Some(bytes) = zeroed_pages(size.max(1)) {
        let saved = errno();
        let mut got = 0;
        while got < size {
            // SAFETY: memory of our own, of that size.
            match unsafe { data::recv(fd, bytes.add(got).cast(), size - got, libc::MSG_DONTWAIT) } {
                n @ 1.. => got += n as usize,
                _ => break,
            }
        }
        for i in (0..got).rev() {
            // SAFETY: a byte that was just received; the caller's contract.
            unsafe { ungetc(c_int::from(*bytes.add(i)), file) };
        }
        // SAFETY: our own mapping, which is no longer used.
        let _ = unsafe { rustix::mm::munmap(bytes.cast(), size.max(1)) };
        restore_errno(saved);
    }
    // What follows is the kernel's: no doorbell may be read as a byte.
    let rings_on = || {
        let Some(s) = sock::enter(fd) else { return false };
        recv::clear_bells(&s, fd);
        s.mode() == mode::SESSION && s.session.receives()
    };
    if guarded_or(false, rings_on) {
        // The peer is just ringing: it is waited for.
        kernel_only(fd, Reason::Stdio);
    }
}

/// fclose(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut c_void) -> c_int {
    // SAFETY: see `fdopen`.
    unsafe { closing_file(file, || real::fclose()(file)) }
}

/// freopen(3): the file that it opens gets the number of the descriptor that it closes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen(path: *const c_char, mode: *const c_char, file: *mut c_void) -> *mut c_void {
    // SAFETY: see `fdopen`.
    unsafe { closing_file(file, || real::freopen()(path, mode, file)) }
}

/// freopen(3) of large files.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(path: *const c_char, mode: *const c_char, file: *mut c_void) -> *mut c_void {
    // SAFETY: see `fdopen`.
    unsafe { closing_file(file, || real::freopen64()(path, mode, file)) }
}

/// backtrace_symbols_fd(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) {
    before_printf(fd);
    // SAFETY: see `fdopen`.
    unsafe { real::backtrace_symbols_fd()(addresses, count, fd) }
}

/// Makes a call that closes a FILE's descriptor, where close(2)'s hook does not see it.
///
/// # Safety
/// `file` is the program's open FILE, or null.
unsafe fn closing_file<T>(file: *mut c_void, real: impl FnOnce() -> T) -> T {
    if !file.is_null() {
        // SAFETY: the caller's contract.
        let fd = unsafe { real::fileno()(file) };
        if is_known(fd) {
            // What it has in memory it sends first, and may wait.
            return forgetting(fd, || critical::outside(real));
        }
    }
    real()
}

/// The C library is about to write to `fd` by itself.
fn before_printf(fd: c_int) {
    sends_by_kernel(fd, Reason::Stdio);
    // If the peer went otherwise than the kernel reports, the kernel's socket must be made to show it.
    if ends_otherwise(fd) {
        kernel_only(fd, Reason::Stdio);
    }
    await_gate(fd);
}

/// Whether it can be reconnected: its peer is gone, only we know what to report of that, and no other process holds it.
fn ends_otherwise(fd: c_int) -> bool {
    let check = || {
        let s = sock::enter(fd).filter(|s| s.mode() == mode::SESSION && s.is_sole())?;
        Some(s.session.is_gone() || s.session.has_pending_error())
    };
    is_known(fd) && guarded_or(false, || check().unwrap_or(false))
}

macro_rules! resume {
    ($($(#[doc = $doc:literal])* $name:ident: $before:ident($($arg:ident: $ty:ty),*) $body:block)*) => {
        $(
            extern "C" fn $before($($arg: $ty),*) -> *const c_void {
                $body
                real::$name() as *const c_void
            }

            $(#[doc = $doc])*
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                // rax counts vector registers of a variable argument list; 7 pushes and 128 bytes keep the stack aligned.
                core::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "sub rsp, 128",
                    "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                    "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                    "call {before}",
                    "mov r11, rax",
                    "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                    "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym $before,
                )
            }
        )*
    };
}

resume! {
    /// dprintf(3)
    dprintf: before_dprintf(fd: c_int) { before_printf(fd) }
    /// vdprintf(3)
    vdprintf: before_vdprintf(fd: c_int) { before_printf(fd) }
    /// `dprintf` with a checked format.
    __dprintf_chk: before_dprintf_chk(fd: c_int) { before_printf(fd) }
    /// `vdprintf` with a checked format.
    __vdprintf_chk: before_vdprintf_chk(fd: c_int) { before_printf(fd) }
    /// execl(3). Should it fail, sockets that close on exec stay with TCP.
    execl: before_execl() { guarded_or((), || fork::before_exec(false)) }
    /// execlp(3), as `execl`.
    execlp: before_execlp() { guarded_or((), || fork::before_exec(false)) }
    /// execle(3), as `execl`.
    execle: before_execle() { guarded_or((), || fork::before_exec(false)) }
}
