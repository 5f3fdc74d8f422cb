//! Requests to an OST, and its answers.

use super::*;

#[test]
fn requests_to_an_ost_and_its_answers() {
    let (object, offset, mtime) = (OBJECT, 1, Some(TIME));
    let requests = [
        OstRequest::Read { object, offset, len: 2 },
        OstRequest::Write { object, offset, mtime, kept: true },
        OstRequest::WriteExtents { object, count: 2, mtime, kept: true },
        OstRequest::Truncate { object, size: 1 },
        OstRequest::Fallocate { object, mode: 1, offset: 2, len: 3 },
        OstRequest::Sync { object },
        OstRequest::Stat { object },
        OstRequest::Seek { object, offset, hole: true },
        OstRequest::SetTime { object, mtime: TIME },
        OstRequest::Space,
        OstRequest::GrantSpace { bytes: 1 },
        OstRequest::Watch { object },
        OstRequest::Changed { object, watch: 1, round: 2, after: 3 },
    ];
    must_be(
        &requests,
        "
         Read 0007080102
         Write 0107080101060401
         WriteExtents 0207080201060401
         Truncate 03070801
         Fallocate 040708020203
         Sync 050708
         Stat 060708
         Seek 0707080101
         SetTime 0807080604
         Space 09
         GrantSpace 0a01
         Watch 0b0708
         Changed 0c0708010203",
    );
    let replies = [
        OstReply::Done,
        OstReply::Data(1),
        OstReply::Written(STATE),
        OstReply::Stat(Some(STATE)),
        OstReply::Offset(Some(1)),
        OstReply::Space(SPACE),
        OstReply::SpaceGranted { bytes: 1, object_bytes_max: 2 },
        OstReply::Watched { watch: 1 },
        OstReply::Changed { extents: [(1, 2), (3, 4), (0, 0), (0, 0)] },
        OstReply::Given { beside_users: true },
        OstReply::WasEmpty,
    ];
    must_be(
        &replies,
        "
         Done 00
         Data 0101
         Written 02010206040a06
         Stat 0301010206040a06
         Offset 040101
         Space 0501020304
         SpaceGranted 060102
         Watched 0701
         Changed 080102030400000000
         Given 0901
         WasEmpty 0a",
    );
}
