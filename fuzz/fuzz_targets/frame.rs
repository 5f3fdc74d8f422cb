#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| glint_proto::fuzz::frame(bytes));
