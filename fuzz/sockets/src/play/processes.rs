//! Threads and processes: how they begin, how they end.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering;
use std::ffi::CString;

use libc::pid_t;
use madrigal_fuzz_sockets::op::{ActorId, ExitHow, Op};
use madrigal_fuzz_sockets::via::{ForkVia, StormVia};

use crate::context::{Answer, StepContext, call};
use crate::state::{self, THREADS, state};
use crate::{actor, c, signals};

/// A step about processes.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::Thread { actor } => thread(context, actor),
        Op::Fork { actor, via } => fork(context, actor, via),
        Op::Child { via } => context.keep(Answer { ret: i64::from(child(via)), errno: 0 }),
        Op::Exec { plain } => {
            let image = Image::new(context.actor, context.step as u32 + 1, plain);
            context.call(|| image.exec());
        }
        Op::Spawn { actor, plain, fork } => spawn(context, actor, plain, fork),
        Op::WaitChild { actor } => {
            let child = state().region.cells[actor as usize].process.load(Ordering::SeqCst);
            context.keep(Answer { ret: i64::from(status_of(child)), errno: 0 });
        }
        Op::Exit { how } => end(how),
        Op::Cancel { actor } => cancel(context, actor),
        _ => {}
    }
}

fn thread(context: &StepContext, actor: ActorId) {
    let mut thread = 0;
    let value = ptr::without_provenance_mut::<c_void>(actor as usize);
    // SAFETY: the thread's main takes an actor's number.
    let answer = context.call(|| unsafe { c::pthread_create(&raw mut thread, ptr::null(), actor::thread, value) });
    if answer.ret == 0 {
        THREADS[actor as usize].store(thread, Ordering::SeqCst);
    }
}

fn cancel(context: &StepContext, actor: ActorId) {
    let thread = THREADS[actor as usize].load(Ordering::SeqCst);
    let mut value = ptr::null_mut();
    // SAFETY: a thread of this process that nobody has joined.
    unsafe {
        context.call(|| c::pthread_cancel(thread));
        context.note(call(|| c::pthread_join(thread, &raw mut value)));
    }
    context.record.add(u64::from(value.addr() == usize::MAX));
}

fn forked(via: ForkVia) -> pid_t {
    // SAFETY: the child goes on alone, with a C library that is ready for that.
    unsafe {
        match via {
            ForkVia::Fork => c::fork(),
            ForkVia::UnderscoreFork => c::_Fork(),
            ForkVia::Syscall => {
                let none = 0 as libc::c_long;
                c::syscall(libc::SYS_clone, libc::SIGCHLD as libc::c_long, none, none, none, none) as pid_t
            }
        }
    }
}

fn fork(context: &StepContext, actor: ActorId, via: ForkVia) {
    let answer = call(|| forked(via));
    if answer.ret == 0 {
        signals::begin_child();
        actor::child(actor);
    }
    context.keep(Answer { ret: i64::from(answer.ret < 0), errno: answer.errno });
}

/// The status of a child that has ended, or will.
fn status_of(child: pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: a status of our own.
    let done = unsafe { c::waitpid(child, &raw mut status, 0) };
    if done < 0 { -c::errno() } else { status }
}

/// The image of this program, to be executed for an actor.
struct Image {
    path: &'static CStr,
    args: Vec<CString>,
    env: Vec<*const c_char>,
}

impl Image {
    fn new(actor: ActorId, step: u32, plain: bool) -> Self {
        let state = state();
        let args = [
            state.image.to_owned(),
            state.path.to_owned(),
            CString::new(actor.to_string()).unwrap_or_default(),
            CString::new(step.to_string()).unwrap_or_default(),
            CString::new(state::slots()).unwrap_or_default(),
        ];
        Self { path: state.image, args: args.into(), env: environment(plain) }
    }

    fn list(&self) -> Vec<*const c_char> {
        self.args.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]).collect()
    }

    fn exec(&self) -> c_int {
        // SAFETY: null-terminated lists of texts that live until then.
        unsafe { c::execve(self.path.as_ptr(), self.list().as_ptr(), self.env.as_ptr()) }
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// This process's environment; `plain`: without what is preloaded.
fn environment(plain: bool) -> Vec<*const c_char> {
    let mut list = Vec::new();
    // SAFETY: a null-terminated list of texts; nobody changes it.
    unsafe {
        let mut at = environ;
        while !(*at).is_null() {
            if !plain || !CStr::from_ptr(*at).to_bytes().starts_with(b"LD_PRELOAD=") {
                list.push(*at);
            }
            at = at.add(1);
        }
    }
    list.push(ptr::null());
    list
}

fn spawn(context: &StepContext, actor: ActorId, plain: bool, fork: bool) {
    let image = Image::new(actor, 0, plain);
    let mut child: pid_t = 0;
    let answer = if fork {
        // SAFETY: the child does nothing but execute.
        let answer = call(|| unsafe { c::fork() });
        if answer.ret == 0 {
            image.exec();
            // SAFETY: no memory is passed.
            unsafe { c::_exit(127) };
        }
        Answer { ret: i64::from(answer.ret < 0), errno: answer.errno }
    } else {
        let (args, none) = (image.list(), ptr::null());
        // SAFETY: null-terminated lists of texts.
        call(|| unsafe {
            c::posix_spawn(&raw mut child, image.path.as_ptr(), none, ptr::null(), args.as_ptr(), image.env.as_ptr())
        })
    };
    context.keep(answer);
}

fn end(how: ExitHow) {
    // SAFETY: no memory is passed.
    unsafe {
        match how {
            ExitHow::Exit => c::exit(0),
            ExitHow::UnderscoreExit => c::_exit(0),
            ExitHow::Quick => c::quick_exit(0),
            ExitHow::Abort => c::abort(),
        }
    }
}

/// A child that does nothing with the sockets, to its end; its status.
pub(crate) fn child(via: StormVia) -> c_int {
    let args = [c"true".as_ptr(), ptr::null()];
    let (path, mut child) = (c"/bin/true".as_ptr(), 0);
    // SAFETY: null-terminated lists of texts; children end without coming back here.
    unsafe {
        match via {
            StormVia::System => return c::system(c"true".as_ptr()),
            StormVia::Popen => return c::pclose(c::popen(c"true".as_ptr(), c"r".as_ptr())),
            StormVia::Spawn => {
                c::posix_spawn(&raw mut child, path, ptr::null(), ptr::null(), args.as_ptr(), environ);
            }
            StormVia::Spawnp => {
                c::posix_spawnp(&raw mut child, c"true".as_ptr(), ptr::null(), ptr::null(), args.as_ptr(), environ);
            }
            StormVia::Vfork => child = vforked(path, &args),
            _ => {
                let parent = libc::getpid();
                child = c::fork();
                if child == 0 {
                    forked_child(via, parent);
                }
                if via == StormVia::Kill {
                    c::kill(child, libc::SIGKILL);
                }
            }
        }
    }
    status_of(child)
}

/// A frame of its own, so that the child disturbs nothing the parent still needs.
#[inline(never)]
fn vforked(path: *const c_char, args: &[*const c_char; 2]) -> pid_t {
    // SAFETY: the child only executes, or ends at once.
    unsafe {
        let child = c::vfork();
        if child == 0 {
            c::execv(path, args.as_ptr());
            c::_exit(127);
        }
        child
    }
}

fn forked_child(via: StormVia, parent: pid_t) -> ! {
    let args = [c"true".as_ptr(), ptr::null()];
    // SAFETY: null-terminated lists of texts; nothing comes after.
    unsafe {
        match via {
            StormVia::ForkClose => drop(c::close_range(3, u32::MAX, 0)),
            StormVia::ForkQuick => c::exit(0),
            StormVia::ForkExec => drop(c::execv(c"/bin/true".as_ptr(), args.as_ptr())),
            StormVia::Kill => {
                // If the parent is killed first, no other process would end this one, which holds its connections open.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                while libc::getppid() == parent {
                    libc::pause();
                }
            }
            _ => {}
        }
        c::_exit(0)
    }
}
