#![no_main]

use glint_proto::Extents;
use glint_proto::extents::put_extents;
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
    for count in 1..8 {
        if let Ok(extents) = Extents::parse(bytes, count) {
            let mut again = Vec::new();
            put_extents(extents, &mut again);
            assert_eq!(again, bytes);
        }
    }
});
