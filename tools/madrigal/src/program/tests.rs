//! Which file is found, and whether it is fit.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Self {
        let path = std::env::temp_dir().join(format!("madrigal-program-{}-{what}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, mode: u32, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn programs_are_found_as_a_shell_finds_them() {
    let (one, two) = (Folder::new("one"), Folder::new("two"));
    one.file("p", 0o644, "");
    two.file("p", 0o755, "");
    one.file("q", 0o644, "");
    let path = format!("/nowhere:{}:{}", one.0.display(), two.0.display());
    let seek = |name: &str| find(OsStr::new(name), Some(OsStr::new(&path)));
    assert_eq!(seek("p"), Ok(two.0.join("p")));
    assert!(matches!(seek("q"), Err(NotFound::Forbidden(text)) if text.contains("chmod +x")));
    assert!(matches!(seek("r"), Err(NotFound::Missing(text)) if text.contains("PATH=/nowhere")));
    assert!(matches!(seek("/nowhere/r"), Err(NotFound::Missing(_))));
    assert!(matches!(seek(""), Err(NotFound::Missing(_))));
    assert!(matches!(seek("/"), Err(NotFound::Forbidden(text)) if text.contains("directory")));
    assert!(find(OsStr::new("sh"), None).is_ok());
}

#[test]
fn of_a_script_the_interpreter_counts() {
    let folder = Folder::new("script");
    let sh = find(OsStr::new("sh"), None).unwrap();
    assert_eq!(judge(&sh, None), Fitness::Fit);
    let foreign = folder.file("foreign", 0o755, header(2, 1, 4242));
    let direct = folder.file("direct", 0o755, format!("#!{}\n", foreign.display()));
    let by_env = folder.file("by-env", 0o755, "#!/usr/bin/env foreign\n");
    let remark = Remark { file: foreign, why: Plain::Machine(4242) };
    assert!(remark.to_string().contains("machine 4242"));
    let path = Some(folder.0.as_os_str());
    assert_eq!(judge(&direct, None), Fitness::Unfit(remark));
    assert!(matches!(judge(&by_env, path), Fitness::Unfit(Remark { why: Plain::Machine(4242), .. })));
    assert_eq!(judge(&folder.file("text", 0o755, "echo no first line"), None), Fitness::Fit);
}

#[test]
fn other_machines_are_told_from_ours() {
    let folder = Folder::new("elf");
    let why = |name: &str, head: Vec<u8>| match judge(&folder.file(name, 0o755, head), None) {
        Fitness::Unfit(remark) => Some(remark.why),
        _ => None,
    };
    assert_eq!(why("i386", header(1, 1, 3)), Some(Plain::Bits32));
    assert_eq!(why("big", header(2, 2, 21)), Some(Plain::Machine(21)));
    // A header of our own kind without a loader.
    let mut own = std::fs::read("/proc/self/exe").unwrap();
    own.truncate(64);
    own[56..58].fill(0);
    assert_eq!(why("static", own.clone()), Some(Plain::Static));
    assert_eq!(why("short", own[..20].to_vec()), None);
}

/// The first 64 bytes of an ELF file.
fn header(class: u8, data: u8, machine: u16) -> Vec<u8> {
    let mut head = vec![0; 64];
    head[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, data]);
    let machine = if data == 2 { machine.to_be_bytes() } else { machine.to_le_bytes() };
    head[18..20].copy_from_slice(&machine);
    head
}
