//! Objects that nobody reads, because they are known not to be what was written.

use super::{Apart, CallKind, Disk, FsResult, Kept, ObjectId, ObjectStore, Ost};

impl<D: Disk> Ost<D> {
    /// See [`ObjectStore::mark`]. `kept` is kept until that is done.
    pub(crate) async fn mark(
        &self,
        object: ObjectId,
        is_unreadable: bool,
        kept: Kept,
    ) -> FsResult<()> {
        let change = self.changing.after_others(object).await;
        let work = move |store: &ObjectStore<D>| store.mark(object, is_unreadable);
        let marked = self.apart(CallKind::Flush, Apart::keeping((kept, change)), work).await;
        self.outcome(object, marked)
    }

    /// Whether an object is known not to be what was written.
    pub(crate) async fn is_unreadable(&self, object: ObjectId) -> bool {
        let work = move |store: &ObjectStore<D>| store.is_unreadable(object);
        self.apart(CallKind::Short, Apart::default(), work).await.unwrap_or(false)
    }
}
