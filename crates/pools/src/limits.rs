//! What names, texts and counts of a pool may be. Both a program's side and the state machine check them: what others send is not trusted.

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
