#![no_main]

// A sequence of messages of a client with a limited certificate, against a server in memory.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    glint_sim::fuzz::hostile(bytes);
});
