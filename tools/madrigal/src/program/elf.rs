//! Executable files: what stands in an ELF header about the loader, the machine, and Go (elf(5)).

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Why a program runs plain, or partly so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    /// No loader, so nothing to preload with.
    Static,
    /// The same, made by Go.
    StaticGo,
    /// Go with a loader: it loads the library, but makes its system calls itself.
    DynamicGo,
    /// It looks for data races, and would report what is none; the library keeps out of its way.
    ThreadSanitizer,
    /// It becomes another user.
    Suid(u32),
    /// It becomes another group.
    Sgid(u32),
    /// It gains capabilities.
    Capabilities,
    /// 32-bit.
    Bits32,
    /// Of another processor (`e_machine`) or byte order.
    Machine(u16),
    /// Another C library; its loader's path.
    Loader(String),
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STATIC: &str = "is statically linked and loads no library";
        const SECURE: &str = "and the loader preloads nothing into such programs";
        const PLAIN: &str = ": it runs without madrigal, its connections stay with TCP";
        match self {
            Self::Static => write!(f, "{STATIC}{PLAIN}"),
            Self::StaticGo => write!(f, "is a Go program, {STATIC}{PLAIN}"),
            Self::DynamicGo => write!(
                f,
                "is a Go program: connections that Go code makes use raw system calls, cannot be seen and stay with TCP; \
                 those of C code in it are looked after"
            ),
            Self::ThreadSanitizer => write!(
                f,
                "is built with ThreadSanitizer, which would not see how bytes in shared memory order its threads{PLAIN}"
            ),
            Self::Suid(uid) => write!(f, "is SUID (it becomes user {uid}), {SECURE}{PLAIN}"),
            Self::Sgid(gid) => write!(f, "is SGID (it becomes group {gid}), {SECURE}{PLAIN}"),
            Self::Capabilities => write!(f, "has file capabilities, {SECURE}{PLAIN}"),
            Self::Bits32 => write!(f, "is a 32-bit program, and the library is a 64-bit one{PLAIN}"),
            Self::Machine(machine) => write!(f, "is built for another processor ({}){PLAIN}", name_of(*machine)),
            Self::Loader(loader) if loader.contains("ld-musl") => {
                write!(f, "uses the C library musl, and the library is built for glibc{PLAIN}")
            }
            Self::Loader(loader) => {
                write!(f, "uses another C library than the library was built for (its loader is {loader}){PLAIN}")
            }
        }
    }
}

/// What keeps the library out of the program `file`, if anything does. `None` also for what is no ELF file.
pub(super) fn judge(file: &Path) -> Option<Plain> {
    let own = Elf::open(Path::new("/proc/self/exe"))?;
    let elf = Elf::open(file)?;
    if elf.class != own.class {
        return Some(if elf.class == CLASS32 { Plain::Bits32 } else { Plain::Machine(elf.machine) });
    }
    if elf.data != own.data || elf.machine != own.machine {
        return Some(Plain::Machine(elf.machine));
    }
    let go = elf.is_go();
    match elf.loader() {
        // A loader run by hand honours LD_PRELOAD and has no loader itself.
        None if is_glibc(&file.to_string_lossy()) => None,
        None => Some(if go { Plain::StaticGo } else { Plain::Static }),
        Some(loader) if !is_glibc(&loader) => Some(Plain::Loader(loader)),
        Some(_) if go => Some(Plain::DynamicGo),
        Some(_) => elf.names(THREAD_SANITIZER).then_some(Plain::ThreadSanitizer),
    }
}

/// The loader of a program that has one, by its path.
pub(crate) fn loader(file: &Path) -> Option<String> {
    Elf::open(file).filter(|elf| elf.class != CLASS32)?.loader()
}

/// Whether ThreadSanitizer looks for data races in the program `file`.
pub(crate) fn detects_races(file: &Path) -> bool {
    Elf::open(file).is_some_and(|elf| elf.class != CLASS32 && elf.names(THREAD_SANITIZER))
}

/// Whether a loader is glibc's, on any processor.
fn is_glibc(loader: &str) -> bool {
    let name = loader.rsplit('/').next().unwrap_or_default();
    ["ld-linux", "ld64.so", "ld.so.1", "ld-2."].iter().any(|prefix| name.starts_with(prefix))
}

fn name_of(machine: u16) -> String {
    let known = [(3, "x86"), (8, "MIPS"), (21, "PowerPC"), (22, "s390"), (40, "ARM"), (62, "x86-64"), (183, "AArch64")];
    let name = known.iter().chain(&[(243, "RISC-V")]).find(|(number, _)| *number == machine);
    name.map_or_else(|| format!("machine {machine}"), |(_, name)| (*name).to_owned())
}

const CLASS32: u8 = 1;
const PT_INTERP: u32 = 3;
/// Longest table read; real ones are far smaller.
const MAX_TABLE: usize = 1 << 20;
/// Longest list of names read: those of the symbols of the largest programs.
const MAX_NAMES: usize = 64 << 20;
/// What a program built with it calls, or has.
const THREAD_SANITIZER: &[u8] = b"__tsan_init";

/// The head of an ELF file of this machine's byte order and 64 bits; of others only what identifies them.
struct Elf {
    file: File,
    head: [u8; 64],
    class: u8,
    data: u8,
    machine: u16,
}

impl Elf {
    fn open(path: &Path) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let mut head = [0; 64];
        file.read_exact(&mut head).ok()?;
        let [0x7f, b'E', b'L', b'F', class, data, ..] = head else { return None };
        let machine = [head[18], head[19]];
        let machine = if data == 2 { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
        Some(Self { file, head, class, data, machine })
    }

    /// The path of its loader; `None`: it has none.
    fn loader(&self) -> Option<String> {
        let headers = self.table(u64_at(&self.head, 32)?, u16_at(&self.head, 54)?, u16_at(&self.head, 56)?)?;
        let interp = headers.iter().find(|h| u32_at(h, 0) == Some(PT_INTERP))?;
        let text = self.read(u64_at(interp, 8)?, usize::try_from(u64_at(interp, 32)?).ok()?)?;
        Some(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
    }

    /// Whether one of its sections is of those the Go linker writes.
    fn is_go(&self) -> bool {
        let names = self.section_names().unwrap_or_default();
        names.split(|&b| b == 0).any(|name| name == b".go.buildinfo" || name == b".note.go.buildid")
    }

    /// Whether a function of this name is among those the loader is to find, here or elsewhere.
    fn names(&self, function: &[u8]) -> bool {
        let names = self.dynamic_names().unwrap_or_default();
        names.split(|&b| b == 0).any(|name| name == function)
    }

    /// The names of its dynamic symbols.
    fn dynamic_names(&self) -> Option<Vec<u8>> {
        let (sections, names) = (self.sections()?, self.section_names()?);
        let name = |section: &[u8]| names.get(u32_at(section, 0)? as usize..)?.split(|&b| b == 0).next();
        let strings = sections.iter().find(|section| name(section) == Some(b".dynstr"))?;
        self.read_up_to(MAX_NAMES, u64_at(strings, 24)?, usize::try_from(u64_at(strings, 32)?).ok()?)
    }

    fn sections(&self) -> Option<Vec<Vec<u8>>> {
        self.table(u64_at(&self.head, 40)?, u16_at(&self.head, 58)?, u16_at(&self.head, 60)?)
    }

    fn section_names(&self) -> Option<Vec<u8>> {
        let sections = self.sections()?;
        let names = sections.get(usize::from(u16_at(&self.head, 62)?))?;
        self.read(u64_at(names, 24)?, usize::try_from(u64_at(names, 32)?).ok()?)
    }

    fn table(&self, at: u64, size: u16, count: u16) -> Option<Vec<Vec<u8>>> {
        let (size, count) = (usize::from(size), usize::from(count));
        if size < 56 {
            return None;
        }
        Some(self.read(at, size * count)?.chunks_exact(size).map(<[u8]>::to_vec).collect())
    }

    fn read(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        self.read_up_to(MAX_TABLE, at, len)
    }

    fn read_up_to(&self, most: usize, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; Some(len).filter(|&len| len <= most)?];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
