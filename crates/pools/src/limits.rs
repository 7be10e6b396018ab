//! What names, texts and counts of a pool may be. Both a program's side and the state machine check them: what others send is not trusted.

use crate::record::{Entry, Refusal};

/// The longest name of a pool, an election or an attribute, in bytes.
pub const NAME: usize = 64;
/// The longest text of a signal, blob of a member, or value of an attribute, in bytes.
pub const TEXT: usize = 4096;
/// The longest location of a member, in bytes.
pub const LOCATION: usize = 256;
/// The most members of a pool.
pub const MEMBERS: usize = 4096;
/// The most elections of a pool.
pub const ELECTIONS: usize = 1024;
/// The most bytes that a pool's blobs, attributes, names and locations have together: a snapshot of it is one request to a store.
pub const BYTES: usize = 1 << 20;
/// What an entry of a list costs beside its bytes, as [`BYTES`] counts.
pub const ENTRY: usize = 32;

/// Whether a name is one: 1 to [`NAME`] letters, digits and `.`, `_`, `-`, `:`, `@` of ASCII.
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@".contains(&byte);
    (1..=NAME).contains(&name.len()) && name.bytes().all(fits)
}

/// Whether what an entry brings along fits; one that does is shorter than a frame may be.
pub fn check(entry: &Entry) -> Result<(), Refusal> {
    let too_long = match entry {
        Entry::Join { location, blob, .. } if blob.len() > TEXT || location.len() > LOCATION => {
            format!("a member brings at most {TEXT} bytes along")
        }
        Entry::Elect { name, .. } => return check_name(name),
        Entry::Signal { to, text } if text.len() > TEXT || to.len() > MEMBERS => {
            format!("a signal is a text of {TEXT} bytes at most")
        }
        Entry::Set { key, value, .. } => {
            check_name(key)?;
            if value.as_ref().is_none_or(|value| value.len() <= TEXT) {
                return Ok(());
            }
            format!("a value has {TEXT} bytes at most")
        }
        _ => return Ok(()),
    };
    Err(Refusal::Invalid(too_long))
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if is_name(name) {
        return Ok(());
    }
    let cut: String = name.chars().take(NAME).collect();
    Err(Refusal::Invalid(format!("`{cut}` is no name: 1 to {NAME} letters, digits and . _ - : @")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{LONGEST_REQUEST, Request, encode};

    #[test]
    fn what_fits_the_limits_fits_a_frame() {
        let name = "n".repeat(NAME);
        let largest = [
            Entry::Join { size: Some(9), rank: Some(9), location: "l".repeat(LOCATION), blob: vec![1; TEXT] },
            Entry::Elect { name: name.clone(), for_life: true },
            Entry::Signal { to: vec![u64::MAX; MEMBERS], text: "t".repeat(TEXT) },
            Entry::Set { own: true, key: name.clone(), value: Some(vec![1; TEXT]) },
        ];
        for entry in largest {
            assert_eq!(check(&entry), Ok(()));
            let request = Request { number: u64::MAX, pool: name.clone(), entry };
            assert!(encode(&request).len() < LONGEST_REQUEST);
        }
        let too_large = [
            Entry::Join { size: None, rank: None, location: String::new(), blob: vec![1; TEXT + 1] },
            Entry::Elect { name: "a b".to_owned(), for_life: true },
            Entry::Signal { to: vec![0; MEMBERS + 1], text: String::new() },
            Entry::Set { own: true, key: name, value: Some(vec![1; TEXT + 1]) },
        ];
        for entry in too_large {
            assert!(matches!(check(&entry), Err(Refusal::Invalid(_))), "{entry:?}");
        }
    }
}
