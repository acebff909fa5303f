//! Sets the soname of the shared library: the name that a program records and the loader looks for.
//! It ends with the major version, so that a program never starts with a library of another one.

fn main() {
    let soname = concat!("libnicforge.so.", env!("CARGO_PKG_VERSION_MAJOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    println!("cargo::rerun-if-changed=build.rs");
}
