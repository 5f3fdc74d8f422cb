#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| glint_ost::fuzz::heat(bytes));
