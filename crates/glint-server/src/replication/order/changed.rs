//! What a request changes: the range of its object, the parts of that range, and their bytes.

use glint_proto::chain::Touched;
use glint_proto::{Bulk, FsResult, OstRequest};
use std::sync::Arc;

/// Bulk that is given to several members.
#[derive(Clone, Copy)]
pub(in crate::replication) enum Data<'a> {
    None,
    /// Whoever keeps it copies it.
    Borrowed(&'a [u8]),
    /// The disk here and the connections to other members keep it without a copy.
    Shared(&'a Arc<Vec<u8>>),
}

impl<'a> Data<'a> {
    pub(in crate::replication) fn bulk(self) -> Bulk<'a> {
        match self {
            Data::None => Bulk::None,
            Data::Borrowed(data) => Bulk::Out(data),
            Data::Shared(data) => Bulk::Shared(data),
        }
    }
}

/// Range of its object that a request changes; `None` if it changes none. See [`parts`].
pub(in crate::replication) fn touched(
    request: &OstRequest,
    data: Data<'_>,
) -> FsResult<Option<Touched>> {
    let cover = request.changed(data.bulk().data())?.cover();
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
        let ranges = request.changed(data.bulk().data()).ok()?;
        Some(ranges.map(move |(start, end)| Touched { start, end, ..touched }))
    });
    ranges.into_iter().flatten()
}
