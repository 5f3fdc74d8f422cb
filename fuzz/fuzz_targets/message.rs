#![no_main]

use glint_proto::message::{Reply, Request, decode, encode};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = decode::<Request>(bytes) {
        let mut again = Vec::new();
        encode(&request, &mut again).unwrap();
        assert_eq!(decode::<Request>(&again).unwrap(), request);
    }
    if let Ok(reply) = decode::<Reply>(bytes) {
        let mut again = Vec::new();
        encode(&reply, &mut again).unwrap();
        assert_eq!(decode::<Reply>(&again).unwrap(), reply);
    }
});
