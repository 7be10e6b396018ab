//! Copies from and to a program's memory. They stop where the memory ends, as those of a system call do (`EFAULT`), without a signal.
//!
//! The copy is one function of known extent, and so is the read of a word. A fault inside raises `SIGSEGV` or `SIGBUS` as usual. The
//! caller's handler must call [`mend`], which recognises the place and makes the function return with what it had copied. The caller
//! installs that handler: without one a bad address ends the process, as it would anyway.

use core::mem::MaybeUninit;

/// Copies `n` bytes; returns how many were surely copied. Less than `n`: one of the addresses behind them is bad.
///
/// # Safety
/// Ranges that are mapped belong to the caller: it may read the source, and write to the target, and they do not overlap. Others may
/// change the source meanwhile.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, n: usize) -> usize {
    // SAFETY: the caller's contract; the function touches nothing else.
    unsafe { copy_or_stop(to, from, n) }
}

/// Reads a value; `None`: the address is bad.
///
/// # Safety
/// If it is mapped, the caller may read it, and any bytes are a `T`.
#[inline]
pub unsafe fn read<T: Copy>(from: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    if let 4 | 8 = size_of::<T>() {
        // SAFETY: the caller's contract.
        let word = unsafe {
            if size_of::<T>() == 4 { word_or_stop_of_4(from.cast()) } else { word_or_stop_of_8(from.cast()) }
        };
        // SAFETY: the lower bytes of the word are the value's, and any are a `T`.
        return (word.is_known != 0).then(|| unsafe { (&raw const word.value).cast::<T>().read_unaligned() });
    }
    // SAFETY: the caller's contract; the target is our own.
    let n = unsafe { copy(value.as_mut_ptr().cast(), from.cast(), size_of::<T>()) };
    // SAFETY: all of it was copied, and any bytes are a `T`.
    (n == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// Writes a value; false: the address is bad.
///
/// # Safety
/// If it is mapped, the caller may write there.
pub unsafe fn write<T: Copy>(to: *mut T, value: T) -> bool {
    // SAFETY: the caller's contract; the source is our own.
    unsafe { copy(to.cast(), (&raw const value).cast(), size_of::<T>()) == size_of::<T>() }
}

/// In a handler of `SIGSEGV` or `SIGBUS`: whether the fault was one of this module's, which then ends when the handler returns.
///
/// # Safety
/// `context` is what the kernel gave the handler (`SA_SIGINFO`).
pub unsafe fn mend(context: *mut core::ffi::c_void) -> bool {
    // SAFETY: the caller's contract.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let parts: [(usize, *const u8, *const u8); 2] = [
        (copy_or_stop as *const () as usize, &raw const copy_or_stop_ends, &raw const copy_or_stop_stops),
        (word_or_stop_of_4 as *const () as usize, &raw const word_or_stop_ends, &raw const word_or_stop_stops),
    ];
    let at = program_counter(context);
    let part = parts.iter().find(|(from, to, _)| (*from..to.addr()).contains(&(*at as usize)));
    if let Some((_, _, stops)) = part {
        *at = stops.addr() as _;
    }
    part.is_some()
}

#[cfg(target_arch = "x86_64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}

/// A word of memory, in two registers (the ABI's way of two words).
#[repr(C)]
struct Word {
    value: u64,
    /// 0: its address is bad.
    is_known: u64,
}

unsafe extern "C" {
    fn copy_or_stop(to: *mut u8, from: *const u8, n: usize) -> usize;
    static copy_or_stop_stops: u8;
    static copy_or_stop_ends: u8;
    fn word_or_stop_of_4(from: *const u8) -> Word;
    fn word_or_stop_of_8(from: *const u8) -> Word;
    static word_or_stop_stops: u8;
    static word_or_stop_ends: u8;
}

// Where it stops, everything before the target register has been copied; the caller's own is kept in r8.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".p2align 6",
    ".hidden copy_or_stop",
    ".hidden copy_or_stop_stops",
    ".hidden copy_or_stop_ends",
    ".global copy_or_stop",
    ".type copy_or_stop, @function",
    "copy_or_stop:",
    "mov r8, rdi",
    "mov rax, rdx",
    "cmp rdx, 64",
    "jb 3f",
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 2b",
    "3:",
    "test dl, 32",
    "jz 4f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "4:",
    "test dl, 16",
    "jz 5f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "5:",
    "test dl, 8",
    "jz 6f",
    "mov rcx, [rsi]",
    "mov [rdi], rcx",
    "add rsi, 8",
    "add rdi, 8",
    "6:",
    "test dl, 4",
    "jz 7f",
    "mov ecx, [rsi]",
    "mov [rdi], ecx",
    "add rsi, 4",
    "add rdi, 4",
    "7:",
    "test dl, 2",
    "jz 8f",
    "movzx ecx, word ptr [rsi]",
    "mov [rdi], cx",
    "add rsi, 2",
    "add rdi, 2",
    "8:",
    "test dl, 1",
    "jz 9f",
    "movzx ecx, byte ptr [rsi]",
    "mov [rdi], cl",
    "9:",
    "ret",
    ".global copy_or_stop_ends",
    "copy_or_stop_ends:",
    ".global copy_or_stop_stops",
    "copy_or_stop_stops:",
    "mov rax, rdi",
    "sub rax, r8",
    "ret",
    ".size copy_or_stop, . - copy_or_stop",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".p2align 6",
    ".hidden copy_or_stop",
    ".hidden copy_or_stop_stops",
    ".hidden copy_or_stop_ends",
    ".global copy_or_stop",
    ".type copy_or_stop, %function",
    "copy_or_stop:",
    "mov x8, x0",
    "mov x9, x2",
    "cmp x2, #64",
    "b.lo 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "sub x2, x2, #64",
    "cmp x2, #64",
    "b.hs 2b",
    "3:",
    "cbz x2, 5f",
    "4:",
    "ldrb w3, [x1]",
    "strb w3, [x0]",
    "add x1, x1, #1",
    "add x0, x0, #1",
    "subs x2, x2, #1",
    "b.ne 4b",
    "5:",
    "mov x0, x9",
    "ret",
    ".global copy_or_stop_ends",
    "copy_or_stop_ends:",
    ".global copy_or_stop_stops",
    "copy_or_stop_stops:",
    "sub x0, x0, x8",
    "ret",
    ".size copy_or_stop, . - copy_or_stop",
);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".p2align 4",
    ".hidden word_or_stop_of_4",
    ".hidden word_or_stop_of_8",
    ".hidden word_or_stop_stops",
    ".hidden word_or_stop_ends",
    ".global word_or_stop_of_4",
    ".type word_or_stop_of_4, @function",
    "word_or_stop_of_4:",
    "mov eax, [rdi]",
    "mov edx, 1",
    "ret",
    ".global word_or_stop_of_8",
    ".type word_or_stop_of_8, @function",
    "word_or_stop_of_8:",
    "mov rax, [rdi]",
    "mov edx, 1",
    "ret",
    ".global word_or_stop_ends",
    "word_or_stop_ends:",
    ".global word_or_stop_stops",
    "word_or_stop_stops:",
    "xor edx, edx",
    "ret",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".p2align 4",
    ".hidden word_or_stop_of_4",
    ".hidden word_or_stop_of_8",
    ".hidden word_or_stop_stops",
    ".hidden word_or_stop_ends",
    ".global word_or_stop_of_4",
    ".type word_or_stop_of_4, %function",
    "word_or_stop_of_4:",
    "ldr w0, [x0]",
    "mov x1, #1",
    "ret",
    ".global word_or_stop_of_8",
    ".type word_or_stop_of_8, %function",
    "word_or_stop_of_8:",
    "ldr x0, [x0]",
    "mov x1, #1",
    "ret",
    ".global word_or_stop_ends",
    "word_or_stop_ends:",
    ".global word_or_stop_stops",
    "word_or_stop_stops:",
    "mov x1, #0",
    "ret",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_place_is_copied_exactly() {
        let from: Vec<u8> = (0..400u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in (0..200).chain([255, 256, 257, 300]) {
            for place in [0, 1, 7, 15, 33] {
                let mut to = vec![0xee; 400];
                // SAFETY: both lie inside their vectors.
                let n = unsafe { copy(to.as_mut_ptr().add(place), from.as_ptr().add(place / 2), len) };
                assert_eq!(n, len);
                assert_eq!(to[place..place + len], from[place / 2..place / 2 + len]);
                assert!(to[..place].iter().chain(&to[place + len..]).all(|&b| b == 0xee));
            }
        }
    }

    /// Two pages; the second one is not accessible.
    fn half() -> *mut u8 {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        // SAFETY: fresh memory, which no other code knows.
        unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let pages = mmap_anonymous(core::ptr::null_mut(), 8192, prot, MapFlags::PRIVATE).unwrap();
            mprotect(pages.add(4096), 4096, MprotectFlags::empty()).unwrap();
            pages.cast()
        }
    }

    extern "C" fn handler(_: core::ffi::c_int, _: *mut libc::siginfo_t, context: *mut core::ffi::c_void) {
        // SAFETY: the kernel's own.
        if !unsafe { mend(context) } {
            // SAFETY: nothing else to do.
            unsafe { libc::abort() };
        }
    }

    #[test]
    fn a_bad_address_ends_the_copy_and_nothing_else() {
        // SAFETY: a handler that returns where the fault was ours, and ends the process where it was not.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()), 0);
        }
        let (half, mut own) = (half(), vec![7u8; 8192]);
        // SAFETY: `half` is ours up to its middle; the rest is what is tested.
        unsafe {
            for (offset, len, least) in [(0, 8192, 4096), (4090, 100, 0), (4000, 4192, 64), (4096, 1, 0)] {
                let there = copy(half.add(offset), own.as_ptr(), len);
                let back = copy(own.as_mut_ptr(), half.add(offset), len);
                let most = 4096usize.saturating_sub(offset);
                assert!(
                    (least..=most).contains(&there) && (least..=most).contains(&back),
                    "{offset} {len}: {there} {back}"
                );
            }
            for bad in [0usize, 8, usize::MAX, 0xdead_beef_0000_0000, usize::MAX / 2 + 1] {
                assert_eq!(read(bad as *const u64), None, "{bad:x}");
                assert_eq!(read(bad as *const u32), None, "{bad:x}");
                assert_eq!(read(bad as *const [u32; 3]), None, "{bad:x}");
                assert!(!write(bad as *mut u8, 1), "{bad:x}");
            }
            assert_eq!(read(own.as_ptr()), Some(7));
            assert_eq!(read(own.as_ptr().add(1).cast()), Some(0x0707_0707u32));
            assert_eq!(read(own.as_ptr().add(1).cast()), Some(0x0707_0707_0707_0707u64));
            for (offset, whole) in [(4092, true), (4093, false), (4095, false)] {
                half.add(4092).cast::<u32>().write(5);
                assert_eq!(read(half.add(offset).cast::<u32>()), whole.then_some(5), "{offset}");
            }
        }
    }
}
