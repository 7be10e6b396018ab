//! The library to preload: its path, and the environment that loads it; and the provider of libfabric.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// As installed, and as built.
const NAMES: [&str; 2] = ["libmadrigal-syswrap.so", "libmadrigal_syswrap.so"];
/// Relative to the directory of this program.
const PLACES: [&str; 3] = ["", "../lib", "../lib/madrigal"];

/// The provider of libfabric, as installed and as built, and where it is.
const PROVIDER: &str = "libmadrigal-fi.so";
const PROVIDER_PLACES: [&str; 2] = ["", "../lib/libfabric"];

/// The provider's path, if it was built.
pub(crate) fn find_provider() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folders = PROVIDER_PLACES.iter().map(|place| own.parent().unwrap_or(Path::new("/")).join(place));
    let mut found = folders.filter(|folder| folder.join(PROVIDER).exists());
    found.find_map(|folder| folder.canonicalize().ok()).map(|folder| folder.join(PROVIDER))
}

/// The library's path, or what is wrong and what to type.
pub(crate) fn find() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| format!("cannot find out where this program is: {e}"))?;
    find_from(own.parent().unwrap_or(Path::new("/")))
}

fn find_from(own: &Path) -> Result<PathBuf, String> {
    let all = PLACES.iter().flat_map(|place| NAMES.iter().map(move |name| own.join(place).join(name)));
    let found = all.clone().find_map(|path| path.canonicalize().ok().filter(|real| real.is_file()).map(|_| path));
    let Some(path) = found else {
        return Err(format!(
            "the library {} is neither in {} nor in ../lib or ../lib/madrigal from there: build it with `make build`, \
             or install it with `make install`",
            NAMES[0],
            own.display()
        ));
    };
    let path =
        path.parent().and_then(|dir| dir.canonicalize().ok()).map_or(path.clone(), |dir| dir.join(name_of(&path)));
    match path.as_os_str().as_bytes().iter().find(|b| b" :\t\n".contains(b)) {
        Some(_) => Err(format!(
            "cannot preload {}: LD_PRELOAD takes spaces and colons for separators. Install Madrigal where the path has none: \
             make install PREFIX=$HOME/.local",
            path.display()
        )),
        None => Ok(path),
    }
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// The value of `LD_PRELOAD` with the library first, once, and what the user has there behind it.
pub(crate) fn preload(library: &Path, users: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().as_bytes().to_vec();
    for other in without_ours(users) {
        value.push(b':');
        value.extend_from_slice(other);
    }
    OsString::from_vec(value)
}

/// The value of `LD_PRELOAD` without the library; `None` when nothing is left.
pub(crate) fn no_preload(users: Option<&OsStr>) -> Option<OsString> {
    let rest: Vec<&[u8]> = without_ours(users).collect();
    (!rest.is_empty()).then(|| OsString::from_vec(rest.join(&b':')))
}

/// The value of `ASAN_OPTIONS` with which a program built with AddressSanitizer by gcc starts, though its runtime is not the first library.
/// The runtime checks this because an earlier library may replace malloc; ours does not. A value of the user's has priority.
pub(crate) fn asan_options(users: Option<&OsStr>) -> OsString {
    const ORDER: &str = "verify_asan_link_order";
    let users = users.unwrap_or_default().as_bytes();
    if users.windows(ORDER.len()).any(|part| part == ORDER.as_bytes()) {
        return OsStr::from_bytes(users).to_owned();
    }
    let separator: &[u8] = if users.is_empty() { b"" } else { b":" };
    OsString::from_vec([ORDER.as_bytes(), b"=0", separator, users].concat())
}

fn without_ours(users: Option<&OsStr>) -> impl Iterator<Item = &[u8]> {
    let entries = users.unwrap_or_default().as_bytes().split(|b| b" :\t\n".contains(b));
    entries.filter(|entry| {
        let name = entry.rsplit(|&b| b == b'/').next().unwrap_or_default();
        !entry.is_empty() && !NAMES.iter().any(|ours| ours.as_bytes() == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_preload_is_kept_and_ours_is_there_once() {
        let lib = Path::new("/p/libmadrigal-syswrap.so");
        let with = |users: &str| preload(lib, Some(OsStr::new(users)));
        assert_eq!(preload(lib, None), "/p/libmadrigal-syswrap.so");
        assert_eq!(with("/a.so b.so"), "/p/libmadrigal-syswrap.so:/a.so:b.so");
        assert_eq!(with("/old/libmadrigal_syswrap.so:/a.so"), "/p/libmadrigal-syswrap.so:/a.so");
        assert_eq!(no_preload(Some(OsStr::new("/a.so:/p/libmadrigal-syswrap.so"))), Some("/a.so".into()));
        assert_eq!(no_preload(Some(OsStr::new("/p/libmadrigal-syswrap.so"))), None);
    }

    #[test]
    fn options_of_address_sanitizer_are_the_users_and_ours() {
        let with = |users: &str| asan_options(Some(OsStr::new(users)));
        assert_eq!(asan_options(None), "verify_asan_link_order=0");
        assert_eq!(with(""), "verify_asan_link_order=0");
        assert_eq!(with("detect_leaks=0"), "verify_asan_link_order=0:detect_leaks=0");
        assert_eq!(with("a=1:verify_asan_link_order=1"), "a=1:verify_asan_link_order=1");
    }

    #[test]
    fn the_library_is_looked_for_in_documented_places() {
        let root = std::env::temp_dir().join(format!("madrigal-find-{}", std::process::id()));
        let make = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        std::fs::create_dir_all(root.join("bin")).unwrap();
        let root_found = |own: &str| find_from(&root.join(own));
        assert!(root_found("bin").unwrap_err().contains("make build"));
        make("lib/madrigal/libmadrigal-syswrap.so");
        let found = root_found("bin").unwrap();
        assert!(found.ends_with("lib/madrigal/libmadrigal-syswrap.so") && !found.to_str().unwrap().contains(".."));
        make("bin/libmadrigal_syswrap.so");
        assert!(root_found("bin").unwrap().ends_with("bin/libmadrigal_syswrap.so"));
        make("bin/libmadrigal-syswrap.so");
        assert!(root_found("bin").unwrap().ends_with("bin/libmadrigal-syswrap.so"));
        make("a b/libmadrigal-syswrap.so");
        assert!(root_found("a b").unwrap_err().contains("PREFIX="));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
