#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| glint_client::fuzz::layout(bytes));
