//! `include/madrigal-driver.h` in Rust: the same structures, member by member. The test below compares them.

use core::ffi::{c_char, c_int, c_void};

use libc::iovec;

/// The version of the interface.
pub(crate) const VERSION: u32 = 1;
/// The name of the variable.
pub(crate) const SYMBOL: &str = "madrigal_driver";
/// Room for the name of a driver.
pub(crate) const NAME_ROOM: usize = 32;
/// Room for a text that a driver writes.
pub(crate) const TEXT_ROOM: usize = 256;

/// Room to write shows by the descriptor.
pub(crate) const BY_OUTPUT: u32 = 1;
/// A look makes no system call.
pub(crate) const CHEAP: u32 = 2;

/// A listener of the driver's own.
#[repr(C)]
pub(crate) struct Listener([u8; 0]);

/// A connection of the driver's own.
#[repr(C)]
pub(crate) struct Connection([u8; 0]);

/// Where the driver runs.
#[repr(C)]
pub(crate) struct Place {
    pub(crate) size: u32,
    pub(crate) reserved: u32,
    pub(crate) directory: *const c_char,
}

pub(crate) type Usable = unsafe extern "C" fn(*const Place, *mut c_char) -> c_int;
pub(crate) type Listen = unsafe extern "C" fn(*const Place, *const c_char, *mut *mut Listener, *mut c_char) -> c_int;
pub(crate) type Accept = unsafe extern "C" fn(*mut Listener, *mut *mut Connection, *mut c_char) -> c_int;
pub(crate) type OfListener<R> = unsafe extern "C" fn(*mut Listener) -> R;
pub(crate) type Connect = unsafe extern "C" fn(*const Place, *const c_char, *mut *mut Connection) -> c_int;
pub(crate) type OfConnection<R> = unsafe extern "C" fn(*mut Connection) -> R;
pub(crate) type Woken = unsafe extern "C" fn(*mut Connection, c_int);
pub(crate) type Read = unsafe extern "C" fn(*mut Connection, *mut c_void, usize) -> isize;
pub(crate) type Write = unsafe extern "C" fn(*mut Connection, *const iovec, usize) -> isize;
pub(crate) type Packet = unsafe extern "C" fn(*mut Connection, *mut *const c_void, *mut usize) -> c_int;

/// What is read from the file before it is loaded.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(crate) abi: u32,
    pub(crate) size: u32,
    pub(crate) name: [u8; NAME_ROOM],
}

/// The variable that a driver defines.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    pub(crate) head: Head,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
    pub(crate) usable: Option<Usable>,
    pub(crate) listen: Option<Listen>,
    pub(crate) accept: Option<Accept>,
    pub(crate) listener_descriptor: Option<OfListener<c_int>>,
    pub(crate) listener_close: Option<OfListener<()>>,
    pub(crate) connect: Option<Connect>,
    pub(crate) connected: Option<OfConnection<c_int>>,
    pub(crate) descriptor: Option<OfConnection<c_int>>,
    pub(crate) woken: Option<Woken>,
    pub(crate) arm_read: Option<OfConnection<c_int>>,
    pub(crate) arm_write: Option<OfConnection<c_int>>,
    pub(crate) read: Option<Read>,
    pub(crate) write: Option<Write>,
    pub(crate) packet: Option<Packet>,
    pub(crate) release: Option<OfConnection<()>>,
    pub(crate) longest: Option<OfConnection<usize>>,
    pub(crate) close: Option<OfConnection<()>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// Every member of the header's structures, as a program in C prints them.
    #[test]
    fn the_header_has_the_same_layout() {
        macro_rules! members {
            ($($member:ident)*) => {{
                let ours = [$((stringify!($member), offset_of!(Driver, $member))),*];
                let printed = [$(concat!("    P(struct madrigal_driver, ", stringify!($member), ");\n")),*].concat();
                (ours, printed)
            }};
        }
        let (ours, printed) = members!(flags reserved usable listen accept listener_descriptor listener_close connect
            connected descriptor woken arm_read arm_write read write packet release longest close);
        let program = format!(
            "#include \"madrigal-driver.h\"\n#include <stdio.h>\n\
             #define P(type, member) printf(\"%s %zu\\n\", #member, offsetof(type, member))\n\
             int main(void)\n{{\n    P(struct madrigal_driver, abi);\n    P(struct madrigal_driver, size);\n    \
             P(struct madrigal_driver, name);\n{printed}    P(struct madrigal_place, size);\n    \
             P(struct madrigal_place, directory);\n    printf(\"all %zu %zu %d %d %d %u %u\\n\", \
             sizeof(struct madrigal_driver), sizeof(struct madrigal_place), MADRIGAL_DRIVER_ABI, MADRIGAL_NAME_ROOM, \
             MADRIGAL_TEXT_ROOM, MADRIGAL_BY_OUTPUT, MADRIGAL_CHEAP);\n    return 0;\n}}\n"
        );
        let head = [("abi", offset_of!(Head, abi)), ("size", offset_of!(Head, size)), ("name", offset_of!(Head, name))];
        let place = [("size", offset_of!(Place, size)), ("directory", offset_of!(Place, directory))];
        let mut expected = String::new();
        for (name, at) in head.iter().chain(&ours).chain(&place) {
            expected += &format!("{name} {at}\n");
        }
        let (driver, place) = (size_of::<Driver>(), size_of::<Place>());
        expected += &format!("all {driver} {place} {VERSION} {NAME_ROOM} {TEXT_ROOM} {BY_OUTPUT} {CHEAP}\n");
        assert_eq!(run(&program), expected);
    }

    fn run(program: &str) -> String {
        let out = std::env::temp_dir().join(format!("madrigal-header-{}", std::process::id()));
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
        let mut cc = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", include, "-x", "c", "-", "-o"])
            .arg(&out)
            .stdin(Stdio::piped())
            .spawn()
            .expect("cc");
        cc.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("cc reads");
        assert!(cc.wait().expect("cc ends").success());
        let printed = Command::new(&out).output().expect("it runs");
        std::fs::remove_file(out).expect("it is there");
        String::from_utf8(printed.stdout).expect("UTF-8")
    }
}
