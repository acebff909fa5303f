#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nicforge_fuzz_bodies::extoll::body(data));
