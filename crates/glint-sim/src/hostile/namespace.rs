//! Questions of a check of the namespace, which shows all names: no server may answer them to who is
//! limited.

use super::{Dice, Hostile};
use glint_proto::Ino;
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{EntryPlace, NamespaceQuery};

impl<D: Dice> Hostile<D> {
    /// Any part of the namespace, or more of it than one may ask for at once.
    pub(super) fn namespace_query(&self) -> Option<NamespaceQuery> {
        Some(match self.roll(4)? {
            0 => NamespaceQuery::Inodes(Ino(self.number()?)),
            1 => NamespaceQuery::Entries(Vec::new()),
            2 => NamespaceQuery::Entries(self.ino()?.key().to_vec()),
            _ => {
                let (parent, cookie) = (self.ino()?, self.number()?);
                let place = EntryPlace { parent, cookie, name: self.name()?.to_vec() };
                let count = self.pick(&[0, 1, CHECKED_RECORDS_MAX + 1])?;
                NamespaceQuery::Again { inodes: vec![self.ino()?; count], entries: vec![place] }
            }
        })
    }
}
