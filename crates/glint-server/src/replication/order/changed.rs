//! What a request changes: the range of its object, the parts of that range, and their bytes.

use glint_proto::chain::Touched;
use glint_proto::{Bulk, FsResult, OstRequest};

/// Bulk that is given to several members.
#[derive(Clone, Copy)]
pub(in crate::replication) struct Data<'a>(pub(in crate::replication) Option<&'a [u8]>);

impl<'a> Data<'a> {
    pub(in crate::replication) fn bulk(self) -> Bulk<'a> {
        self.0.map_or(Bulk::None, Bulk::Out)
    }
}

/// Range of its object that a request changes; `None` if it changes none. See [`parts`].
pub(in crate::replication) fn touched(
    request: &OstRequest,
    data: Data<'_>,
) -> FsResult<Option<Touched>> {
    let cover = request.changed(data.0.unwrap_or_default())?.cover();
    let touched = request.object().zip(cover);
    Ok(touched.map(|(object, (start, end))| Touched { object, start, end }))
}

/// Parts of its object that a request changes, of which `touched` is the whole range.
pub(in crate::replication) fn parts<'a>(
    request: &OstRequest,
    data: Data<'a>,
    touched: Option<Touched>,
) -> impl Iterator<Item = Touched> + Clone + 'a {
    let ranges = touched.and_then(|touched| {
        let ranges = request.changed(data.0.unwrap_or_default()).ok()?;
        Some(ranges.map(move |(start, end)| Touched { start, end, ..touched }))
    });
    ranges.into_iter().flatten()
}
