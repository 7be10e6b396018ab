//! Sockets as FILEs.

use core::ffi::c_char;

use madrigal_fuzz_sockets::op::{FileMode, Op, Slot};
use madrigal_fuzz_sockets::via::FileVia;

use crate::context::{Answer, StepContext, call};
use crate::{c, memory, state};

/// A step about FILEs.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::Fdopen { slot, file, mode } => open(context, slot, file, mode),
        Op::FileWrite { file, len, via } => with(context, file, |f| write(context, file, f, len as usize, via)),
        Op::FileRead { file, len, via } => with(context, file, |f| read(context, file, f, len as usize, via)),
        Op::FileClose { file } => with(context, file, |f| {
            state::set_file(file, core::ptr::null_mut());
            // SAFETY: an open FILE, used by nobody from now on.
            context.call(|| unsafe { c::fclose(f) });
        }),
        _ => {}
    }
}

fn with(context: &StepContext, file: Slot, f: impl FnOnce(*mut libc::FILE)) {
    let file = state::file(file);
    if file.is_null() {
        context.keep(Answer { ret: -1, errno: libc::EBADF });
    } else {
        f(file);
    }
}

fn open(context: &StepContext, slot: Slot, file: Slot, mode: FileMode) {
    let mode = match mode {
        FileMode::Read => c"r",
        FileMode::Write => c"w",
        FileMode::Both => c"r+",
    };
    let fd = state::fd(slot);
    c::set_errno(0);
    // SAFETY: a mode the C library knows.
    let opened = unsafe { c::fdopen(fd, mode.as_ptr()) };
    context.keep(Answer { ret: if opened.is_null() { -1 } else { 0 }, errno: c::errno() });
    if !opened.is_null() {
        state::set_file(file, opened);
        state::set_fd(slot, -1);
    }
}

fn write(context: &StepContext, slot: Slot, file: *mut libc::FILE, len: usize, via: FileVia) {
    let data = memory::bytes(len);
    context.prepare(slot, 0, data);
    // SAFETY: an open FILE and memory of our own.
    unsafe {
        c::clearerr(file);
        context.call(|| match via {
            FileVia::Formatted => i64::from(c::fprintf(file, c"%.*s".as_ptr(), len as i32, data.as_ptr())),
            FileVia::Character => data.iter().map(|byte| i64::from(c::fputc(i32::from(*byte), file) >= 0)).sum(),
            _ => c::fwrite(data.as_ptr().cast(), 1, len, file) as i64,
        });
        context.note(call(|| c::fflush(file)));
    }
    context.sent(slot, 0, len);
}

fn read(context: &StepContext, slot: Slot, file: *mut libc::FILE, len: usize, via: FileVia) {
    let room = memory::bytes(len + 1);
    c::set_errno(0);
    // SAFETY: an open FILE and memory of our own.
    let got = unsafe {
        c::clearerr(file);
        match via {
            FileVia::Line => {
                let line = c::fgets(room.as_mut_ptr().cast::<c_char>(), len as i32 + 1, file);
                if line.is_null() { 0 } else { libc::strlen(line) }
            }
            FileVia::Character => {
                let next = || u8::try_from(c::fgetc(file)).ok();
                room[..len].iter_mut().map_while(|place| next().map(|byte| *place = byte)).count()
            }
            _ => c::fread(room.as_mut_ptr().cast(), 1, len, file),
        }
    };
    // SAFETY: an open FILE.
    let (end, error) = unsafe { (c::feof(file) != 0, c::ferror(file) != 0) };
    context.keep(Answer { ret: got as i64, errno: 0 });
    context.record.add(u64::from(end));
    context.record.add(if error { 1 + c::errno() as u64 } else { 0 });
    context.received(slot, &room[..got], true);
}
