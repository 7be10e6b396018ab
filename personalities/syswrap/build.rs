//! Binds the library's calls of its own functions to themselves: a program may export functions of the same names.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
